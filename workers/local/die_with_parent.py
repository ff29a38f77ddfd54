"""Run a program that dies with its parent: `python -I die_with_parent.py argv…`. Stdlib only.

A supervisor killed with -9 cannot stop its children, but the kernel can.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    # The parent may have died before the call.
    if os.getppid() != parent:
        sys.exit(0)
    os.execvp(sys.argv[1], sys.argv[1:])  # noqa: S606 - no shell, on purpose


if __name__ == "__main__":
    main()
