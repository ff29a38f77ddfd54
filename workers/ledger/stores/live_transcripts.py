"""The last lines of the transcripts of running attempts, for people who watch them.

Whole transcripts are kept in the repository of a loop. Here is only a tail of bounded length, which
expires soon after the attempt.
"""

from __future__ import annotations

from collections.abc import Sequence

from mulligan.workers.ledger import keys
from mulligan.workers.ledger.connection.calls import Patience, RedisCalls

#: Lines of one attempt, and characters of each.
_LINES = 100
_CHARACTERS = 4000
#: Seconds after the last line.
_KEPT = 900


class LiveTranscripts:
    """The tails, by job and attempt."""

    def __init__(self, calls: RedisCalls, *, prefix: str) -> None:
        self._calls = calls
        self._prefix = keys.fleet_prefix(prefix)

    def add(self, job_id: str, attempt: int, lines: Sequence[str]) -> None:
        """Append lines; those that are too long are left out."""
        short = [line for line in lines if len(line) <= _CHARACTERS][-_LINES:]
        if not short:
            return
        key = keys.live_transcript(self._prefix, job_id, attempt)
        commands = (("RPUSH", key, *short), ("LTRIM", key, -_LINES, -1), ("EXPIRE", key, _KEPT))
        for command in commands:
            self._calls.run(*command, patience=Patience.BRIEF)

    def tail(self, job_id: str, attempt: int) -> list[str]:
        """Return the last lines of an attempt that runs, or ran a moment ago."""
        key = keys.live_transcript(self._prefix, job_id, attempt)
        found: list[str] = self._calls.run("LRANGE", key, 0, -1)
        return found
