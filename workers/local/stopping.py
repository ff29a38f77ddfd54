"""Clean stopping: a second Ctrl-C makes the stop faster, but never aborts it."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mulligan.workers.local.supervisor import Stack

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def handle_signals(handler: Callable[[], None]) -> Iterator[None]:
    """Call ``handler`` for Ctrl-C and SIGTERM within the block; they interrupt nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = [(number, signal.signal(number, lambda *_: handler())) for number in _SIGNALS]
    try:
        yield
    finally:
        for number, old in before:
            signal.signal(number, old)


def uninterrupted() -> contextlib.AbstractContextManager[None]:
    """Ignore Ctrl-C and SIGTERM within the block."""
    return handle_signals(lambda: None)


def stop_stack(stack: Stack) -> None:
    """Stop every child gently and remove its private copies. Ctrl-C meanwhile kills them."""
    from mulligan.workers.sandbox.private import remove_abandoned

    with handle_signals(lambda: _kill(stack)):
        stack.stop()
        remove_abandoned()


def _kill(stack: Stack) -> None:
    for child in list(stack.children):
        if child.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.process.pid, signal.SIGKILL)
