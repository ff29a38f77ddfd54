"""Where jobs run: the command line, the client and the edits make the same choice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.jobs import make_job

from mulligan.client.backends import LocalBackend, open_backend
from mulligan.console.cli.backend import open_backend_for, open_running_backend
from mulligan.console.cli.edits.edit_backend import open_edit_backend
from mulligan.console.cli.exit_codes import NoBroker
from mulligan.console.jobfiles.job_file import FoundJob
from mulligan.policies.edits.suite import Suite
from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.backends.placement import Placement, place_jobs
from mulligan.workers.local.embedded_redis import EmbeddedRedis
from mulligan.workers.local.home import lock_home
from mulligan.workers.local.supervisor import Stack
from mulligan.workers.settings.model import Settings

FLEET = "redis://broker.example:6379/0"
#: Broker, whether `mulligan up` runs, whether the jobs are private; the workers, the directory.
CASES = [
    (FLEET, False, False, "fleet", None),
    (FLEET, True, True, "fleet", None),
    (None, False, False, "own", "."),
    (None, False, True, "own", "."),
    (None, True, False, "up", "."),
    (None, True, True, "own", "run"),
]


@contextmanager
def up_running(home: Path, *, running: bool) -> Iterator[None]:
    with ExitStack() as stack:
        if running:
            stack.enter_context(lock_home(home))
        yield


@pytest.fixture(autouse=True)
def no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start no workers; other tests cover which ones start."""
    monkeypatch.setattr(Stack, "add", lambda *_: None)


def jobs(*, private: bool) -> list[FoundJob]:
    runner: Any = {"kind": "scripted", "answers": ["{}"]} if private else "small"
    source: Any = None  # used only to locate problems
    return [FoundJob(make_job(runner=runner), source)]


@pytest.mark.parametrize(("broker", "up", "private", "workers", "folder"), CASES)
def test_jobs_are_placed_by_broker_running_stack_and_privacy(
    tmp_path: Path, broker: str | None, up: bool, private: bool, workers: Any, folder: str | None
) -> None:
    settings = Settings(broker_url=broker, home=tmp_path)
    with up_running(tmp_path, running=up):
        home = None if folder is None else tmp_path / folder
        assert place_jobs(settings, private=private) == Placement(workers=workers, home=home)


@pytest.mark.parametrize(("broker", "up", "private", "workers", "folder"), CASES)
def test_the_command_line_the_client_and_the_edits_place_jobs_the_same_way(
    tmp_path: Path, broker: str | None, up: bool, private: bool, workers: Any, folder: str | None
) -> None:
    runners = {"small": {"kind": "scripted", "answers": ["{}"]}}
    settings = Settings(broker_url=broker, home=tmp_path, runners=runners)
    url = broker if folder is None else EmbeddedRedis(tmp_path / folder).url
    with up_running(tmp_path, running=up):
        with open_backend_for(settings, jobs(private=private)) as cli:
            assert (cli.settings.broker_url, cli.stack is not None) == (url, workers == "own")
        if private:  # a client's jobs may always be private
            client = open_backend({"broker_url": broker, "home": tmp_path}, slots=1)
            try:
                assert isinstance(client, LocalBackend) is (workers == "own")
                if isinstance(client, LocalBackend):
                    assert client._stack.services.settings.broker_url == url
            finally:
                client.close()
        else:
            with open_edit_backend(settings, None) as edits:
                assert edits.settings.broker_url == url
                assert edits.settings.allow_inline is (workers == "own")


def test_a_ledger_without_a_broker_is_refused_everywhere(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"ledger_url": FLEET, "home": tmp_path}
    suite = Suite.model_validate({"tasks": [{"id": "t", "cluster": "c", "job": {"prompt": "x"}}]})
    settings = Settings(**fields)
    for open_one in (
        lambda: open_backend_for(settings, jobs(private=False)).__enter__(),
        lambda: open_running_backend(settings).__enter__(),
        lambda: open_edit_backend(settings, suite).__enter__(),
        lambda: open_backend(fields, slots=1),
    ):
        with pytest.raises(BadInput, match="broker_url: a ledger without a broker"):
            open_one()


def test_submitting_starts_no_workers(tmp_path: Path) -> None:
    with pytest.raises(NoBroker), open_running_backend(Settings(home=tmp_path)):
        pass
