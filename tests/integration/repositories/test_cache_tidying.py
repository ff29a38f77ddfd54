"""The repository cache stays within its limit."""

from __future__ import annotations

import os
from pathlib import Path

from support.git_repositories import git

from mulligan.workers.loops.cache_tidying import CacheTidying
from mulligan.workers.repositories.disk_usage import cache_entries
from mulligan.workers.repositories.repositories import GitRepositories


def make_origin(path: Path) -> str:
    git(path.parent, "init", "-q", "-b", "main", str(path))
    (path / "file").write_text("text")
    git(path, "add", "-A")
    git(path, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "Begin")
    return f"file://{path}"


def test_mirrors_that_nobody_used_lately_are_removed(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    names = [make_origin(tmp_path / name) for name in ("old", "new")]
    repositories = GitRepositories(cache, {})
    for name in names:
        assert repositories.open(name).resolve("main")
    old, new = (next(e for e in cache_entries(cache) if n in e.path.name) for n in ("old", "new"))
    long_ago = new.used_at - 10_000
    for path in (old.path, old.lock):
        os.utime(path, (long_ago, long_ago))
    tidying = CacheTidying(cache, max_bytes=new.size + 1)
    tidying.tidy_if_due()  # not due yet
    assert len(cache_entries(cache)) == 2
    tidying.tidy()
    assert [each.path for each in cache_entries(cache)] == [new.path]
    assert repositories.open(names[0]).resolve("main"), "it is made again when it is used"
