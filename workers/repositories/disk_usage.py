"""The disk space of mirrors and of prepared setups, and how it is bounded."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mulligan.workers.repositories.file_locks import exclusive_lock, if_unused, shared_lock
from mulligan.workers.repositories.git_command import Git

MIRRORS = "mirrors"
SETUPS = "setups"
#: Between two calls, a process has no lock on the mirror that it uses.
IDLE_SECONDS = 3600.0
_UNFINISHED_SECONDS = 86_400.0
_GC_SECONDS = 1800.0
_KEEP_UNUSED = "2.weeks.ago"

CacheKind = Literal["mirror", "setup"]
_FOLDERS = {"mirror": MIRRORS, "setup": SETUPS}


@dataclass(frozen=True, kw_only=True)
class CacheEntry:
    """A mirror or a prepared setup on this host."""

    kind: CacheKind
    path: Path
    size: int
    used_at: float

    @property
    def lock(self) -> Path:
        return self.path.with_name(f"{self.path.name}.lock")


def cache_entries(
    cache: Path, *, kinds: Sequence[CacheKind] = ("mirror", "setup")
) -> list[CacheEntry]:
    """Return all mirrors and prepared setups, the one that was used least recently first."""
    found = [entry for kind in kinds for entry in _of_kind(cache / _FOLDERS[kind], kind)]
    return sorted(found, key=lambda entry: (entry.used_at, entry.path))


def _of_kind(folder: Path, kind: CacheKind) -> Iterator[CacheEntry]:
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
    except OSError:
        return
    for name in names:
        if name.startswith("."):  # being made, or being removed
            continue
        path = folder / name
        lock = folder / f"{name}.lock"
        with contextlib.suppress(FileNotFoundError):
            at = (lock if lock.exists() else path).stat().st_mtime
            yield CacheEntry(kind=kind, path=path, size=directory_size(path), used_at=at)


def directory_size(root: Path) -> int:
    """Return the bytes on disk of a directory and all that is in it."""
    total, pending = 0, [str(root)]
    while pending:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    with contextlib.suppress(FileNotFoundError):
                        total += entry.stat(follow_symlinks=False).st_blocks * 512
                        if entry.is_dir(follow_symlinks=False):
                            pending.append(entry.path)
        except OSError:
            continue
    return total


def prune(
    cache: Path,
    max_bytes: int,
    *,
    kinds: Sequence[CacheKind] = ("mirror", "setup"),
    idle: float = IDLE_SECONDS,
) -> list[CacheEntry]:
    """Remove what was used least recently until the rest fits; return what was removed.

    What is in use, or was in the last ``idle`` seconds, stays.
    """
    for kind in kinds:
        _remove_unfinished(cache / _FOLDERS[kind])
    entries = cache_entries(cache, kinds=kinds)
    total = sum(entry.size for entry in entries)
    removed = []
    for entry in entries:
        if total <= max_bytes:
            break
        if time.time() - entry.used_at >= idle and _remove(entry):
            total -= entry.size
            removed.append(entry)
    return removed


def _remove_unfinished(folder: Path) -> None:
    """Remove what a killed process was making or removing."""
    for path in folder.glob(".*"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime > _UNFINISHED_SECONDS:
                shutil.rmtree(path, ignore_errors=True)


def _remove(entry: CacheEntry) -> bool:
    with if_unused(entry.lock) as is_unused:
        if not is_unused:
            return False
        gone = entry.path.with_name(f".{entry.path.name}.{secrets.token_hex(8)}")
        try:
            entry.path.rename(gone)
        except OSError:
            return False
        entry.lock.unlink(missing_ok=True)
        entry.path.with_name(f"{entry.path.name}.fetch").unlink(missing_ok=True)
    shutil.rmtree(gone, ignore_errors=True)
    return True


def collect_garbage(entry: CacheEntry) -> None:
    """Pack the objects of a mirror, and remove those that nothing has named for two weeks."""
    if entry.kind != "mirror":
        return
    fetching = entry.path.with_name(f"{entry.path.name}.fetch")
    with (
        shared_lock(entry.lock, wait=_GC_SECONDS),
        exclusive_lock(fetching, wait=_GC_SECONDS),
    ):
        git = Git(name=entry.path.name, directory=entry.path, timeout=_GC_SECONDS)
        git.read("gc", "--quiet", f"--prune={_KEEP_UNUSED}")
