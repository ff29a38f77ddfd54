"""Private checkouts of attempts: what is saved, continued and merged."""

from __future__ import annotations

import os
import shutil
import socket
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from support.git_repositories import FILES, UserRepository, files_of, git, open_repository, write

from mulligan.tasks.ports.errors import BadInput, RepositoryUnavailable
from mulligan.workers.repositories import work_store, work_tree
from mulligan.workers.repositories.checkouts import AttemptCheckout, Checkouts
from mulligan.workers.repositories.git_repository import GitRepository
from mulligan.workers.sandbox.file_tree import decode_tree

BRANCH = "mulligan/loop"
REF = "refs/mulligan/attempts/loop/item/1-t"
Attempt = Callable[..., AbstractContextManager[AttemptCheckout]]


@pytest.fixture
def user(tmp_path: Path) -> UserRepository:
    return UserRepository.make(tmp_path / "user")


@pytest.fixture
def repository(user: UserRepository, tmp_path: Path) -> GitRepository:
    return open_repository(tmp_path / "cache", user.path)


@pytest.fixture
def attempt(repository: GitRepository, tmp_path: Path) -> Attempt:
    def start(**changes: Any) -> AbstractContextManager[AttemptCheckout]:
        options: dict[str, Any] = {"branch": BRANCH, "start": "main", "loop": "loop"}
        options |= {"item": "item", "attempt": 1, "token": "t", **changes}
        place = options.pop("repository", repository)
        return Checkouts(tmp_path / "private").attempt(place, **options)

    return start


def saved_files(user: UserRepository, checkout: AttemptCheckout) -> dict[str, bytes]:
    """Save, and return the files of the commit."""
    found = files_of(user.path, checkout.save() or checkout.base)
    return {name: content for name, (_, content) in found.items()}


@pytest.fixture(params=["local", "remote"])
def case(request: pytest.FixtureRequest, user: UserRepository, tmp_path: Path) -> GitRepository:
    name = user.path if request.param == "local" else f"file://{user.path}"
    return open_repository(tmp_path / "cache", name)


def test_a_checkout_is_a_clone_that_is_removed(
    user: UserRepository, attempt: Attempt, tmp_path: Path
) -> None:
    with attempt() as checkout:
        work = checkout.directory
        assert work.name == "work"
        assert {p.name for p in work.iterdir()} == {".git", "a.txt", "src"}
        assert git(work, "status", "--porcelain") == ""
        assert git(work, "rev-parse", "HEAD") == checkout.base == user.git("rev-parse", "main")
        assert git(work, "symbolic-ref", "HEAD") == "refs/heads/work"
        assert git(work, "remote") == ""
        assert git(work, "log", "--format=%s") == "change"
        git(work, "fsck", "--strict")
        assert checkout.readable == (user.path / ".git/objects",)
        assert checkout.conflicts == ()
        assert checkout.kept is None
    assert list((tmp_path / "private").iterdir()) == []
    with pytest.raises(KeyError), attempt():
        raise KeyError
    assert list((tmp_path / "private").iterdir()) == []


def test_work_and_transcript_are_saved(
    case: GitRepository, user: UserRepository, attempt: Attempt
) -> None:
    with attempt(repository=case, job="j") as checkout:
        assert checkout.save() is None
        write(checkout.directory, {"a.txt": "changed\n", "new/file.txt": "new\n", "src/b.py": None})
        saved = checkout.save({"events/1.jsonl": b"{}\n", "usage.json": b"1"})
        assert saved is not None
        assert user.git("rev-parse", REF) == saved
        assert user.git("rev-parse", f"{REF}^") == checkout.base
        found = files_of(user.path, REF)
        assert {name: content for name, (_, content) in found.items()} == {
            "a.txt": b"changed\n",
            "new/file.txt": b"new\n",
        }
        transcript = "refs/mulligan/transcripts/loop/item/1-t"
        assert files_of(user.path, transcript)["events/1.jsonl"] == ("100644", b"{}\n")
        assert case.transcript("loop", "item", "j/1") == {
            "events/1.jsonl": b"{}\n",
            "usage.json": b"1",
        }
        assert case.transcript("loop", "item", "j/2") == {}
        assert [each.attempt for each in case.saved("loop", "item")] == ["j/1"]
        assert user.git("log", "--format=%an %s", transcript).endswith(
            "Transcript of attempt 1 of item"
        )


def test_nothing_happens_if_nothing_changed(
    repository: GitRepository, attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    with attempt() as checkout:
        write(checkout.directory, {"a.txt": "changed\n"})
        first = checkout.save({"t": b"1"})
        monkeypatch.setattr(repository, "move", None)
        assert checkout.save({"t": b"1"}) == first
        assert checkout.save() == first
        os.utime(checkout.directory / "a.txt")
        assert checkout.save({"t": b"1"}) == first
        monkeypatch.undo()
        assert checkout.save({"t": b"2"}) == first
        write(checkout.directory, {"a.txt": "changed again\n"})
        second = checkout.save({"t": b"2"})
        assert second not in (None, first)
        # Work that an agent takes back is still saved.
        write(checkout.directory, {"a.txt": FILES["a.txt"]})
        assert checkout.save() is None
        assert [each.commit for each in repository.saved("loop")] == [second]


def test_all_kinds_of_files(user: UserRepository, attempt: Attempt) -> None:
    user.commit(
        {"exec.sh": "x\n", "plain.txt": "p\n", "to-link": "x\n", "dir/file": "f\n", "f": "f\n"}
    )
    strange = {
        "with space.txt": b"1", "new\nline.txt": b"2", 'quote".txt': b"3", "tab\t.txt": b"4",
        os.fsdecode(b"caf\xe9.txt"): b"5", "ünï/ö.txt": b"6", "-dash": b"7", "empty": b"",
        "back\\slash": b"8", "*.glob": b"9", ":(top)magic": b"10", " lead": b"11",
        "crlf": b"a\r\nb\n",
    }  # fmt: skip
    with attempt() as checkout:
        work = checkout.directory
        write(work, strange)
        (work / "exec.sh").chmod(0o755)
        (work / "link").symlink_to("a.txt")
        (work / "dangling").symlink_to("/nowhere")
        (work / "to-link").unlink()
        (work / "to-link").symlink_to("plain.txt")
        (work / "dir/file").unlink()
        (work / "dir").rmdir()
        write(work, {"dir": b"now a file"})
        (work / "f").unlink()
        write(work, {"f/now": b"a directory"})
        (work / "empty-directory").mkdir()
        saved = checkout.save()
        assert saved is not None
    found = files_of(user.path, saved)
    for name, content in strange.items():
        assert found.pop(name) == ("100644", content), name
    assert found == {
        "a.txt": ("100644", FILES["a.txt"].encode()),
        "src/b.py": ("100644", FILES["src/b.py"].encode()),
        "plain.txt": ("100644", b"p\n"),
        "exec.sh": ("100755", b"x\n"),
        "link": ("120000", b"a.txt"),
        "dangling": ("120000", b"/nowhere"),
        "to-link": ("120000", b"plain.txt"),
        "dir": ("100644", b"now a file"),
        "f/now": ("100644", b"a directory"),
    }
    # A retry begins with exactly these files.
    with attempt(attempt=2, kept=saved) as again:
        assert again.save() is not None
        assert user.git("rev-parse", f"{saved}^{{tree}}") == user.git(
            "rev-parse", "refs/mulligan/attempts/loop/item/2-t^{tree}"
        )


def test_files_are_ignored_as_the_repository_says(user: UserRepository, attempt: Attempt) -> None:
    user.commit({".gitignore": "*.log\nbuild/\n"})
    (user.path / "kept.log").write_text("committed in spite of that\n")
    user.git("add", "-f", "kept.log")
    user.git("commit", "-q", "-m", "log")
    with attempt() as checkout:
        files = {
            "x.log": "x",
            "build/out": "x",
            "sub/y.log": "y",
            "sub/z.txt": "z",
            "kept.log": "new",
        }
        write(checkout.directory, files)
        write(checkout.directory / "sub", {".gitignore": "secret\n", "secret": "s"})
        saved = checkout.save()
        assert saved is not None
    names = files_of(user.path, saved).keys()
    assert names - FILES.keys() == {".gitignore", "kept.log", "sub/z.txt", "sub/.gitignore"}


def test_repositories_that_an_agent_makes_are_saved_as_files(
    user: UserRepository, attempt: Attempt
) -> None:
    with attempt() as checkout:
        work = checkout.directory
        files = {
            "main.py": "1\n",
            ".gitignore": "node_modules\n",
            "node_modules/x": "x",
            "sub/deep/y": "y",
        }
        UserRepository.make(work / "project", files)
        UserRepository.make(work / "project/sub/deeper", {"z": "z\n"})
        UserRepository.make(work / "unborn", {})
        write(
            work, {"unborn/file": "u\n", "broken/.git": "gitdir: nowhere\n", "broken/file": "b\n"}
        )
        git(work / "src", "init", "-q")
        write(work, {"src/new.py": "n\n"})
        saved = checkout.save()
        assert saved is not None
    found = files_of(user.path, saved)
    assert found.keys() - FILES.keys() == {
        "project/main.py", "project/.gitignore", "project/sub/deep/y", "project/sub/deeper/z",
        "unborn/file", "broken/file", "src/new.py",
    }  # fmt: skip
    assert {mode for mode, _ in found.values()} == {"100644"}


def test_what_an_agent_commits_itself_is_part_of_its_work(
    user: UserRepository, attempt: Attempt
) -> None:
    with attempt() as checkout:
        write(checkout.directory, {"committed.txt": "c\n"})
        git(checkout.directory, "add", "-A")
        git(checkout.directory, "commit", "-q", "-m", "by the agent")
        git(checkout.directory, "switch", "-q", "-c", "another")
        git(checkout.directory, "gc", "-q")
        saved = checkout.save()
        assert saved is not None
        assert user.git("rev-parse", f"{saved}^") == checkout.base
    assert "committed.txt" in files_of(user.path, saved)


def test_a_submodule_stays_as_it_is(user: UserRepository, attempt: Attempt, tmp_path: Path) -> None:
    other = UserRepository.make(tmp_path / "other")
    user.git("-c", "protocol.file.allow=always", "submodule", "add", "-q", str(other.path), "sub")
    user.git("commit", "-q", "-m", "submodule")
    with attempt() as checkout:
        assert (checkout.directory / "sub").is_dir()
        write(checkout.directory, {"new.txt": "n\n", "sub/inside": "not ours\n"})
        saved = checkout.save()
        assert saved is not None
        assert files_of(user.path, saved)["sub"][0] == "160000"
        assert "sub/inside" not in files_of(user.path, saved)
        (checkout.directory / "sub/inside").unlink()
        (checkout.directory / "sub").rmdir()
        assert checkout.save() == saved
        write(checkout.directory, {"sub": "a file\n"})
        saved = checkout.save()
        assert saved is not None
        assert files_of(user.path, saved)["sub"] == ("100644", b"a file\n")


def test_line_ends_and_encodings_are_not_converted(user: UserRepository, attempt: Attempt) -> None:
    user.commit({"x.txt": "a\r\nb\r\n", "y.txt": "$Id$\n", "u.txt": "a\n"})
    attributes = "*.txt text eol=crlf ident\nu.txt working-tree-encoding=UTF-16\n"
    write(user.path, {".gitattributes": attributes})
    user.git("add", ".gitattributes")
    user.git("commit", "-q", "-m", "attributes")
    tree = user.git("rev-parse", "HEAD^{tree}")
    with attempt() as checkout:
        assert (checkout.directory / "x.txt").read_bytes() == b"a\r\nb\r\n"
        assert (checkout.directory / "y.txt").read_bytes() == b"$Id$\n"
        assert checkout.save() is None
        write(checkout.directory, {"n.txt": b"\r\n"})
        saved = checkout.save()
        assert saved is not None
        assert user.git("diff", "--name-only", tree, saved) == "n.txt"


# -- going on with kept work -----------------------------------------------------------------------


def test_an_attempt_of_a_dead_worker_is_continued(case: GitRepository, attempt: Attempt) -> None:
    with attempt(repository=case, token="dead") as checkout:
        write(checkout.directory, {"new.txt": "half\n"})
        saved = checkout.save()
    with attempt(repository=case, token="next") as checkout:
        assert checkout.kept == saved
        assert (checkout.directory / "new.txt").read_text() == "half\n"
        assert git(checkout.directory, "status", "--porcelain") == "?? new.txt"
        assert checkout.save() is not None
    # Another attempt begins with the branch, unless it is told otherwise.
    with attempt(repository=case, attempt=2) as checkout:
        assert not (checkout.directory / "new.txt").exists()
        assert checkout.save() is None


def test_kept_work_is_merged_with_the_new_tip(
    case: GitRepository, user: UserRepository, attempt: Attempt, tmp_path: Path
) -> None:
    with attempt(repository=case) as checkout:
        write(checkout.directory, {"new.txt": "new\n"})
        kept = checkout.save()
    user.commit({"a.txt": "zero\none\ntwo\nthree\n"})
    user.git("update-ref", f"refs/heads/{BRANCH}", "main")
    # The next attempt is on another host.
    where = "elsewhere" if "file:" in case.name else "cache"
    other = open_repository(tmp_path / where, case.name)
    with attempt(repository=other, attempt=2, kept=kept) as checkout:
        assert checkout.base == user.git("rev-parse", "main")
        assert checkout.conflicts == ()
        assert (checkout.directory / "new.txt").read_text() == "new\n"
        assert (checkout.directory / "a.txt").read_text().startswith("zero\n")
        saved = checkout.save()
        assert saved is not None
        assert user.git("diff", "--name-only", "main", saved) == "new.txt"


def test_kept_work_that_conflicts_has_markers(user: UserRepository, attempt: Attempt) -> None:
    with attempt() as checkout:
        write(checkout.directory, {"a.txt": "ONE\ntwo\nthree\n", "other.txt": "o\n"})
        kept = checkout.save()
    user.commit({"a.txt": "1\ntwo\nthree\n"})
    user.git("update-ref", f"refs/heads/{BRANCH}", "main")
    with attempt(attempt=2, kept=kept) as checkout:
        (conflict,) = checkout.conflicts
        assert conflict.path == "a.txt"
        assert "<<<<<<< the branch\n1\n=======\nONE\n>>>>>>> the work" in conflict.hunks
        assert "=======" in (checkout.directory / "a.txt").read_text()
        assert (checkout.directory / "other.txt").read_text() == "o\n"
        assert git(checkout.directory, "status", "--porcelain").split("\n")[0] == " M a.txt"


def test_kept_work_that_is_gone_is_not_waited_for(attempt: Attempt) -> None:
    with attempt(kept="1" * 40) as checkout:
        assert checkout.kept is None
        assert (checkout.directory / "a.txt").exists()


def test_references_that_others_remove_are_made_again(
    user: UserRepository, attempt: Attempt
) -> None:
    with attempt() as checkout:
        write(checkout.directory, {"a.txt": "1\n"})
        checkout.save({"t": b"1"})
        user.git("update-ref", "-d", REF)
        user.git("update-ref", "-d", REF.replace("attempts", "transcripts"))
        user.git("-c", "gc.pruneExpire=now", "gc", "-q")
        write(checkout.directory, {"a.txt": "2\n"})
        saved = checkout.save({"t": b"1", "u": b"2"})
        assert user.git("rev-parse", REF) == saved
    user.git("fsck", "--connectivity-only")


# -- what is refused -------------------------------------------------------------------------------


def test_a_missing_start_and_an_empty_repository(attempt: Attempt, tmp_path: Path) -> None:
    with (
        pytest.raises(BadInput, match="has no branch, tag or commit 'none'"),
        attempt(start="none"),
    ):
        pass
    empty = open_repository(tmp_path / "cache", UserRepository.make(tmp_path / "e", {}).path)
    with (
        pytest.raises(BadInput, match="make a first commit"),
        attempt(repository=empty, start="HEAD"),
    ):
        pass


def test_too_much_work_is_saved_without_what_is_too_much(
    user: UserRepository, attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    with attempt() as checkout:
        write(checkout.directory, {"a.txt": "1\n", "z.txt": "new\n"})
        # A hole of a terabyte takes no time.
        with (checkout.directory / "huge").open("wb") as file:
            file.truncate(1 << 40)
        assert saved_files(user, checkout).items() >= {"a.txt": b"1\n", "z.txt": b"new\n"}.items()
        assert list(checkout.left_out) == ["huge"]
        (checkout.directory / "huge").unlink()
        monkeypatch.setattr(work_store, "MOST_ENTRIES", 8)
        monkeypatch.setattr(work_tree, "MOST_ENTRIES", 8)
        write(checkout.directory, {f"modules/deep/f{n}": f"{n}" for n in range(8)})
        assert saved_files(user, checkout)["z.txt"] == b"new\n"
        assert list(checkout.left_out) == ["modules/"]
        shutil.rmtree(checkout.directory / "modules")
        write(checkout.directory, {f"f{n}": f"{n}" for n in range(9)})
        found = saved_files(user, checkout)
        assert found["a.txt"] == b"1\n"
        assert list(checkout.left_out) == ["f7", "f8", "z.txt"]
        monkeypatch.undo()
        assert saved_files(user, checkout)["z.txt"] == b"new\n"
        assert not list(checkout.left_out)


def test_a_transcript_is_saved_although_the_work_cannot_be(
    repository: GitRepository, attempt: Attempt
) -> None:
    with attempt() as checkout:
        shutil.rmtree(checkout.directory)
        with pytest.raises(BadInput, match="its directory is gone"):
            checkout.save({"session.jsonl": b"said\n"})
        (saved,) = repository.transcripts("loop")
        assert repository.transcript("loop", "item", saved.attempt) == {"session.jsonl": b"said\n"}


def test_what_a_setup_made_is_no_work(user: UserRepository, attempt: Attempt) -> None:
    with attempt() as checkout:
        write(checkout.directory, {"a.txt": "by setup\n", "new.txt": "x\n", "other.txt": "y\n"})
        checkout.begin_work()
        assert checkout.save() is None
        write(checkout.directory, {"work.txt": "work\n", "other.txt": "by the agent\n"})
        found = saved_files(user, checkout)
        base = files_of(user.path, "main")
        assert found["a.txt"] == base["a.txt"][1]
        assert {*found} - {*base} == {"work.txt", "other.txt"}


def test_an_attempt_goes_on_with_its_own_work_before_that_of_earlier_ones(
    user: UserRepository, attempt: Attempt
) -> None:
    """Given a retry that goes on with kept work, and whose worker dies."""
    with attempt() as first:
        write(first.directory, {"first.txt": "1\n"})
        kept = first.save()
    with attempt(attempt=2, kept=kept) as second:
        write(second.directory, {"second.txt": "2\n"})
        second.save()
    with attempt(attempt=2, kept=kept, token="other") as again:
        assert (again.directory / "first.txt").exists()
        assert (again.directory / "second.txt").exists()


def test_kept_work_has_the_protected_files_of_the_branch(attempt: Attempt) -> None:
    def is_protected(path: str, *, is_new: bool) -> bool:
        return path == ("conftest.py" if is_new else "a.txt")

    with attempt() as first:
        write(first.directory, {"a.txt": "weak\n", "conftest.py": "", "work.txt": "work\n"})
        before = (first.directory / "work.txt").read_bytes()
        kept = first.save()
    with attempt(attempt=2, kept=kept, is_protected=is_protected) as second:
        assert (second.directory / "a.txt").read_bytes() != b"weak\n"
        assert not (second.directory / "conftest.py").exists()
        assert (second.directory / "work.txt").read_bytes() == before


def test_what_git_ignores_is_named(attempt: Attempt) -> None:
    with attempt() as checkout:
        write(checkout.directory, {".gitignore": "*.log\ndist/\n", "old.log": ""})
        checkout.begin_work()
        write(checkout.directory, {"dist/out.js": "x", "new.log": "", "old.log": "more"})
        assert checkout.newly_ignored() == ["dist/", "new.log"]


def test_large_files_are_streamed(
    user: UserRepository, attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work_tree, "_IN_MEMORY", 100)
    data = os.urandom(5000)
    with attempt() as checkout:
        write(checkout.directory, {"large": data, "same": data})
        saved = checkout.save()
        assert saved is not None
        assert checkout.save() == saved
    assert files_of(user.path, saved)["large"] == ("100644", data)
    user.git("fsck", "--strict")


def test_many_files_become_a_pack(
    user: UserRepository, attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mulligan.workers.repositories.local_repository._MOST_LOOSE", 20)
    with attempt() as checkout:
        write(checkout.directory, {f"d{n % 9}/f{n}": f"{n}\n" for n in range(60)})
        saved = checkout.save()
        assert saved is not None
    assert len(user.git("ls-tree", "-r", saved).splitlines()) == 62
    assert len(list((user.path / ".git/objects/pack").glob("*.pack"))) == 1


def test_a_full_disk_is_reported(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> str:
        raise OSError(28, "No space left on device")

    with attempt() as checkout:
        write(checkout.directory, {"a.txt": "1\n"})
        monkeypatch.setattr("mulligan.workers.repositories.loose_objects.write_blob", full)
        with pytest.raises(RepositoryUnavailable, match="No space left"):
            checkout.save()


def test_transcripts_have_plain_names(attempt: Attempt) -> None:
    with attempt() as checkout:
        for name in ("../x", "/x", "", "a//b", "a/./b"):
            with pytest.raises(BadInput, match="is not a path"):
                checkout.save({name: b"x"})


# -- saving while the agent works ------------------------------------------------------------------


def test_saving_while_files_change_and_vanish(user: UserRepository, attempt: Attempt) -> None:
    stop = threading.Event()

    def work(directory: Path) -> None:
        count = 0
        while not stop.is_set():
            count += 1
            folder = directory / f"d{count % 3}"
            folder.mkdir(exist_ok=True)
            (folder / "x").write_text(str(count))
            (directory / "a.txt").write_text("x" * (count % 5000))
            (folder / "x").rename(directory / "moved")
            folder.rmdir()

    with attempt() as checkout:
        thread = threading.Thread(target=work, args=[checkout.directory])
        thread.start()
        try:
            saves = [checkout.save() for _ in range(3)]
        finally:
            stop.set()
            thread.join()
        write(checkout.directory, {"last": "last\n"})
        saves.append(checkout.save())
        names = {p.name for p in checkout.directory.iterdir()} - {".git", "src"}
    assert all(saves)
    user.git("fsck", "--strict")
    last = saves[-1]
    assert last is not None
    assert files_of(user.path, last).keys() == {*names, "src/b.py"}


def test_pipes_sockets_and_unreadable_names_are_left_out(
    user: UserRepository, attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    with attempt() as checkout:
        work = checkout.directory
        os.mkfifo(work / "pipe")
        monkeypatch.chdir(work)
        with socket.socket(socket.AF_UNIX) as server:
            server.bind("socket")
        (work / "a.txt").unlink()
        os.mkfifo(work / "a.txt")
        write(work, {"git~1": "x", "sub/.GIT/config": "x", "sub/.git /x": "x", "real": "r\n"})
        (work / ".gitmodules").symlink_to("real")
        saved = checkout.save()
        assert saved is not None
    assert files_of(user.path, saved).keys() == {"src/b.py", "real"}


# -- plain files -----------------------------------------------------------------------------------


def test_plain_files_and_packed_files(
    case: GitRepository, user: UserRepository, tmp_path: Path
) -> None:
    (user.path / "link").symlink_to("a.txt")
    (user.path / "out").symlink_to("/etc")
    (user.path / "run.sh").write_text("x")
    (user.path / "run.sh").chmod(0o755)
    commit = user.commit({"ü\n.txt": "x\n"})
    checkouts = Checkouts(tmp_path / "private")
    into = tmp_path / "into"
    checkouts.files(case, commit, into)
    names = {str(p.relative_to(into)) for p in into.rglob("*") if not p.is_dir() or p.is_symlink()}
    assert names == {"a.txt", "src/b.py", "link", "out", "run.sh", "ü\n.txt"}
    assert (into / "run.sh").stat().st_mode & 0o111
    tree = decode_tree(checkouts.export(case, commit))
    assert tree["a.txt"].content == FILES["a.txt"].encode()
    assert tree["link"].kind == "link"
    assert "out" not in tree
    assert checkouts.export(case, commit) == checkouts.export(case, case.tree_of(commit))
    with pytest.raises(BadInput, match="allowed"):
        checkouts.export(case, commit, max_bytes=3)
    assert list((tmp_path / "private").iterdir()) == []
