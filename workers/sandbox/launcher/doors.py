"""Make the listening sockets of a program's network, hand them out, and become the program.

Runs inside bubblewrap: ``doors FD PLACES -- ARGV…``. PLACES is a JSON list of addresses and ports.
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
        door = socket.socket()
        door.bind((address, port))
        door.listen(64)
        listening.append(door)
    socket.send_fds(channel, [b"open"], [door.fileno() for door in listening])
    channel.close()
    for door in listening:
        door.close()
    os.execvp(sys.argv[4], sys.argv[4:])  # noqa: S606 - becoming the given program is the purpose
