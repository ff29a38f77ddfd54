"""Shared fixtures: a real Redis per test process, settings that nothing leaks into, ledgers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import cache, partial
from hashlib import sha1
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import redis

# With --import-mode=importlib nothing is put on the path by itself: `from support import …`.
sys.path.insert(0, str(Path(__file__).parent))

from support.ledger_stage import SettingsMaker, Stage, StageMaker, TwinsMaker, until

from mulligan.workers.ledger import calls as redis_calls
from mulligan.workers.ledger.calls import Script, connect
from mulligan.workers.ledger.redis_ledger import RedisLedger
from mulligan.workers.ledger.twin.memory_ledger import MemoryLedger
from mulligan.workers.local import die_with_parent as leash
from mulligan.workers.local.embedded_redis import find_server
from mulligan.workers.settings.model import Settings

# No test is judged by the clock: a busy computer is no defect. (In CI this is the default.)
hypothesis.settings.register_profile(
    "patient", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
if not os.environ.get("CI"):
    hypothesis.settings.load_profile("patient")

#: Times of the ledger's stories, in seconds; far apart, so that a slow computer changes nothing.
STORY: dict[str, Any] = {
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


@pytest.fixture(scope="session")
def redis_socket() -> Iterator[Path]:
    """The socket of a Redis without persistence, one per test process, that dies with it."""
    # Not tmp_path: the kernel allows 108 bytes for the path of a socket.
    folder = Path(tempfile.mkdtemp(prefix="mulligan-test-"))
    socket = folder / "redis.sock"
    argv = [sys.executable, "-I", str(leash.__file__), find_server()]
    argv += ["--port", "0", "--unixsocket", str(socket), "--dir", str(folder)]
    argv += ["--save", "", "--appendonly", "no"]
    server = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        until(lambda: server.poll() is not None or _answers(socket))
        assert server.poll() is None, "the tests' Redis did not start"
        yield socket
    finally:
        server.terminate()
        server.wait(10)
        shutil.rmtree(folder)


def _answers(socket: Path) -> bool:
    try:
        with redis.Redis(unix_socket_path=str(socket)) as client:
            return bool(client.ping())
    except redis.RedisError:
        return False


@pytest.fixture
def redis_client(redis_socket: Path) -> Iterator[redis.Redis]:
    """The tests' Redis, empty. Answers with text."""
    with connect(f"unix://{redis_socket}") as client:
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


# -- the stage of the ledger's stories -------------------------------------------------------------


@pytest.fixture(params=["memory", "redis"])
def stage(request: pytest.FixtureRequest) -> StageMaker:
    """``stage(lease=10)``: one contract, played with each ledger, on a clock that tests move."""
    maker: StageMaker = request.getfixturevalue(f"{request.param}_stage")
    return maker


@pytest.fixture
def memory_stage() -> StageMaker:
    def make(**overrides: Any) -> Stage:
        shift = [0.0]

        def advance(seconds: float) -> None:
            shift[0] += seconds

        chosen = Settings(**{**STORY, **overrides})
        ledger = MemoryLedger(chosen, clock=lambda: time.time() + shift[0])
        return Stage(ledger, chosen, advance)

    return make


@pytest.fixture
def redis_stage(redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> StageMaker:
    monkeypatch.setattr(redis_calls, "SCRIPTS", _movable_scripts())

    def make(**overrides: Any) -> Stage:
        chosen = Settings(**{**STORY, **overrides})
        ledger = RedisLedger(redis_client, chosen, patience=5.0)
        return Stage(ledger, chosen, partial(_advance, redis_client))

    return make


@pytest.fixture
def twins(redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> TwinsMaker:
    """Both ledgers side by side, new and empty, on one clock that stands still unless moved."""
    monkeypatch.setattr(redis_calls, "SCRIPTS", _movable_scripts())

    def make(**overrides: Any) -> tuple[Stage, Stage]:
        redis_client.flushall()
        chosen = Settings(**{**STORY, **overrides})
        now = [int(time.time()) * 1000]
        redis_client.set("test:now", now[0])

        def advance(seconds: float) -> None:
            now[0] += round(seconds * 1000)
            _advance(redis_client, seconds)
            redis_client.set("test:now", now[0])

        memory = MemoryLedger(chosen, clock=lambda: now[0] / 1000)
        real = RedisLedger(redis_client, chosen, patience=5.0)
        return Stage(memory, chosen, advance), Stage(real, chosen, advance)

    return make


@cache
def _movable_scripts() -> dict[str, Script]:
    """The real scripts, on a clock that a test can stop or move: Redis TIME plus a shift."""
    clock = "local NOW = "
    stopped = "tonumber(redis.call('GET', 'test:now') or '') or "
    shift = "tonumber(redis.call('GET', 'test:shift') or '0') + "
    scripts = {}
    for name, script in redis_calls.SCRIPTS.items():
        assert script.text.count(clock) == 1
        text = script.text.replace(clock, clock + stopped + shift)
        scripts[name] = Script(text, sha1(text.encode(), usedforsecurity=False).hexdigest())
    return scripts


_ADVANCE = """
redis.call('INCRBY', 'test:shift', ARGV[1])
for _, key in ipairs(redis.call('KEYS', '*')) do
  local left = redis.call('PTTL', key)
  if left >= 0 then redis.call('PEXPIRE', key, left - ARGV[1]) end
end
"""


def _advance(client: redis.Redis, seconds: float) -> None:
    """Move the clock of every script, and the end of every key that has one."""
    client.eval(_ADVANCE, 0, str(round(seconds * 1000)))
