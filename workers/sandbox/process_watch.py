"""Look at the processes of programs that run: one look a second at all of them, in one thread."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

log = logging.getLogger(__name__)

#: Seconds between two looks.
INTERVAL = 1.0
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, kw_only=True)
class ProcessLook:
    """The processes of a program at one moment."""

    #: Without its launcher.
    pids: frozenset[int] = frozenset()
    #: The program itself and what confines it, without what it has started.
    first: frozenset[int] = frozenset()
    #: Those that a signal has stopped; the launcher may be among them.
    stopped: frozenset[int] = frozenset()
    running: bool = False
    #: Processes and threads.
    tasks: int = 0
    #: Processor time, also of processes that have ended; not that of the launcher.
    cpu_seconds: float = 0.0


class WatchedProgram(Protocol):
    """Something that wants to know how a program's processes are."""

    @property
    def interval(self) -> float:
        """Seconds between two looks."""

    def look(self, processes: ProcessLook | None, seconds: float) -> None:
        """Called about once a second. ``processes``: None where they cannot be seen.

        ``seconds``: since the last look. Time in which this process did not run does not count.
        """


@contextmanager
def watching(launcher: int, program: WatchedProgram) -> Iterator[None]:
    """Look at the processes below a launcher until the block ends."""
    thread = _threads.setdefault(os.getpid(), _WatchThread())
    thread.add(launcher, program)
    try:
        yield
    finally:
        thread.remove(launcher)


class _WatchThread:
    """Looks at all programs of this process, in a thread that ends with the last of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._programs: dict[int, WatchedProgram] = {}
        self._running = False

    def add(self, launcher: int, program: WatchedProgram) -> None:
        with self._lock:
            self._programs[launcher] = program
            if not self._running:
                threading.Thread(target=self._run, name="program watch", daemon=True).start()
                self._running = True

    def remove(self, launcher: int) -> None:
        with self._lock:
            self._programs.pop(launcher, None)

    def _run(self) -> None:
        looked = time.monotonic()
        while programs := self._current():
            interval = min(program.interval for program in programs.values())
            time.sleep(interval)
            now = time.monotonic()
            # A process that was stopped saw nothing of what happened meanwhile.
            seconds, looked = min(now - looked, 5 * interval), now
            found = read_processes(programs)
            for launcher, program in programs.items():
                self._look(program, found.get(launcher), seconds)

    def _look(self, program: WatchedProgram, found: ProcessLook | None, seconds: float) -> None:
        try:
            program.look(found, seconds)
        except Exception:  # the others must still be looked at
            log.exception("A program cannot be watched.")

    def _current(self) -> dict[int, WatchedProgram]:
        with self._lock:
            self._running = bool(self._programs)
            return dict(self._programs)


#: By process: a fork has no thread, and may have copied a lock that nobody will release.
_threads: dict[int, _WatchThread] = {}


@dataclass(frozen=True, slots=True)
class _Process:
    name: bytes
    state: str
    parent: int
    threads: int
    own_ticks: int
    ended_ticks: int


def read_processes(launchers: Collection[int]) -> Mapping[int, ProcessLook]:
    """Return the processes below each launcher that still exists; one pass over /proc for all."""
    table = dict(_table())
    below: dict[int, list[int]] = {}
    for pid, process in table.items():
        below.setdefault(process.parent, []).append(pid)
    return {each: _below(each, table, below) for each in launchers if each in table}


def _below(
    launcher: int, table: Mapping[int, _Process], below: Mapping[int, list[int]]
) -> ProcessLook:
    pids = list(below.get(launcher, ()))
    for pid in pids:  # it grows
        pids += below.get(pid, ())
    found = [table[pid] for pid in pids]
    ticks = table[launcher].ended_ticks + sum(p.own_ticks + p.ended_ticks for p in found)
    return ProcessLook(
        pids=frozenset(pids),
        first=_first(launcher, table, below),
        stopped=frozenset(pid for pid in (launcher, *pids) if table[pid].state == "T"),
        running=any(process.state == "R" for process in found),
        tasks=sum(process.threads for process in found),
        cpu_seconds=ticks / _TICKS,
    )


def _first(
    launcher: int, table: Mapping[int, _Process], below: Mapping[int, list[int]]
) -> frozenset[int]:
    """Return the processes from the launcher's child down to the first that is no bubblewrap."""
    found, at = list[int](), launcher
    while children := below.get(at, ()):
        at = min(children)
        found.append(at)
        if table[at].name != b"bwrap":
            break
    return frozenset(found)


def _table() -> Iterator[tuple[int, _Process]]:
    for path in Path("/proc").glob("[0-9]*/stat"):  # nothing where there is no /proc
        try:
            # The name of a program may contain anything, also brackets.
            named, _, rest = path.read_bytes().rpartition(b") ")
        except OSError:  # ended meanwhile
            continue
        name, fields = named.partition(b"(")[2], rest.split()
        own, ended = int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])
        yield (
            int(path.parent.name),
            _Process(name, fields[0].decode(), int(fields[1]), int(fields[17]), own, ended),
        )
