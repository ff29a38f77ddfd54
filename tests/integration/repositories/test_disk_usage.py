"""The space of mirrors and setups is known, and bounded."""

from __future__ import annotations

import os
import time
from pathlib import Path

from support.git_repositories import UserRepository, git, open_repository

from mulligan.workers.repositories.disk_usage import cache_entries, collect_garbage, prune


def age(path: Path, seconds: float) -> None:
    at = time.time() - seconds
    os.utime(path, (at, at))


def test_least_recently_used_mirrors_are_removed(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    for name in ("one", "two", "three"):
        user = UserRepository.make(tmp_path / name)
        open_repository(cache, f"file://{user.path}").resolve("main")
    entries = {each.path.name.partition("-")[0]: each for each in cache_entries(cache)}
    assert all(each.size > 10_000 for each in entries.values())
    for name, seconds in (("one", 9000), ("two", 8000), ("three", 0)):
        age(entries[name].lock, seconds)
    assert cache_entries(cache)[0].path == entries["one"].path
    assert prune(cache, 10**9) == []
    repository = open_repository(cache, f"file://{tmp_path / 'one'}")
    with repository.using():
        age(entries["one"].lock, 9000)
        removed = prune(cache, 0)
    # One is in use, and three was used just now.
    assert [each.path for each in removed] == [entries["two"].path]
    assert {each.path for each in cache_entries(cache)} == {
        entries["one"].path,
        entries["three"].path,
    }
    assert open_repository(cache, f"file://{tmp_path / 'two'}").resolve("main")


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    left = tmp_path / "setups" / ".abc.123"
    left.mkdir(parents=True)
    prune(tmp_path, 0)
    assert left.exists()
    age(left, 100_000)
    prune(tmp_path, 0)
    assert not left.exists()


def test_objects_of_a_mirror_are_packed(tmp_path: Path) -> None:
    user = UserRepository.make(tmp_path / "user")
    repository = open_repository(tmp_path / "cache", f"file://{user.path}")
    first = repository.resolve("main") or ""
    new = repository.commit(repository.tree_of(first), [first], "not on a branch yet\n")
    (entry,) = cache_entries(tmp_path / "cache")
    collect_garbage(entry)
    assert len(list((entry.path / "objects/pack").glob("*.pack"))) == 1
    assert repository.tree_of(new) == repository.tree_of(first)
    assert git(entry.path, "rev-parse", "main") == first
    assert cache_entries(tmp_path / "nothing") == []
