"""Edits on real trees: one commit each, exact rollbacks, and the user's git untouched."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from support.file_trees import Snapshot, change, die, git, in_child, snapshot, write_files
from support.waiting import wait_for

from mulligan.tasks.ports.appliers import EditConflict, EditRefused, FileChange
from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.edits.tree.edited_tree import EditedTree, TreeRollback
from mulligan.workers.edits.tree.shadow_repository import edit_ref, session_ref
from mulligan.workers.edits.tree.tree_lock import LockLost, TreeBusy
from mulligan.workers.edits.tree.undo import RollbackConflict

TEN = b"".join(b"line %d\n" % n for n in range(1, 11))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    root.mkdir()
    return root


@pytest.fixture
def tree(root: Path, tmp_path: Path) -> EditedTree:
    return EditedTree(root, tmp_path / "home", timeout=0)


def shadow(tree: EditedTree, *arguments: str) -> str:
    return git("--git-dir", str(tree.state / "git"), *arguments, cwd=tree.state)


def edit(tree: EditedTree, edit_id: str, *changes: FileChange, session: str = "s") -> None:
    tree.apply(edit_id, session, "auto", changes)


def edit_line(
    tree: EditedTree, edit_id: str, number: int, *, session: str = "s", path: str = "f"
) -> None:
    """Apply an edit of one line of a file."""
    lines = (tree.root / path).read_bytes().splitlines(keepends=True)
    lines[number - 1] = f"{edit_id}\n".encode()
    edit(tree, edit_id, change(tree.root, path, b"".join(lines)), session=session)


# -- exact rollbacks -------------------------------------------------------------------------------

FILES: dict[str, bytes | tuple[bytes, int]] = {
    "crlf.txt": b"one\r\ntwo\r\n",
    "no-newline.txt": b"one\ntwo",
    "empty": b"",
    "script.sh": (b"#!/bin/sh\n", 0o755),
    "private": (b"secret\n", 0o600),
    "odd": (b"odd\n", 0o2751),
    "image.png": b"\x89PNG\r\n\x1a\n\x00\xff",
    "latin1.txt": b"caf\xe9\n",
    "grüße/новый 文件.txt": b"hello\n",
    'quo"te\nnew line\\.txt': b"odd name\n",
    "deep/er/file.txt": b"deep\n",
    "-dash": b"dash\n",
    "untouched.txt": b"stays\n",
}


def every_kind_of_change(root: Path) -> list[FileChange]:
    """Return every kind of change of a file."""
    return [
        change(root, "crlf.txt", b"one\r\n2\r\n"),
        change(root, "no-newline.txt", b"one\ntwo\n"),
        change(root, "empty", b"no longer\n"),
        change(root, "script.sh", b"#!/bin/sh\nexit 1\n", 0o644),
        change(root, "private", b""),
        change(root, "odd", b"odd\n", 0o400),
        change(root, "image.png", b"\x00\x01\x02"),
        change(root, "latin1.txt", None),
        change(root, "grüße/новый 文件.txt", b"bye\n"),
        change(root, 'quo"te\nnew line\\.txt', b"still odd\n"),
        change(root, "deep/er/file.txt", None),
        change(root, "deep/er", b"a file in the place of its folder\n"),
        change(root, "-dash", b"dashed\n"),
        change(root, "new/folder/in/file.txt", b"new\n", 0o750),
        change(root, "new/empty", b""),
    ]


@pytest.mark.parametrize("how", ["edit", "session", "checkpoint"])
def test_a_rollback_restores_every_byte_and_mode(tree: EditedTree, root: Path, how: str) -> None:
    write_files(root, FILES)
    before = snapshot(root)
    edit(tree, "e1", *every_kind_of_change(root))
    assert (root / "new/folder/in/file.txt").stat().st_mode & 0o7777 == 0o750
    assert (root / "odd").stat().st_mode & 0o7777 == 0o400
    after = snapshot(root)
    rollbacks: dict[str, Callable[[], TreeRollback]] = {
        "edit": lambda: tree.rollback_edit("e1"),
        "session": lambda: tree.rollback_session("s"),
        "checkpoint": lambda: tree.rollback_to(0),
    }
    roll_back = rollbacks[how]
    done = roll_back()
    assert done.checkpoint is not None
    assert snapshot(root) == before
    # Repeating it is harmless and reported.
    again = roll_back()
    assert again.checkpoint is None
    assert again.paths == ()
    assert "nothing to roll back" in again.text
    assert snapshot(root) == before
    # The rollback itself can be undone.
    tree.rollback_to(1)
    assert snapshot(root) == after
    assert [c.state for c in tree.history()] == ["applied", "rolled_back", "applied"]
    assert shadow(tree, "fsck", "--strict", "--full") == ""


def test_a_commit_has_the_new_files_and_its_parent_the_old_ones(
    tree: EditedTree, root: Path
) -> None:
    write_files(root, {"a.txt": b"one\n", "b.txt": (b"b\n", 0o755), "other.txt": b"other\n"})
    first = tree.apply("e1", "tune.v1", "review", [change(root, "a.txt", b"two\n")])
    (root / "a.txt").write_bytes(b"three, by hand\n")
    second = tree.apply(
        "e2",
        "tune.v1",
        "auto",
        [change(root, "a.txt", b"four\n"), change(root, "b.txt", None)],
    )
    assert first.commit is not None
    assert second.commit is not None
    assert shadow(tree, "rev-parse", edit_ref("tune.v1", "e1")).strip() == first.commit
    assert shadow(tree, "rev-parse", session_ref("tune.v1")).strip() == second.commit
    trailers = shadow(tree, "log", "-1", "--format=%(trailers:only)", first.commit).split("\n")
    assert trailers[:3] == ["Edit-ID: e1", "Session-ID: tune.v1", "Risk-Tier: review"]
    assert shadow(tree, "show", f"{first.commit}^:a.txt") == "one\n"
    assert shadow(tree, "show", f"{second.commit}^:a.txt") == "three, by hand\n"
    assert shadow(tree, "ls-tree", f"{second.commit}^", "b.txt").startswith("100755")
    # Only files that edits touched are stored.
    assert shadow(tree, "ls-tree", "-r", "--name-only", second.commit) == "a.txt\n"
    assert shadow(tree, "show", f"{second.commit}:a.txt") == "four\n"


@pytest.mark.parametrize("name", ["a..b", "a.lock", "Ünï", "x.", "_-"])
def test_every_valid_id_is_a_ref(tree: EditedTree, root: Path, name: str) -> None:
    point = tree.apply(name, name, "auto", [change(root, "f", b"x\n")])
    assert shadow(tree, "rev-parse", edit_ref(name, name)).strip() == point.commit


@pytest.mark.parametrize("name", ["", "a b", "a\nTier: auto", "../x", "a/b"])
def test_invalid_ids_are_refused(tree: EditedTree, root: Path, name: str) -> None:
    with pytest.raises(BadInput, match="letters, digits"):
        tree.apply(name, "s", "auto", [change(root, "f", b"x\n")])


# -- refusals --------------------------------------------------------------------------------------


def test_nothing_is_written_if_a_file_has_changed_since_the_edit_was_computed(
    tree: EditedTree, root: Path
) -> None:
    write_files(root, {"a": b"a\n", "b": b"b\n"})
    changes = [change(root, "a", b"A\n"), change(root, "b", b"B\n")]
    (root / "b").write_bytes(b"by hand\n")
    before = snapshot(root)
    with pytest.raises(EditConflict, match="b: has changed"):
        edit(tree, "e1", *changes)
    assert snapshot(root) == before
    assert tree.history() == []


def test_links_are_refused(tree: EditedTree, root: Path, tmp_path: Path) -> None:
    write_files(tmp_path, {"outside/f": b"outside\n"})
    (root / "link").symlink_to(tmp_path / "outside/f")
    (root / "folder").symlink_to(tmp_path / "outside")
    for path in ("link", "folder/f"):
        with pytest.raises(EditRefused, match="link"):
            edit(tree, "e1", FileChange(path=path, before=b"outside\n", after=b"in\n"))
    # A rollback does not follow a link that replaced the edited file, either.
    write_files(root, {"f": b"one\n"})
    edit(tree, "e2", change(root, "f", b"two\n"))
    (root / "f").unlink()
    (root / "f").symlink_to(tmp_path / "outside/f")
    with pytest.raises(EditRefused, match="link"):
        tree.rollback_edit("e2")
    assert (tmp_path / "outside/f").read_bytes() == b"outside\n"


def test_a_lost_lease_stops_an_edit_before_its_first_file(tree: EditedTree, root: Path) -> None:
    write_files(root, {"f": b"one\n"})
    before = snapshot(root)

    def fail() -> None:
        raise LookupError("the lease was taken over")

    with pytest.raises(LookupError):
        tree.apply("e1", "s", "auto", [change(root, "new/f", b"x\n")], check=fail)
    assert snapshot(root) == before
    assert tree.history() == []
    assert tree.recover() is None
    edit(tree, "e1", change(root, "f", b"two\n"))
    with pytest.raises(LookupError):
        tree.rollback_edit("e1", check=fail)
    assert (root / "f").read_bytes() == b"two\n"


def test_an_edit_that_changes_nothing_is_refused(tree: EditedTree, root: Path) -> None:
    write_files(root, {"f": b"one\n"})
    with pytest.raises(EditRefused, match="changes nothing"):
        edit(tree, "e1", change(root, "f", b"one\n", 0o644))


def test_the_same_edit_twice_is_applied_once(tree: EditedTree, root: Path) -> None:
    write_files(root, {"f": b"one\n"})
    new_content = change(root, "f", b"two\n")
    edit(tree, "e1", new_content)
    edit(tree, "e1", new_content)
    assert len(tree.history()) == 1
    with pytest.raises(EditRefused, match="applied already"):
        edit(tree, "e1", change(root, "f", b"three\n"))
    tree.rollback_edit("e1")
    edit(tree, "e1", new_content)
    assert [c.state for c in tree.history()] == ["rolled_back", "applied", "applied"]


def test_an_unknown_edit_session_or_checkpoint_is_refused(tree: EditedTree, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no edit e9"):
        tree.rollback_edit("e9")
    with pytest.raises(BadInput, match="session nope"):
        tree.rollback_session("nope")
    with pytest.raises(BadInput, match="no checkpoint 7"):
        tree.rollback_to(7)
    with pytest.raises(BadInput, match="is not a folder"):
        EditedTree(tmp_path / "absent", tmp_path / "home")


# -- later changes ---------------------------------------------------------------------------------


def test_a_rollback_keeps_changes_on_other_lines(tree: EditedTree, root: Path) -> None:
    write_files(root, {"f": TEN})
    edit_line(tree, "e1", 2)
    edit_line(tree, "e2", 5, session="other")
    text = (root / "f").read_bytes()
    (root / "f").write_bytes(text.replace(b"line 9\n", b"by hand\n"))
    tree.rollback_edit("e1")
    expected = TEN.replace(b"line 5", b"e2").replace(b"line 9", b"by hand")
    assert (root / "f").read_bytes() == expected
    tree.rollback_session("other")
    assert (root / "f").read_bytes() == TEN.replace(b"line 9", b"by hand")


def test_a_later_edit_on_the_same_lines_is_a_conflict(tree: EditedTree, root: Path) -> None:
    write_files(root, {"f": TEN, "g": TEN})
    lines = TEN.replace(b"line 3\n", b"x\nline 3\n").replace(b"line 6\n", b"six\n")
    edit(tree, "e1", change(root, "f", lines), change(root, "g", b"g\n"))
    edit_line(tree, "e2", 7, session="other")
    before = snapshot(root)
    with pytest.raises(RollbackConflict) as refused:
        tree.rollback_edit("e1")
    (conflict,) = refused.value.conflicts
    assert (conflict.path, conflict.lines) == ("f", ((7, 7),))
    assert tuple(map(str, refused.value.problems)) == (
        "f, line 7: the same lines were changed (since then: edit e2 of session other)",
    )
    assert snapshot(root) == before
    # In reverse order it works.
    tree.rollback_edit("e2")
    tree.rollback_edit("e1")
    assert (root / "f").read_bytes() == TEN


@pytest.mark.parametrize(
    ("states", "later", "expected"),
    [
        ((b"one\n", b"two\n"), None, "f: was deleted"),
        ((None, b"new\n"), b"new\nand more\n", "f: was changed"),
        ((b"one\n", None), b"again\n", "f: was created again"),
        ((b"\0one", b"\0two"), b"\0three", "f: was changed"),
    ],
)
def test_a_change_that_cannot_be_merged_is_a_conflict(
    tree: EditedTree,
    root: Path,
    states: tuple[bytes | None, bytes | None],
    later: bytes | None,
    expected: str,
) -> None:
    before, after = states
    if before is not None:
        write_files(root, {"f": before})
    edit(tree, "e1", change(root, "f", after))
    if later is None:
        (root / "f").unlink()
    else:
        write_files(root, {"f": later})
    now = snapshot(root)
    with pytest.raises(RollbackConflict) as refused:
        tree.rollback_session("s")
    assert tuple(map(str, refused.value.problems)) == (expected,)
    assert snapshot(root) == now


def test_modes_are_merged_too(tree: EditedTree, root: Path) -> None:
    write_files(root, {"f": TEN, "g": TEN})
    edit(tree, "e1", change(root, "f", TEN, 0o755), change(root, "g", b"g\n"))
    write_files(root, {"f": (TEN + b"by hand\n", 0o755)})
    (root / "g").chmod(0o600)
    tree.rollback_edit("e1")
    assert snapshot(root) == {"f": (TEN + b"by hand\n", 0o644), "g": (TEN, 0o600)}
    edit(tree, "e2", change(root, "f", b"x\n", 0o755))
    (root / "f").chmod(0o700)
    with pytest.raises(RollbackConflict, match="its mode was changed to 700"):
        tree.rollback_edit("e2")


def test_a_file_restored_by_hand_counts_as_rolled_back(tree: EditedTree, root: Path) -> None:
    write_files(root, {"f": b"one\n"})
    edit(tree, "e1", change(root, "f", b"two\n"))
    (root / "f").write_bytes(b"one\n")
    assert tree.rollback_edit("e1").paths == ()
    assert [c.state for c in tree.history()] == ["rolled_back", "applied"]
    assert tree.rollback_edit("e1").checkpoint is None


def test_a_rollback_removes_only_empty_folders(tree: EditedTree, root: Path) -> None:
    edit(tree, "e1", change(root, "a/b/f", b"f\n"), change(root, "a/c/f", b"f\n"))
    write_files(root, {"a/c/mine": b"mine\n"})
    tree.rollback_edit("e1")
    assert sorted(snapshot(root)) == ["a", "a/c", "a/c/mine"]


def test_a_session_is_rolled_back_completely_or_not_at_all(tree: EditedTree, root: Path) -> None:
    write_files(root, {"f": TEN, "g": TEN})
    for number, path in ((1, "f"), (2, "g"), (3, "f"), (4, "g")):
        edit_line(tree, f"e{number}", number, path=path)
    write_files(root, {"g": (root / "g").read_bytes().replace(b"e4\n", b"by hand\n")})
    before = snapshot(root)
    with pytest.raises(RollbackConflict, match="g, line 4"):
        tree.rollback_session("s")
    assert snapshot(root) == before
    assert {c.state for c in tree.history()} == {"applied"}


def test_an_edit_id_of_two_sessions_needs_its_session(tree: EditedTree, root: Path) -> None:
    write_files(root, {"f": TEN})
    edit_line(tree, "e1", 2, session="one")
    edit_line(tree, "e1", 8, session="two")
    with pytest.raises(BadInput, match="sessions one, two"):
        tree.rollback_edit("e1")
    tree.rollback_edit("e1", "one")
    assert tree.rollback_edit("e1").text.startswith("edit e1 of session two")
    assert (root / "f").read_bytes() == TEN


def test_any_sequence_of_rollbacks_restores_the_checkpoints(tree: EditedTree, root: Path) -> None:
    """Given random edits and rollbacks, then each rollback restores that checkpoint's tree."""
    dice = random.Random(5)
    names = ["a", "b", "d/a", "d/e/b"]
    snapshots: dict[int, Snapshot] = {0: {}}

    def record(number: int) -> None:
        found = snapshot(root)
        snapshots[number] = {k: v for k, v in found.items() if isinstance(v, tuple)}

    with tree.held("s"):
        for number in range(40):
            if dice.random() < 0.3:
                target = dice.choice(sorted(snapshots))
                done = tree.rollback_to(target)
                files = {k: v for k, v in snapshot(root).items() if isinstance(v, tuple)}
                assert files == snapshots[target]
                if done.checkpoint:
                    record(done.checkpoint.number)
                continue
            changes = [
                change(root, name, None if (root / name).exists() and dice.random() < 0.3 else data)
                for name in dice.sample(names, dice.randint(1, 3))
                for data in [dice.randbytes(8).hex().encode()]
            ]
            record(tree.apply(f"e{number}", "s", "auto", changes).number)
    assert shadow(tree, "fsck", "--strict", "--full") == ""


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b""])
def test_merging_keeps_every_other_byte(tree: EditedTree, root: Path, end: bytes) -> None:
    """Given edits of random lines, rolled back in random order, then the others stay."""
    dice = random.Random(3)
    newline = end or b"\n"
    lines = [b"line %d" % n for n in range(30)]

    def text(changed: set[int]) -> bytes:
        written = [b"changed " + part if n in changed else part for n, part in enumerate(lines)]
        return newline.join(written) + end

    write_files(root, {"f": text(set())})
    numbers = [*dice.sample(range(1, 30, 2), 6), 29]
    applied: set[int] = set()
    with tree.held("s"):
        for number in dict.fromkeys(numbers):
            applied.add(number)
            edit(tree, f"e{number}", change(root, "f", text(applied)))
        for number in dice.sample(sorted(applied), len(applied)):
            applied.discard(number)
            tree.rollback_edit(f"e{number}")
            assert (root / "f").read_bytes() == text(applied)


# -- the user's git --------------------------------------------------------------------------------


def repository(folder: Path) -> None:
    """Create a repository whose hooks write a file and whose index has work in progress."""
    folder.mkdir(parents=True, exist_ok=True)
    git("init", "-q", "-b", "main", cwd=folder)
    for hook in ("pre-commit", "post-commit", "post-checkout", "reference-transaction"):
        script = (f"#!/bin/sh\necho {hook} >> {folder}/called\n".encode(), 0o755)
        write_files(folder, {f".git/hooks/{hook}": script})
    write_files(folder, {"tracked.txt": b"one\n", ".gitignore": b"*.log\nbuild/\n"})
    write_files(folder, {".gitattributes": b"* text=auto eol=crlf\n"})
    git("-c", f"core.hooksPath={os.devnull}", "add", ".", cwd=folder)
    git("-c", f"core.hooksPath={os.devnull}", "commit", "-qm", "first", cwd=folder)
    write_files(folder, {"staged.txt": b"staged\n", "x.log": b"log\n", "build/out": b"out\n"})
    git("add", "staged.txt", cwd=folder)
    write_files(folder, {"staged.txt": b"and dirty\n", "untracked.txt": b"untracked\n"})


def shape_plain(place: Path) -> Path:
    place.mkdir()
    return place


def shape_repository(place: Path) -> Path:
    repository(place)
    return place


def shape_inside(place: Path) -> Path:
    repository(place)
    write_files(place, {"sub/folder/f.txt": b"f\n"})
    return place / "sub/folder"


def shape_nested(place: Path) -> Path:
    repository(place)
    repository(place / "vendor/lib")
    repository(place / "build/cache")
    return place


def shape_worktree(place: Path) -> Path:
    repository(place)
    git("-c", f"core.hooksPath={os.devnull}", "worktree", "add", "-q", "../wt", cwd=place)
    return place.parent / "wt"


SHAPES = [shape_plain, shape_repository, shape_inside, shape_nested, shape_worktree]


@pytest.mark.parametrize("inside", [False, True], ids=["home beside", "home inside"])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_user_s_repositories_are_never_touched(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    shape: Callable[[Path], Path],
    inside: bool,
) -> None:
    root = shape(tmp_path / "user")
    home = root / ".mulligan" if inside else tmp_path / "home"
    # As in a hook, or with a user's configuration: the shadow repository ignores both.
    write_files(
        tmp_path, {"gitconfig": f"[core]\nhooksPath={tmp_path}/hooks\nautocrlf=true\n".encode()}
    )
    write_files(tmp_path, {"hooks/reference-transaction": (b"#!/bin/sh\nexit 1\n", 0o755)})
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    for variable in ("GIT_DIR", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY"):
        monkeypatch.setenv(variable, str(tmp_path / "user/.git"))
    before = snapshot(tmp_path, without=home)
    tree = EditedTree(root, home)
    names = ["tracked.txt", "staged.txt", "x.log", "build/out", "vendor/lib/tracked.txt", "n/n.log"]
    names += ["build/cache/x.log", "f.txt"]
    edit(tree, "e1", *(change(root, name, b"edited\n") for name in names))
    assert {(root / name).read_bytes() for name in names} == {b"edited\n"}
    commit = tree.history()[0].commit
    assert commit is not None
    monkeypatch.undo()
    listed = shadow(tree, "ls-tree", "-r", "--name-only", commit).split()
    assert sorted(listed) == sorted(names)
    tree.rollback_session("s")
    assert snapshot(tmp_path, without=home) == before


@pytest.mark.parametrize("name", [".mulligan", "state"])
def test_a_home_inside_the_root_cannot_be_edited(tmp_path: Path, name: str) -> None:
    tree = EditedTree(tmp_path, tmp_path / name)
    with pytest.raises(EditRefused, match="nothing in"):
        edit(tree, "e1", change(tmp_path, f"{name}/edits/f", b"x\n"))


def test_a_root_inside_the_home_can_be_edited(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    tree = EditedTree(tmp_path / "work", tmp_path)
    edit(tree, "e1", change(tree.root, "f", b"x\n"))
    tree.rollback_edit("e1")
    assert snapshot(tree.root) == {}


# -- concurrency -----------------------------------------------------------------------------------


def test_concurrent_processes_lose_no_edit(tree: EditedTree, root: Path, tmp_path: Path) -> None:
    write_files(root, {"f": b""})

    def apply_many(session: str) -> Callable[[], None]:
        def run() -> None:
            child_tree = EditedTree(root, tmp_path / "home", timeout=60)
            for number in range(8):
                with child_tree.held(session):
                    now = (root / "f").read_bytes()
                    added = f"{session} {number}\n".encode()
                    edit(child_tree, f"e{number}", change(root, "f", now + added), session=session)

        return run

    children = []
    for session in ("one", "two", "three"):
        child = os.fork()
        if not child:
            os._exit(in_child(apply_many(session)))
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]
    assert len((root / "f").read_bytes().splitlines()) == 24
    numbers = [c.number for c in tree.history()]
    assert numbers == list(range(1, 25))
    tree.rollback_to(0)
    assert (root / "f").read_bytes() == b""


def test_a_busy_tree_names_its_holder_until_it_dies(
    tree: EditedTree, root: Path, tmp_path: Path
) -> None:
    holding, release = tmp_path / "holding", tmp_path / "release"

    def hold() -> None:
        with EditedTree(root, tmp_path / "home").held("long-one"):
            holding.touch()
            wait_for(release.exists)
            die()

    child = os.fork()
    if not child:
        os._exit(in_child(hold))
    wait_for(holding.exists)
    with pytest.raises(TreeBusy, match=r"held by session long-one \(process \d+ on ") as refused:
        edit(tree, "e1", change(root, "f", b"x\n"))
    assert refused.value.holder is not None
    assert refused.value.holder.session == "long-one"
    # The same root with another home is the same tree.
    with pytest.raises(TreeBusy, match="another process"):
        edit(EditedTree(root, tmp_path / "other home", timeout=0), "e1", change(root, "f", b"x\n"))
    assert tree.history() == []
    release.touch()
    os.waitpid(child, 0)
    edit(tree, "e1", change(root, "f", b"x\n"))
    # With a timeout it waits and succeeds.
    assert EditedTree(root, tmp_path / "home", timeout=5).rollback_edit("e1").checkpoint is not None


@pytest.mark.parametrize("loss", ["fence", "file"])
def test_a_lost_lock_is_noticed_before_writing(root: Path, tmp_path: Path, loss: str) -> None:
    write_files(root, {"f": b"one\n"})

    def take_over(step: str) -> None:
        if step != "edit_intended":
            return
        if loss == "fence":
            (edited.state / "holder.json").write_text('{"fence": 99}')
        else:
            (edited.state / "lock").unlink()

    edited = EditedTree(root, tmp_path / "home", on_step=take_over)
    with pytest.raises(LockLost):
        edit(edited, "e1", change(root, "f", b"two\n"))
    assert (root / "f").read_bytes() == b"one\n"
    recovered = EditedTree(root, tmp_path / "home").recover()
    assert recovered is not None
    assert recovered.outcome == "undone"


def test_fences_of_the_lock_only_grow(tree: EditedTree, root: Path) -> None:
    for number in range(3):
        edit(tree, f"e{number}", change(root, "f", b"%d\n" % number))
    with tree.held("s"), pytest.raises(TreeBusy):
        edit(EditedTree(root, tree.state.parent.parent, timeout=0), "e9", change(root, "f", b"x\n"))
    fences = [o.fence for o in tree._journal.done.values()]
    assert fences == sorted(set(fences))


BROKEN = [b"", b'{"fence": 3, "pi', b"\xff\xfe", b"[]", b'{"fence": "three"}', b'{"pid": 1}']


@pytest.mark.parametrize("left", BROKEN)
def test_an_unreadable_holder_file_is_ignored(
    tree: EditedTree, root: Path, tmp_path: Path, left: bytes
) -> None:
    """Given a file that a power failure damaged."""
    for number in range(3):
        edit(tree, f"e{number}", change(root, "f", b"%d\n" % number))
    (tree.state / "holder.json").write_bytes(left)
    assert tree._lock.holder() is None
    edit(tree, "e9", change(root, "f", b"9\n"))
    edit(tree, "e10", change(root, "f", b"10\n"))
    fences = [o.fence for o in tree._journal.done.values()]
    assert fences == sorted(set(fences))
    with tree.held("s"):
        (tree.state / "holder.json").write_bytes(left)
        with pytest.raises(TreeBusy, match="another process"):
            edit(EditedTree(root, tmp_path / "home", timeout=0), "x", change(root, "f", b"x\n"))


def test_commits_of_a_held_tree_are_made_on_release(tree: EditedTree, root: Path) -> None:
    with tree.held("s"):
        for number in range(150):
            point = tree.apply(f"e{number}", "s", "auto", [change(root, "f", b"%d\n" % number)])
            assert point.commit is None
    history = tree.history()
    assert all(c.commit for c in history)
    count = shadow(tree, "rev-list", "--count", "HEAD").strip()
    assert int(count) == 151  # the initial state and one per edit
    assert shadow(tree, "fsck", "--strict", "--full") == ""


def test_lock_files_of_a_killed_git_do_no_harm(tree: EditedTree, root: Path) -> None:
    edit(tree, "e1", change(root, "f", b"1\n"))
    write_files(
        tree.state / "git", {"refs/heads/tree.lock": b"", "refs/mulligan/sessions/s.lock": b""}
    )
    edit(tree, "e2", change(root, "f", b"2\n"))
    assert all(c.commit for c in tree.history())


def test_a_failed_commit_is_made_later(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_git(step: str) -> None:
        if step == "edit_done":
            monkeypatch.setenv("PATH", "/nowhere")

    tree = EditedTree(root, tmp_path / "home", on_step=no_git)
    assert tree.apply("e1", "s", "auto", [change(root, "f", b"1\n")]).commit is None
    assert "Cannot commit the edits" in caplog.text
    monkeypatch.undo()
    assert tree.recover() is None
    assert tree.history()[0].commit is not None


def test_without_git_nothing_is_applied(
    tree: EditedTree, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(Exception, match="git init"):
        edit(tree, "e1", change(root, "f", b"x\n"))
    assert snapshot(root) == {}
