"""Named steps of an attempt, at which crash tests kill a process and which they trace.

``MULLIGAN_CRASH_DIR``: a step whose name is a file in this directory deletes the file and dies by
SIGKILL, so each file is one crash. A file with the name of a step and of its entry, such as
``asking a:JOB_1`` (``_`` for ``/``), stays, and each such step is a crash. ``MULLIGAN_TRACE``: a
file to which every step is appended. Outside tests neither is set, and a step costs two
comparisons.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from mulligan.tasks.ports.ledger import Entry

#: Every step, in the order of an attempt.
STEPS = (
    "claimed",
    "asking",
    "answered",
    "output_stored",
    "verification_claimed",
    "verified",
    "result_stored",
    "settle",
    "settled",
    "published",
)

_CRASH_DIR = os.environ.get("MULLIGAN_CRASH_DIR")
_TRACE = os.environ.get("MULLIGAN_TRACE")


def step(name: str, entry: Entry | str) -> None:
    """Trace this step, and die at it if a crash test asks for that."""
    if _TRACE:
        line = f"{time.time():.6f} {name} {entry}\n"
        with Path(_TRACE).open("a") as trace:
            trace.write(line)
    if _CRASH_DIR:
        if (Path(_CRASH_DIR) / f"{name} {entry}".replace("/", "_")).exists():
            os.kill(os.getpid(), signal.SIGKILL)
        with suppress(FileNotFoundError):
            (Path(_CRASH_DIR) / name).unlink()
            os.kill(os.getpid(), signal.SIGKILL)
