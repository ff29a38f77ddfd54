"""Named steps of an attempt, at which crash tests kill a process and which they trace.

``MULLIGAN_CRASH_DIR``: a step whose name is a file in this directory deletes the file and dies by
SIGKILL, or gets the signal that the file names; so each file is one crash. A file with the name of
a step and of its entry, such as ``asking a:JOB_1`` (``_`` for ``/``), stays, and each such step is
a crash. ``MULLIGAN_TRACE``: a file to which every step is appended. Outside tests neither is set,
and a step costs two comparisons.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from mulligan.tasks.ports.ledger import Entry

#: Every step of any attempt, in its order.
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
#: Those that only the work in a repository has, in the order of an attempt.
REPOSITORY_STEPS = (
    "base_checked",
    "cloned",
    "saved",
    "merge_begun",
    "merge_fenced",
    "merge_verified",
    "merge_landed",
)
#: Of a merge whose tree fails.
FAILED_MERGE_STEPS = ("merge_failed",)
#: Those of a rollback. Its entry is the name of the loop.
ROLLBACK_STEPS = ("rollback_fenced", "rollback_landed", "rollback_written")

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
            file = Path(_CRASH_DIR) / name
            number = signal.Signals[file.read_text().strip() or "SIGKILL"]
            file.unlink()
            os.kill(os.getpid(), number)
