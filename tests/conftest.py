"""Shared fixtures: Redis servers per test process, settings that nothing leaks into, ledgers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from hashlib import sha1
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import redis

# With --import-mode=importlib nothing is put on the path by itself: `from support import …`.
sys.path.insert(0, str(Path(__file__).parent))

from support.doubles import MovableClock
from support.ledger_scenario import Scenario, ScenarioMaker, SettingsMaker
from support.waiting import until

from mulligan.workers.ledger.calls import connect
from mulligan.workers.ledger.fake_redis import fake_client
from mulligan.workers.ledger.redis_ledger import RedisLedger
from mulligan.workers.local import die_with_parent
from mulligan.workers.local.embedded_redis import bundled_server, find_server, server_on_path
from mulligan.workers.settings.model import Settings

# No test is judged by the clock: a busy computer is no defect. (In CI this is the default.)
hypothesis.settings.register_profile(
    "patient", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
if not os.environ.get("CI"):
    hypothesis.settings.load_profile("patient")

#: Times of scenarios in seconds: far apart, so that a slow computer changes nothing.
TIMES: dict[str, Any] = {
    "lease": 30,
    "hard_limit": 600,
    "max_claims": 3,
    "outbox_grace": 2,
    "republish_after": 60,
    "stale_after": 5000,
    "retention": 2000,
    "cycle_retention": 50_000,
}


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No MULLIGAN_… variable and no mulligan.toml of the developer's reaches a test."""
    ours = [name for name in os.environ if name.startswith("MULLIGAN_")]
    for name in ours:
        if name == "MULLIGAN_NO_MODELS":  # set by the plug-in that our own tests use, too
            continue
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


# -- a real Redis ----------------------------------------------------------------------------------

ServerStarter = Callable[[str], Path]


@pytest.fixture(scope="session")
def start_server() -> Iterator[ServerStarter]:
    """``start_server(binary)``: the socket of a Redis without persistence, one per test process
    and binary. It ends with the process."""
    # Not tmp_path: the kernel allows 108 bytes for the path of a socket.
    folder = Path(tempfile.mkdtemp(prefix="mulligan-test-"))
    running: dict[str, subprocess.Popen[bytes]] = {}

    def start(binary: str) -> Path:
        socket = folder / f"{sha1(binary.encode(), usedforsecurity=False).hexdigest()[:8]}.sock"
        if binary in running:
            return socket
        argv = [sys.executable, "-I", str(die_with_parent.__file__), binary]
        argv += ["--port", "0", "--unixsocket", str(socket), "--dir", str(folder)]
        argv += ["--save", "", "--appendonly", "no"]
        server = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        running[binary] = server
        until(lambda: server.poll() is not None or _answers(socket))
        assert server.poll() is None, f"{binary} did not start"
        return socket

    yield start
    for server in running.values():
        server.terminate()
        server.wait(10)
    shutil.rmtree(folder)


def _answers(socket: Path) -> bool:
    try:
        with redis.Redis(unix_socket_path=str(socket)) as client:
            return bool(client.ping())
    except redis.RedisError:
        return False


@pytest.fixture(scope="session")
def redis_socket(start_server: ServerStarter) -> Path:
    return start_server(find_server())


@pytest.fixture
def redis_client(redis_socket: Path) -> Iterator[redis.Redis]:
    """The tests' Redis, empty. Answers with text."""
    yield from _emptied(redis_socket)


def _emptied(socket: Path) -> Iterator[redis.Redis]:
    with connect(f"unix://{socket}") as client:
        client.flushall()
        yield client


@pytest.fixture
def redis_url(redis_socket: Path, redis_client: redis.Redis) -> str:
    """The tests' Redis, empty, as Celery spells its address."""
    return f"redis+socket://{redis_socket}"


@pytest.fixture
def settings(redis_url: str, tmp_path: Path) -> SettingsMaker:
    """Settings on the tests' Redis: ``settings(lease=0.1)``."""

    def make(**overrides: Any) -> Settings:
        return Settings(**{"broker_url": redis_url, "home": tmp_path / "home", **overrides})

    return make


@pytest.fixture
def ledger(redis_client: redis.Redis, settings: SettingsMaker) -> RedisLedger:
    """The Redis ledger with its default settings and the real time."""
    return RedisLedger(redis_client, settings(), patience=5.0)


# -- ledgers on a clock that tests move ------------------------------------------------------------

#: The servers that the ledger's contract is tested on besides fakeredis, as far as they exist.
SERVERS = {"embedded": bundled_server(), "path": server_on_path()}


@pytest.fixture(params=["fakeredis", *(name for name in SERVERS if SERVERS[name] is not None)])
def contract_client(request: pytest.FixtureRequest) -> Iterator[redis.Redis]:
    """An empty Redis of each kind that the ledger's contract is tested on."""
    server = SERVERS.get(request.param)
    if server is None:
        with fake_client() as client:
            yield client
        return
    start: ServerStarter = request.getfixturevalue("start_server")
    yield from _emptied(start(server))


@pytest.fixture
def new_scenario(contract_client: redis.Redis) -> ScenarioMaker:
    """``new_scenario(lease=10)``: the ledger's contract, on each kind of Redis."""
    return _scenario_maker(contract_client)


@pytest.fixture
def new_fake_scenario() -> ScenarioMaker:
    """The same on fakeredis alone: for what does not depend on the server."""
    return _scenario_maker(fake_client())


@pytest.fixture
def new_redis_scenario(redis_client: redis.Redis) -> ScenarioMaker:
    """The same on the tests' Redis alone: for what other processes or clients see, too."""
    return _scenario_maker(redis_client)


def _scenario_maker(client: redis.Redis) -> ScenarioMaker:
    def make(**overrides: Any) -> Scenario:
        chosen = Settings(**{**TIMES, **overrides})
        clock = MovableClock()
        ledger = RedisLedger(client, chosen, patience=5.0, test_clock=clock)
        return Scenario(ledger, chosen, clock)

    return make


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say which servers the ledger's contract was tested on: it depends on the computer."""
    reports = [*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")]
    if any("test_ledger_contract" in report.nodeid for report in reports):
        embedded = "the embedded Redis" if SERVERS["embedded"] else "no embedded Redis"
        newer = SERVERS["path"] or "no redis-server or valkey-server on the PATH"
        terminalreporter.write_line(
            f"The ledger's contract was tested on fakeredis, {embedded}, {newer}."
        )
