"""Keep other processes of this user from reading what this one knows."""

from __future__ import annotations

import sys

from mulligan.workers.sandbox.launcher.confine import prctl

_PR_SET_DUMPABLE = 4


def hide_process() -> None:
    """Close this process's environment and memory to other processes of its user.

    It also leaves no core file. Children that become other programs are not hidden.
    """
    if sys.platform == "linux":
        prctl(_PR_SET_DUMPABLE, 0)
