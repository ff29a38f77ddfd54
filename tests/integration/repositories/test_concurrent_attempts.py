"""Ten attempts at once, in several processes and threads, lose nothing."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.file_trees import in_child
from support.git_repositories import UserRepository, files_of, git, open_repository, write

from mulligan.workers.repositories.checkouts import Checkouts
from mulligan.workers.repositories.file_locks import exclusive_lock
from mulligan.workers.repositories.git_repository import GitRepository

BRANCH = "mulligan/loop"
PROCESSES, THREADS = 5, 2


def work(name: str, cache: Path, number: int) -> None:
    """Do one item: work, save several times, and merge."""
    repository = open_repository(cache, name)
    with Checkouts().attempt(
        repository, branch=BRANCH, start="main", loop="loop", item=f"item{number}", attempt=1,
        token="t",
    ) as checkout:  # fmt: skip
        for step in range(2):
            write(checkout.directory, {f"{number}.txt": f"{number}.{step}\n"})
            saved = checkout.save({"events": f"{number}.{step}".encode()})
        assert saved is not None
    # One merger at a time, as the ledger has it.
    with exclusive_lock(cache.parent / "merging", wait=60):
        merge(repository, saved, f"item {number}")


def merge(repository: GitRepository, saved: str, message: str) -> None:
    fence = repository.take_fence("loop")
    tip = repository.resolve(BRANCH)
    assert tip is not None
    merged = repository.merge(tip, saved)
    assert merged.conflicts == ()
    commit = repository.commit(merged.tree, [tip, saved], message)
    assert repository.land(BRANCH, old=tip, new=commit, fence=fence) is not None


def in_processes(function: Callable[[int], object]) -> list[int]:
    """Run a function for ten numbers at once; return the exit codes of processes that failed."""

    def process(first: int) -> None:
        with ThreadPoolExecutor(THREADS) as threads:
            list(threads.map(function, range(first, first + THREADS)))

    with ThreadPoolExecutor(PROCESSES) as parents:
        firsts = [n * THREADS for n in range(PROCESSES)]
        codes = parents.map(lambda first: in_child(lambda: process(first)), firsts)
        return [code for code in codes if code]


@pytest.mark.parametrize("kind", ["local", "remote"])
def test_ten_attempts_at_once_lose_nothing(kind: str, tmp_path: Path) -> None:
    user = UserRepository.make(tmp_path / "user")
    origin = user.path if kind == "local" else user.bare(tmp_path / "origin.git")
    name = str(origin) if kind == "local" else f"file://{origin}"
    failures = in_processes(lambda number: work(name, tmp_path / "cache", number))
    assert failures == [], "see stderr"
    found = files_of(origin, BRANCH)
    numbers = range(PROCESSES * THREADS)
    assert {n for n in numbers if found.get(f"{n}.txt") == ("100644", b"%d.1\n" % n)} == set(
        numbers
    )
    refs = git(origin, "for-each-ref", "--format=%(refname)", "refs/mulligan/").splitlines()
    assert len(refs) == 2 * len(numbers) + 1
    history = open_repository(tmp_path / "cache", name).history(BRANCH)
    assert len(history) == len(numbers) + 1
    git(origin, "fsck", "--strict")


@pytest.mark.parametrize("kind", ["local", "remote"])
def test_only_one_of_many_lands_on_the_same_tip(kind: str, tmp_path: Path) -> None:
    user = UserRepository.make(tmp_path / "user")
    name = str(user.path) if kind == "local" else f"file://{user.path}"
    cache = tmp_path / "cache"
    repository = open_repository(cache, name)
    first = repository.begin_branch(BRANCH, repository.resolve("main") or "")
    tree, fence = repository.tree_of(first), repository.take_fence("loop")
    landed = tmp_path / "landed"
    landed.mkdir()

    def land(number: int) -> None:
        here = open_repository(cache, name)
        new = here.commit(tree, [first], f"{number}\n")
        if here.land(BRANCH, old=first, new=new, fence=fence) is not None:
            (landed / new).touch()

    assert in_processes(land) == []
    assert [each.name for each in landed.iterdir()] == [user.git("rev-parse", BRANCH)]


def test_many_take_the_fence_and_only_the_last_one_has_it(tmp_path: Path) -> None:
    user = UserRepository.make(tmp_path / "user")
    taken = tmp_path / "taken"
    taken.mkdir()

    def take(_: int) -> None:
        (taken / open_repository(tmp_path / "cache", user.path).take_fence("loop").value).touch()

    assert in_processes(take) == []
    values = {each.name for each in taken.iterdir()}
    assert len(values) == PROCESSES * THREADS
    assert user.git("rev-parse", "refs/mulligan/fence/loop") in values
