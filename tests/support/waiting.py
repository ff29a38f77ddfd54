"""Waiting for a condition instead of a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def until(condition: Callable[[], Any], *, timeout: float = 60.0) -> None:
    """Wait for something that is bound to happen; fail if it does not."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)


def wait_for(condition: Callable[[], Any], what: str, *, seconds: float = 60.0) -> Any:
    """Poll until a condition holds and answer with its value; say what did not happen."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"waited {seconds:g} s in vain for {what}")
