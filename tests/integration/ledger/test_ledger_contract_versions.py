"""The ledger's contract: workers of two releases on one ledger, and bodies that nobody can read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.jobs import answer, make_job, passed
from support.ledger_scenario import Scenario, ScenarioMaker
from support.releases import NEXT, NEXT_WORKER, of_release
from support.settlements import escalates, retries_immediately, succeeds

from mulligan.console.cli.doctor_checks import check_ledger
from mulligan.policies.jobs.job import Output
from mulligan.tasks.ports.ledger import Claim, ClaimRefused, CycleClaim, Entry, Lease
from mulligan.workers.ledger import keys
from mulligan.workers.ledger.job_pages import JobFilter
from mulligan.workers.ledger.stored.schema import CURRENT, StoredSchema
from mulligan.workers.ledger.stores.beats import Beat
from mulligan.workers.ledger.stores.tokens import Tokens


@pytest.fixture
def newer(scenario: Scenario) -> Scenario:
    return of_release(scenario, NEXT)


def claims(scenario: Scenario, job_id: str) -> int:
    return scenario.attempt(job_id).claims


def set_body(scenario: Scenario, job_id: str, text: str, field: str = "body", n: int = 0) -> None:
    prefix = keys.prefix_of("mulligan", job_id)
    row = keys.attempt(prefix, job_id, n) if n else keys.job(prefix, job_id)
    scenario.ledger.calls.run("HSET", row, field, text)


# -- what a body needs -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "needs"),
    [
        ({}, 1),
        ({"labels": {"a": "b"}}, NEXT.number),
        ({"policy": {"escalate_on": ["unknown", "tool_error"]}}, NEXT.number),
        ({"policy": {"escalate_on": ["unknown"]}}, 1),
        ({"delayed_verification": {"mode": "reformulate"}}, NEXT.number),
        ({"delayed_verification": {"after": 5}}, 1),
    ],
)
def test_a_body_needs_the_schema_of_what_it_uses(fields: dict[str, Any], needs: int) -> None:
    assert NEXT.needed_by(make_job(**fields)) == needs


@pytest.mark.parametrize(
    ("verifier", "needs"),
    [
        ({"id": "text.match", "contains": "bug"}, 1),
        ({"id": "text.match", "choice": ["bug", "feature"]}, 2),
        ({"id": "text.match", "regex": "^b", "example": "bug"}, 2),
        ({"id": "pytest.subprocess", "show_source": False}, 2),
        ({"id": "my.own", "choice": "bug"}, 1),
    ],
)
def test_a_job_needs_the_schema_of_its_options(verifier: dict[str, Any], needs: int) -> None:
    """An older worker would refuse the option, and escalate the job."""
    assert CURRENT.needed_by(make_job(verifiers=[verifier])) == needs


# -- attempts --------------------------------------------------------------------------------------


def test_a_newer_job_is_left_to_others_without_counting_a_claim(
    scenario: Scenario, newer: Scenario
) -> None:
    """Given ten deliveries to an older worker, then the job waits, and a newer one runs it."""
    job_id = newer.submit(labels={"a": "b"})
    for _ in range(10):
        assert scenario.refusal(job_id) == ClaimRefused("newer", NEXT_WORKER)
    view = scenario.view(job_id)
    assert (view.state, view.waiting_for, claims(scenario, job_id)) == ("waiting", "version", 0)
    assert (view.needs_schema, view.needs_release) == (NEXT.number, "9.1.0")
    claim = newer.claim(job_id)
    assert (newer.view(job_id).state, newer.view(job_id).waiting_for) == ("running", None)
    newer.settle(claim, succeeds(claim))


def test_an_entry_left_to_others_is_published_again_after_a_growing_delay(
    scenario: Scenario, newer: Scenario
) -> None:
    job_id = newer.submit(labels={"a": "b"})
    waits = []
    for _ in range(8):
        scenario.refusal(job_id)
        waits.append(0)
        while not scenario.swept_entries():
            scenario.advance(1)
            waits[-1] += 1
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]


def test_many_newer_jobs_come_back_slowly(scenario: Scenario, newer: Scenario) -> None:
    """Given 6,000 waiting jobs, then one of them comes back after two minutes, not one second."""
    job_id = newer.submit(labels={"a": "b"})
    index = keys.jobs(keys.prefix_of("mulligan", job_id), "waiting")
    scenario.ledger.calls.run("ZADD", index, *(x for n in range(6000) for x in (1, f"job{n}")))
    scenario.refusal(job_id)
    scenario.advance(119)
    assert scenario.swept_entries() == set()
    scenario.advance(2)
    assert scenario.swept_entries() == {f"a:{job_id}/1"}


def test_a_job_that_uses_nothing_new_is_shared_by_both_releases(
    scenario: Scenario, newer: Scenario
) -> None:
    """Given a job of the newer release, then after a rollback the older one finishes it."""
    job_id = newer.submit()
    claim = newer.claim(job_id)
    newer.ledger.store_output(claim.lease, answer())
    newer.advance(newer.settings.lease + 1)
    newer.sweep()
    again = scenario.claim(job_id)
    assert again.output == answer()
    scenario.settle(again, succeeds(again))
    assert newer.view(job_id).state == "succeeded"


@pytest.mark.parametrize("step", ["plan", "output", "result"])
def test_a_step_that_writes_a_newer_body_leaves_the_rest_to_newer_workers(
    scenario: Scenario, newer: Scenario, step: str
) -> None:
    job_id, number = scenario.submit(), 1
    claim = newer.claim(job_id)
    if step == "plan":
        newer.settle(claim, retries_immediately(claim))
        number = 2
    elif step == "output":
        newer.ledger.store_output(claim.lease, Output(text="x", model="m"))
    else:
        summary = passed().model_copy(update={"summary": "new"})
        newer.ledger.store_output(claim.lease, answer(), given=[summary])
    newer.advance(newer.settings.lease + 1)
    newer.sweep()
    assert scenario.refusal(job_id, number).reason == "newer"
    assert newer.claim(job_id, number)


def test_a_newer_job_that_no_worker_reads_is_escalated_at_its_deadline(
    scenario: Scenario, newer: Scenario
) -> None:
    job_id = newer.submit(labels={"a": "b"}, deadline=100)
    assert scenario.refusal(job_id).reason == "newer"
    scenario.advance(101)
    assert scenario.refusal(job_id) == ClaimRefused("escalated", "deadline")
    assert NEXT_WORKER in (scenario.view(job_id).detail or "")
    ended = scenario.end(f"{job_id}:1", "requeued")  # an older console can requeue it
    assert ended.publication is not None
    assert newer.claim(job_id, 2)


def test_an_older_worker_may_cancel_a_newer_job(scenario: Scenario, newer: Scenario) -> None:
    job_id = newer.submit(labels={"a": "b"})
    scenario.refusal(job_id)
    assert scenario.ledger.cancel(job_id) == "cancelled"
    scenario.advance(120)
    assert scenario.swept_entries() == set()


def test_the_same_key_is_seen_by_both_releases(scenario: Scenario, newer: Scenario) -> None:
    job = make_job(labels={"a": "b"}, idempotency_key="once")
    first = newer.accept(job)
    assert scenario.accept(job).id == first.id
    assert [view.id for view in scenario.ledger.jobs()] == [first.id]


# -- verifications ---------------------------------------------------------------------------------


def test_a_verification_of_a_newer_job_is_left_to_others(
    scenario: Scenario, newer: Scenario
) -> None:
    job_id = newer.submit(labels={"a": "b"})
    newer.hand_over(job_id, [0])
    assert scenario.verification_refusal(job_id, 0).reason == "newer"
    assert scenario.view(job_id).waiting_for == "version"
    scenario.advance(1)
    assert scenario.swept_entries() == {f"v:{job_id}/1/0"}
    claim = newer.claim_verification(job_id, 0)
    assert newer.view(job_id).state == "running"
    last = newer.ledger.store_result(claim.lease, passed(), elapsed=0.1)
    assert isinstance(last, Claim)


def test_an_older_worker_with_the_last_result_leaves_settling_to_others(
    scenario: Scenario, newer: Scenario
) -> None:
    """Given a newer result beside an older one, then the older worker's is stored, too."""
    job_id = scenario.submit(verifiers=["json.object", "json.object"])
    scenario.hand_over(job_id)
    ours, theirs = scenario.claim_verification(job_id, 0), newer.claim_verification(job_id, 1)
    summary = passed().model_copy(update={"summary": "new"})
    newer.ledger.store_result(theirs.lease, summary, elapsed=0.1)
    stored = scenario.ledger.store_result(ours.lease, passed(), elapsed=0.1)
    assert stored == ClaimRefused("stored")
    assert scenario.swept_entries() == {f"a:{job_id}/1"}
    claim = newer.claim(job_id)
    assert claim.results == {0: passed(), 1: summary}


# -- delayed verifications -------------------------------------------------------------------------


def test_a_delayed_verification_of_a_newer_job_is_left_to_others(
    scenario: Scenario, newer: Scenario
) -> None:
    job_id, recheck = newer.repaired_job()
    scenario.advance(601)
    assert scenario.recheck_refusal(recheck).reason == "newer"
    assert scenario.recheck_refusal(recheck).reason == "early"
    scenario.advance(2)
    assert scenario.swept_entries() == {str(recheck)}
    held = newer.claim_recheck(recheck)
    assert newer.ledger.settle_cycle(held.lease, status="completed", score=100.0)
    assert newer.cycle(job_id).status == "completed"


def test_a_delayed_verification_that_no_worker_reads_is_escalated_as_stale(
    scenario: Scenario, newer: Scenario
) -> None:
    job_id, recheck = newer.repaired_job()
    scenario.advance(601)
    scenario.recheck_refusal(recheck)
    scenario.advance(scenario.settings.stale_after + 1)
    assert scenario.recheck_refusal(recheck).reason == "escalated"
    assert scenario.cycle(job_id).status == "escalated"


# -- external work ---------------------------------------------------------------------------------


def test_external_work_of_a_newer_release_is_not_handed_out_by_an_older_one(
    scenario: Scenario, newer: Scenario
) -> None:
    job_id = newer.submit_external(labels={"a": "b"})
    assert scenario.next_entry() == f"a:{job_id}/1"
    assert scenario.refusal(job_id).reason == "newer"
    assert scenario.next_entry() is None
    scenario.advance(1)
    claim = newer.claim(job_id)
    held = scenario.ledger.hold(claim.lease)
    assert held == ClaimRefused("newer")
    assert isinstance(newer.ledger.hold(claim.lease), Claim)


# -- bodies that nobody can read -------------------------------------------------------------------

BROKEN = ['{"task_type": "t", "prom', "[]", '{"task_type": 5, "prompt": "secret"}', "null"]


@pytest.mark.parametrize("body", BROKEN)
def test_a_body_that_cannot_be_read_escalates_its_job_alone(scenario: Scenario, body: str) -> None:
    """Given a damaged body, then its job is escalated at the first claim, and no other is hurt."""
    job_id, other = scenario.submit(), scenario.submit()
    set_body(scenario, job_id, body)
    assert scenario.refusal(job_id) == ClaimRefused("escalated", "unreadable")
    assert scenario.refusal(job_id).reason == "finished"
    (escalation,) = scenario.ledger.escalations()
    assert (escalation.job_id, escalation.reason) == (job_id, "unreadable")
    assert escalation.detail.startswith("its stored body cannot be read: Job")
    assert "secret" not in escalation.detail
    assert isinstance(scenario.claim(other), Claim)
    scenario.expire_leases()
    assert scenario.view(job_id).state == "escalated"


@pytest.mark.parametrize("field", ["plan", "output"])
def test_so_does_a_damaged_part_of_an_attempt(scenario: Scenario, field: str) -> None:
    job_id = scenario.submit()
    set_body(scenario, job_id, '{"number": "x", "text": 5}', field, n=1)
    assert scenario.refusal(job_id) == ClaimRefused("escalated", "unreadable")


def test_so_does_a_damaged_result(scenario: Scenario) -> None:
    job_id = scenario.submit(verifiers=["json.object", "json.object"])
    scenario.hand_over(job_id)
    one, two = scenario.claim_verification(job_id, 0), scenario.claim_verification(job_id, 1)
    scenario.ledger.store_result(one.lease, passed(), elapsed=0.1)
    set_body(scenario, job_id, "{", "result:0", n=1)
    stored = scenario.ledger.store_result(two.lease, passed(), elapsed=0.1)
    assert stored == ClaimRefused("escalated", "unreadable")
    assert scenario.view(job_id).reason == "unreadable"


def test_a_damaged_body_escalates_its_delayed_verification(scenario: Scenario) -> None:
    job_id, recheck = scenario.repaired_job()
    set_body(scenario, job_id, "{")
    scenario.advance(601)
    assert scenario.recheck_refusal(recheck) == ClaimRefused("escalated", "unreadable")
    assert scenario.cycle(job_id).status == "escalated"


def test_a_damaged_body_of_external_work_escalates_it(scenario: Scenario) -> None:
    job_id = scenario.submit_external()
    claim = scenario.claim(job_id)
    set_body(scenario, job_id, "{")
    held = scenario.ledger.hold(Lease(claim.lease.entry, claim.lease.token))
    assert held == ClaimRefused("escalated", "unreadable")


def test_repeating_the_claim_of_a_damaged_body_answers_the_same(scenario: Scenario) -> None:
    """Given a worker that dies between its claim and the escalation, the next one escalates."""
    job_id = scenario.submit()
    scenario.claim(job_id)
    set_body(scenario, job_id, "{")
    assert scenario.expire_leases() == {f"a:{job_id}/1"}
    assert scenario.refusal(job_id) == ClaimRefused("escalated", "unreadable")


# -- reading ---------------------------------------------------------------------------------------


def test_a_job_with_unknown_fields_is_shown_without_them(scenario: Scenario) -> None:
    job_id = scenario.submit(labels={"a": "b"}, policy={"max_attempts": 3})
    body = json.loads(make_job(labels={"a": "b"}).model_dump_json(exclude_defaults=True))
    body |= {"region": "eu", "policy": {"max_attempts": 3, "patience": 4}}
    set_body(scenario, job_id, json.dumps(body))
    view = scenario.view(job_id)
    assert view.job == make_job(labels={"a": "b"}, policy={"max_attempts": 3})
    assert view.unreadable == "Job.policy.patience: Extra inputs are not permitted"
    assert [each.id for each in scenario.ledger.jobs()] == [job_id]


@pytest.mark.parametrize("body", BROKEN)
def test_a_job_that_cannot_be_read_is_shown_as_such(scenario: Scenario, body: str) -> None:
    job_id, other = scenario.submit(name="mine"), scenario.submit()
    set_body(scenario, job_id, body)
    view = scenario.view(job_id)
    assert view.unreadable is not None
    assert (view.job.task_type, view.job.label) == ("extract", "mine")
    assert {each.id for each in scenario.ledger.jobs()} == {job_id, other}
    rows = scenario.ledger.page_jobs(JobFilter(), limit=9).jobs
    assert {row.id for row in rows} == {job_id, other}


def test_an_attempt_that_cannot_be_read_is_shown_as_such(scenario: Scenario) -> None:
    job_id = scenario.submit()
    claim = scenario.claim(job_id)
    scenario.ledger.store_output(claim.lease, answer())
    scenario.settle(claim, escalates(claim))
    for field in ("plan", "output", "verdict"):
        set_body(scenario, job_id, "{", field, n=1)
    (attempt,) = scenario.view(job_id).attempts
    assert (attempt.plan.number, attempt.output, attempt.verdict) == (1, None, None)
    assert scenario.view(job_id).unreadable is not None


def test_cycles_with_damaged_metadata_do_not_stop_the_others(scenario: Scenario) -> None:
    job_id, recheck = scenario.repaired_job()
    other, _ = scenario.repaired_job()
    prefix = keys.prefix_of("mulligan", job_id)
    row = keys.cycle(prefix, recheck.cycle_id)
    scenario.ledger.calls.run("HSET", row, "metadata", "{", "status", "invented_later")
    found = scenario.ledger.cycles(since=0, limit=10)
    assert [cycle.job_id for cycle in found] == [other]
    assert scenario.view(job_id).cycles == ()
    text = scenario.ledger.calls.one("cycle_rows", prefix, ids=[recheck.cycle_id, f"{other}:1:1"])[
        0
    ]
    assert other in text


def test_this_release_writes_its_schema(scenario: Scenario) -> None:
    job_id = scenario.submit()
    assert scenario.view(job_id).needs_schema == 1
    assert CURRENT.number >= 1
    assert isinstance(scenario.claim(job_id), Claim)
    assert not isinstance(scenario.ledger.claim_cycle(Entry("cycle", job_id, 1, 1), worker="w"),
                          CycleClaim)  # fmt: skip


# -- other records ---------------------------------------------------------------------------------


def test_a_beat_with_more_fields_counts_and_is_kept(scenario: Scenario) -> None:
    """Given a worker of a later release, then an older console shows it and its release."""
    beats = scenario.ledger.beats
    beats.write(Beat(name="attempt@b", pool="attempt", host="b", pid=1, slots=1, active=0))
    row = keys.workers(keys.fleet_prefix("mulligan"))
    written = json.loads(scenario.ledger.calls.run("HGET", row, "attempt@b"))
    later = {**written, "release": "9.1.0", "reads_schema": 2, "mood": "good"}
    scenario.ledger.calls.run("HSET", row, "attempt@b", json.dumps(later))
    (found,) = beats.live(now=scenario.ledger.now())
    assert (found.release, found.reads_schema) == ("9.1.0", 2)
    assert scenario.ledger.calls.run("HEXISTS", row, "attempt@b") == 1


def test_a_token_of_another_release_is_invalid_and_locks_nobody_out(scenario: Scenario) -> None:
    """Given a token with an unknown field, which may be a limit, then only that one is refused."""
    tokens = Tokens(scenario.ledger.calls, prefix="mulligan")
    _, valid = tokens.create(role="ops", name="mine")
    token, secret = tokens.create(role="ops", name="later")
    row = keys.tokens(keys.fleet_prefix("mulligan"))
    written = json.loads(scenario.ledger.calls.run("HGET", row, token.id))
    text = json.dumps({**written, "only_from": "10.0.0.0/8"})
    scenario.ledger.calls.run("HSET", row, token.id, text)
    fresh = Tokens(scenario.ledger.calls, prefix="mulligan")
    assert fresh.find(valid) is not None
    assert fresh.find(secret) is None


def test_doctor_names_the_releases_of_the_fleet(new_redis_scenario: ScenarioMaker) -> None:
    scenario = new_redis_scenario()
    newer = of_release(scenario, NEXT)

    def found() -> tuple[str, str]:
        checks = check_ledger(scenario.ledger, scenario.settings, expected=True)
        return next((check.status, check.said) for check in checks if check.name == "versions")

    def beat(name: str, schema: StoredSchema) -> None:
        scenario.ledger.beats.write(
            Beat(name=name, pool="attempt", host="h", pid=1, slots=1, active=0,
                 release=schema.release, reads_schema=schema.number)
        )  # fmt: skip

    assert found() == ("ok", "no worker has reported its version yet")
    beat("a@h", CURRENT)
    beat("b@h", CURRENT)
    ours = f"{CURRENT.release} (schema {CURRENT.number}): 2 workers"
    assert found() == ("ok", ours)
    beat("c@h", NEXT)
    assert found() == ("warn", f"{ours}, 9.1.0 (schema {NEXT.number}): 1 worker")
    scenario.refusal(newer.submit(labels={"a": "b"}))
    status, said = found()
    assert status == "warn"
    assert said.startswith("waiting for workers of a later version: 1 job; running: ")
