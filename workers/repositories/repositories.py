"""Find a repository by the name of a profile, its URL or its path."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from mulligan.policies.suggestions import did_you_mean
from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.repositories.git_command import TIMEOUT_SECONDS, GitUser, redact
from mulligan.workers.repositories.git_repository import GitRepository
from mulligan.workers.repositories.local_repository import LocalRepository
from mulligan.workers.repositories.remote_repository import RemoteRepository

_SCHEMES = ("https", "http", "ssh", "git", "file")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
#: ``git@host:path``. What follows must not be an option, or ``//``.
_SCP_LIKE = re.compile(r"(?:[A-Za-z0-9_][\w.+-]*@)?[A-Za-z0-9_][\w.-]*:(?![:/]{2}|-)[^\s:]\S*")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class GitRepositories:
    """The repositories that this worker can reach."""

    def __init__(
        self, cache: Path, profiles: Mapping[str, str], *, timeout: float = TIMEOUT_SECONDS
    ) -> None:
        """Take the directory for mirrors, and the URLs or paths of named repositories."""
        self._cache, self._profiles, self._timeout = cache, dict(profiles), timeout

    def open(self, name: str) -> GitRepository:
        """Return a repository by the name of a profile, its URL or its path. Raise BadInput."""
        place = self._profiles.get(name, name)
        if not place or _CONTROL.search(place) or place.startswith("-"):
            raise BadInput(f"{redact(place)!r} is not the URL or the path of a git repository")
        if place.startswith(("/", "~/")):
            return self._open_path(Path(place).expanduser())
        if _is_allowed(place):
            path = Path(unquote(urlsplit(place).path))
            if place.startswith("file:") and _is_of_another_user(path):
                # A push as root would leave files of root's there.
                return self._open_path(path)
            return RemoteRepository(place, cache=self._cache, timeout=self._timeout)
        raise self._unknown(place)

    def _open_path(self, path: Path) -> GitRepository:
        try:
            exists = path.exists()
        except OSError as error:
            raise BadInput(f"{path} cannot be read: {error.strerror}") from error
        if not exists:
            raise BadInput(
                f"{path} does not exist on this worker: name a path or URL that every worker can"
                " reach"
            )
        return LocalRepository(path, cache=self._cache, timeout=self._timeout)

    def _unknown(self, place: str) -> BadInput:
        shown = redact(place)
        if "::" in place or _SCHEME.match(place):
            return BadInput(f"{shown}: only {', '.join(_SCHEMES)} and ssh's host:path are allowed")
        hint = did_you_mean(place, self._profiles)
        return BadInput(
            f"{shown!r} is neither a repository of the workers' configuration, nor a URL, nor an"
            f" absolute path{hint}"
        )


def _is_allowed(place: str) -> bool:
    if not _SCHEME.match(place):
        return "::" not in place and _SCP_LIKE.fullmatch(place) is not None
    try:
        parts = urlsplit(place)
        host = parts.hostname or ""
        _ = parts.port
    except ValueError:
        return False
    if parts.scheme == "file":
        return host in ("", "localhost") and parts.path.startswith("/")
    user = parts.netloc.rpartition("@")[0]
    return parts.scheme in _SCHEMES and bool(host) and not host.startswith("-") and user[:1] != "-"


def _is_of_another_user(path: Path) -> bool:
    try:
        return GitUser.owner_of(path) is not None
    except OSError:
        return False
