"""Locks on files: an item that declares files has them alone from its admission to its end.

All files are granted at once, with the slot, or none is. Who waits for files has none yet,
so that locks alone cannot deadlock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mulligan.policies.path_patterns import shared_file


@dataclass(frozen=True, kw_only=True)
class FileLock:
    """The files that an item has alone."""

    job_id: str
    loop: str
    item: str
    #: Where the files are: a repository, or the tenant whose loops have none.
    space: str
    files: tuple[str, ...]
    #: New with each grant. Whoever has an older one may not merge any more.
    token: str = ""
    since: float = 0.0
    #: When others may take the files from an item that gave its slot back; None while it has one.
    expires: float | None = None

    @property
    def name(self) -> str:
        return f"{self.loop}/{self.item}"


def lock_space(identity: str | None, tenant: str) -> str:
    """Return where the files of a loop are. ``identity``: of its repository, if it has one."""
    return f"repo:{identity}" if identity else f"tenant:{tenant}"


def plain_pattern(pattern: str) -> str:
    """Return a pattern as people see it: what an item was seen to change begins with a slash."""
    return pattern.removeprefix("/")


@dataclass(frozen=True, kw_only=True)
class Conflict:
    """A lock that holds an item back, and the patterns that can match one file."""

    lock: FileLock
    files: tuple[str, str]

    def __str__(self) -> str:
        return self.files[0]  # what the other one calls it may be another tenant's


@dataclass(frozen=True, kw_only=True)
class Denial:
    """Why an item was denied its files, as it is stored."""

    #: Who has them, or waits for them longer: `loop/item`.
    holder: str
    files: str
    #: Whether the other one only waits, too.
    reserved: bool = False

    def __str__(self) -> str:
        return f"{'~' * self.reserved}{self.holder} {self.files}"

    @classmethod
    def parse(cls, text: str) -> Denial:
        holder, _, files = text.removeprefix("~").partition(" ")
        return cls(holder=holder, files=files, reserved=text.startswith("~"))


def find_conflict(
    space: str, files: Sequence[str], locks: Iterable[FileLock], *, job_id: str = ""
) -> Conflict | None:
    """Return the first lock of another job that has one of these files; None if all are free."""
    for lock in locks:
        if lock.space == space and (not job_id or lock.job_id != job_id):
            found = shared_file(files, lock.files)
            if found is not None:
                return Conflict(lock=lock, files=found)
    return None
