"""No path leads out of the root, and changes are written whole or not at all."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from support.file_trees import snapshot

from mulligan.tasks.ports.appliers import EditConflict, EditRefused, FileChange
from mulligan.workers.edits.tree import confined_paths, write_changes
from mulligan.workers.edits.tree.write_changes import perform, put, remove_leftovers


@pytest.fixture
def root(tmp_path: Path) -> Path:
    inside = tmp_path / "root"
    inside.mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("secret")
    return inside


def files_in(folder: Path) -> dict[str, object]:
    return {name: file for name, file in snapshot(folder).items() if isinstance(file, tuple)}


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/etc/passwd",
        "../outside/secret",
        "a/../../outside/secret",
        "a/..",
        "a\0b",
        ".",
        "folder/",
        ".git/config",
        ".GIT/config",
        ".Git /config",
        ".git./config",
        ".g\u200cit/config",
        "GIT~1/config",
        "nested/.git/hooks/pre-commit",
        "nested/.git",
        ".mulligan/journal",
        ".MULLIGAN/journal",
        "mulligan.toml",
        "app/Mulligan.toml.",
        "\ud800",
    ],
)
def test_a_forbidden_path_is_refused(root: Path, path: str) -> None:
    with pytest.raises(EditRefused):
        confined_paths.read(root, path)
    with pytest.raises(EditRefused):
        perform(root, [FileChange(path=path, before=None, after=b"x")])
    assert files_in(root.parent) == {"outside/secret": (b"secret", 0o644)}


@pytest.mark.parametrize("path", [".gitignore", ".gitattributes", "a/.github/x.yml", "..a", "a b"])
def test_names_that_resemble_forbidden_ones_are_allowed(root: Path, path: str) -> None:
    perform(root, [FileChange(path=path, before=None, after=b"x")])
    assert (root / path).read_bytes() == b"x"


def test_a_link_is_never_followed(root: Path) -> None:
    (root / "folder").symlink_to(root.parent / "outside")
    (root / "file").symlink_to(root.parent / "outside" / "secret")
    (root / "dangling").symlink_to(root.parent / "outside" / "new")
    for path in ("folder/secret", "folder/new", "file", "dangling"):
        with pytest.raises(EditRefused, match="symbolic link"):
            confined_paths.read(root, path)
        with pytest.raises(EditRefused):
            perform(root, [FileChange(path=path, before=b"secret", after=b"x")])
        with pytest.raises(EditRefused):
            perform(root, [FileChange(path=path, before=None, after=b"x")])
    assert files_in(root.parent / "outside") == {"secret": (b"secret", 0o644)}


def test_a_folder_swapped_for_a_link_before_the_write_is_refused(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a folder that is swapped after the changes were checked and staged, when the file is
    renamed into place, the edit is refused and nothing outside changes."""
    (root / "folder").mkdir()
    (root / "folder" / "secret").write_text("secret")
    place = write_changes._place

    def swapped(where: Path, path: str, temporary: str) -> None:
        (root / "folder").rename(root / "away")
        (root / "folder").symlink_to(root.parent / "outside")
        place(where, path, temporary)

    monkeypatch.setattr(write_changes, "_place", swapped)
    with pytest.raises(EditRefused):
        perform(root, [FileChange(path="folder/secret", before=b"secret", after=b"mine")])
    assert files_in(root.parent / "outside") == {"secret": (b"secret", 0o644)}


def test_special_files_and_large_ones_are_refused(root: Path) -> None:
    os.mkfifo(root / "pipe")
    (root / "large").write_bytes(b"x" * 101)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(root / "socket"))
        for name in ("pipe", "socket"):
            with pytest.raises(EditRefused, match="special file"):
                confined_paths.read(root, name)
    with pytest.raises(EditRefused, match="over the cap of 100 bytes"):
        confined_paths.read(root, "large", max_bytes=100)
    with pytest.raises(EditRefused, match="over the cap of 100 bytes"):
        perform(root, [FileChange(path="new", before=None, after=b"x" * 101)], max_bytes=100)


def test_a_missing_file_is_refused_with_a_suggestion(root: Path) -> None:
    (root / "app").mkdir()
    (root / "app" / "parse.py").write_text("")
    with pytest.raises(EditRefused, match=r"does not exist \(did you mean app/parse.py\?\)"):
        confined_paths.read_existing(root, "app/prase.py")


def test_changes_are_written_with_their_modes_and_folders(root: Path) -> None:
    (root / "run.sh").write_text("old")
    (root / "run.sh").chmod(0o750)
    (root / "gone").write_text("gone")
    perform(
        root,
        [
            FileChange(path="run.sh", before=b"old", after=b"new"),
            FileChange(path="a/b/new", before=None, after=b"n"),
            FileChange(path="a/b/tool", before=None, after=b"t", mode=0o755),
            FileChange(path="gone", before=b"gone", after=None),
        ],
    )
    assert files_in(root) == {
        "run.sh": (b"new", 0o750),
        "a/b/new": (b"n", 0o644),
        "a/b/tool": (b"t", 0o755),
    }


def test_a_file_may_become_a_folder_and_back(root: Path) -> None:
    (root / "x").write_text("file")
    to_folder = [
        FileChange(path="x", before=b"file", after=None),
        FileChange(path="x/y/z", before=None, after=b"in"),
    ]
    to_file = [
        FileChange(path="x", before=None, after=b"file"),
        FileChange(path="x/y/z", before=b"in", after=None),
    ]
    perform(root, to_folder)
    assert files_in(root) == {"x/y/z": (b"in", 0o644)}
    perform(root, to_file)
    assert files_in(root) == {"x": (b"file", 0o644)}


@pytest.mark.parametrize(
    "stale",
    [
        FileChange(path="b", before=b"other", after=b"x"),
        FileChange(path="b", before=None, after=b"x"),
        FileChange(path="missing", before=b"m", after=b"x"),
        FileChange(path="b", before=b"other", after=None),
        FileChange(path="a", before=b"a", after=b"twice"),
    ],
    ids=["changed", "created", "deleted", "deleting", "twice"],
)
def test_one_stale_change_prevents_all_changes(root: Path, stale: FileChange) -> None:
    (root / "a").write_text("a")
    (root / "b").write_text("b")
    before = files_in(root)
    with pytest.raises(EditRefused) as refused:
        perform(root, [FileChange(path="a", before=b"a", after=b"A"), stale])
    assert stale.path == "a" or isinstance(refused.value, EditConflict)
    assert files_in(root) == before


@pytest.mark.parametrize("failing", range(4))
def test_a_failure_half_way_restores_every_file(
    root: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    """Given a disk that fails at the n-th rename, every file is as it was."""
    (root / "a").write_text("a")
    (root / "a").chmod(0o600)
    (root / "b").write_text("b")
    before = files_in(root)
    changes = [
        FileChange(path="a", before=b"a", after=b"A", mode=0o755),
        FileChange(path="b", before=b"b", after=None),
        FileChange(path="deep/er/c", before=None, after=b"c"),
        FileChange(path="d", before=None, after=b"d"),
        FileChange(path="e", before=None, after=b"e"),
    ]
    rename, calls = os.rename, iter(range(100))

    def failing_rename(*args: object, **kwargs: object) -> None:
        if next(calls) == failing:
            raise OSError(28, "No space left on device")
        rename(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "rename", failing_rename)
    with pytest.raises(EditRefused, match="No space left"):
        perform(root, changes)
    assert files_in(root) == before
    assert sorted(path.name for path in root.iterdir()) == ["a", "b"]


def test_put_is_idempotent_and_leftovers_are_removed(root: Path) -> None:
    for _ in range(2):
        put(root, "a/b", b"x", 0o700)
    assert files_in(root) == {"a/b": (b"x", 0o700)}
    (root / "a" / f"{write_changes.TEMPORARY_PREFIX}1").write_text("left by a killed process")
    remove_leftovers(root, ["a/b", "nowhere/c"])
    for _ in range(2):
        put(root, "a/b", None)
    assert files_in(root) == {}
