"""One question to a server: PING. Any reply means that it is there, whatever the reply says."""

from __future__ import annotations

import socket
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

#: Seconds to wait for a reply.
_TIMEOUT = 1.0
_LONGEST_REPLY = 4096


class Reply(StrEnum):
    """What a server says about itself."""

    READY = "ready"
    #: It reads its data and answers nothing else meanwhile.
    LOADING = "loading"
    #: It refuses commands, for instance because a script runs for too long.
    BUSY = "busy"


def ask_server(path: Path) -> Reply | None:
    """Return the reply of the server on a socket, or None if there is no reply in time."""
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_TIMEOUT)
        connection.connect(str(path))
        connection.sendall(b"PING\r\n")
        reply = connection.recv(_LONGEST_REPLY)
        if reply.startswith(b"+"):
            return Reply.READY
        if reply.startswith(b"-LOADING"):
            return Reply.LOADING
        return Reply.BUSY if reply else None
    return None
