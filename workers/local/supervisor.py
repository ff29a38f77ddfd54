"""A supervisor of a host's processes: worker pools, console and Flower."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mulligan.policies.jobs.backoff import doubled
from mulligan.workers.settings.model import Settings

_DIE_WITH_PARENT = Path(__file__).with_name("die_with_parent.py")
_STOP_SECONDS = 20.0
#: The deaths of a child that has run this long are forgotten.
_HEALTHY_SECONDS = 30.0
#: The exit code of a process that cannot start: wrong settings, a missing package, a used port.
CANNOT_START = 2
#: A child that ends so often in a row because it cannot start is not started again.
_STARTS = 5


@dataclass
class Child:
    """One supervised process."""

    name: str
    argv: Sequence[str]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    deaths: int = 0
    started_at: float = 0.0
    restart_at: float = 0.0
    #: Whether it is not started again.
    given_up: bool = False

    def start(self, environment: Mapping[str, str]) -> None:
        self.started_at = time.monotonic()
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-I", str(_DIE_WITH_PARENT), "--kill", *self.argv],
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # Ctrl-C reaches only the supervisor, which stops its children in order.
                start_new_session=True,
            )

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def last_line(self) -> str:
        """The last line of its log."""
        lines = self.log.read_text(errors="replace")[-4000:].strip().splitlines()
        return lines[-1].strip() if lines else ""


@dataclass
class Stack:
    """Supervises the children of one command."""

    home: Path
    environment: Mapping[str, str]
    children: list[Child] = field(default_factory=list)
    #: Seconds before the first restart; each further one waits twice as long, up to the cap.
    backoff: float = 0.5
    backoff_cap: float = 30.0
    #: Seconds that running attempts have to finish when the stack stops.
    grace: float = 5.0
    #: Called when a child dies, with its exit code and the seconds until its restart, or None.
    on_death: Callable[[Child, int, float | None], None] = lambda *_: None

    def add(self, name: str, argv: Sequence[str]) -> None:
        logs = self.home / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        child = Child(name, argv, logs / f"{name}.log")
        self.children.append(child)
        child.start(self.environment)

    def watch(self) -> None:
        """Restart dead children, with back-off. Call it regularly."""
        now = time.monotonic()
        for child in self.children:
            if child.alive or child.given_up:
                continue
            if child.restart_at == 0.0:
                self._note_death(child, now)
            elif now >= child.restart_at:
                child.restart_at = 0.0
                child.start(self.environment)

    def _note_death(self, child: Child, now: float) -> None:
        """Plan the restart of a child, unless it cannot start."""
        # Its own children would outlive it where the kernel does not end them.
        _signal(child, signal.SIGKILL, group=True)
        healthy = now - child.started_at > _HEALTHY_SECONDS
        child.deaths = 1 if healthy else child.deaths + 1
        code = child.process.returncode if child.process else -1
        child.given_up = code == CANNOT_START and child.deaths >= _STARTS
        delay = doubled(child.deaths, base=self.backoff, cap=self.backoff_cap)
        child.restart_at = now + delay
        self.on_death(child, code, None if child.given_up else delay)

    def stop(self) -> None:
        """Stop all children and wait until they have ended.

        Sends SIGTERM, then SIGQUIT, on which a worker releases its leases, then SIGKILL.
        """
        for number, seconds in ((signal.SIGTERM, self.grace), (signal.SIGQUIT, 5.0)):
            waiting = [child for child in self.children if child.alive]
            for child in waiting:
                _signal(child, number)
            _wait(waiting, seconds)
        for child in self.children:
            _end_group(child)
        self.children.clear()


def _wait(children: Sequence[Child], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while any(child.alive for child in children) and time.monotonic() < deadline:
        time.sleep(0.02)


def _end_group(child: Child) -> None:
    """Kill what is left of a child's session, and wait for its end."""
    deadline = time.monotonic() + _STOP_SECONDS
    while _signal(child, signal.SIGKILL, group=True) and time.monotonic() < deadline:
        if child.process is not None:
            child.process.poll()
        time.sleep(0.01)


def _signal(child: Child, number: int, *, group: bool = False) -> bool:
    """Send a signal. Return whether the process or group existed."""
    if child.process is None:
        return False
    try:
        if group:
            os.killpg(child.process.pid, number)
        else:
            child.process.send_signal(number)
    except ProcessLookupError:
        return False
    return True


def child_environment(settings: Settings, *, broker_url: str, **extra: str) -> dict[str, str]:
    """Return the children's environment: ours, with the broker's address."""
    return {
        **os.environ,
        "MULLIGAN_BROKER_URL": broker_url,
        "MULLIGAN_HOME": str(settings.home.resolve()),
        "PYTHONUNBUFFERED": "1",
        **extra,
    }
