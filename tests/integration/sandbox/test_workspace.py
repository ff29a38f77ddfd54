"""Workspaces: deterministic packing, safe unpacking, restored tests and configuration."""

from __future__ import annotations

import errno
import io
import os
import stat
import subprocess
import sys
import tarfile
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.doubles import fake_blobs

from mulligan.policies.jobs.job import Output, Workspace
from mulligan.tasks.ports.errors import BadInput, MissingBlob, VerifierError
from mulligan.tasks.ports.verifiers import Candidate
from mulligan.workers.sandbox import private
from mulligan.workers.sandbox.diff import apply_diff, make_diff, read_diff
from mulligan.workers.sandbox.file_tree import (
    TreeNode,
    decode_tree,
    encode_tree,
    read_file,
    read_tree,
    write_tree,
)
from mulligan.workers.sandbox.layout import AnswerLayout
from mulligan.workers.sandbox.limits import Limits
from mulligan.workers.sandbox.private import private_directory, remove_abandoned
from mulligan.workers.sandbox.protection import Protection
from mulligan.workers.sandbox.workspace import (
    content_address,
    pack,
    place_answer,
    private_copy,
    restore_protected,
    unpack,
)

MEGABYTE = 1 << 20


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A workspace with every kind of file."""
    root = tmp_path / "source"
    (root / "pkg" / "empty").mkdir(parents=True)
    (root / "pkg" / "code.py").write_text("x = 1\n")
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    (root / "data.bin").write_bytes(bytes(range(256)))
    (root / "link").symlink_to("pkg/code.py")
    (root / "pkg" / "up").symlink_to("../data.bin")
    (root / "test_code.py").write_text("def test(): pass\n")
    return root


# -- pack and unpack -------------------------------------------------------------------------------


def test_unpacking_restores_what_was_packed(source: Path, tmp_path: Path) -> None:
    unpack(pack(source, max_bytes=MEGABYTE), tmp_path / "copy")
    assert read_tree(tmp_path / "copy") == read_tree(source)
    assert (tmp_path / "copy" / "run.sh").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "copy" / "pkg" / "empty").is_dir()


def test_packing_is_deterministic(source: Path) -> None:
    first = pack(source, max_bytes=MEGABYTE)
    for path in source.rglob("*"):
        os.utime(path, (1, 1), follow_symlinks=False)
    assert pack(source, max_bytes=MEGABYTE) == first
    assert content_address(first).startswith("sha256:")
    (source / "run.sh").chmod(0o644)
    assert pack(source, max_bytes=MEGABYTE) != first


def test_caches_and_version_control_are_not_packed(source: Path) -> None:
    before = pack(source, max_bytes=MEGABYTE)
    for name in (".git", ".venv", "__pycache__", ".mulligan", "pkg/__pycache__", ".pytest_cache"):
        (source / name).mkdir()
        (source / name / "file").write_text("x")
    assert pack(source, max_bytes=MEGABYTE) == before


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"workspace\.path: .*gone does not exist"):
        pack(tmp_path / "gone", max_bytes=MEGABYTE)
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="is not a directory"):
        pack(tmp_path / "file", max_bytes=MEGABYTE)


def test_a_workspace_over_the_cap_is_refused_with_both_sizes(source: Path) -> None:
    (source / "noise").write_bytes(os.urandom(20_000))
    with pytest.raises(BadInput, match=r"is \d+ bytes when packed, 10000 are allowed"):
        pack(source, max_bytes=10_000)
    (source / "huge").write_bytes(b"x" * 200_000)
    with pytest.raises(BadInput, match="100000 bytes of files"):
        pack(source, max_bytes=10_000)


@pytest.mark.parametrize(
    ("where", "target"),
    [
        ("bad", "/etc/passwd"),
        ("bad", "../outside"),
        ("pkg/bad", "../../outside"),
        ("bad", "pkg/../../outside"),
        ("bad", "dot/dot/../.."),
    ],
)
def test_a_link_that_leaves_the_workspace_is_refused(source: Path, where: str, target: str) -> None:
    (source / "dot").symlink_to(".")
    (source / where).symlink_to(target)
    with pytest.raises(BadInput, match=f"the link {where} -> .* leaves"):
        pack(source, max_bytes=MEGABYTE)


def test_a_device_is_refused(source: Path) -> None:
    os.mkfifo(source / "fifo")
    with pytest.raises(BadInput, match="fifo is neither a file, a directory nor a link"):
        pack(source, max_bytes=MEGABYTE)


def archive(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> bytes:
    """Return an archive that an attacker might write."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        info = tarfile.TarInfo(name)
        info.type, info.linkname = kind, target
        tar.addfile(info, io.BytesIO())
    return zlib.compress(buffer.getvalue())


@pytest.mark.parametrize(
    "data",
    [
        archive("../evil"),
        archive("/tmp/evil"),
        archive("a/../../evil"),
        archive("link", tarfile.SYMTYPE, "/etc"),
        archive("link", tarfile.SYMTYPE, "../.."),
        archive("hard", tarfile.LNKTYPE, "/etc/passwd"),
        archive("device", tarfile.CHRTYPE),
        archive("fifo", tarfile.FIFOTYPE),
        b"not an archive",
        zlib.compress(b"not an archive" * 100),
        archive("cut")[:-5],
    ],
)
def test_an_unsafe_archive_is_refused_and_nothing_is_written(data: bytes, tmp_path: Path) -> None:
    with pytest.raises(BadInput):
        unpack(data, tmp_path / "into")
    assert not (tmp_path / "into").exists()


def test_a_bomb_is_refused() -> None:
    data = encode_tree({"zeros": TreeNode("file", 0o644, bytes(5_000_000))})
    assert len(data) < 100_000
    with pytest.raises(BadInput, match="larger than"):
        decode_tree(data, max_bytes=1_000_000)


def test_no_file_is_written_through_a_link(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (root / "d").symlink_to(outside)
    with pytest.raises(BadInput, match="goes through the link d"):
        write_tree({"d/file": TreeNode("file", 0o644, b"x")}, root)
    assert list(outside.iterdir()) == []


# -- private copies --------------------------------------------------------------------------------


def test_a_private_copy_is_removed_afterwards(source: Path, tmp_path: Path) -> None:
    blobs = fake_blobs()
    workspace = Workspace(snapshot=blobs.put(pack(source, max_bytes=MEGABYTE)))
    root = tmp_path / "copies"
    with private_copy(workspace, blobs, root=root) as copy:
        work = copy.directory
        assert (work / "pkg" / "code.py").read_text() == "x = 1\n"
        (work / "pkg" / "new").mkdir()
        (work / "pkg" / "new").chmod(0o500)
        (work / "pkg" / "code.py").write_text("changed")
    assert list(root.iterdir()) == []
    with private_copy(workspace, blobs, root=root) as copy:
        assert (copy.directory / "pkg" / "code.py").read_text() == "x = 1\n"


def test_a_private_copy_is_removed_after_an_error(source: Path, tmp_path: Path) -> None:
    root = tmp_path / "copies"
    with (
        pytest.raises(RuntimeError),
        private_copy(Workspace(path=str(source)), None, root=root),
    ):
        raise RuntimeError
    assert list(root.iterdir()) == []


_HOLDER = """
import sys, time
from pathlib import Path
from typing import Any
from mulligan.workers.sandbox.private import private_directory
with private_directory(Path(sys.argv[1])) as work:
    (work / "secret.txt").write_text("x")
    (work / "closed").mkdir(mode=0o500)
    print(work.parent, flush=True)
    time.sleep(600)
"""


def test_a_private_copy_of_a_killed_process_is_removed_by_the_next(tmp_path: Path) -> None:
    root = tmp_path / "copies"
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(root)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        private = Path(holder.stdout.readline().strip())
        assert remove_abandoned(root) == 0, "its owner is running"
        assert private.is_dir()
    finally:
        holder.kill()
        holder.communicate()
    assert private.is_dir()
    with private_directory(root):
        assert not private.exists()
    assert list(root.iterdir()) == []


def test_only_abandoned_copies_are_removed(tmp_path: Path) -> None:
    root, outside = tmp_path / "copies", tmp_path / "outside"
    for folder in (root / "mulligan-made-just-now", root / "other", outside):
        folder.mkdir(parents=True)
    (root / "other" / "owner.lock").touch()
    (outside / "owner.lock").touch()
    (root / "mulligan-link").symlink_to(outside)
    with private_directory(root) as work:
        assert remove_abandoned(root) == 0
        assert work.is_dir()
    assert {path.name for path in root.iterdir()} == {
        "mulligan-made-just-now", "other", "mulligan-link"
    }  # fmt: skip
    assert (outside / "owner.lock").exists()


def test_a_copy_that_cannot_be_removed_leaves_its_surroundings_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a copy that something else holds, then the directory of all copies keeps its mode."""
    root = tmp_path / "copies"
    root.mkdir()
    root.chmod(0o777)
    rmdir = os.rmdir

    def busy(path: Any, **options: Any) -> None:
        if Path(path).parent == root:
            raise OSError(errno.EBUSY, "busy")
        rmdir(path, **options)

    monkeypatch.setattr(os, "rmdir", busy)
    with private_directory(root):
        pass
    assert stat.S_IMODE(root.stat().st_mode) == 0o777


def test_a_missing_snapshot_gives_no_verdict() -> None:
    workspace = Workspace(snapshot="sha256:none")
    with pytest.raises(MissingBlob), private_copy(workspace, fake_blobs()):
        pass
    with pytest.raises(VerifierError), private_copy(workspace, None):
        pass


# -- the answer ------------------------------------------------------------------------------------


def test_the_answer_is_written_to_its_file_without_fences(source: Path) -> None:
    workspace = Workspace(path=str(source), output_file="new/deep/answer.py")
    assert place_answer(source, workspace, "```python\nx = 2\n```") == ("fence",)
    assert (source / "new" / "deep" / "answer.py").read_text().strip() == "x = 2"
    assert place_answer(source, workspace, "x = 3\n") == ()
    text = "Run it:\n```sh\nmake\n```\n"
    assert place_answer(source, Workspace(path=str(source), output_file="README.MD"), text) == ()
    assert (source / "README.MD").read_text() == text
    assert (source / "new" / "deep" / "answer.py").read_text() == "x = 3\n"


def test_without_an_output_file_nothing_is_written(source: Path) -> None:
    before = read_tree(source)
    assert place_answer(source, Workspace(path=str(source)), "text") == ()
    assert read_tree(source) == before


@pytest.mark.parametrize("name", ["out/file.py", "file.py"])
def test_the_answer_cannot_leave_through_a_link(tmp_path: Path, name: str) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (root / "out").symlink_to(outside)
    (root / "file.py").symlink_to(outside / "file.py")
    with pytest.raises(BadInput, match=r"workspace\.output_file: .* leaves the workspace"):
        place_answer(root, Workspace(path=str(root), output_file=name), "x")
    assert list(outside.iterdir()) == []


def test_the_answer_cannot_replace_a_directory(source: Path) -> None:
    with pytest.raises(BadInput, match="is a directory"):
        place_answer(source, Workspace(path=str(source), output_file="pkg"), "x")


# -- protection ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "fits", "does_not"),
    [
        ("test_*.py", ["test_a.py", "deep/er/test_a.py"], ["a_test.py", "test_a.pyc"]),
        ("tests/**", ["tests/a", "tests/b/c.json"], ["tests", "src/tests/a"]),
        ("**/data/*.csv", ["data/a.csv", "x/y/data/a.csv"], ["data/b/a.csv"]),
        ("a?.txt", ["ab.txt"], ["a.txt", "a/.txt"]),
        ("/only_here.py", ["only_here.py"], ["deep/only_here.py"]),
        ("[x].py", ["[x].py"], ["x.py"]),
    ],
)
def test_protection_patterns_match_like_gitignore(
    pattern: str, fits: list[str], does_not: list[str]
) -> None:
    protection = Protection([pattern])
    assert [name for name in fits if not protection.covers(name)] == []
    assert [name for name in does_not if protection.covers(name)] == []


PLANTED = [
    "conftest.py", "pkg/conftest.py", "sitecustomize.py", "usercustomize.py", "pytest.ini",
    ".pytest.ini", "pytest.toml", "tox.ini", "setup.cfg", "pyproject.toml", "evil.pth",
    "test_new.py", "pkg/new_test.py", "tests/helper.py", "pytest.py", "_pytest/__init__.py",
    "__pycache__/conftest.py",
]  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_file_is_removed(source: Path, name: str) -> None:
    snapshot = pack(source, max_bytes=MEGABYTE)
    workspace = Workspace(path=str(source))
    (source / name).parent.mkdir(exist_ok=True)
    (source / name).write_text("planted")
    assert restore_protected(source, workspace, snapshot) == [name]
    assert not (source / name).exists()
    assert restore_protected(source, workspace, snapshot) == []


def replaced_by_text(path: Path) -> None:
    path.write_text("def test(): assert True\n")


def replaced_by_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("run.sh")


def replaced_by_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    "change",
    [
        replaced_by_text,
        replaced_by_link,
        replaced_by_directory,
        Path.unlink,
        lambda path: path.chmod(0o000),
    ],
)
def test_a_changed_test_is_restored(source: Path, change: Callable[[Path], None]) -> None:
    snapshot = pack(source, max_bytes=MEGABYTE)
    before = read_tree(source)
    change(source / "test_code.py")
    assert restore_protected(source, Workspace(path="x"), snapshot) == ["test_code.py"]
    assert read_tree(source) == before


def test_a_test_directory_replaced_by_a_link_is_restored(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "tests").mkdir(parents=True)
    (root / "tests" / "test_a.py").write_text("real")
    snapshot = pack(root, max_bytes=MEGABYTE)
    before = read_tree(root)
    (root / "tests").rename(root / "hidden")
    (root / "hidden" / "test_a.py").write_text("forged")
    (root / "tests").symlink_to("hidden")
    restore_protected(root, Workspace(path="x"), snapshot)
    assert not (root / "tests").is_symlink()
    assert (root / "tests" / "test_a.py").read_text() == "real"
    assert not (root / "hidden" / "test_a.py").exists()
    assert before.keys() <= read_tree(root).keys()


# -- diffs -----------------------------------------------------------------------------------------


def test_a_diff_carries_every_kind_of_change(source: Path, tmp_path: Path) -> None:
    snapshot = pack(source, max_bytes=MEGABYTE)
    (source / "data.bin").write_bytes(b"\0\xff" * 1000)
    (source / "run.sh").chmod(0o600)
    (source / "link").unlink()
    (source / "pkg" / "code.py").unlink()
    (source / "pkg" / "code.py").mkdir()
    (source / "pkg" / "code.py" / "now_a_directory").write_text("x")
    (source / "pkg" / "empty").rmdir()
    (source / "new é.txt").write_text("ü")
    (source / "pkg" / "up").unlink()
    (source / "pkg" / "up").symlink_to("code.py")

    diff = make_diff(snapshot, source)
    unpack(snapshot, tmp_path / "copy")
    applied = apply_diff(tmp_path / "copy", diff)

    assert read_tree(tmp_path / "copy") == read_tree(source)
    assert "new é.txt" in applied.paths
    assert "link" in applied.deleted
    assert make_diff(snapshot, source) == diff, "a diff is deterministic"


def test_an_unchanged_copy_has_an_empty_diff(source: Path) -> None:
    diff = read_diff(make_diff(pack(source, max_bytes=MEGABYTE), source))
    assert (diff.changed, diff.deleted, diff.refused) == ({}, (), ())


def test_unsupported_files_are_left_out_of_a_diff_and_named(source: Path) -> None:
    snapshot = pack(source, max_bytes=MEGABYTE)
    (source / "escape").symlink_to("/etc")
    os.mkfifo(source / "fifo")
    (source / "fine").write_text("x")
    diff = read_diff(make_diff(snapshot, source))
    assert set(diff.changed) == {"fine"}
    assert len(diff.refused) == 2


def test_a_diff_is_capped(source: Path) -> None:
    snapshot = pack(source, max_bytes=MEGABYTE)
    (source / "big").write_bytes(bytes(MEGABYTE))
    with pytest.raises(BadInput, match="are allowed"):
        make_diff(snapshot, source, max_bytes=MEGABYTE)


@pytest.mark.parametrize("data", [b"", archive("file"), archive("../x"), encode_tree({})])
def test_an_invalid_diff_is_refused(data: bytes, source: Path) -> None:
    before = read_tree(source)
    with pytest.raises(BadInput):
        apply_diff(source, data)
    assert read_tree(source) == before


NAMES = st.text("ab/", min_size=1, max_size=5).filter(
    lambda name: "//" not in name and not name.startswith("/") and not name.endswith("/")
)
FILES = st.dictionaries(NAMES, st.tuples(st.binary(max_size=20), st.sampled_from([0o644, 0o755])))


def write_files(root: Path, files: dict[str, tuple[bytes, int]]) -> None:
    """Write the files that can be written: a name may also be another's directory."""
    root.mkdir(parents=True, exist_ok=True)
    for name, (content, mode) in sorted(files.items()):
        path = root / name
        if not any(parent.is_file() for parent in path.parents) and not path.is_dir():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            path.chmod(mode)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(before=FILES, after=FILES)
def test_a_snapshot_and_a_diff_restore_any_tree(
    tmp_path_factory: pytest.TempPathFactory,
    before: dict[str, tuple[bytes, int]],
    after: dict[str, tuple[bytes, int]],
) -> None:
    root = tmp_path_factory.mktemp("any")
    write_files(root / "before", before)
    write_files(root / "after", after)
    snapshot = pack(root / "before", max_bytes=MEGABYTE)
    apply_diff(root / "before", make_diff(snapshot, root / "after"))
    assert read_tree(root / "before") == read_tree(root / "after")


# -- the layout of an answer -----------------------------------------------------------------------


def test_a_runner_s_edit_of_the_output_file_wins_over_its_printed_answer(source: Path) -> None:
    blobs = fake_blobs()
    snapshot = pack(source, max_bytes=MEGABYTE)
    (source / "answer.py").write_text("edited = True\n")
    (source / "conftest.py").write_text("planted = True\n")
    output = Output(text="I have edited the file.", diff=blobs.put(make_diff(snapshot, source)))
    workspace = Workspace(snapshot=blobs.put(snapshot), output_file="answer.py")
    candidate = Candidate(output=output, text=output.text, workspace=workspace)
    with AnswerLayout(blobs=blobs, limits=Limits()).lay_out(candidate) as laid:
        assert (laid.work / "answer.py").read_text() == "edited = True\n"
        assert not (laid.work / "conftest.py").exists()
        assert laid.restored == ("conftest.py",)
        assert laid.touched == ("answer.py", "conftest.py")


def test_a_directory_that_takes_long_to_remove_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a slow removal, then its owner goes on, and nobody else removes it meanwhile."""
    going_on, removed = threading.Event(), threading.Event()
    remove = private._remove

    def slowly(directory: Path) -> None:
        going_on.wait(60)
        remove(directory)
        removed.set()

    monkeypatch.setattr(private, "_remove", slowly)
    with private_directory(tmp_path) as work:
        (work / "file").touch()
    assert not work.parent.exists()
    assert len(list(tmp_path.iterdir())) == 1, "it has another name"
    assert remove_abandoned(tmp_path) == 0, "it is locked"
    going_on.set()
    assert removed.wait(60)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_became_a_pipe_or_a_link_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    (tmp_path / "file").write_bytes(b"12345")
    for name, problem in {"pipe": "regular", "link": "symbolic", "missing": "No such"}.items():
        with pytest.raises(OSError, match=problem):
            read_file(tmp_path / name)
    with pytest.raises(OSError, match="too large"):
        read_file(tmp_path / "file", max_bytes=4)
    assert read_file(tmp_path / "file", max_bytes=5) == b"12345"
