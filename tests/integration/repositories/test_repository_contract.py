"""What every repository does, whether it is on this host or elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.git_repositories import FILES, UserRepository, commit_on, git, open_repository

from mulligan.tasks.ports.errors import BadInput, RepositoryUnavailable
from mulligan.tasks.ports.repositories import Fence, Repositories, Repository
from mulligan.workers.repositories.git_repository import GitRepository, RefMove
from mulligan.workers.repositories.ref_names import AttemptName
from mulligan.workers.repositories.repositories import GitRepositories

NOTHING = "0" * 40
BRANCH = "mulligan/loop"


@dataclass
class Case:
    """A repository, opened, and where it really is."""

    user: UserRepository
    origin: Path
    repository: GitRepository
    reopen: Callable[[], GitRepository]

    def git(self, *arguments: str) -> str:
        return git(self.origin, *arguments)

    @property
    def main(self) -> str:
        return self.git("rev-parse", "refs/heads/main")

    def commit_on(self, parent: str, files: dict[str, str]) -> str:
        """Make a commit with more files on top of another, without a branch."""
        return commit_on(self.origin, parent, files)


@pytest.fixture(params=["local", "remote"])
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    user = UserRepository.make(tmp_path / "user")
    origin = user.path if request.param == "local" else user.bare(tmp_path / "bare.git")
    name = f"file://{origin}" if request.param == "remote" else origin
    count = iter(range(100))

    def reopen() -> GitRepository:
        # Another host has another cache.
        return open_repository(tmp_path / f"cache{next(count)}", name)

    return Case(user, origin, reopen(), reopen)


def test_it_is_a_repository_of_the_port(case: Case, tmp_path: Path) -> None:
    repository: Repository = case.repository
    repositories: Repositories = GitRepositories(tmp_path, {})
    assert repository.resolve("main")
    assert repositories


def test_names_are_resolved_to_commits(case: Case) -> None:
    first = case.main
    case.git("tag", "light")
    case.git("tag", "-a", "heavy", "-m", "a tag")
    for name in ("main", "HEAD", "light", "heavy", "refs/heads/main", first, first[:10]):
        assert case.repository.resolve(name) == first, name
    for name in ("none", "-x", "--help", "main:a.txt", "main~1", "a..b", "", "refs/heads/", "é"):
        assert case.repository.resolve(name) is None, name
    assert case.repository.resolve("1" * 40) is None


def test_new_commits_are_seen(case: Case) -> None:
    assert case.repository.resolve("main") == case.main
    new = case.commit_on(case.main, {"c.txt": "c\n"})
    case.git("update-ref", "refs/heads/main", new)
    assert case.repository.resolve("main") == new
    case.git("update-ref", "refs/heads/other", new)
    assert case.repository.resolve("other") == new
    case.git("update-ref", "-d", "refs/heads/other")
    assert case.repository.resolve("other") is None


def test_a_branch_replaces_one_of_which_it_is_a_directory(case: Case) -> None:
    case.git("update-ref", "refs/heads/a", case.main)
    assert case.repository.resolve("a") == case.main
    case.git("update-ref", "-d", "refs/heads/a")
    new = case.commit_on(case.main, {"c.txt": "c\n"})
    case.git("update-ref", "refs/heads/a/b", new)
    assert case.repository.resolve("a/b") == new


def test_a_branch_is_begun_once(case: Case) -> None:
    first = case.main
    assert case.repository.begin_branch(BRANCH, first) == first
    new = case.commit_on(first, {"c.txt": "c\n"})
    case.git("update-ref", f"refs/heads/{BRANCH}", new)
    assert case.repository.begin_branch(BRANCH, first) == new
    assert case.reopen().begin_branch(BRANCH, first) == new


def test_unusual_names_of_branches(case: Case) -> None:
    first = case.main
    for branch in ("mulligan/ünïcode", "a@b", "x" * 150, "a+b=c/1.2", "HEAD2", "refs"):
        assert case.repository.begin_branch(branch, first) == first
        assert case.repository.resolve(branch) == first
        assert case.repository.contains(branch, first)


REFUSED = ["-x", "a..b", "a b", "a.lock", "/a", "a/", "a//b", "a\nb", "a:b", ".a", "HEAD", "a~1"]


def test_names_that_git_refuses(case: Case) -> None:
    for branch in REFUSED:
        with pytest.raises(BadInput, match="is not the name of a branch"):
            case.repository.begin_branch(branch, case.main)


def test_a_branch_that_cannot_exist_is_reported(case: Case) -> None:
    message = r"git cannot have the branch main/sub beside main: .* \(`git branch -m main NAME`\)"
    with pytest.raises(RepositoryUnavailable, match=message):
        case.repository.begin_branch("main/sub", case.main)


@pytest.mark.parametrize(
    ("branch", "other"),
    [
        ("main/sub", "main"),
        ("main/a/b", "main"),
        ("mulligan", "mulligan/one"),
        ("mulligan/one", None),
        ("mulligan/on", None),
        ("mulligan/one-b", None),
        ("one", None),
        ("mulligan/one/b", "mulligan/one"),
    ],
)
def test_a_branch_is_in_the_way_of_others(case: Case, branch: str, other: str | None) -> None:
    case.git("update-ref", "refs/heads/mulligan/one", case.main)
    assert case.repository.in_the_way(branch) == other


def test_landing_moves_the_branch_and_the_fence(case: Case) -> None:
    first = case.repository.begin_branch(BRANCH, case.main)
    fence = case.repository.take_fence("loop")
    new = case.repository.commit(case.repository.tree_of(first), [first], "merged\n")
    after = case.repository.land(BRANCH, old=first, new=new, fence=fence)
    assert after is not None
    assert after.value != fence.value
    assert case.git("rev-parse", f"refs/heads/{BRANCH}") == new
    assert case.git("rev-parse", "refs/mulligan/fence/loop") == after.value
    # Whoever has the old fence, or does not know the new tip, changes nothing.
    again = case.repository.commit(case.repository.tree_of(first), [new], "again\n")
    assert case.repository.land(BRANCH, old=new, new=again, fence=fence) is None
    assert case.repository.land(BRANCH, old=first, new=again, fence=after) is None
    assert case.git("rev-parse", f"refs/heads/{BRANCH}") == new
    assert case.git("rev-parse", "refs/mulligan/fence/loop") == after.value
    assert case.repository.land(BRANCH, old=new, new=again, fence=after)


def test_whoever_takes_the_fence_stops_the_one_before(case: Case) -> None:
    first = case.repository.begin_branch(BRANCH, case.main)
    here, there = case.repository, case.reopen()
    fence = here.take_fence("loop")
    taken = there.take_fence("loop")
    new = here.commit(here.tree_of(first), [first], "merged\n")
    assert here.land(BRANCH, old=first, new=new, fence=fence) is None
    assert case.git("rev-parse", f"refs/heads/{BRANCH}") == first
    other = there.commit(there.tree_of(first), [first], "other\n")
    assert there.land(BRANCH, old=first, new=other, fence=taken)
    assert here.land(BRANCH, old=first, new=new, fence=Fence(loop="x", value=NOTHING)) is None


def test_history_goes_by_first_parents_and_has_trailers(case: Case) -> None:
    first = case.repository.begin_branch(BRANCH, case.main)
    side = case.commit_on(first, {"c.txt": "c\n"})
    fence = case.repository.take_fence("loop")
    trailers = "Mulligan-Attempt: j/1\nMulligan-Item: a: b\n"
    message = f"Merge ünï\n\nBody: not a trailer, as more follows.\n\n{trailers}"
    case.repository.resolve(side)
    merged = case.repository.commit(case.repository.tree_of(side), [first, side], message)
    assert case.repository.land(BRANCH, old=first, new=merged, fence=fence)
    newest, oldest = case.repository.history(BRANCH)
    assert (newest.commit, oldest.commit) == (merged, first)
    assert newest.parents == (first, side)
    assert newest.subject == "Merge ünï"
    assert newest.trailers == {"Mulligan-Attempt": "j/1", "Mulligan-Item": "a: b"}
    assert newest.tree == case.git("rev-parse", f"{side}^{{tree}}")
    assert newest.at > 1_600_000_000
    assert oldest.trailers == {}
    assert [each.commit for each in case.repository.history(BRANCH, until=first)] == [merged]
    for unknown in ("1" * 40, "nonsense"):
        assert len(case.repository.history(BRANCH, until=unknown)) == 2
    assert case.repository.history("none") == ()
    assert case.repository.contains(BRANCH, side)
    assert not case.repository.contains("main", side)
    assert not case.repository.contains("none", side)
    assert not case.repository.contains("main", "1" * 40)
    author = case.git("log", "-1", "--format=%an <%ae> %cn <%ce>", merged)
    assert author == "mulligan <mulligan@localhost> mulligan <mulligan@localhost>"


def test_changes_and_their_text(case: Case) -> None:
    old = case.user.git("rev-parse", "HEAD")
    new = case.user.commit(
        {"a.txt": "one\n2\nthree\nfour\n", "src/b.py": None, "new\nline.txt": "x\n", "bin": b"\0\1"}
    )
    case.user.git("push", "-q", str(case.origin), f"{new}:refs/heads/new")
    assert case.repository.resolve("new") == new
    found = {each.path: each for each in case.repository.changes(old, new)}
    assert found["a.txt"].kind == "changed"
    assert (found["a.txt"].added, found["a.txt"].removed) == (2, 1)
    assert found["src/b.py"].kind == "deleted"
    assert found["new\nline.txt"].kind == "added"
    assert (found["bin"].kind, found["bin"].added) == ("added", None)
    text = case.repository.diff(old, new, max_bytes=100_000)
    assert "-two\n+2\n" in text
    short = case.repository.diff(old, new, max_bytes=50)
    assert text.startswith(short[:40])
    assert "cut at 50 bytes" in short
    trees = [case.repository.tree_of(each) for each in (old, new)]
    assert case.repository.changes(*trees) == case.repository.changes(old, new)


def test_merging(case: Case) -> None:
    first = case.main
    ours = case.commit_on(first, {"a.txt": "ONE\ntwo\nthree\n"})
    theirs = case.commit_on(first, {"c.txt": "c\n"})
    for each in (ours, theirs):
        case.git("update-ref", f"refs/heads/x{each[:5]}", each)
    merged = case.repository.merge(ours, theirs)
    assert merged.conflicts == ()
    names = {each.path: each.kind for each in case.repository.changes(first, merged.tree)}
    assert names == {"a.txt": "changed", "c.txt": "added"}


def test_conflicts_have_their_lines_only(case: Case) -> None:
    lines = [f"line {n}" for n in range(100)]
    base = case.commit_on(case.main, {"long.txt": "\n".join(lines)})
    ours = case.commit_on(base, {"long.txt": "\n".join([*lines[:50], "ours", *lines[51:]])})
    theirs = case.commit_on(base, {"long.txt": "\n".join([*lines[:50], "theirs", *lines[51:]])})
    for each in (ours, theirs):
        case.git("update-ref", f"refs/heads/x{each[:5]}", each)
    (conflict,) = case.repository.merge(ours, theirs).conflicts
    assert conflict.path == "long.txt"
    assert conflict.hunks.splitlines() == [
        "@@ line 48 @@", "line 47", "line 48", "line 49", "<<<<<<< the branch", "ours", "=======",
        "theirs", ">>>>>>> the work", "line 51", "line 52", "line 53",
    ]  # fmt: skip


def test_other_conflicts_are_named_in_words(case: Case) -> None:
    user = case.user
    base = user.commit({"gone.txt": "x\n" * 20, "picture": b"\0\1\2" * 50, "d": "d"})
    user.git("switch", "-q", "-c", "theirs")
    theirs = user.commit({"gone.txt": "y\n" * 20, "picture": b"\0\4\5" * 50})
    user.git("switch", "-q", "main")
    ours = user.commit({"gone.txt": None, "picture": b"\0\7\7" * 50})
    if user.path != case.origin:
        user.git("push", "-q", str(case.origin), "main", "theirs")
    assert case.repository.resolve(base)
    case.repository.resolve("main")
    case.repository.resolve("theirs")
    found = {each.path: each.hunks for each in case.repository.merge(ours, theirs).conflicts}
    assert found.keys() == {"gone.txt", "picture"}
    assert "deleted in the branch and modified in the work" in found["gone.txt"]
    assert "binary" in found["picture"]


def test_many_and_large_conflicts_are_cut(case: Case) -> None:
    names = [f"f{n:02}.txt" for n in range(25)]
    user = case.user
    user.commit(dict.fromkeys(names, "base\n"))
    user.git("switch", "-q", "-c", "theirs")
    theirs = user.commit(dict.fromkeys(names, "theirs\n" * 2000))
    user.git("switch", "-q", "main")
    ours = user.commit(dict.fromkeys(names, "ours\n" * 2000))
    if user.path != case.origin:
        user.git("push", "-q", str(case.origin), "main", "theirs")
    case.repository.resolve("main")
    case.repository.resolve("theirs")
    conflicts = case.repository.merge(ours, theirs).conflicts
    assert len(conflicts) == 21
    assert conflicts[-1].path == "… and 5 more files"
    assert max(len(each.hunks) for each in conflicts) == 4000


def test_a_merge_with_a_given_base_is_a_revert(case: Case) -> None:
    """Given three checkpoints, when the second one is taken back, then the third one stays."""
    first = case.main
    second = case.commit_on(first, {"second.txt": "2\n"})
    third = case.commit_on(second, {"third.txt": "3\n"})
    case.git("update-ref", "refs/heads/third", third)
    assert case.repository.resolve("third") == third
    reverted = case.repository.merge(third, first, base=second)
    assert reverted.conflicts == ()
    wanted = case.commit_on(first, {"third.txt": "3\n"})
    assert reverted.tree == case.git("rev-parse", f"{wanted}^{{tree}}")


def test_unrelated_commits_conflict(case: Case) -> None:
    other = case.repository.commit(case.repository.tree_of(case.main), [], "another root\n")
    assert case.repository.merge(case.main, other).conflicts == ()


def test_saved_work_is_listed_and_forgotten(case: Case) -> None:
    names = [
        AttemptName(loop=loop, item=item, attempt=attempt, token=token)
        for loop, item, attempt, token in [
            ("loop", "a", 1, "t1"),
            ("loop", "a", 2, "t2"),
            ("loop", "a.b", 1, "t3"),
            ("loop2", "a", 1, "t4"),
        ]
    ]
    for name in names:
        case.git("update-ref", name.work_ref, case.main)
        case.git("update-ref", name.transcript_ref, case.main)
        assert AttemptName.from_ref(name.work_ref) == name
        assert AttemptName.from_ref(name.transcript_ref) == name
    found = case.repository.saved("loop", "a")
    assert [each.ref for each in found] == [each.work_ref for each in names[:2]]
    assert {each.commit for each in found} == {case.main}
    assert all(each.at > 1_600_000_000 for each in found)
    assert len(case.repository.saved("loop")) == 3
    assert case.repository.saved("none") == []
    refs = [names[0].work_ref, names[0].transcript_ref]
    case.repository.forget([*refs, "refs/mulligan/attempts/loop/gone/1-x"])
    case.repository.forget(refs)
    case.repository.forget([])
    assert [each.ref for each in case.repository.saved("loop", "a")] == [names[1].work_ref]
    assert [each.ref for each in case.reopen().saved("loop", "a")] == [names[1].work_ref]


def test_only_our_references_are_forgotten(case: Case) -> None:
    for ref in ("refs/heads/main", "HEAD", "refs/mulligan/../heads/main", "refs/mulligan/", "-d"):
        with pytest.raises(BadInput, match="only references below refs/mulligan/"):
            case.repository.forget(["refs/mulligan/x", ref])
    assert case.main


def test_many_references_are_forgotten_at_once(case: Case) -> None:
    refs = [f"refs/mulligan/attempts/loop/item/{n}-t" for n in range(210)]
    main = case.main
    lines = "".join(f"create {ref} {main}\n" for ref in refs)
    git(case.origin, "update-ref", "--stdin", stdin=lines.encode())
    assert len(case.repository.saved("loop")) == 210
    case.repository.forget(refs)
    assert case.git("for-each-ref", "refs/mulligan/") == ""


def test_missing_objects_are_an_error(case: Case) -> None:
    with pytest.raises(RepositoryUnavailable, match=f"has no commit or tree {'1' * 40}"):
        case.repository.tree_of("1" * 40)
    with pytest.raises(BadInput, match="not the full ids"):
        case.repository.merge("main", "HEAD")


def test_a_repository_without_commits(tmp_path: Path) -> None:
    user = UserRepository.make(tmp_path / "empty", {})
    for name in (str(user.path), f"file://{user.path}"):
        repository = open_repository(tmp_path / "cache", name)
        assert repository.resolve("HEAD") is None
        assert repository.resolve("main") is None
        assert repository.history("main") == ()
        assert repository.saved("loop") == []
        assert repository.take_fence("loop").value


def test_a_repository_that_disappears_is_unavailable(case: Case) -> None:
    assert case.repository.resolve("main")
    case.origin.rename(case.origin.with_name("elsewhere"))
    for call in (
        lambda: case.repository.resolve("main"),
        lambda: case.repository.begin_branch(BRANCH, NOTHING),
        lambda: case.repository.take_fence("loop"),
        lambda: case.repository.saved("loop"),
    ):
        with pytest.raises(RepositoryUnavailable):
            call()


def test_moves_are_all_or_none(case: Case) -> None:
    new = case.repository.commit(case.repository.tree_of(case.main), [case.main], "x\n")
    moves = [
        RefMove("refs/mulligan/one", None, new),
        RefMove("refs/heads/main", NOTHING[:-1] + "1", new),
    ]
    assert not case.repository.move(moves)
    assert case.git("for-each-ref", "refs/mulligan") == ""


def test_the_files_of_the_user_are_as_expected(case: Case) -> None:
    assert set(case.git("ls-tree", "-r", "--name-only", "main").split()) == set(FILES)
