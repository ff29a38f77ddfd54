"""The port for sessions: what a runner that works for long does, while it does it."""

from __future__ import annotations

from typing import Protocol

from mulligan.policies.loops.session_event import EventKind, SessionEvent

__all__ = ["EventKind", "Session", "SessionEvent", "SilentSession"]


class Session(Protocol):
    """Where the events of an attempt go."""

    def emit(self, event: SessionEvent) -> None:
        """Keep an event. Never raises, and never waits for long. Any thread may call it."""


class SilentSession:
    """Keeps nothing."""

    def emit(self, event: SessionEvent) -> None:
        pass
