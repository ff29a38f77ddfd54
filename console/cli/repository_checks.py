"""The checks of `mulligan doctor` for loops that work in git repositories."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor

from mulligan.console.cli.doctor_checks import Check, fail, ok, warn
from mulligan.policies.figures.format import counted
from mulligan.tasks.ports.errors import BadInput, RepositoryUnavailable
from mulligan.workers.repositories.disk_usage import cache_entries
from mulligan.workers.repositories.git_command import redact
from mulligan.workers.repositories.local_repository import LocalRepository
from mulligan.workers.repositories.repositories import GitRepositories
from mulligan.workers.settings.model import Settings

#: The first one with `git merge-tree --write-tree`.
_OLDEST = (2, 38)
_VERSION = re.compile(r"git version ((\d+)\.(\d+)\S*)")
_INSTALL = "install git 2.38 or later: loops with a `repo` need it on every worker"
#: Seconds to wait for one repository, and how many are asked at once.
_PATIENCE = 15.0
_AT_ONCE = 8


def check_repositories(settings: Settings) -> Iterator[Check]:
    """Check git, the repositories that mulligan.toml names, and the space that they take."""
    git = _git(needed=bool(settings.repositories))
    yield git
    if git.status == "ok" and settings.repositories:
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            yield from threads.map(lambda name: _reach(settings, name), settings.repositories)
    yield _cache(settings)


def _git(*, needed: bool) -> Check:
    wrong = fail if needed else warn
    try:
        done = subprocess.run(["git", "--version"], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return wrong("git", "cannot be started", _INSTALL)
    found = _VERSION.search(done.stdout)
    if found is None:
        return wrong("git", f"says {done.stdout.strip()[:100]!r}", _INSTALL)
    if (int(found[2]), int(found[3])) < _OLDEST:
        return wrong("git", f"{found[1]} is too old", _INSTALL)
    return ok("git", found[1])


def _reach(settings: Settings, name: str) -> Check:
    known = GitRepositories(settings.repository_folder, settings.repositories, timeout=_PATIENCE)
    try:
        repository = known.open(name)
    except BadInput as error:
        return fail("repositories", f"{name}: {error}", "correct it in [repositories]")
    place = repository.name
    try:
        repository.read_refs(["HEAD"])
    except RepositoryUnavailable as error:
        fix = f"try `git ls-remote {place}` as this user, and correct the URL or the credentials"
        return fail("repositories", f"{name} cannot be reached: {error}", fix)
    return ok("repositories", f"{name}: {place}")


def check_kept_work(settings: Settings, names: Collection[str]) -> Iterator[Check]:
    """Say what is kept in the repositories of loops, and how much space these take."""
    known = GitRepositories(settings.repository_folder, settings.repositories, timeout=_PATIENCE)
    for name in sorted(names):
        try:
            repository = known.open(name)
            said = f"{redact(name)}: {counted(repository.kept(), 'attempt')}"
            if isinstance(repository, LocalRepository):
                said += f", {repository.size() / 1e6:.0f} MB of objects"
        except (BadInput, RepositoryUnavailable) as error:
            yield warn(
                "kept work",
                f"{redact(name)}: {error}",
                "see the runbook, section Loops in repositories",
            )
        else:
            yield ok("kept work", said)


def _cache(settings: Settings) -> Check:
    folder, cap = settings.repository_folder, settings.repository_cache_cap
    entries = cache_entries(folder)
    used = sum(each.size for each in entries)
    mirrors = sum(each.kind == "mirror" for each in entries)
    parts = f"{counted(mirrors, 'mirror')}, {counted(len(entries) - mirrors, 'prepared setup')}"
    said = f"{used / 1e9:.1f} of {cap / 1e9:.1f} GB in {folder}: {parts}"
    if used > cap:
        return warn("repo cache", said, "raise repository_cache_cap: all of it is in use")
    return ok("repo cache", said)
