"""Named steps of an attempt: where crash tests kill a process, and what they trace.

``MULLIGAN_CRASH_DIR``: a step whose name is a file in there takes that file away and dies by
SIGKILL, so each file is one crash. ``MULLIGAN_TRACE``: a file that every step is appended to.
Neither is set outside tests, and a step then costs two comparisons.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from mulligan.tasks.ports.ledger import Entry

#: Every step there is, in the order an attempt passes them.
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


def step(name: str, entry: Entry) -> None:
    """Pass a step."""
    if _TRACE:
        line = f"{time.time():.6f} {name} {entry}\n"
        with Path(_TRACE).open("a") as trace:
            trace.write(line)
    if _CRASH_DIR and _take(Path(_CRASH_DIR) / name):
        os.kill(os.getpid(), signal.SIGKILL)


def _take(path: Path) -> bool:
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    return True
