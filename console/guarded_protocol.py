"""A limit for what one client may hold: deadlines for a request's head, its body and its reader.

Uvicorn waits for ever for a head or a body, and keeps any number of connections. A client that
sends a byte now and then would hold one for good, and a few hundred of them all the console's
files.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState


@dataclass(frozen=True, kw_only=True)
class ClientLimits:
    """What a client may do. Times are in seconds."""

    #: For the head of a request, and the time in which a body may be slower than the rate.
    head: float
    #: For a whole body, and for a reader to take what was written.
    body: float
    #: Connections at once.
    connections: int
    #: Bytes of a body per second.
    rate: float = 1000.0


class _Timer:
    """Calls a function after a while, unless it is stopped."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._handle: asyncio.TimerHandle | None = None

    @property
    def runs(self) -> bool:
        return self._handle is not None

    def start(self, seconds: float, call: Callable[[], None]) -> None:
        self.stop()
        self._handle = self._loop.call_later(seconds, call)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


class GuardedProtocol(H11Protocol):
    """An HTTP connection that ends if its client is too slow, or to make room for another one."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        limits: ClientLimits,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limits = limits
        #: When the client began to be waited for; the body's bytes since then.
        self._since = 0.0
        self._received = 0
        self._head, self._body, self._reader = (_Timer(self.loop) for _ in range(3))

    @property
    def _idle(self) -> bool:
        """Whether no request is in progress."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def _sending_body(self) -> bool:
        return not self._idle and self.cycle.more_body

    # -- what asyncio calls -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()
        if len(self.connections) > self._limits.connections:
            self._make_room()

    def data_received(self, data: bytes) -> None:
        if self._idle and not self._head.runs:
            self._await_head()
        super().data_received(data)
        if not self._idle:
            self._head.stop()
        if not self._sending_body:
            self._body.stop()
        elif self._body.runs:
            self._received += len(data)
        else:
            self._since, self._received = self.loop.time(), 0
            self._body.start(self._limits.head, self._check_body)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._reader.start(self._limits.body, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._reader.stop()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._head, self._body, self._reader):
            timer.stop()
        super().connection_lost(exc)

    # -- deadlines --------------------------------------------------------------------------------

    def _await_head(self) -> None:
        self._since = self.loop.time()
        self._head.start(self._limits.head, self._end_head)

    def _end_head(self) -> None:
        limit = self._limits.head
        self._refuse(408, "slow_request", f"the head of the request took over {limit:g} s")

    def _check_body(self) -> None:
        """End a body that is slower than the rate or takes too long, or look again later."""
        limits = self._limits
        allowed = min(limits.body, limits.head + self._received / limits.rate)
        left = self._since + allowed - self.loop.time()
        if left > 0:
            self._body.start(left, self._check_body)
            return
        message = (
            f"the body was slower than {limits.rate:,.0f} bytes a second,"
            f" or took over {limits.body:g} s"
        )
        self._refuse(408, "slow_request", message)

    def _make_room(self) -> None:
        """End the connection that has waited longest for its client; if there is none, this one."""
        others = [each for each in self.connections if isinstance(each, GuardedProtocol)]
        waiting = [each for each in others if each is not self and each._idle]
        waiting = waiting or [each for each in others if each._sending_body]
        oldest = min(waiting, key=lambda each: each._since, default=self)
        text = "the console has too many connections (connections_cap)"
        oldest._refuse(503, "too_many_connections", text, unasked=oldest is self)

    def _refuse(self, status: int, code: str, message: str, *, unasked: bool = False) -> None:
        """Close the connection, and say why if a request has begun and has no response yet.

        ``unasked``: also say it before the request. A connection that is kept alive would take it
        for the response to its next one.
        """
        if self.transport.is_closing():
            return
        begun = self._idle and self.conn.trailing_data[0]
        if begun or unasked or not (self._idle or self.cycle.response_started):
            self.transport.write(_response(status, code, message))
        self.transport.close()


_PHRASES = {408: "Request Timeout", 503: "Service Unavailable"}


def _response(status: int, code: str, message: str) -> bytes:
    error = {"code": code, "message": message, "details": [], "problems": []}
    body = json.dumps({"error": error}).encode()
    head = (
        f"HTTP/1.1 {status} {_PHRASES[status]}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body
