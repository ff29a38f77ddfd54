"""Trees that a program leaves behind cost a bounded amount of time and memory."""

from __future__ import annotations

import io
import os
import sys
import tarfile
import zlib
from pathlib import Path
from typing import Any

import pytest
from support.doubles import fake_blobs

from mulligan.policies.jobs.job import Message, Workspace
from mulligan.tasks.ports.errors import BadInput, RunnerError
from mulligan.tasks.ports.runners import Request
from mulligan.workers.runners.command import CommandRunner
from mulligan.workers.sandbox import file_tree
from mulligan.workers.sandbox.diff import make_diff, read_diff
from mulligan.workers.sandbox.file_tree import (
    MAX_DEPTH,
    TreeNode,
    TreeRefused,
    decode_tree,
    encode_tree,
    read_tree,
    write_tree,
)

FILE, LINK = TreeNode("file", 0o644, b"x"), TreeNode("link", 0o777, b"y")


def answer_of(code: str, folder: Path) -> RunnerError:
    (folder / "a.txt").write_text("text")
    argv: list[Any] = [sys.executable, "-I", "-c", code]
    runner = CommandRunner.from_options({"argv": argv}, blobs=fake_blobs())
    messages = (Message(role="user", content="x"),)
    with pytest.raises(RunnerError) as caught:
        runner.answer(Request(messages=messages, workspace=Workspace(path=str(folder))))
    return caught.value


def test_nested_folders_of_an_agent_are_a_refused_diff(tmp_path: Path) -> None:
    code = "import os\nfor _ in range(1200): os.mkdir('a'); os.chdir('a')"
    error = answer_of(code, tmp_path)
    assert "its changes cannot be stored: workspace: a/a/a/… is more than 100 levels" in str(error)
    assert not error.final


def test_a_sparse_file_of_an_agent_is_not_read(tmp_path: Path) -> None:
    error = answer_of("open('big', 'wb').truncate((1 << 30) - 1)", tmp_path)
    assert "more than the 209715200 bytes of files that are allowed" in str(error)
    assert "mulligan-" not in str(error)


def test_no_more_of_a_file_is_read_than_allowed(tmp_path: Path) -> None:
    with (tmp_path / "big").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(BadInput, match="more than the 1000 bytes"):
        read_tree(tmp_path, max_bytes=1000)
    (tmp_path / "big").write_bytes(b"x" * 600)
    (tmp_path / "other").write_bytes(b"x" * 400)
    assert len(read_tree(tmp_path, max_bytes=1000)) == 2
    with pytest.raises(BadInput, match="more than the 999 bytes"):
        read_tree(tmp_path, max_bytes=999)


def test_deep_trees_are_refused() -> None:
    allowed = "/".join(["a"] * MAX_DEPTH)
    assert decode_tree(encode_tree({allowed: FILE})) == {allowed: FILE}
    with pytest.raises(TreeRefused, match="levels deep"):
        decode_tree(encode_tree({f"{allowed}/a": FILE}))


def test_trees_of_too_many_entries_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_tree, "MAX_ENTRIES", 3)
    tree = {f"f{n}": FILE for n in range(4)}
    write_tree(tree, tmp_path)
    with pytest.raises(TreeRefused, match="more than 3 files"):
        read_tree(tmp_path, refused=[])
    with pytest.raises(TreeRefused, match="more than 3 files"):
        decode_tree(encode_tree(tree))


def test_each_parent_of_a_tree_is_checked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[Path] = []
    is_symlink = Path.is_symlink
    monkeypatch.setattr(Path, "is_symlink", lambda path: checked.append(path) or is_symlink(path))  # type: ignore[func-returns-value]
    folder = "/".join(["a"] * MAX_DEPTH)
    tree = {f"{folder}/f{n}": FILE for n in range(100)}
    write_tree(tree, tmp_path)
    assert len(checked) <= MAX_DEPTH + len(tree)


@pytest.mark.parametrize("kind", ["file", "link"])
def test_an_entry_below_a_file_or_a_link_of_its_tree_is_refused(kind: Any, tmp_path: Path) -> None:
    tree = {"a": TreeNode(kind, 0o644, b"x"), "a/b/c": FILE, "a/b/d": LINK}
    with pytest.raises(TreeRefused, match=f"goes through the {kind} a"):
        write_tree(tree, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_parent_that_a_link_replaced_is_checked_again(tmp_path: Path) -> None:
    tree = {"a/c": FILE, "./a": TreeNode("link", 0o777, b"y"), "a/d": LINK}
    with pytest.raises(TreeRefused, match="'a/d' goes through the link a"):
        write_tree(tree, tmp_path)
    with pytest.raises(TreeRefused, match="not a plain path"):
        decode_tree(encode_tree({"./a": FILE}))


def test_a_sparse_entry_of_an_archive_is_refused() -> None:
    info = tarfile.TarInfo("zeros")
    info.pax_headers = {"GNU.sparse.map": "0,0", "GNU.sparse.size": str(1 << 50)}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(info)
    with pytest.raises(TreeRefused, match="neither a file"):
        decode_tree(zlib.compress(buffer.getvalue()))


def test_one_closed_directory_does_not_lose_the_other_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "closed").mkdir()
    (tmp_path / "new").write_text("x")
    scandir = os.scandir

    def closed(path: Path) -> Any:
        if path.name == "closed":
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", closed)
    diff = read_diff(make_diff(encode_tree({}), tmp_path))
    assert diff.changed.keys() == {"closed", "new"}
    assert diff.refused == ("workspace: closed cannot be read: Permission denied",)
    with pytest.raises(TreeRefused, match="workspace: it cannot be read"):
        make_diff(encode_tree({}), tmp_path / "closed")
