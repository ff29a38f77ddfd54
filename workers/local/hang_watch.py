"""Whether a server hangs: it holds its lock, and has not answered for a long time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mulligan.workers.local.server_probe import Reply

#: Seconds of silence before the first message, and between two messages.
_FIRST_MESSAGE = 4.0
_NEXT_MESSAGE = 10.0


@dataclass(frozen=True, kw_only=True)
class ServerCheck:
    """One look at the server of a directory."""

    #: The process that holds the lock; None if no server is there.
    pid: int | None
    reply: Reply | None = None


@dataclass
class HangWatch:
    """Follows one server, reports its silence, and says when it counts as hung."""

    #: Seconds of silence after which a server is hung.
    limit: float
    say: Callable[[str], None]
    _pid: int | None = None
    _last: Reply | None = None
    #: Since when the server has given its last answer, or none.
    _since: float = 0.0
    _said: float | None = None

    def observe(self, state: ServerCheck, now: float) -> bool:
        """Take one look into account. Return whether the server is hung."""
        if (state.pid, state.reply) != (self._pid, self._last):
            if state.pid != self._pid:
                self._said = None
            if self._said is not None and state.reply in (Reply.READY, Reply.BUSY):
                self.say("The embedded server answers again.")
                self._said = None
            self._pid, self._last, self._since = state.pid, state.reply, now
        if state.pid is None or state.reply in (Reply.READY, Reply.BUSY):
            return False
        seconds = now - self._since
        hung = state.reply is None and seconds >= self.limit
        due = self._said + _NEXT_MESSAGE if self._said is not None else 0.0
        if hung or (seconds >= _FIRST_MESSAGE and now >= due):
            self._said = now
            self.say(_describe(state, seconds, hung=hung))
        return hung


def _describe(state: ServerCheck, seconds: float, *, hung: bool) -> str:
    if state.reply is Reply.LOADING:
        return f"The embedded server has been loading its data for {seconds:.0f} s."
    end = ": ending it." if hung else "."
    return f"The embedded server (process {state.pid}) has not answered for {seconds:.0f} s{end}"
