"""Signals: an impatient person loses no words."""

from __future__ import annotations

import os
import signal

import pytest

from mulligan.console.cli import exit_codes
from mulligan.console.cli.exit_codes import stop_on_signals


def test_two_signals_at_once_interrupt_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(exit_codes, "monotonic", lambda: now)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    stop_on_signals()
    try:
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        now += 1
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
