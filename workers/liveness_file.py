"""The liveness file of a process: what it says about itself, for probes on its host.

A process writes it every few seconds, whether or not Redis answers. Probes read it without
connecting to anything, so that an outage of Redis restarts no process.
"""

from __future__ import annotations

import json
import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path

#: Seconds after which a process that has not written its file counts as dead.
FRESH = 60.0
#: The states of a process that does nothing: stopped, traced, a zombie, dead.
_STILL = frozenset("TtZXx")


@dataclass(frozen=True, kw_only=True)
class LivenessFile:
    """The file of one process, which has a name such as ``attempt@host``."""

    home: Path
    name: str

    @property
    def path(self) -> Path:
        return self.home / "alive" / self.name

    def write(self, problem: str = "") -> None:
        """Say that this process lives, and why it is not ready, if it is not. Raises OSError."""
        fields = {"pid": os.getpid(), "host": socket.gethostname(), "problem": problem}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        written = self.path.with_name(f".{self.name}.{os.getpid()}")
        written.write_text(json.dumps(fields), encoding="utf-8")
        written.replace(self.path)  # so that no reader sees half of it

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)


def find_problem(home: Path, name: str, *, ready: bool) -> str:
    """Return why no process of this name is alive, or ready; empty if one is.

    ``name``: of a pool, or of a process with its host.
    """
    folder = home / "alive"
    pattern = name if "@" in name else f"{name}@*"
    problems = [_problem(path, ready=ready) for path in sorted(folder.glob(pattern))]
    if not problems:
        return f"no process {name} has written a file in {folder}"
    return "" if "" in problems else problems[0]


def _problem(path: Path, *, ready: bool) -> str:
    try:
        age = time.time() - path.stat().st_mtime
        found = json.loads(path.read_text(encoding="utf-8"))
        pid, host, problem = int(found["pid"]), found["host"], str(found["problem"])
    except (OSError, ValueError, KeyError, TypeError):
        return f"{path.name}: its file cannot be read"
    if age > FRESH:
        return f"{path.name}: no sign of life for {age:.0f} s"
    if host == socket.gethostname() and _is_still(pid):
        return f"{path.name}: the process {pid} has ended or is stopped"
    return f"{path.name}: {problem}" if ready and problem else ""


def _is_still(pid: int) -> bool:
    """Whether a process of this host does nothing any more, as far as the system says."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass  # of another user
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False  # a system without /proc, or that hides the processes of others
    return text.rpartition(") ")[2][:1] in _STILL
