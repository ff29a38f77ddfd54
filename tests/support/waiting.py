"""Waiting for a condition instead of a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def wait_for(
    condition: Callable[[], Any], what: str = "the condition", *, seconds: float = 60.0
) -> Any:
    """Poll until a condition holds and return its value. Raise AssertionError after `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError(f"timed out after {seconds:g} s: waiting for {what}")
