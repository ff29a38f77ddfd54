"""Control groups, where this process may make some: they limit a program and its descendants."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from mulligan.workers.sandbox.limits import Limits

_MOUNT = Path("/sys/fs/cgroup")


def groups_for(
    limits: Limits, uses: tuple[tuple[str, Path], ...]
) -> list[tuple[str, dict[str, str]]]:
    """Return in which directories to make a group, each with what to write to its files."""
    memory, tasks = limits.total_memory_bytes, limits.processes
    unified = {
        **({"memory.max": str(memory), "memory.swap.max": "0"} if memory is not None else {}),
        **({"pids.max": str(tasks)} if tasks is not None else {}),
    }
    files = {
        "unified": unified,
        "memory": {"memory.limit_in_bytes": str(memory)} if memory is not None else {},
        "pids": {"pids.max": str(tasks)} if tasks is not None else {},
    }
    return [(str(folder), files[kind]) for kind, folder in uses if files[kind]]


@lru_cache(maxsize=1)
def writable_groups() -> tuple[tuple[str, Path], ...]:
    """Return the kinds of groups that this process may make, and where; none outside Linux."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return ()
    return tuple(_writable(lines, _MOUNT))


def _writable(lines: list[str], mount: Path) -> Iterator[tuple[str, Path]]:
    for line in lines:
        _, controllers, path = line.split(":", 2)
        for name in controllers.split(","):
            folder = mount / name / path.lstrip("/")
            if name in ("memory", "pids") and os.access(folder, os.W_OK):
                yield name, folder
        if not controllers:
            yield from _unified(mount / path.lstrip("/"), mount)


def _unified(own: Path, mount: Path) -> Iterator[tuple[str, Path]]:
    """Groups below one that has processes get no limits, so try the one above, too."""
    for folder in (own, own.parent):
        control = folder / "cgroup.subtree_control"
        if not folder.is_relative_to(mount) or not os.access(folder, os.W_OK):
            continue
        if control.is_file() and {"memory", "pids"} <= set(control.read_text().split()):
            yield "unified", folder
            return
