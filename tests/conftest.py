"""Shared fixtures: Redis servers per test process, isolated settings, ledgers."""

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

# With --import-mode=importlib pytest adds nothing to the path, and tests import `support`.
sys.path.insert(0, str(Path(__file__).parent))

from support.debian_packages import tools_path
from support.doubles import MovableClock
from support.ledger_scenario import Scenario, ScenarioMaker, SettingsMaker
from support.servers import SERVERS, find, require
from support.waiting import wait_for

from mulligan.workers.ledger.connection.calls import connect
from mulligan.workers.ledger.fake_redis import fake_client
from mulligan.workers.ledger.redis_ledger import RedisLedger
from mulligan.workers.local import die_with_parent
from mulligan.workers.local.server_binary import find_server
from mulligan.workers.sandbox import subprocesses
from mulligan.workers.sandbox.isolation import Isolation
from mulligan.workers.settings.model import Settings

os.environ["PATH"] = tools_path()

# A busy computer must not fail a test, so hypothesis has no deadline. (In CI that is the default.)
hypothesis.settings.register_profile(
    "no_deadline", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
if not os.environ.get("CI"):
    hypothesis.settings.load_profile("no_deadline")

#: Times of scenarios, in seconds. They are far apart, so that a slow computer changes no result.
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


@pytest.fixture
def unconfined(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let programs under test write outside their copy, for tests that count what was run."""
    monkeypatch.setattr(subprocesses, "isolation_of", lambda _: Isolation("none"))


@pytest.fixture(autouse=True)
def _isolate_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hide the developer's MULLIGAN_… variables and mulligan.toml from the tests."""
    for name in list(os.environ):
        # MULLIGAN_NO_MODELS is set by mulligan's own pytest plug-in.
        if name.startswith("MULLIGAN_") and name != "MULLIGAN_NO_MODELS":
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


# -- a real Redis ----------------------------------------------------------------------------------

ServerStarter = Callable[[str], Path]


@pytest.fixture(scope="session")
def start_server() -> Iterator[ServerStarter]:
    """``start_server(binary)`` returns the socket of a Redis without persistence. There is one
    server per test process and binary, and it ends with the process."""
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
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        running[binary] = process
        wait_for(lambda: process.poll() is not None or _answers(socket))
        assert process.poll() is None, f"{binary} did not start"
        return socket

    yield start
    for process in running.values():
        process.terminate()
        process.wait(10)
    shutil.rmtree(folder)


def _answers(socket: Path) -> bool:
    try:
        with redis.Redis(unix_socket_path=str(socket)) as client:
            return bool(client.ping())
    except redis.RedisError:
        return False


@pytest.fixture(scope="session")
def redis_socket(start_server: ServerStarter) -> Path:
    return start_server(find_server().path)


@pytest.fixture
def redis_client(redis_socket: Path) -> Iterator[redis.Redis]:
    """The tests' Redis, empty. It returns text, not bytes."""
    yield from _empty_client(redis_socket)


def _empty_client(socket: Path) -> Iterator[redis.Redis]:
    with connect(f"unix://{socket}") as client:
        client.flushall()
        yield client


@pytest.fixture
def redis_url(redis_socket: Path, redis_client: redis.Redis) -> str:
    """The URL of the tests' Redis, empty, in Celery's notation."""
    return f"redis+socket://{redis_socket}"


@pytest.fixture
def settings(redis_url: str, tmp_path: Path) -> SettingsMaker:
    """Settings on the tests' Redis: ``settings(lease=0.1)``."""

    def make(**overrides: Any) -> Settings:
        return Settings(**{"broker_url": redis_url, "home": tmp_path / "home", **overrides})

    return make


@pytest.fixture
def ledger(redis_client: redis.Redis, settings: SettingsMaker) -> RedisLedger:
    """The Redis ledger with default settings and real time."""
    return RedisLedger(redis_client, settings(), patience=5.0)


# -- ledgers on a clock that tests move ------------------------------------------------------------


@pytest.fixture(params=["fakeredis", *SERVERS])
def contract_client(request: pytest.FixtureRequest) -> Iterator[redis.Redis]:
    """An empty Redis of each kind that the ledger's contract is tested on."""
    if request.param == "fakeredis":
        with fake_client() as client:
            yield client
        return
    start: ServerStarter = request.getfixturevalue("start_server")
    yield from _empty_client(start(require(request.param)))


@pytest.fixture
def new_scenario(contract_client: redis.Redis) -> ScenarioMaker:
    """``new_scenario(lease=10)`` creates a scenario on each kind of Redis."""
    return _scenario_maker(contract_client)


@pytest.fixture
def scenario(new_scenario: ScenarioMaker) -> Scenario:
    """A scenario with the default settings, on each kind of Redis."""
    return new_scenario()


@pytest.fixture
def new_fake_scenario() -> ScenarioMaker:
    """Create scenarios on fakeredis only, for behaviour that does not depend on the server."""
    return _scenario_maker(fake_client())


@pytest.fixture
def new_redis_scenario(redis_client: redis.Redis) -> ScenarioMaker:
    """Create scenarios on the tests' Redis only, which other processes and clients can use."""
    return _scenario_maker(redis_client)


def _scenario_maker(client: redis.Redis) -> ScenarioMaker:
    def make(**overrides: Any) -> Scenario:
        chosen = Settings(**{**TIMES, **overrides})
        clock = MovableClock()
        ledger = RedisLedger(client, chosen, patience=5.0, test_clock=clock)
        return Scenario(ledger, chosen, clock)

    return make


#: Files that take minutes: they are begun first, so that no process is left with one at the end.
LONG = (
    "simulation/test_seeds.py",
    "security/test_as_a_user.py",
    "chaos/test_session_kills.py",
    "chaos/test_kills.py",
    "integration/backends/test_backends.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.path.as_posix().endswith(LONG))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print on which servers the ledger's contract was tested. It depends on the computer."""
    reports = [*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")]
    if any("test_ledger_contract" in report.nodeid for report in reports):
        names = ", ".join(("fakeredis", *filter(find, SERVERS)))
        terminalreporter.write_line(f"The ledger's contract was tested on {names}.")
