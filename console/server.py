"""The web server: uvicorn, which ends slow clients, and open event streams when it stops."""

from __future__ import annotations

import logging
import socket
import sys
from functools import partial

import uvicorn

from mulligan.console.app import create_console
from mulligan.console.guarded_protocol import ClientLimits, GuardedProtocol
from mulligan.console.http.context import ConsoleContext
from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.settings.model import Settings

#: Seconds that running requests may take when the server stops.
_GRACE = 5
#: A peer that acknowledges nothing for this long is considered gone.
_STUCK_MS = 60_000


class ConsoleServer(uvicorn.Server):
    """A server that ends the event streams first when it stops."""

    def __init__(self, context: ConsoleContext) -> None:
        self._context = context
        config = uvicorn.Config(
            create_console(context),
            log_level="warning",
            access_log=False,
            # The caller's address is the connection's: no header may override it.
            proxy_headers=False,
            server_header=False,
            http=partial(GuardedProtocol, limits=_limits(context.settings)),  # type: ignore[arg-type]
            timeout_graceful_shutdown=_GRACE,
        )
        super().__init__(config)
        logging.getLogger("uvicorn.error").addFilter(_is_unexpected)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._context.broadcast.end_all()
        await super().shutdown(sockets)


def _limits(settings: Settings) -> ClientLimits:
    return ClientLimits(
        head=settings.head_timeout,
        body=settings.body_timeout,
        connections=settings.connections_cap,
    )


def _is_unexpected(record: logging.LogRecord) -> bool:
    """Hide the error about the stream of a dropped listener, which broadcast.py logs itself."""
    return "without completing response" not in record.getMessage()


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket, or raise BadInput."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        found = socket.create_server((host, port), family=family, backlog=512)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        reason = reason.partition(" (while attempting")[0]
        raise BadInput.at(
            "console_port",
            f"cannot listen on {host}:{port}: {reason.lower()}; set"
            " MULLIGAN_CONSOLE_PORT (or --port) to another one",
        ) from None
    # Connections inherit it. Without it, a response on a kept-alive connection waits for the
    # peer's delayed acknowledgement of the previous one.
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if sys.platform == "linux" and family in (socket.AF_INET, socket.AF_INET6):
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _STUCK_MS)
    return found
