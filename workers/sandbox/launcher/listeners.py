"""Make the listening sockets of a program's network, hand them out, and become the program.

Runs inside bubblewrap: ``listeners FD PLACES -- ARGV…``. PLACES is a JSON list of addresses and
ports.
The sockets go through FD to the worker, which accepts connections there and passes them on.
"""

from __future__ import annotations

import json
import os
import socket
import sys


def main() -> None:
    channel = socket.socket(fileno=int(sys.argv[1]))
    listening = []
    for address, port in json.loads(sys.argv[2]):
        listener = socket.socket()
        listener.bind((address, port))
        listener.listen(64)
        listening.append(listener)
    socket.send_fds(channel, [b"open"], [listener.fileno() for listener in listening])
    channel.close()
    for listener in listening:
        listener.close()
    os.execvp(sys.argv[4], sys.argv[4:])  # noqa: S606 - becoming the given program is the purpose
