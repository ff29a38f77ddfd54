"""Stopping cleanly: once Ctrl-C was pressed, the second one hurries and does not break off."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator

from mulligan.workers.local.supervisor import Stack
from mulligan.workers.sandbox.private import remove_abandoned

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def answering(handler: Callable[[], None]) -> Iterator[None]:
    """Within the block Ctrl-C and SIGTERM call ``handler`` and interrupt nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = [(number, signal.signal(number, lambda *_: handler())) for number in _SIGNALS]
    try:
        yield
    finally:
        for number, old in before:
            signal.signal(number, old)


def unhurried() -> contextlib.AbstractContextManager[None]:
    """A few moments in which nothing may be broken off."""
    return answering(lambda: None)


def stop(stack: Stack) -> None:
    """Stop every child, gently; Ctrl-C meanwhile ends the gentleness. None is left.

    Nor are the private copies of those that had to be killed.
    """
    with answering(lambda: _kill(stack)):
        stack.stop()
        remove_abandoned()


def _kill(stack: Stack) -> None:
    for child in list(stack.children):
        if child.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.process.pid, signal.SIGKILL)
