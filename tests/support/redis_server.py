"""A Redis server for one test."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import redis

from mulligan.workers.local.server_binary import find_server
from support.waiting import wait_for


class RedisServer:
    """A Redis that tests can kill and start again with its data."""

    def __init__(
        self,
        folder: Path,
        *options: str,
        persistent: bool = False,
        binary: str | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.socket = folder / "r.sock"
        #: The address in Celery's notation, and in the ledger's.
        self.url = f"redis+socket://{self.socket}"
        self.ledger_url = f"unix://{self.socket}"
        self.folder = folder
        #: Further arguments of the server, such as ``--maxmemory 2mb``.
        self._options = options
        self._persistent = persistent
        self._binary = binary
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        argv = [
            self._binary or find_server().path,
            "--port",
            "0",
            "--unixsocket",
            str(self.socket),
            "--save",
            "",
        ]
        argv += ["--dir", str(self.folder), "--appendfsync", "always"]
        argv += ["--appendonly", "yes" if self._persistent else "no", *self._options]
        self._process = subprocess.Popen(argv, stdout=subprocess.DEVNULL)
        wait_for(self.answers, "Redis to answer")

    def kill(self, number: int = signal.SIGKILL) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait()
            self._process = None

    def send_signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def client(self) -> redis.Redis:
        return redis.Redis(unix_socket_path=str(self.socket), decode_responses=True)

    def answers(self) -> bool:
        try:
            with self.client() as client:
                return bool(client.ping())
        except redis.RedisError:
            return False
