"""A private RabbitMQ for tests, with its own ports and folders."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from support.debian_packages import search_path
from support.processes import processes_with
from support.servers import require_rabbitmq
from support.waiting import wait_for


class RabbitServer:
    """A RabbitMQ that tests can kill and start again with its data."""

    def __init__(self) -> None:
        self._program = require_rabbitmq()
        self.folder = Path(tempfile.mkdtemp(prefix="mulligan-rabbit-"))
        self._port, distribution, self._names_port = free_ports(3)
        self.url = f"amqp://guest:guest@127.0.0.1:{self._port}//"
        self._environment = {
            **os.environ,
            "PATH": search_path(),
            # Schedulers without work sleep at once: the tests need the processors.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+sbwt none +sbwtdcpu none +sbwtdio none",
            "HOME": str(self.folder),
            "RABBITMQ_NODENAME": f"mulligan{self._port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self._port),
            "RABBITMQ_DIST_PORT": str(distribution),
            "ERL_EPMD_PORT": str(self._names_port),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self.folder / "log"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "plugins"),
            "RABBITMQ_PID_FILE": str(self.folder / "pid"),
        }
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        # A node would start the daemon of node names itself, as an orphan that outlives it.
        self._run("epmd", self._names_port)
        self._run(str(self._program), self._port)

    def kill(self) -> None:
        """Kill the node and its daemon of node names."""
        while self._processes:
            process = self._processes.pop()
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _run(self, program: str, port: int) -> None:
        log = self.folder / "out.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                [program],
                env=self._environment,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._processes.append(process)
        wait_for(lambda: process.poll() is not None or _listens(port), program, seconds=90)
        assert process.poll() is None, log.read_text()


@contextmanager
def running_rabbitmq() -> Iterator[RabbitServer]:
    """Start RabbitMQ, and stop it in the end in any case."""
    server = RabbitServer()
    try:
        server.start()
        yield server
    finally:
        server.kill()
        shutil.rmtree(server.folder, ignore_errors=True)
        # Erlang's own children end a moment after the node.
        wait_for(lambda: not processes_with(str(server.folder)), "the last process of RabbitMQ")


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        taken = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in taken:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in taken]


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
