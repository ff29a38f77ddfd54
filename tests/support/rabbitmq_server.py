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

from support.waiting import wait_for

#: Debian's script runs the server as the current user; the one on the PATH wants to be root's.
PROGRAM = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")


@contextmanager
def running_rabbitmq() -> Iterator[str]:
    """Start RabbitMQ and yield its URL; stop it, and its `epmd`, in the end."""
    folder = Path(tempfile.mkdtemp(prefix="mulligan-rabbit-"))
    port, distribution, names = _free_ports(3)
    environment = {
        **os.environ,
        "HOME": str(folder),
        "RABBITMQ_NODENAME": f"mulligan{port}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(distribution),
        "ERL_EPMD_PORT": str(names),
        "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
        "RABBITMQ_PID_FILE": str(folder / "pid"),
    }
    with (folder / "out.log").open("wb") as output:
        server = subprocess.Popen(
            [str(PROGRAM)], env=environment, stdout=output, stderr=output, start_new_session=True
        )
    try:
        wait_for(lambda: server.poll() is not None or _listens(port), "RabbitMQ", seconds=90)
        assert server.poll() is None, (folder / "out.log").read_text()
        yield f"amqp://guest:guest@127.0.0.1:{port}//"
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
        # It leaves the daemon of node names behind, which has a session of its own.
        subprocess.run(
            ["epmd", "-port", str(names), "-kill"],
            env=environment,
            capture_output=True,
            check=False,
        )
        shutil.rmtree(folder, ignore_errors=True)


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        taken = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in taken:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in taken]


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
