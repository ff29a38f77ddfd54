"""The web server: uvicorn, with an end for streams that never end by themselves."""

from __future__ import annotations

import logging
import socket
import sys

import uvicorn

from mulligan.console.http.app import create_console
from mulligan.console.http.context import ConsoleContext
from mulligan.tasks.ports.errors import BadInput

#: How long requests under way may take when the server stops.
_GRACE = 5
#: A peer that takes nothing for so long is gone, whatever it says.
_STUCK_MS = 60_000


class ConsoleServer(uvicorn.Server):
    """Ends the event streams first when it is told to stop."""

    def __init__(self, context: ConsoleContext) -> None:
        self._context = context
        config = uvicorn.Config(
            create_console(context),
            log_level="warning",
            access_log=False,
            # Who asks is who connects: no header may say otherwise.
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=_GRACE,
        )
        super().__init__(config)
        logging.getLogger("uvicorn.error").addFilter(_expected)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._context.broadcast.end_all()
        await super().shutdown(sockets)


def _expected(record: logging.LogRecord) -> bool:
    """A dropped listener's stream is cut on purpose, and our own log has said so."""
    return "without completing response" not in record.getMessage()


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there; BadInput if it cannot."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        found = socket.create_server((host, port), family=family, backlog=512)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise BadInput.at(
            "console_port",
            f"cannot listen on {host}:{port}: {reason.lower()}; set"
            " MULLIGAN_CONSOLE_PORT (or --port) to another one",
        ) from None
    # Connections inherit it. Without it an answer on a kept connection waits for the peer's
    # delayed acknowledgement of the one before.
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if sys.platform == "linux" and family in (socket.AF_INET, socket.AF_INET6):
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _STUCK_MS)
    return found
