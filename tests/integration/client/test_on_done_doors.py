"""`on_done` goes only where the setting allows it, whichever way a job comes in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.cli_process import invoke, write_file
from support.console_server import client_of
from support.jobs import GOOD, scripted
from support.ledger_scenario import SettingsMaker

from mulligan import Client
from mulligan.console.http.context import ConsoleContext, open_context
from mulligan.tasks.ports.errors import BadInput

#: A task of another team, which the setting does not name.
JOB = scripted(GOOD, runner="good", on_done={"task": "payments.refund", "queue": "payments"})
SENTENCE = "outcomes may not go to payments.refund@payments: add it to on_done of mulligan.toml"
Door = Callable[[ConsoleContext, Path], str]


def over_http(context: ConsoleContext, _: Path) -> str:
    response = client_of(context).post("/api/jobs", json=JOB)
    assert response.status_code == 422
    return response.text


def by_celery(context: ConsoleContext, _: Path) -> str:
    result = context.app.tasks["mulligan.submit"].apply(kwargs=JOB)
    assert result.failed()
    return str(result.result)


def by_the_client(context: ConsoleContext, _: Path) -> str:
    with (
        Client(context.settings.broker_url or "") as client,
        pytest.raises(BadInput) as refused,
    ):
        client.submit(JOB)
    return str(refused.value)


def by_a_job_file(context: ConsoleContext, folder: Path) -> str:
    path = write_file(folder / "jobs.json", JOB)
    return invoke("submit", path, code=2).stderr


@pytest.mark.parametrize("door", [over_http, by_celery, by_the_client, by_a_job_file])
def test_a_job_is_refused_with_one_sentence_that_names_the_setting(
    settings: SettingsMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, door: Door
) -> None:
    runners = {"good": {"kind": "scripted", "answers": [GOOD]}}
    strict = settings(runners=runners, on_done=frozenset({"shop.*@shop"}), home=tmp_path)
    config = write_file(
        tmp_path / "mulligan.toml",
        f"on_done = ['shop.*@shop']\n[runners.good]\nkind = 'scripted'\nanswers = ['{GOOD}']\n",
    )
    monkeypatch.setenv("MULLIGAN_CONFIG", config)
    monkeypatch.setenv("MULLIGAN_BROKER_URL", strict.broker_url or "")
    monkeypatch.setenv("MULLIGAN_HOME", str(tmp_path))
    context = open_context(strict)
    said = door(context, tmp_path)
    assert SENTENCE in said
    assert context.ledger.jobs() == []
