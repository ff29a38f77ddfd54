"""Diffs of real git histories: the result equals ``git apply``'s, or both refuse."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from mulligan.policies.edits.parse_diff import special_mode
from mulligan.tasks.ports.appliers import MAX_BYTES, EditRefused
from mulligan.workers.edits.operations.git_patch import compute_patch
from mulligan.workers.edits.tree.write_changes import perform

PROJECT = Path(__file__).parents[3]
#: The number of this project's commits to test, and the maximum size of their diffs.
PROJECT_COMMITS = 6
PROJECT_BYTES = 150_000
_ENV = {
    "PATH": os.environ["PATH"],
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "LC_ALL": "C",
    **{f"GIT_{who}_NAME": "x" for who in ("AUTHOR", "COMMITTER")},
    **{f"GIT_{who}_EMAIL": "x@x" for who in ("AUTHOR", "COMMITTER")},
}

Files = dict[str, tuple[bytes, bool]]


def git(folder: Path, *args: str, stdin: bytes | None = None) -> bytes:
    done = subprocess.run(
        ["git", *args], cwd=folder, env=_ENV, input=stdin, capture_output=True, check=True
    )
    return done.stdout


def applied_by_git(folder: Path, diff: bytes) -> bool:
    env = _ENV | {"GIT_CEILING_DIRECTORIES": str(folder.parent)}
    argv = ["git", "apply", "--whitespace=nowarn", "-"]
    done = subprocess.run(argv, cwd=folder, env=env, input=diff, capture_output=True, check=False)
    return done.returncode == 0


def applied_by_mulligan(folder: Path, diff: bytes) -> bool:
    text = diff.decode("utf-8", "surrogateescape")
    try:
        perform(folder, compute_patch(folder, ".", text, max_bytes=MAX_BYTES))
    except EditRefused:
        return False
    return True


def files_of(folder: Path) -> Files:
    """Return every file's content and whether it is executable."""
    return {
        str(path.relative_to(folder)): (path.read_bytes(), os.access(path, os.X_OK))
        for path in folder.rglob("*")
        if path.is_file() and ".git" not in path.relative_to(folder).parts
    }


def tree_at(repository: Path, commit: str, folder: Path) -> Path:
    """Write the files of a commit to a folder outside any repository."""
    folder.mkdir()
    listing = git(repository, "archive", "--format=tar", commit)
    subprocess.run(["tar", "-x"], cwd=folder, input=listing, check=True)
    return folder


def compare(repository: Path, commit: str, tmp_path: Path, *options: str) -> None:
    """Apply one commit's diff to its parent's files, by git and by mulligan."""
    diff = git(repository, "diff", "--binary", *options, f"{commit}^", commit)
    before = tree_at(repository, f"{commit}^", tmp_path / "git")
    mulligan_tree = tmp_path / "mulligan"
    shutil.copytree(before, mulligan_tree, symlinks=True)
    accepted = applied_by_git(before, diff)
    assert applied_by_mulligan(mulligan_tree, diff) == accepted
    assert files_of(mulligan_tree) == files_of(before)
    if accepted:
        # The result equals the commit.
        assert files_of(mulligan_tree) == files_of(tree_at(repository, commit, tmp_path / "commit"))
    for folder in ("git", "mulligan", "commit"):
        shutil.rmtree(tmp_path / folder, ignore_errors=True)


def edits_of_text(root: Path) -> list[Callable[[], object]]:
    text = root / "notes.txt"
    lines = [f"line {number}\n" for number in range(60)]

    def write(content: list[str]) -> Callable[[], object]:
        return lambda: text.write_text("".join(content))

    changed = [*lines[:5], "five\n", *lines[6:40], "new\n", *lines[40:]]
    return [
        write(lines),
        write(changed),
        write([*changed[:-1], "the end, without a line feed"]),
        write(["the beginning\n", *changed[:-1], "another end"]),
        write(changed),
        write([]),
        write(lines[::-1]),
        write([line.upper() for line in lines[::-1]]),
    ]


def edits_of_endings(root: Path) -> list[Callable[[], object]]:
    text = root / "windows.txt"
    return [
        lambda: text.write_bytes(b"one\r\ntwo\r\nthree\r\n"),
        lambda: text.write_bytes(b"one\r\nTWO\r\nthree\r\n"),
        lambda: text.write_bytes(b"one\r\nTWO\nthree\r\n"),
        lambda: text.write_bytes(b"one\nTWO\nthree"),
        lambda: text.write_bytes(b"one\n\n  \n\t\nTWO \nthree\r"),
        lambda: text.write_bytes(b"caf\xe9 latin\none\n"),
        lambda: text.write_bytes(b"caf\xe9 latin\ntwo\n"),
        lambda: text.write_bytes("café\x0c\u2028 page\n".encode()),
    ]


def edits_of_names(root: Path) -> list[Callable[[], object]]:
    def write(name: str, text: str) -> Callable[[], object]:
        def make() -> None:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)

        return make

    body = "".join(f"row {number}\n" for number in range(30))
    return [
        write("ünï/çödé fil€.txt", body),
        write('quo"ted\\name\twith tab.txt', body.upper()),
        write("a/b/a b c.txt", body + "x\n"),
        lambda: (root / "a/b/a b c.txt").rename(root / "a/moved and gone.txt"),
        write("ünï/çödé fil€.txt", body.replace("row 7", "Zeile sieben")),
        lambda: (root / "ünï").rename(root / "日本"),
        lambda: (root / 'quo"ted\\name\twith tab.txt').unlink(),
        write("empty", ""),
        lambda: (root / "empty").unlink(),
        write("b/a/trap.txt", "trap\n"),
    ]


def edits_of_modes(root: Path) -> list[Callable[[], object]]:
    script = root / "run.sh"

    def turned_to_folder() -> None:
        script.unlink()
        script.mkdir()
        (script / "inner.sh").write_text("#!/bin/sh\nexit 3\n")

    def turned_to_file() -> None:
        shutil.rmtree(script)
        script.write_text("#!/bin/sh\nexit 4\n")

    def no_longer_executable() -> None:
        script.write_text("#!/bin/sh\n# a\n# b\n# c\n# d\n")
        script.chmod(0o644)

    def renamed_and_changed() -> None:
        script.write_text("#!/bin/sh\n# a\n# b\n# c\n# d\nexit 2\n")
        script.rename(root / "start.sh")

    return [
        lambda: script.write_text("#!/bin/sh\n# a\n# b\n# c\n# d\nexit 1\n"),
        lambda: script.chmod(0o755),
        no_longer_executable,
        renamed_and_changed,
        lambda: shutil.copy(root / "start.sh", script),
        turned_to_folder,
        turned_to_file,
    ]


def edits_of_bytes(root: Path) -> list[Callable[[], object]]:
    picture = root / "picture.bin"
    noise = bytes(range(256)) * 8
    return [
        lambda: picture.write_bytes(noise),
        lambda: picture.write_bytes(noise[:700] + b"\0other\0" + noise[700:]),
        lambda: (picture.rename(root / "moved.bin"), (root / "t.txt").write_text("t\n")),
        lambda: (root / "moved.bin").write_bytes(b"now text\n"),
        lambda: (root / "moved.bin").unlink(),
    ]


#: Lines that look like parts of a diff after a `+`, `-` or space.
TRAPS = ["", "-- ", "-- a/x", "++ b/x", "@@ -1 +1 @@", "```", " ", "commit 0123456", "2.39.5", "x"]


def edits_of_traps(root: Path) -> list[Callable[[], object]]:
    """Change files with such lines at random."""
    dice = random.Random(11)
    texts = {name: dice.choices(TRAPS, k=20) for name in ("x", "y")}

    def changed(name: str) -> Callable[[], object]:
        def change() -> None:
            lines = texts[name]
            for _ in range(dice.randint(1, 4)):
                at = dice.randrange(len(lines) + 1)
                lines[at : at + dice.randint(0, 2)] = dice.choices(TRAPS, k=dice.randint(0, 3))
            end = dice.choice(["", "\n"])
            (root / name).write_text("\n".join(lines) + end)

        return change

    return [changed("x"), *(changed(name) for name in dice.choices(["x", "y"], k=12))]


HISTORIES = [
    edits_of_text,
    edits_of_endings,
    edits_of_names,
    edits_of_modes,
    edits_of_bytes,
    edits_of_traps,
]


def record(folder: Path, steps: list[Callable[[], object]]) -> list[str]:
    """Create a repository with one commit per step and return all but the first commit."""
    git(folder, "init", "-q")
    for number, step in enumerate(steps):
        step()
        git(folder, "add", "-A")
        git(folder, "commit", "-qm", f"step {number}")
    return git(folder, "rev-list", "--reverse", "HEAD").decode().split()[1:]


@pytest.mark.parametrize("history", HISTORIES, ids=lambda history: history.__name__)
@pytest.mark.parametrize("options", [("-M",), ("--no-renames",), ("-C", "-C", "-M20%")])
def test_every_commit_of_a_history_is_applied_as_by_git(
    tmp_path: Path, history: Callable[[Path], list[Callable[[], object]]], options: tuple[str, ...]
) -> None:
    repository = tmp_path / "repository"
    repository.mkdir()
    commits = record(repository, history(repository))
    assert len(commits) >= 4
    for commit in commits:
        compare(repository, commit, tmp_path, *options)


def commits_with_a_parent(repository: Path) -> list[str]:
    """Return the commits with a parent, newest first, or none in a shallow clone."""
    try:
        if git(repository, "rev-parse", "--is-shallow-repository").strip() == b"true":
            return []
        return (
            git(repository, "rev-list", "--no-merges", "--min-parents=1", "HEAD").decode().split()
        )
    except (subprocess.CalledProcessError, FileNotFoundError):
        return []


def test_this_project_s_history_is_applied_as_by_git(tmp_path: Path) -> None:
    commits = commits_with_a_parent(PROJECT)
    if len(commits) < 5:
        pytest.skip("no history here, or a shallow one")
    tried = 0
    for commit in commits:
        diff = git(PROJECT, "diff", "--binary", f"{commit}^", commit)
        plain = special_mode(diff.decode("utf-8", "surrogateescape")) is None
        # No edit may change these, however its diff looks.
        plain = plain and b"/mulligan.toml " not in diff
        if plain and len(diff) < PROJECT_BYTES and tried < PROJECT_COMMITS:
            tried += 1
            compare(PROJECT, commit, tmp_path)
    assert tried


def text_history(tmp_path: Path) -> tuple[Path, list[str]]:
    repository = tmp_path / "repository"
    repository.mkdir()
    return repository, record(repository, edits_of_text(repository))


def test_a_diff_without_its_context_is_refused_by_both_and_changes_nothing(
    tmp_path: Path,
) -> None:
    repository, commits = text_history(tmp_path)
    for number, commit in enumerate(commits[:5]):
        diff = git(repository, "diff", f"{commit}^", commit)
        spoiled = re.sub(rb"(?m)^([ -])(line|the) ", rb"\1never \2 ", diff, count=1)
        assert spoiled != diff
        tree = tree_at(repository, f"{commit}^", tmp_path / f"{number}")
        before = files_of(tree)
        assert not applied_by_git(tree, spoiled)
        assert not applied_by_mulligan(tree, spoiled)
        assert files_of(tree) == before


def test_wrong_line_counts_and_numbers_are_tolerated(tmp_path: Path) -> None:
    repository, commits = text_history(tmp_path)
    for number, commit in enumerate(commits[:3]):
        diff = git(repository, "diff", f"{commit}^", commit)
        wrong = re.sub(rb"(?m)^@@ .*? @@", b"@@ -1,2 +1,9 @@", diff)
        tree = tree_at(repository, f"{commit}^", tmp_path / f"{number}")
        assert not applied_by_git(tree, wrong)
        assert applied_by_mulligan(tree, wrong)
        assert files_of(tree) == files_of(tree_at(repository, commit, tmp_path / f"{number}-after"))


def test_counts_that_are_too_small_lose_no_line(tmp_path: Path) -> None:
    """git reads as many lines as the header states, drops the rest and exits 0."""
    repository, commits = text_history(tmp_path)
    diff = git(repository, "diff", "-U20", f"{commits[0]}^", commits[0])
    [header] = re.findall(rb"(?m)^@@ .*? @@", diff)
    short = diff.replace(header, b"@@ -1,9 +1,9 @@")
    tree = tree_at(repository, f"{commits[0]}^", tmp_path / "git")
    assert applied_by_git(tree, short)
    whole = files_of(tree_at(repository, commits[0], tmp_path / "whole"))
    assert files_of(tree) != whole
    mulligan_tree = tree_at(repository, f"{commits[0]}^", tmp_path / "mulligan")
    assert applied_by_mulligan(mulligan_tree, short)
    assert files_of(mulligan_tree) == whole


@pytest.mark.parametrize("options", [("format-patch", "--stdout"), ("log", "-p", "--reverse")])
def test_messages_between_diffs_are_not_part_of_a_hunk(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    repository, commits = text_history(tmp_path)
    message = "Say why\n\n- one thing\n+ another\n\n```\n-- \n```\n"
    git(repository, "commit", "-q", "--allow-empty", "-m", "empty")
    for number in range(3):
        (repository / "more.txt").write_text(f"{number}\n" * 5)
        git(repository, "add", "-A")
        git(repository, "commit", "-qm", message)
    mail = git(repository, *options, f"{commits[-1]}..HEAD")
    trees = [tree_at(repository, commits[-1], tmp_path / side) for side in ("git", "mulligan")]
    assert applied_by_git(trees[0], mail)
    assert applied_by_mulligan(trees[1], mail)
    assert files_of(trees[1]) == files_of(trees[0])
    assert (trees[1] / "more.txt").read_text() == "2\n" * 5


@pytest.mark.parametrize("zone", ["+0000", "-05:00", "+0200"])
def test_a_file_dated_1970_by_diff_is_deleted(tmp_path: Path, zone: str) -> None:
    time = {"+0000": "1970-01-01 00:00", "-05:00": "1969-12-31 19:00", "+0200": "1970-01-01 02:00"}
    gone = f"{time[zone]}:00.000000000 {zone}"
    diff = f"--- a/f.txt\t2020-05-05 05:05:05 {zone}\n+++ b/f.txt\t{gone}\n@@ -1 +0,0 @@\n-one\n"
    for side in (applied_by_git, applied_by_mulligan):
        (tmp_path / "f.txt").write_text("one\n")
        assert side(tmp_path, diff.encode())
        assert not (tmp_path / "f.txt").exists()


def test_applying_twice_is_noted_as_already_applied(tmp_path: Path) -> None:
    repository, commits = text_history(tmp_path)
    for number, commit in enumerate(commits[:4]):
        diff = git(repository, "diff", f"{commit}^", commit).decode()
        tree = tree_at(repository, commit, tmp_path / f"{number}")
        changes = compute_patch(tree, ".", diff, max_bytes=MAX_BYTES)
        assert [(change.unchanged, change.note) for change in changes] == [
            (True, "already applied")
        ]


def test_a_patch_is_applied_in_a_subdirectory_of_a_repository(tmp_path: Path) -> None:
    """Inside a subdirectory of a repository plain ``git apply`` exits 0 and changes nothing."""
    git(tmp_path, "init", "-q")
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "f.txt").write_text("one\n")
    diff = b"diff --git a/f.txt b/f.txt\n--- a/f.txt\n+++ b/f.txt\n@@ -1 +1 @@\n-one\n+two\n"
    assert applied_by_mulligan(inner, diff)
    assert (inner / "f.txt").read_text() == "two\n"


def test_the_user_s_git_configuration_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config").write_text("[apply]\n\twhitespace = fix\n[core]\n\tautocrlf = true\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "config"))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / ".gitattributes").write_text("* text eol=crlf\n")
    (tree / "f.txt").write_bytes(b"one\n")
    assert applied_by_mulligan(tree, b"--- a/f.txt\n+++ b/f.txt\n@@ -1 +1,2 @@\n one\n+two  \n")
    assert (tree / "f.txt").read_bytes() == b"one\ntwo  \n"
