"""Refused submissions are on record, and messages that no worker receives are found."""

from __future__ import annotations

import json
from typing import Any

import pytest
from celery import Celery
from starlette.testclient import TestClient
from support.console_server import client_of, new_token
from support.ledger_scenario import SettingsMaker
from typer.testing import CliRunner

from mulligan.console.cli.doctor_checks import check_submissions
from mulligan.console.cli.main import create_cli
from mulligan.console.http.context import ConsoleContext, open_context
from mulligan.console.reports.overview import overview
from mulligan.tasks.ports.errors import BadInput, StoreUnavailable
from mulligan.workers.celery import factory
from mulligan.workers.celery.broker.stranded import StrandedMessages, stranded_messages
from mulligan.workers.celery.factory import accept_message
from mulligan.workers.ledger import keys
from mulligan.workers.ledger.stores import refused_submissions

SECRET = "the secret prompt"
BAD: dict[str, Any] = {
    "task_type": "letters",
    "prompt": SECRET,
    "runner": {"profile": "smal", "note": SECRET},
    "verifiers": ["json.objet"],
    "priority": 99,
}
PLACES = ["priority", "runner.profile", "verifiers[0].id"]


@pytest.fixture
def context(settings: SettingsMaker) -> ConsoleContext:
    return open_context(settings(runners={"small": {"kind": "scripted", "answers": ["{}"]}}))


@pytest.fixture
def api(context: ConsoleContext) -> TestClient:
    return client_of(context)


def send(context: ConsoleContext, message: str = "message-1", *args: Any, **job: Any) -> None:
    with pytest.raises(BadInput):
        accept_message(context.services, message, args, job)


def listed(api: TestClient) -> list[dict[str, Any]]:
    response = api.get("/api/submissions/refused")
    assert response.status_code == 200, response.text
    assert SECRET not in response.text
    found: list[dict[str, Any]] = response.json()["submissions"]
    return found


def test_a_refused_message_is_on_record_with_every_problem(
    context: ConsoleContext, api: TestClient
) -> None:
    send(context, **BAD)
    send(context, **BAD)  # delivered again
    (found,) = listed(api)
    assert (found["id"], found["origin"], found["task_type"]) == ("message-1", "celery", "letters")
    assert [problem.partition(":")[0] for problem in found["problems"]] == PLACES
    assert context.ledger.jobs() == []


def test_a_message_with_positional_arguments_is_refused_with_the_reason(
    context: ConsoleContext, api: TestClient
) -> None:
    send(context, "message-2", {"task_type": "letters"})
    (found,) = listed(api)
    assert found["problems"] == [
        "a job's fields are keyword arguments: send kwargs={…}, without args"
    ]


def test_a_message_that_reaches_a_defect_is_on_record(
    context: ConsoleContext, api: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError(SECRET)

    monkeypatch.setattr(factory, "read_jobs", fail)
    with pytest.raises(ZeroDivisionError):
        accept_message(context.services, "message-3", (), BAD)
    (found,) = listed(api)
    assert (found["id"], found["task_type"]) == ("message-3", "letters")
    assert found["problems"] == ["internal error: ZeroDivisionError; the worker's log has more"]


def test_a_message_that_cannot_be_stored_now_is_not_refused(
    context: ConsoleContext, api: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise StoreUnavailable("away")

    monkeypatch.setattr(factory, "submit_jobs", fail)
    job = {"task_type": "a", "prompt": "x", "runner": "small", "verifiers": ["json.object"]}
    with pytest.raises(StoreUnavailable):
        accept_message(context.services, "message-4", (), job)
    assert listed(api) == []


def test_a_refused_request_is_on_record_for_its_tenant(
    context: ConsoleContext, api: TestClient
) -> None:
    acme = client_of(context, new_token(context, role="producer", tenant="acme"))
    assert acme.post("/api/jobs", json=BAD).status_code == 422
    for tenant, count in (("acme", 1), ("rival", 0), (None, 1)):
        ops = client_of(context, new_token(context, role="ops", tenant=tenant))
        assert len(listed(ops)) == count, tenant


def test_the_record_is_capped(
    context: ConsoleContext, api: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refused_submissions, "CAP", 3)
    for number in range(5):
        send(context, f"message-{number}", **BAD)
    assert [each["id"] for each in listed(api)] == ["message-4", "message-3", "message-2"]
    send(context, "many", task_type="x" * 300, **{f"field{n}" + "y" * 400: 1 for n in range(40)})
    newest = listed(api)[0]
    assert len(newest["problems"]) == 21
    assert newest["problems"][-1].startswith("and ")
    assert max(map(len, [newest["task_type"], *newest["problems"]])) <= 301


def test_a_figure_that_reached_the_cap_is_a_minimum(
    context: ConsoleContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refused_submissions, "CAP", 3)
    for number in range(5):
        send(context, f"message-{number}", **BAD)
    (check,) = check_submissions(context.ledger, context.app)
    assert check.said == "at least 3 submissions refused in the last hour"


def test_a_long_id_is_cut(
    context: ConsoleContext, api: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    send(context, "x" * 1_000_000, **BAD)
    (found,) = listed(api)
    assert found["id"] == "x" * 200 + "…"
    assert len(caplog.records[-1].getMessage()) < 1000


def test_half_a_surrogate_pair_hides_no_record(
    context: ConsoleContext, api: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = "\ud800"
    send(context, f"message-{half}", **{**BAD, "task_type": half, half: half})
    (found,) = listed(api)
    assert (found["id"], found["task_type"]) == ("message-\ufffd", "\ufffd")
    assert api.get("/operations").status_code == 200
    monkeypatch.setenv("MULLIGAN_BROKER_URL", str(context.settings.broker_url))
    assert CliRunner().invoke(create_cli(), ["jobs", "refused"]).exit_code == 0


def test_a_record_that_cannot_be_read_hides_no_other(
    context: ConsoleContext, api: TestClient
) -> None:
    """Given a damaged record, and one with a field of a later version."""
    send(context, **BAD)
    key = keys.refused_submissions(keys.fleet_prefix(context.settings.key_prefix))
    later = {**listed(api)[0], "later": 1}
    del later["at"]
    for record in ("{", "[]", json.dumps(later)):
        context.ledger.calls.run("ZADD", key, 1e12, record)
    assert [each["id"] for each in listed(api)] == ["message-1"]


def test_submissions_that_wait_are_counted(context: ConsoleContext, api: TestClient) -> None:
    context.app.send_task("mulligan.submit", kwargs=BAD, queue="mulligan.submit")
    queues = {row["name"]: row["waiting"] for row in api.get("/api/queues").json()["queues"]}
    assert queues["mulligan.submit"] == 1
    assert (
        'mulligan_queue_depth{priority="0",queue="mulligan.submit"} 1.0' in api.get("/metrics").text
    )
    assert "mulligan.submit" in api.get("/operations").text


def test_people_see_refusals_on_the_page_the_command_line_and_in_doctor(
    context: ConsoleContext, api: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert list(check_submissions(context.ledger, context.app)) == []
    send(context, **BAD)
    shown = api.get("/operations")
    assert "Refused submissions" in shown.text
    assert "did you mean &#39;small&#39;" in shown.text
    assert SECRET not in shown.text
    (check,) = check_submissions(context.ledger, context.app)
    assert (check.status, check.said) == ("warn", "1 submission refused in the last hour")
    assert "mulligan_submissions_refused 1.0" in api.get("/metrics").text
    needs = overview(context.services, context.app, window="1h").needs_attention
    assert [need.kind for need in needs if need.kind == "submissions"] == ["submissions"]
    monkeypatch.setenv("MULLIGAN_BROKER_URL", str(context.settings.broker_url))
    printed = CliRunner().invoke(create_cli(), ["jobs", "refused"]).output
    assert "message-1  letters  celery" in printed
    assert "  runner.profile: no profile 'smal'" in printed
    document = json.loads(CliRunner().invoke(create_cli(), ["jobs", "refused", "--json"]).output)
    assert [each["id"] for each in document["submissions"]] == ["message-1"]


def test_messages_on_celery_s_default_queue_are_found_and_left_there(
    context: ConsoleContext, api: TestClient
) -> None:
    """Given an app that sends `mulligan.submit` without a queue, beside tasks of its own."""
    sender = Celery("shop", broker=context.app.conf.broker_url)
    sender.conf.broker_transport_options = context.app.conf.broker_transport_options
    sender.send_task("shop.ship", args=[1])
    assert stranded_messages(context.app) is None
    for _ in range(2):
        sender.send_task("mulligan.submit", kwargs=BAD)
    assert stranded_messages(context.app) == StrandedMessages(2, certain=True)
    (check,) = check_submissions(context.ledger, context.app)
    assert check.said.startswith("2 messages to mulligan on the queue celery")
    assert 'queue="mulligan.submit"' in check.fix
    assert "Messages on the wrong queue" in api.get("/operations").text
    assert "2 messages to mulligan on the queue celery" in api.get("/").text
    assert stranded_messages(context.app) == StrandedMessages(2, certain=True)
