"""Hosts that share nothing but a Redis and a git server: directories, or network namespaces."""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mulligan.workers.celery.broker.queues import JOB_QUEUES, Pool
from mulligan.workers.local.server_binary import find_server
from mulligan.workers.local.supervisor import Stack
from support.rabbitmq_server import free_ports
from support.redis_server import RedisServer
from support.waiting import wait_for

CONTROL = Pool(name="control", queues=("control", "loop", "mulligan.submit"), kind="solo")


def work_pool(slots: int, name: str = "work") -> Pool:
    """Return a pool for all jobs. Two of the same name on one host would be one for Celery."""
    return Pool(name=name, queues=JOB_QUEUES, slots=slots)


@dataclass(frozen=True)
class Place:
    """Where the processes of a host run."""

    name: str
    address: str
    #: What begins their command lines.
    prefix: tuple[str, ...] = ()
    #: Whether directories can be hidden from them.
    hides: bool = False

    def hiding(self, folders: Sequence[Path]) -> tuple[str, ...]:
        """Return what begins the command lines of processes that do not see some directories."""
        if not self.hides:
            return self.prefix
        mounts = "".join(f"mount -t tmpfs none {shlex.quote(str(each))} && " for each in folders)
        return (*self.prefix, "unshare", "--mount", "sh", "-c", f'{mounts}exec "$0" "$@"')


@contextmanager
def directories() -> Iterator[tuple[Place, Place]]:
    """Two hosts that differ in their directories only."""
    yield Place("one", "127.0.0.1"), Place("two", "127.0.0.1")


@contextmanager
def namespaces() -> Iterator[tuple[Place, Place]]:
    """Two network namespaces with a wire between them, and a host name each.

    Raise OSError if this process may not make them.
    """
    mark = secrets.token_hex(3)
    names = [f"mulligan-{mark}-{n}" for n in (1, 2)]
    with ExitStack() as stack:
        for name in names:
            _ip("netns", "add", name)
            stack.callback(_ip, "netns", "del", name)
        ends = [f"mu{mark}{n}" for n in (1, 2)]
        _ip("link", "add", ends[0], "netns", names[0], "type", "veth",
            "peer", "name", ends[1], "netns", names[1])  # fmt: skip
        places = []
        for number, (name, end) in enumerate(zip(names, ends, strict=True), 1):
            address = f"10.213.7.{number}"
            for argv in (
                ("addr", "add", f"{address}/30", "dev", end),
                ("link", "set", end, "up"),
                ("link", "set", "lo", "up"),
            ):
                _ip("-n", name, *argv)
            host = f"host{number}-{mark}"
            named = ("unshare", "--uts", "sh", "-c", f'hostname {host} && exec "$0" "$@"')
            places.append(Place(host, address, ("ip", "netns", "exec", name, *named), hides=True))
        first, second = places
        yield first, second


def _ip(*argv: str) -> None:
    done = subprocess.run(["ip", *argv], capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"ip {' '.join(argv)}: {done.stderr}")


def can_make_namespaces() -> bool:
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "unshare", "hostname"))):
        return False
    try:
        with namespaces():
            return True
    except OSError:
        return False


@contextmanager
def git_server(place: Place, folder: Path) -> Iterator[str]:
    """Serve the repositories below a folder; yield the beginning of their addresses."""
    (port,) = free_ports(1)
    argv = ["git", "daemon", "--reuseaddr", f"--listen={place.address}", f"--port={port}"]
    argv += ["--export-all", "--enable=receive-pack", f"--base-path={folder}"]
    process = subprocess.Popen([*place.prefix, *argv], start_new_session=True)
    url = f"git://{place.address}:{port}"
    (found,) = [each.name for each in folder.iterdir()]

    def answers() -> bool:
        asked = [*place.prefix, "git", "ls-remote", f"{url}/{found}"]
        return subprocess.run(asked, capture_output=True).returncode == 0

    try:
        wait_for(answers, "the git server")
        yield url
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def redis_at(place: Place, folder: Path) -> Iterator[tuple[RedisServer, str]]:
    """Run a Redis that the hosts reach by an address, and this process by a socket."""
    (port,) = free_ports(1)
    options = ["--port", str(port), "--bind", place.address, "--protected-mode", "no"]
    script = folder / "redis-in-place"
    folder.mkdir(parents=True)
    command = shlex.join([*place.prefix, find_server().path])
    script.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    script.chmod(0o755)
    server = RedisServer(folder, *options, binary=str(script))
    server.start()
    try:
        yield server, f"redis://{place.address}:{port}/0"
    finally:
        server.kill(signal.SIGTERM)


class Host:
    """The processes of one host, with directories of their own."""

    def __init__(
        self,
        place: Place,
        root: Path,
        redis_url: str,
        *,
        hidden: Sequence[Path] = (),
        **settings: str,
    ) -> None:
        self.root = root
        for name in ("home", "work", "tmp"):
            (root / name).mkdir(parents=True)
        environment = {k: v for k, v in os.environ.items() if not k.startswith("MULLIGAN_")}
        environment |= {
            "HOME": str(root / "home"),
            "TMPDIR": str(root / "tmp"),
            "MULLIGAN_HOME": str(root / "mulligan"),
            "MULLIGAN_REPOSITORY_CACHE": str(root / "cache"),
            "MULLIGAN_BROKER_URL": redis_url,
            "MULLIGAN_ALLOW_INLINE": "true",
            "MULLIGAN_SWEEP_INTERVAL": "0.3",
            **{f"MULLIGAN_{name.upper()}": text for name, text in settings.items()},
        }
        self._prefix = (*place.hiding(hidden), "env", "-C", str(root / "work"))
        self.stack = Stack(root / "mulligan", environment, backoff=0.1, backoff_cap=0.2)

    def start(self, *pools: Pool) -> None:
        for pool in pools:
            self.stack.add(pool.name, [*self._prefix, *pool.argv()])

    def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """Run a command of mulligan there."""
        command = [*self._prefix, sys.executable, "-m", "mulligan.console", *argv]
        return subprocess.run(
            command, env=dict(self.stack.environment), capture_output=True, text=True
        )

    def logs(self) -> str:
        files = sorted((self.root / "mulligan" / "logs").glob("*.log"))
        return "\n".join(f"== {file}\n{file.read_text()[-20_000:]}" for file in files)


@contextmanager
def host(place: Place, root: Path, redis_url: str, **options: Any) -> Iterator[Host]:
    """Make a host, and end its processes in any case."""
    made = Host(place, root, redis_url, **options)
    try:
        yield made
    except BaseException:
        sys.stderr.write(made.logs())
        raise
    finally:
        made.stack.stop()
