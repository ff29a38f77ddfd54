"""Programs that are confined to a checkout can use git in it, and read nothing else for that."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.git_repositories import UserRepository, files_of, open_repository

from mulligan.workers.repositories.checkouts import Checkouts
from mulligan.workers.sandbox.confinement import Confinement
from mulligan.workers.sandbox.isolation import NotConfined
from mulligan.workers.sandbox.limits import Limits
from mulligan.workers.sandbox.subprocesses import clean_environment, run

SCRIPT = """
set -e
git log --format=%s
echo work > work.txt
git add work.txt
git commit -q -m 'by the agent'
git status --porcelain
git config core.fsmonitor "touch ran"
cat {user}/a.txt 2>/dev/null && exit 9
touch {objects}/x 2>/dev/null && exit 8
touch ../store/x 2>/dev/null && exit 7
exit 0
"""


@pytest.mark.parametrize("kind", ["bubblewrap", "landlock"])
@pytest.mark.parametrize("place", ["local", "remote"])
def test_an_agent_commits_in_its_checkout(kind: str, place: str, tmp_path: Path) -> None:
    user = UserRepository.make(tmp_path / "user")
    name = str(user.path) if place == "local" else f"file://{user.path}"
    repository = open_repository(tmp_path / "cache", name)
    limits = Limits(confinement=Confinement.model_validate({"kind": kind}))
    with Checkouts().attempt(
        repository, branch="b", start="main", loop="l", item="i", attempt=1, token="t"
    ) as checkout:
        work = checkout.directory
        script = SCRIPT.format(user=user.path, objects=checkout.readable[0])
        try:
            done = run(
                ["sh", "-c", script], cwd=work, timeout=30, env=clean_environment(work.parent),
                limits=limits, read=checkout.readable,
            )  # fmt: skip
        except NotConfined as error:
            if os.environ.get("CI"):
                raise
            pytest.skip(str(error))
        assert (done.exit_code, done.stdout) == (0, "change\n"), done.stderr
        saved = checkout.save()
        assert saved is not None
        assert files_of(user.path, saved)["work.txt"] == ("100644", b"work\n")
        assert user.git("rev-parse", f"{saved}^") == checkout.base
        assert not (work / "ran").exists()
