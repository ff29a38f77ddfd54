"""The bare mirror of a remote repository on this host: what was fetched is not fetched again."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from mulligan.tasks.ports.errors import RepositoryUnavailable
from mulligan.workers.repositories.disk_usage import MIRRORS
from mulligan.workers.repositories.file_locks import exclusive_lock, shared_lock
from mulligan.workers.repositories.git_command import (
    Git,
    GitResult,
    operator_config,
    redact,
    without_tokens,
)
from mulligan.workers.repositories.git_directory import make_once
from mulligan.workers.repositories.object_reading import present

ALL_BRANCHES = "+refs/heads/*:refs/heads/*"
_REMOTE = "origin"
#: A first fetch takes long, and so may a push with much work.
_FETCH_TIMES, _PUSH_TIMES = 15, 5
_ANYTHING_ELSE = re.compile(r"[^A-Za-z0-9_-]+")
_LONGEST_NAME = 40
_SSH_USER = re.compile(r"[a-z+]*ssh[a-z+]*://[\w.-]+@[^@]*\Z")


def without_credentials(url: str) -> str:
    """Return an address without password, and without the name that it is for, except ssh's.

    It tells repositories apart, so only what git itself takes for credentials is left out.
    """
    if "://" not in url:
        return url
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    name = user.partition(":")[0] if parts.scheme in ("ssh", "git+ssh", "ssh+git") else ""
    return without_tokens(urlunsplit(parts._replace(netloc=f"{name}{at}{host}" if name else host)))


def shown_address(url: str) -> str:
    """Return an address for people: without anything that may be a credential."""
    plain = without_credentials(url)
    return plain if _SSH_USER.match(plain) else redact(plain)


def mirror_name(url: str) -> str:
    """Return the name of a mirror's directory: readable, and different for each repository."""
    plain = without_credentials(url)
    last = plain.rstrip("/").rpartition("/")[2].rpartition(":")[2].removesuffix(".git")
    readable = _ANYTHING_ELSE.sub("-", last).strip("-")[:_LONGEST_NAME] or "repository"
    return f"{readable}-{hashlib.sha256(plain.encode()).hexdigest()[:16]}"


class Mirror:
    """The mirror of one remote repository, shared by the processes of this host."""

    def __init__(self, url: str, *, cache: Path, timeout: float) -> None:
        self.name, self.address = shown_address(url), without_credentials(url)
        self.directory = cache / MIRRORS / mirror_name(url)
        self._in_use = self.directory.with_name(f"{self.directory.name}.lock")
        self._fetching = self.directory.with_name(f"{self.directory.name}.fetch")
        self._timeout = timeout
        # The address is no argument, which other users of this host could read.
        self._remote = {
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": f"remote.{_REMOTE}.url",
            "GIT_CONFIG_VALUE_0": url,
        }
        self._config = operator_config(cache)

    @property
    def objects(self) -> Git:
        """Git that reads and writes objects in the mirror."""
        return Git(name=self.name, directory=self._make(), timeout=self._timeout)

    def _make(self) -> Path:
        # Objects of another format are refused by fetch: no host offers them yet.
        return make_once(self.directory, object_format="sha1")

    def using(self) -> AbstractContextManager[None]:
        """Keep the mirror until the end."""
        return shared_lock(self._in_use, wait=self._timeout)

    def _ask(
        self,
        *arguments: str,
        directory: Path | None = None,
        times: float = 1,
        lock: int | None = None,
    ) -> GitResult:
        """Run git with the operator's configuration, in the mirror or in another git directory.

        ``times``: how much longer than usual it may take.
        """
        git = Git(
            name=self.name,
            directory=directory or self._make(),
            profile="operator",
            timeout=self._timeout * times,
            config=self._config,
            env=self._remote,
        )
        return git.run(*arguments, holding=lock)

    def remote_refs(self, patterns: Sequence[str]) -> dict[str, str]:
        """Return references of the remote repository. The patterns may end with ``*``."""
        result = self._ask("ls-remote", "--quiet", _REMOTE, *patterns)
        if result.code:
            raise self.objects.failed("ls-remote", result)
        found = {}
        for line in result.lines:
            oid, _, ref = line.partition("\t")
            found[ref] = oid
        return found

    def have(self, refs: dict[str, str], *, fetch: Sequence[str] = ()) -> bool:
        """Fetch those references whose objects are not here; return whether all are now.

        They are not if a reference moved in between. ``fetch``: what to fetch if any is missing,
        instead of these references alone.
        """
        with self.using():
            if not self._missing(refs):
                return True
            with self._fetching_alone() as lock:
                missing = self._missing(refs)
                if missing and fetch:
                    self._fetch(lock, fetch)
                elif missing:
                    self._fetch_each(lock, missing)
            return not self._missing(refs)

    def _fetching_alone(self) -> AbstractContextManager[int]:
        return exclusive_lock(self._fetching, wait=self._timeout * _FETCH_TIMES)

    def _fetch_each(self, lock: int, refs: Sequence[str]) -> None:
        refspecs = [f"+{ref}:{_kept_as(ref)}" for ref in refs]
        try:
            self._fetch(lock, refspecs)
        except RepositoryUnavailable:
            # A branch `a` that is gone is in the way of a new one `a/b`.
            self._fetch(lock, [ALL_BRANCHES])
            self._fetch(lock, [each for each in refspecs if not each.startswith("+refs/heads/")])

    def _fetch(self, lock: int, refspecs: Sequence[str]) -> None:
        if not refspecs:
            return
        result = self._run_fetch(lock, "--prune", refspecs)
        if result.code:
            raise self.objects.failed("fetch", result)

    def _run_fetch(self, lock: int, prune: str, refspecs: Sequence[str]) -> GitResult:
        # Whoever fetches here holds our lock, so the locks of other gits are dead.
        for dead in (*self.directory.glob("*.lock"), *self.directory.glob("refs/**/*.lock")):
            dead.unlink(missing_ok=True)
        options = ["--quiet", "--no-tags", "--no-write-fetch-head", "--no-auto-maintenance", prune]
        return self._ask("fetch", *options, _REMOTE, *refspecs, times=_FETCH_TIMES, lock=lock)

    def _missing(self, refs: dict[str, str]) -> list[str]:
        if not refs:
            return []
        here = present(self.objects, refs.values())
        return [ref for ref, oid in refs.items() if oid not in here]

    def fetch_id(self, oid: str) -> bool:
        """Fetch one object by its id, if the remote repository allows that."""
        with self.using(), self._fetching_alone() as lock:
            result = self._run_fetch(lock, "--no-prune", [f"+{oid}:refs/mirror/ids/{oid}"])
            return result.code == 0

    def push(self, arguments: Sequence[str], *, source: Path | None = None) -> GitResult:
        """Push from the mirror or from another git directory."""
        options = ["--quiet", "--porcelain", "--no-verify"]
        with self.using():
            return self._ask("push", *options, *arguments, directory=source, times=_PUSH_TIMES)


def _kept_as(ref: str) -> str:
    return "refs/mirror/HEAD" if ref == "HEAD" else ref
