"""One damaged record hides no others: lists leave it out and say so, and reading it says why."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from support.console_server import client_of
from support.ledger_scenario import Scenario, ScenarioMaker, SettingsMaker
from support.provider_calls import ask, start_call, submit_for

from mulligan.console.http.context import open_context
from mulligan.tasks.ports.errors import DamagedRecord, LedgerRefused
from mulligan.tasks.ports.ledger import Claim, Entry
from mulligan.workers.ledger.job_pages import JobFilter
from mulligan.workers.ledger.stored.cycle_rows import CycleRows

P = "mulligan:{p00}:"


@pytest.fixture
def scenario(new_fake_scenario: ScenarioMaker) -> Scenario:
    return new_fake_scenario(publish_tries=1)


def damage(scenario: Scenario, key: str, field: str, value: str | bytes | None) -> None:
    """Overwrite a field, or delete it, as an interrupted restore or a person with a shell may."""
    if value is None:
        scenario.ledger.calls.run("HDEL", P + key, field)
    else:
        scenario.ledger.calls.run("HSET", P + key, field, value)


def job_ids(found: Any) -> list[str]:
    return [each.id for each in found]


JOB_DAMAGES = [
    ("seconds", "a lot"),
    ("created_at", "yesterday"),
    ("best", "first"),
    ("tokens", "{"),
]


@pytest.mark.parametrize(("field", "value"), JOB_DAMAGES)
def test_lists_of_jobs_leave_out_a_damaged_one(
    scenario: Scenario, caplog: pytest.LogCaptureFixture, field: str, value: str
) -> None:
    good, bad = scenario.submit(), scenario.submit()
    damage(scenario, f"job:{bad}", field, value)
    with caplog.at_level(logging.WARNING):
        assert job_ids(scenario.ledger.jobs()) == [good]
    assert f"1 of 2 stored records cannot be read and are left out: {P}job:{bad}" in caplog.text
    assert job_ids(scenario.ledger.page_jobs(JobFilter(), limit=10).jobs) == [good]
    assert job_ids(scenario.ledger.find_jobs([bad, good])) == [good]
    with pytest.raises(DamagedRecord, match=f"{P}job:{bad}"):
        scenario.ledger.job(bad)


@pytest.mark.parametrize("field", ["attempt", "loop", "created_at"])
def test_a_job_without_a_field_that_is_not_needed_is_shown(scenario: Scenario, field: str) -> None:
    good, bad = scenario.submit(), scenario.submit()
    damage(scenario, f"job:{bad}", field, None)
    assert set(job_ids(scenario.ledger.jobs())) == {good, bad}
    assert set(job_ids(scenario.ledger.page_jobs(JobFilter(), limit=10).jobs)) == {good, bad}
    assert scenario.view(bad).state == "queued"


@pytest.mark.parametrize("field", ["body", "seconds"])
def test_a_job_that_was_half_written_says_so(scenario: Scenario, field: str) -> None:
    good, bad = scenario.submit(), scenario.submit()
    damage(scenario, f"job:{bad}", field, None)
    assert job_ids(scenario.ledger.jobs()) == [good]
    assert good in job_ids(scenario.ledger.page_jobs(JobFilter(), limit=10).jobs)
    with pytest.raises(DamagedRecord, match=f"job:{bad} cannot be read: .*{field}"):
        scenario.ledger.job(bad)


@pytest.mark.parametrize("field", ["attempt", "loop", "past_loops"])
def test_a_damaged_counter_of_a_job_does_not_keep_the_server_busy(
    new_redis_scenario: ScenarioMaker, field: str
) -> None:
    """Given a counter that no script could count up to, then the job is read all the same."""
    scenario = new_redis_scenario()
    job = scenario.submit()
    cycle = {"job_id": job, "source_attempt": "1", "loop_index": "1", "status": "escalated"}
    for name, value in {**cycle, "created_at": "1000"}.items():
        damage(scenario, f"cycle:{job}:1:1", name, value)
    damage(scenario, f"job:{job}", "loop", "1")
    damage(scenario, f"job:{job}", field, "999999999999")
    view = scenario.view(job)
    assert (len(view.attempts), len(view.cycles)) == (1, 1)


def test_bytes_that_are_no_text_hide_nothing(new_redis_scenario: ScenarioMaker) -> None:
    scenario = new_redis_scenario()
    good, bad = scenario.submit(), scenario.submit()
    damage(scenario, f"job:{bad}", "detail", b"\xff\xfe")
    assert set(job_ids(scenario.ledger.jobs())) == {good, bad}
    assert set(job_ids(scenario.ledger.page_jobs(JobFilter(), limit=10).jobs)) == {good, bad}
    assert scenario.view(bad).detail == "\ufffd\ufffd"


@pytest.mark.parametrize(("field", "value"), [("attempt", "x"), ("at", "soon"), ("reason", None)])
def test_lists_of_escalations_leave_out_a_damaged_one(
    scenario: Scenario, field: str, value: str | None
) -> None:
    good, bad = scenario.escalated_job(), scenario.escalated_job()
    damage(scenario, f"escalation:{bad}:1", field, value)
    assert job_ids(scenario.ledger.escalations()) == [f"{good}:1"]
    with pytest.raises(DamagedRecord, match=f"{P}escalation:{bad}:1"):
        scenario.ledger.escalation(f"{bad}:1")


@pytest.mark.parametrize(("field", "value"), [("open", "many"), ("signature", None)])
def test_lists_of_groups_leave_out_a_damaged_one(
    scenario: Scenario, field: str, value: str | None
) -> None:
    scenario.escalated_job(group_signature="good")
    scenario.escalated_job(group_signature="bad")
    damage(scenario, "group:bad", field, value)
    assert [group.signature for group in scenario.ledger.groups()] == ["good"]


@pytest.mark.parametrize("row", ["{", "[]", '{"reason": "unsendable"}', "null"])
def test_the_outbox_list_leaves_out_a_damaged_row_and_drops_it(
    scenario: Scenario, row: str
) -> None:
    good, bad = scenario.submit(), scenario.submit()
    entries = [Entry("attempt", each, 1) for each in (good, bad)]
    scenario.ledger.fail(dict.fromkeys(entries, "cannot be sent"))
    damage(scenario, "outbox:quarantine", str(entries[1]), row)
    quarantine = scenario.ledger.quarantine
    assert job_ids(quarantine.entries()) == [str(entries[0])]
    dropped = quarantine.drop(None, by="ada")
    assert sorted(dropped) == sorted(str(entry) for entry in entries)
    assert quarantine.count() == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [("status", "unheard_of"), ("created_at", None), ("created_at", "x"), ("metadata", "{")],
)
def test_lists_of_cycles_leave_out_a_damaged_one(
    scenario: Scenario, field: str, value: str | None
) -> None:
    (good, _), (bad, entry) = scenario.repaired_job(), scenario.repaired_job()
    damage(scenario, f"cycle:{entry.cycle_id}", field, value)
    found = scenario.ledger.cycles(since=0, limit=10)
    assert [cycle.job_id for cycle in found] == [good]
    assert scenario.view(bad).cycles == ()
    report = CycleRows(scenario.ledger.calls, scenario.ledger.prefixes)
    assert len(report.newest(since=0, limit=10)) in (1, 2)  # a report needs fewer fields


@pytest.mark.parametrize("field", ["limit", "opens_at", "openings", "faults", "ceiling"])
def test_a_damaged_field_of_a_provider_stops_no_call(scenario: Scenario, field: str) -> None:
    claim = start_call(scenario.ledger, "api")
    damage(scenario, "provider:api", field, "a few")
    assert set(scenario.ledger.breakers.all()) == {"api"}
    scenario.ledger.requeue(claim.lease, delay=0, detail="shutdown")
    second = ask(scenario.ledger, submit_for(scenario.ledger, "of-api"), "api")
    assert isinstance(second, Claim)


READS: dict[str, Callable[[Scenario], Any]] = {
    "events": lambda scenario: list(scenario.ledger.events()),
    "sweep": lambda scenario: scenario.sweep(),
}


@pytest.mark.parametrize("name", READS)
def test_a_damaged_event_or_entry_stops_nothing(scenario: Scenario, name: str) -> None:
    scenario.submit()
    scenario.ledger.calls.run("XADD", P + "events", "*", "data", "{")
    scenario.ledger.calls.run("HSET", P + "outbox:failures", "a:x/1", "{")
    READS[name](scenario)


def test_http_lists_the_others_and_names_the_damaged_record(settings: SettingsMaker) -> None:
    context = open_context(settings(allow_inline=True))
    scenario = Scenario(context.ledger, context.settings)
    good, bad = scenario.submit(), scenario.submit()
    damage(scenario, f"job:{bad}", "seconds", "a lot")
    with client_of(context) as client:
        assert [row["id"] for row in client.get("/api/jobs").json()["jobs"]] == [good]
        answer = client.get(f"/api/jobs/{bad}")
    assert answer.status_code == 500
    assert f"{P}job:{bad} cannot be read" in answer.json()["error"]["message"]


def replace_by_text(scenario: Scenario, key: str) -> None:
    """Overwrite a whole record by a value of another type."""
    scenario.ledger.calls.run("SET", P + key, "x")


@pytest.mark.parametrize("key", ["job:{}", "job:{}:1"])
@pytest.mark.parametrize("leased", [False, True])
def test_a_record_of_another_type_stops_no_sweep(
    new_redis_scenario: ScenarioMaker, key: str, leased: bool
) -> None:
    scenario = new_redis_scenario()
    bad, good = scenario.submit(), scenario.submit()
    if leased:
        scenario.claim(bad)
        scenario.claim(good)
    replace_by_text(scenario, key.format(bad))
    scenario.advance(0 if leased else 3600)
    found = scenario.expire_leases() if leased else scenario.swept_entries()
    assert found == {f"a:{good}/1"}
    (escalation,) = scenario.ledger.escalations()
    assert escalation.reason == "unreadable"
    assert bad in escalation.detail
    assert scenario.ledger.quarantine.count() == 1
    scenario.advance(3600)
    assert f"a:{bad}/1" not in scenario.swept_entries()


def test_a_shared_record_of_another_type_ends_no_entry(new_redis_scenario: ScenarioMaker) -> None:
    scenario = new_redis_scenario()
    job_id = scenario.submit()
    scenario.advance(3600)
    replace_by_text(scenario, "paused")
    with pytest.raises(LedgerRefused, match="paused is a string"):
        scenario.sweep()
    scenario.ledger.calls.run("DEL", P + "paused")
    assert scenario.swept_entries() == {f"a:{job_id}/1"}
    assert scenario.ledger.escalations() == []


def test_lists_leave_out_a_job_of_another_type(
    new_redis_scenario: ScenarioMaker, caplog: pytest.LogCaptureFixture
) -> None:
    scenario = new_redis_scenario()
    good, bad = scenario.submit(), scenario.submit()
    replace_by_text(scenario, f"job:{bad}")
    assert job_ids(scenario.ledger.jobs()) == [good]
    assert f"left out: {P}job:{bad}" in caplog.text
    assert job_ids(scenario.ledger.page_jobs(JobFilter(), limit=10).jobs) == [good]
    assert job_ids(scenario.ledger.find_jobs([bad, good])) == [good]


def test_what_was_learned_about_a_provider_is_forgotten_if_it_has_another_type(
    new_redis_scenario: ScenarioMaker,
) -> None:
    scenario = new_redis_scenario()
    claim = start_call(scenario.ledger, "api")
    replace_by_text(scenario, "provider:api")
    assert set(scenario.ledger.breakers.all()) == {"api"}
    scenario.ledger.requeue(claim.lease, delay=0, detail="shutdown")
    replace_by_text(scenario, "provider:api")
    assert isinstance(ask(scenario.ledger, submit_for(scenario.ledger, "of-api"), "api"), Claim)
