"""Check the repository that a loop file names, if it is on this host."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mulligan.policies.loops.spec import LoopConfig
from mulligan.policies.problem import Problem
from mulligan.policies.suggestions import did_you_mean
from mulligan.tasks.loops.change import branch_problems
from mulligan.tasks.ports.errors import BadInput, RepositoryUnavailable
from mulligan.workers.repositories.repositories import GitRepositories
from mulligan.workers.settings.model import Settings


def local_repository_problems(settings: Settings, config: LoopConfig) -> Iterator[Problem]:
    """Find what is wrong with a loop's repository and its branches. Contacts no other host."""
    name = config.repo or ""
    place = settings.repositories.get(name, name)
    if ":" not in place and not place.startswith(("/", "~/")):
        hint = did_you_mean(name, settings.repositories)
        message = (
            f"there is no directory {name!r} beside this file, and no repository of this name in"
            f" [repositories] of mulligan.toml{hint}"
        )
        yield Problem.at("repo", message, "unknown_name")
        return
    if place.startswith(("/", "~/")) and not Path(place).expanduser().exists():
        yield Problem.at("repo", f"there is no directory {place}")
        return
    repositories = GitRepositories(settings.repository_folder, settings.repositories)
    try:
        repository = repositories.open(name)
        if place.startswith(("/", "~/")):
            yield from branch_problems(repository, config)
    except (BadInput, RepositoryUnavailable) as error:
        yield Problem.at("repo", str(error))
