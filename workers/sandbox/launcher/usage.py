"""What a program and all its descendants use together, and the groups that limit it."""

from __future__ import annotations

import errno
import os
import stat
import time

from .confine import clone_into, suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Any

_PREFIX = "mulligan-"
#: A tree of more files than this is too large, whatever is in them.
_MAX_FILES = 200_000
#: More open files than this, of all processes together, would take too long to look at.
_MAX_OPEN = 16_000
#: What the kernel lets a socket hold. Programs that ask it for more do not get it (seccomp).
_SOCKET_BYTES = 212_992
#: So many files are looked at before the look can be ended.
_PART = 500
_PAGE = os.sysconf("SC_PAGE_SIZE")


def children(pid: int) -> list[int]:
    """Return the children of all threads of a process; none where there is no /proc."""
    threads = f"/proc/{pid}/task"
    return [
        int(child) for thread in _names(threads)
        for child in _read(f"{threads}/{thread}/children").split()
    ]  # fmt: skip


def descendants(pid: int) -> list[int]:
    """Return all processes below one; those whose parent ended are below the launcher itself."""
    found = children(pid)
    for each in found:  # it grows
        found += children(each)
    return found


def look(limits: Any, directories: list[str]) -> Generator[str]:
    """Look in short parts, and yield after each which limit of all processes is exceeded, if any.

    A program can make this take long, so that the caller must be able to end it.
    """
    memory = limits["total_memory_bytes"]
    pids = descendants(os.getpid())
    opened = yield from _open_files(pids)
    if len(opened) > _MAX_OPEN:
        yield f"had more than {_MAX_OPEN} files open"
        return
    in_memory, on_disk = yield from _unlisted(opened)
    if memory is not None and in_memory + sum(map(_memory, pids)) > memory:
        yield too_much_memory(limits)
    yield from look_at_files(limits, directories, on_disk)


def too_much_memory(limits: Any) -> str:
    return f"used more than {limits['total_memory_bytes'] >> 20} MB of memory"


def look_at_files(limits: Any, directories: list[str], unlisted: int = 0) -> Generator[str]:
    """Look only at the files in the directories; ``unlisted`` are the bytes of others."""
    disk = limits["disk_bytes"]
    if disk is not None and unlisted + (yield from _disk(directories, disk)) > disk:
        yield f"wrote more than {disk >> 20} MB of files, or more than {_MAX_FILES} files"


def _open_files(pids: list[int]) -> Generator[str, None, list[str]]:
    """Return the paths of open files in /proc, and not many more than the allowed number."""
    found: list[str] = []
    for pid in pids:
        folder = f"/proc/{pid}/fd"
        found += [f"{folder}/{name}" for name in _names(folder)]
        if len(found) > _MAX_OPEN:
            break
        yield ""
    return found


def _unlisted(opened: list[str]) -> Generator[str, None, tuple[int, int]]:
    """Return the bytes of open files that are in no directory: in memory, and on a disk."""
    in_memory: dict[tuple[int, int], int] = {}
    on_disk: dict[tuple[int, int], int] = {}
    for index, path in enumerate(opened):
        if index % _PART == 0:
            yield ""
        with suppress(OSError):  # closed meanwhile, or not to be read
            found = os.stat(path)
            key = found.st_dev, found.st_ino
            if stat.S_ISSOCK(found.st_mode):
                in_memory[key] = _SOCKET_BYTES
            elif stat.S_ISREG(found.st_mode) and found.st_nlink == 0:
                is_memory = os.readlink(path).startswith("/memfd:")
                (in_memory if is_memory else on_disk)[key] = found.st_blocks * 512
    return sum(in_memory.values()), sum(on_disk.values())


def count_tasks(uid: int) -> int:
    """Return the number of the user's threads, as the kernel counts them for its limit."""
    total = 0
    for name in os.listdir("/proc"):
        with suppress(OSError):
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == uid:
                total += len(os.listdir(f"/proc/{name}/task"))
    return total


def make_groups(wanted: list[Any]) -> list[str]:
    """Make control groups with these limits, and return them. Those of dead launchers go."""
    made = []
    for parent, values in wanted:
        _remove_abandoned(parent)
        group = f"{parent}/{_PREFIX}{os.getpid()}"
        try:
            os.mkdir(group)
            for name, value in values.items():
                _write(f"{group}/{name}", value)
        except OSError:  # a limit of the group above, or of the kernel; the others still hold
            remove_groups([group])
        else:
            made.append(group)
    return made


def fork_into(groups: list[str]) -> tuple[int, list[str]]:
    """Fork; return the child's pid, or 0 in the child, and the groups that it has yet to join.

    The kernel takes some 15 ms to move a process, and nearly nothing to start one in a group. The
    latter exists only in the second version of control groups.
    """
    unified = [group for group in groups if not os.path.exists(f"{group}/tasks")]
    if unified:
        with suppress(OSError):  # an older kernel, or forbidden
            return clone_into(unified[0]), [group for group in groups if group not in unified]
    return os.fork(), groups


def join_groups(groups: list[str]) -> None:
    """Join groups. In the first version, one thread is moved at once: this process has one."""
    for group in groups:
        single = f"{group}/tasks"
        try:
            _write(single if os.path.exists(single) else f"{group}/cgroup.procs", "0")
        except OSError as error:
            raise OSError(f"it cannot join its control group {group}: {error}") from None


def stop_growth(groups: list[str]) -> None:
    """Let no process of the groups start another one."""
    for group in groups:
        with suppress(OSError):  # a group of memory only
            _write(f"{group}/pids.max", "0")


def members(groups: list[str]) -> list[int]:
    """Return the processes in the groups."""
    return [int(pid) for group in groups for pid in _read(f"{group}/cgroup.procs").split()]


def ran_out_of_memory(groups: list[str]) -> bool:
    """Return whether the kernel ended a process of the groups that wanted too much memory."""
    lines = [
        line.split() for group in groups for name in ("memory.events", "memory.oom_control")
        for line in _read(f"{group}/{name}").splitlines()
    ]  # fmt: skip
    return any(line[0] == "oom_kill" and line[1] != "0" for line in lines)


def remove_groups(groups: list[str]) -> None:
    """Remove the groups; the kernel may need a moment after the last process ended."""
    for group in groups:
        for _ in range(500):
            try:
                os.rmdir(group)
                break
            except FileNotFoundError:
                break
            except OSError:
                time.sleep(0.001)


def _remove_abandoned(parent: str) -> None:
    with suppress(OSError):
        for name in os.listdir(parent):
            pid = name.removeprefix(_PREFIX)
            if pid != name and not os.path.exists(f"/proc/{pid}"):
                with suppress(OSError):
                    os.rmdir(f"{parent}/{name}")


def _memory(pid: int) -> int:
    fields = _read(f"/proc/{pid}/statm").split()
    return int(fields[1]) * _PAGE if fields else 0


def _disk(directories: list[str], limit: int) -> Generator[str, None, int]:
    """Return the bytes below the directories; counting ends when there are more than the limit."""
    total, seen, left = 0, 0, list(directories)
    while left:
        try:
            for entry in os.scandir(left.pop()):
                total += _size(entry)
                seen += 1
                if seen % _PART == 0:
                    yield ""
                if total > limit or seen > _MAX_FILES:
                    return limit + 1
                if entry.is_dir(follow_symlinks=False):
                    left.append(entry.path)
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:  # so deep that it cannot be counted
                return limit + 1
            # Otherwise it was removed meanwhile, or is not to be read.
    return total


def _size(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat(follow_symlinks=False).st_blocks * 512
    except FileNotFoundError:
        return 0


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:  # ended meanwhile, or not to be read
        return []


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
