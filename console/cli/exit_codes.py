"""Exit codes.

====  ==========================================================
0     all succeeded
1     some did not
2     bad input or usage
3     no broker, or the ledger cannot be reached
130   Ctrl-C
141   the reader of the output is gone
====  ==========================================================
"""

from __future__ import annotations

import signal
from enum import IntEnum
from time import monotonic

_AT_ONCE = 1.0


class ExitCode(IntEnum):
    OK = 0
    SOME_FAILED = 1
    BAD_INPUT = 2
    NO_BROKER = 3
    INTERRUPTED = 130
    #: As shells report the end of a program by SIGPIPE.
    CLOSED_PIPE = 141


class NoBroker(Exception):
    """There is nothing to connect to. The message says what to start or to set."""


def stop_on_signals() -> None:
    """Make SIGTERM stop everything that was started, as Ctrl-C does.

    SIGINT too: a shell starts background jobs with it ignored, and `kill -INT` must still work. Two
    within a second are one: the second would interrupt what is said and done for the first.
    """
    last = -_AT_ONCE

    def interrupt(*_: object) -> None:
        nonlocal last
        if monotonic() - last >= _AT_ONCE:
            last = monotonic()
            raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
