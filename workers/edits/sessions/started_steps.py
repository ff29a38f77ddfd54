"""Count how often a process died at one step of an edit session.

A step is noted before it begins, and the note is removed when it has ended, also by an exception or
at a cold shutdown. So a note of another process means that this process was killed or crashed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from secrets import token_hex
from threading import Lock

from mulligan.tasks.ports.errors import LedgerUnavailable
from mulligan.workers.ledger.connection.calls import RedisCalls

_FIELD = "started"
_PROCESS = token_hex(8)
#: The notes of this process.
_noted: dict[str, StartedSteps] = {}
_lock = Lock()


class StartedSteps:
    """The note of one session. The caller holds the session's lease."""

    def __init__(self, calls: RedisCalls, key: str) -> None:
        """``key``: the session's hash in Redis."""
        self._calls = calls
        self._key = key

    def deaths(self, step: str) -> int:
        """Return how many processes died at this step, one after the other."""
        text = self._calls.run("HGET", self._key, _FIELD)
        note = json.loads(text) if text else {}
        if note.get("step") != step:
            return 0
        # If the ledger was away when a step ended, this process finds its own note.
        ours = note["by"] == _this_process()
        return int(note["times"]) - (1 if ours else 0)

    def begin(self, step: str, deaths: int) -> None:
        """Note that a step begins now."""
        note = {"step": step, "times": deaths + 1, "by": _this_process()}
        with _lock:
            _noted[self._key] = self
        self._calls.run("HSET", self._key, _FIELD, json.dumps(note))

    def end(self) -> None:
        """Remove the note."""
        with _lock:
            noted = _noted.pop(self._key, None)
        if noted is not None:
            with suppress(LedgerUnavailable):  # see ``deaths``
                self._calls.run("HDEL", self._key, _FIELD)

    @contextmanager
    def ended(self) -> Iterator[StartedSteps]:
        """Remove the note at the end of the block, also after an exception."""
        try:
            yield self
        finally:
            self.end()


def end_all_steps() -> None:
    """Remove every note of this process, which is about to be stopped by its supervisor."""
    with _lock:
        steps = list(_noted.values())
    for each in steps:
        each.end()


def _this_process() -> str:
    return f"{_PROCESS}-{os.getpid()}"
