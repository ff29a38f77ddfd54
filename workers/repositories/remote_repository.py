"""A repository elsewhere, with a mirror of it on this host."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from urllib.parse import unquote, urlsplit

from mulligan.tasks.ports.errors import RepositoryUnavailable
from mulligan.workers.repositories.git_command import TIMEOUT_SECONDS, Git, GitResult, redact
from mulligan.workers.repositories.git_directory import ObjectFormat, find_git_directory
from mulligan.workers.repositories.git_repository import (
    GitRepository,
    RefMove,
    is_abbreviated,
    is_id,
)
from mulligan.workers.repositories.mirror import ALL_BRANCHES, Mirror
from mulligan.workers.repositories.ref_names import is_ref

#: How often the references may move while they are fetched.
_MOST_FETCHES = 5
#: References in one command.
_MOST_AT_ONCE = 200


class RemoteRepository(GitRepository):
    """A repository that is reached by a URL."""

    object_format: ObjectFormat = "sha1"

    def __init__(self, url: str, *, cache: Path, timeout: float = TIMEOUT_SECONDS) -> None:
        self._mirror = Mirror(url, cache=cache, timeout=timeout)
        self.name = self._mirror.name

    @property
    def identity(self) -> str:
        address = self._mirror.address
        parts = urlsplit(address)
        if parts.scheme == "file":
            path = Path(unquote(parts.path))
            return str((find_git_directory(path) or path).resolve())
        return address.rstrip("/").removesuffix(".git")

    @property
    def objects(self) -> Git:
        return self._mirror.objects

    @property
    def object_directory(self) -> Path:
        return self._mirror.directory / "objects"

    def using(self) -> AbstractContextManager[None]:
        return self._mirror.using()

    def checked_out(self, branch: str) -> str | None:  # noqa: ARG002 - it cannot be seen from here
        return None

    # -- reading references ------------------------------------------------------------------------

    def resolve(self, ref: str) -> str | None:
        if is_id(ref):
            return self._resolve_id(ref)
        starts = (
            ("",) if ref == "HEAD" or ref.startswith("refs/") else ("refs/heads/", "refs/tags/")
        )
        names = [f"{start}{ref}" for start in starts]
        found = self.tips([name for name in names if name == "HEAD" or is_ref(name)])
        for name in names:
            if name in found:
                return self._commit_of(found[name])
        if is_abbreviated(ref):
            self._fetch_branches()
            return self._commit_of(ref)
        return None

    def _fetch_branches(self) -> None:
        found = self._mirror.remote_refs(["refs/heads/*"])
        self._mirror.have(found, fetch=[ALL_BRANCHES])

    def _resolve_id(self, oid: str) -> str | None:
        found = self._commit_of(oid)
        if found is None:
            self._fetch_branches()
            found = self._commit_of(oid)
        if found is None and self._mirror.fetch_id(oid):
            found = self._commit_of(oid)
        return found

    def _commit_of(self, oid: str) -> str | None:
        """Return the commit that an id names, also through a tag."""
        result = self.objects.run("rev-parse", "--verify", "--quiet", f"{oid}^{{commit}}")
        return result.text if result.code == 0 else None

    def tips(self, refs: Sequence[str]) -> dict[str, str]:
        for _ in range(_MOST_FETCHES):
            found = self.read_refs(refs)
            if self._mirror.have(found):
                return found
        raise RepositoryUnavailable(f"{self.name}: references move faster than they are fetched")

    def read_refs(self, refs: Sequence[str]) -> dict[str, str]:
        found: dict[str, str] = {}
        for start in range(0, len(refs), _MOST_AT_ONCE):
            found |= self._mirror.remote_refs(refs[start : start + _MOST_AT_ONCE])
        # Git also lists references that end like the wanted ones.
        return {ref: oid for ref, oid in found.items() if ref in set(refs)}

    def _below(self, start: str) -> dict[str, str]:
        for _ in range(_MOST_FETCHES):
            found = self._names_below(start)
            if self._mirror.have(found, fetch=[f"+{start}*:{start}*"]):
                return found
        raise RepositoryUnavailable(f"{self.name}: saved work moves faster than it is fetched")

    def _names_below(self, start: str) -> dict[str, str]:
        listed = self._mirror.remote_refs([f"{start}*"])
        return {ref: oid for ref, oid in listed.items() if ref.startswith(start)}

    # -- writing references ------------------------------------------------------------------------

    def _write(
        self,
        moves: Sequence[RefMove],
        source: Git | None,
        known: Sequence[str],  # noqa: ARG002 - git finds out what the other side has
    ) -> None:
        for start in range(0, len(moves), _MOST_AT_ONCE):
            part = moves[start : start + _MOST_AT_ONCE]
            leases = [f"--force-with-lease={each.ref}:{each.old or ''}" for each in part]
            # Never with a `+`: it would override the lease.
            refspecs = [f"{each.new or ''}:{each.ref}" for each in part]
            arguments = ["--atomic", *leases, "origin", *refspecs]
            result = self._mirror.push(arguments, source=source.directory if source else None)
            if result.code:
                raise RepositoryUnavailable(f"{self.name}: git push failed: {_refusal(result)}")


def _refusal(result: GitResult) -> str:
    """Return why a push was refused: what the other side says about a reference, if anything."""
    for line in result.lines:
        flag, _, rest = line.partition("\t")
        if flag == "!" and "atomic" not in rest:
            return redact(rest.partition("\t")[2] or rest)
    return result.reason
