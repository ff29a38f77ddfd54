"""Pass on what an agent does, while it does it: its events, and the tokens that it has used."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from mulligan.tasks.jobs.verify import is_time_limit
from mulligan.tasks.ports.runners import Request
from mulligan.tasks.ports.sessions import SessionEvent, SilentSession
from mulligan.workers.runners.sessions.session_parser import SessionParser, SessionSummary

log = logging.getLogger(__name__)


class SessionRelay:
    """Reads an agent's output and tells the request's session and meter, and who listens."""

    def __init__(
        self,
        parser: SessionParser,
        request: Request,
        listen: Callable[[SessionEvent], None] = lambda _event: None,
    ) -> None:
        self._parser, self._request, self._listen = parser, request, listen
        self._session = request.session
        self._metered = 0
        self._is_finished = False

    def feed(self, chunk: bytes) -> None:
        self._pass_on(self._parser.feed(chunk))

    @property
    def has_result(self) -> bool:
        """Whether the session has said how it ended."""
        return self._parser.summary.failed is not None

    def finish(self) -> SessionSummary:
        """Pass on the rest and return what the session says about itself."""
        if not self._is_finished:
            self._is_finished = True
            self._pass_on(self._parser.finish())
        return self._parser.summary

    def note(self, text: str) -> None:
        """Say something about the session as its worker. Any thread may do so."""
        self._emit(SessionEvent(kind="note", text=text))

    def _pass_on(self, events: Iterable[SessionEvent]) -> None:
        for event in events:
            self._listen(event)
            self._emit(event)
            used = None if event.usage is None else event.usage.total_tokens
            if used is not None and used > self._metered:
                self._metered = used
                self._request.meter({"tokens": float(used)})

    def _emit(self, event: SessionEvent) -> None:
        """Tell the session. One that fails, though none may, is told nothing more."""
        try:
            self._session.emit(event)
        except Exception as error:
            if is_time_limit(error):  # of the worker, and not about the session
                raise
            self._session = SilentSession()
            log.exception("The events of a session are no longer kept.")
