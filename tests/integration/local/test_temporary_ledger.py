"""The ledger of one test: on fakeredis, or on an embedded Redis if that is missing."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.jobs import make_job

from mulligan.tasks.ports.errors import BadInput
from mulligan.tasks.ports.ledger import Submission
from mulligan.testing import InMemoryStack, assert_repaired
from mulligan.workers.ledger.redis_ledger import RedisLedger
from mulligan.workers.ledger.stored import job_ids
from mulligan.workers.local import temporary_ledger as module
from mulligan.workers.local.embedded_redis import EmbeddedRedis
from mulligan.workers.local.server_probe import ask_server
from mulligan.workers.local.temporary_ledger import temporary_ledger
from mulligan.workers.settings.model import Settings

ANSWERS = ["no JSON", "{}"]


@pytest.fixture
def without_fakeredis(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_missing", lambda *_: "not installed")


def submit(ledger: RedisLedger) -> str:
    job_id = job_ids.job_id(partitions=1)
    ledger.accept([Submission(id=job_id, job=make_job())])
    return job_id


def test_temporary_ledgers_start_empty_and_are_separate() -> None:
    with temporary_ledger(Settings()) as one, temporary_ledger(Settings()) as other:
        job_id = submit(one)
        assert one.job(job_id) is not None
        assert other.jobs() == []


def test_the_pytest_plug_in_starts_no_server(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    started: list[EmbeddedRedis] = []
    monkeypatch.setattr(EmbeddedRedis, "start", started.append)
    stack: InMemoryStack = request.getfixturevalue("mulligan_stack")
    assert_repaired(stack.run("Say {}.", answers=ANSWERS), attempts=2)
    assert started == []


def test_without_fakeredis_the_plug_in_uses_an_embedded_redis(
    without_fakeredis: None, request: pytest.FixtureRequest
) -> None:
    stack: InMemoryStack = request.getfixturevalue("mulligan_stack")
    assert_repaired(stack.run("Say {}.", answers=ANSWERS), attempts=2)


def test_the_embedded_redis_ends_with_the_test(without_fakeredis: None) -> None:
    with temporary_ledger(Settings()) as ledger:
        submit(ledger)
        socket = Path(ledger.calls.run("CONFIG", "GET", "unixsocket")[1])
        assert socket.exists()
    assert not socket.parent.exists()
    assert ask_server(socket) is None


def test_without_any_redis_the_error_names_the_extra(
    without_fakeredis: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mulligan.workers.local.home_server.installed_servers", lambda: iter(()))
    with (
        pytest.raises(BadInput, match=r"pip install 'mulligan\[testing\]'"),
        temporary_ledger(Settings()),
    ):
        pass
