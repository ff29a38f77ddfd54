"""The ledger's contract: an entry that cannot be sent or read hurts nobody but itself."""

from __future__ import annotations

from typing import Any

import pytest
from support.jobs import answer, passed
from support.ledger_scenario import Scenario, ScenarioMaker
from support.settlements import succeeds

from mulligan.tasks.ports.ledger import Claim, ClaimRefused, Entry, Escalation
from mulligan.workers.ledger import keys
from mulligan.workers.ledger.stores.quarantine import QuarantinedEntry

ON_DONE = {"task": "shop.answered", "queue": "shop"}


def fail(scenario: Scenario, entry: Entry, times: int) -> list[Entry]:
    """Report that an entry could not be sent; return those quarantined by the last report."""
    quarantined: list[Entry] = []
    for number in range(times):
        quarantined = scenario.ledger.fail({entry: f"WRONGTYPE {number + 1}"})
    return quarantined


def only(scenario: Scenario) -> QuarantinedEntry:
    (found,) = scenario.ledger.quarantine.entries()
    return found


def only_open(scenario: Scenario) -> Escalation:
    (found,) = scenario.ledger.escalations()
    return found


def finished(scenario: Scenario, **fields: Any) -> tuple[str, Entry]:
    """Return a job that succeeded and whose outcome was handed to the publisher."""
    job_id = scenario.submit(on_done=ON_DONE, **fields)
    claim = scenario.claim(job_id)
    scenario.settle(claim, succeeds(claim))
    done = Entry("done", job_id, 1)
    assert str(done) in scenario.swept_entries()
    return job_id, done


# -- failing ---------------------------------------------------------------------------------------


def test_a_failed_entry_is_tried_again_later_each_time_and_then_quarantined(
    scenario: Scenario,
) -> None:
    job_id = scenario.submit()
    entry = Entry("attempt", job_id, 1)
    grace = scenario.settings.outbox_grace
    for failures in range(1, 5):
        assert fail(scenario, entry, 1) == []
        scenario.advance(grace * 2**failures - 1)
        assert scenario.sweep() == []
        scenario.advance(1.1)
        (found,) = scenario.sweep()
        assert (found.entry, found.failures) == (entry, failures)
    assert fail(scenario, entry, 1) == [entry]
    scenario.advance(1000)
    assert scenario.sweep("attempt") == []


def test_a_failure_that_is_reported_twice_counts_once(scenario: Scenario) -> None:
    """Given a report whose answer was lost, then its repetition changes nothing."""
    entry = Entry("attempt", scenario.submit(), 1)
    prefix = keys.prefix_of(scenario.settings.key_prefix, entry.job_id)
    failures = [{"entry": str(entry), "error": "WRONGTYPE"}]
    for _ in range(9):
        scenario.ledger.calls.one("fail", prefix, failures=failures, max=2, token="one")
    assert scenario.ledger.quarantine.count() == 0


def test_a_sent_entry_starts_counting_again(scenario: Scenario) -> None:
    entry = Entry("attempt", scenario.submit(), 1)
    fail(scenario, entry, 4)
    scenario.ledger.stamp([entry])
    assert fail(scenario, entry, 4) == []
    assert scenario.ledger.quarantine.count() == 0


def test_a_late_failure_changes_neither_a_claimed_nor_a_requeued_entry(scenario: Scenario) -> None:
    job_id = scenario.submit()
    entry = Entry("attempt", job_id, 1)
    claim = scenario.claim(job_id)
    assert fail(scenario, entry, 9) == []
    scenario.ledger.requeue(claim.lease, delay=0, detail="503")
    assert fail(scenario, entry, 9) == []
    assert scenario.view(job_id).state == "queued"


def test_the_tries_are_configured(new_scenario: ScenarioMaker) -> None:
    scenario = new_scenario(publish_tries=1)
    entry = Entry("attempt", scenario.submit(), 1)
    assert fail(scenario, entry, 1) == [entry]


# -- what becomes of the job -----------------------------------------------------------------------


def test_an_unsendable_attempt_escalates_its_job(scenario: Scenario) -> None:
    job_id = scenario.submit(labels={"tenant": "acme"})
    fail(scenario, Entry("attempt", job_id, 1), 5)
    view = scenario.view(job_id)
    assert (view.state, view.reason) == ("escalated", "unsendable")
    found = only(scenario)
    assert (found.id, found.job_id, found.queue) == (f"a:{job_id}/1", job_id, "attempt")
    assert (found.reason, found.error, found.failures) == ("unsendable", "WRONGTYPE 5", 5)
    escalation = only_open(scenario)
    assert (escalation.id, escalation.job_id) == (found.escalation, job_id)
    assert escalation.reason == "unsendable"
    assert "WRONGTYPE 5" in escalation.detail


def test_an_unsendable_verification_escalates_its_job(scenario: Scenario) -> None:
    job_id = scenario.submit()
    scenario.hand_over(job_id)
    fail(scenario, Entry("verification", job_id, 1, 0), 5)
    assert scenario.view(job_id).reason == "unsendable"
    assert scenario.ledger.quarantine.retry([f"v:{job_id}/1/0"], by="ada")
    assert scenario.view(job_id).state == "running"
    assert scenario.attempt(job_id).output == answer()  # it is not bought again
    assert str(Entry("verification", job_id, 1, 0)) in scenario.swept_entries()
    scenario.claim_verification(job_id, 0)


def test_an_unsendable_outcome_leaves_the_finished_job_alone(scenario: Scenario) -> None:
    job_id, done = finished(scenario)
    assert fail(scenario, done, 5) == [done]
    assert scenario.view(job_id).state == "succeeded"
    escalation = only_open(scenario)
    assert (escalation.job_id, escalation.reason) == (job_id, "unsendable")


def test_an_unsendable_delayed_verification_escalates_its_cycle(scenario: Scenario) -> None:
    job_id, entry = scenario.repaired_job()
    scenario.advance(601)
    assert str(entry) in scenario.swept_entries()
    fail(scenario, entry, 5)
    assert scenario.cycle(job_id).status == "escalated"
    assert scenario.view(job_id).state == "succeeded"
    assert only_open(scenario).cycle_id == entry.cycle_id
    assert scenario.ledger.quarantine.retry(None, by="ada") == [str(entry)]
    assert scenario.cycle(job_id).status == "pending_delayed_verification"
    assert str(entry) in scenario.swept_entries()
    lease = scenario.claim_recheck(entry).lease
    assert scenario.ledger.settle_cycle(lease, status="completed", score=100)


def test_an_entry_that_nobody_needs_is_dropped(scenario: Scenario) -> None:
    """Given a verification of a job that was cancelled, then nobody must look at it."""
    job_id = scenario.submit()
    scenario.hand_over(job_id)
    scenario.ledger.cancel(job_id)
    entry = Entry("verification", job_id, 1, 0)
    fail(scenario, entry, 5)
    # Cancelling removes it; one that was left by something else is damaged, too.
    scenario.ledger.calls.run("HSET", "mulligan:{p00}:outbox:entries", str(entry), "?")
    scenario.ledger.calls.run("ZADD", "mulligan:{p00}:outbox", 0, str(entry))
    assert scenario.swept_entries() == set()
    assert scenario.ledger.quarantine.count() == 0
    assert scenario.ledger.escalations() == []
    assert scenario.view(job_id).state == "cancelled"


# -- what a person does ----------------------------------------------------------------------------


def test_a_retried_attempt_runs_as_if_it_had_waited(scenario: Scenario) -> None:
    job_id = scenario.submit(deadline=100)
    entry = Entry("attempt", job_id, 1)
    fail(scenario, entry, 5)
    scenario.advance(1000)  # the time in quarantine does not count against the deadline
    escalation = only_open(scenario)
    assert scenario.ledger.quarantine.retry([str(entry)], by="ada") == [str(entry)]
    assert scenario.ledger.quarantine.entries() == []
    assert scenario.ledger.escalations() == []
    ended = scenario.ledger.escalation(escalation.id)
    assert ended is not None
    assert (ended.state, ended.ended_by) == ("requeued", "ada")
    assert scenario.view(job_id).state == "queued"
    assert scenario.swept_entries() == {str(entry)}
    claim = scenario.claim(job_id)
    scenario.settle(claim, succeeds(claim))
    assert scenario.view(job_id).state == "succeeded"


def test_an_entry_that_fails_again_is_escalated_again(scenario: Scenario) -> None:
    job_id = scenario.submit()
    entry = Entry("attempt", job_id, 1)
    fail(scenario, entry, 5)
    first = only_open(scenario).id
    scenario.ledger.quarantine.retry(None, by="ada")
    scenario.sweep()
    fail(scenario, entry, 5)
    second = only_open(scenario)
    assert second.id != first
    assert only(scenario).escalation == second.id
    assert scenario.view(job_id).state == "escalated"
    scenario.end(second.id, "requeued")


def test_dropping_an_entry_resolves_its_escalation(scenario: Scenario) -> None:
    job_id, done = finished(scenario)
    fail(scenario, done, 5)
    escalation = only_open(scenario)
    assert scenario.ledger.quarantine.drop(["a:unknown/1"], by="ada") == []
    assert scenario.ledger.quarantine.drop([str(done)], by="ada") == [str(done)]
    ended = scenario.ledger.escalation(escalation.id)
    assert ended is not None
    assert ended.state == "resolved"
    assert scenario.ledger.quarantine.count() == 0
    assert scenario.swept_entries("shop") == set()
    assert scenario.view(job_id).state == "succeeded"


def test_requeueing_the_escalation_of_an_outcome_sends_it_again(scenario: Scenario) -> None:
    """The finished job is not run again: its answer is paid for."""
    job_id, done = finished(scenario)
    fail(scenario, done, 5)
    scenario.end(only_open(scenario).id, "requeued")
    assert scenario.swept_entries() == {str(done)}
    assert scenario.view(job_id).state == "succeeded"
    assert scenario.ledger.quarantine.count() == 0


@pytest.mark.parametrize("how", ["requeued", "resolved", "cancelled"])
def test_ending_the_escalation_of_an_attempt_empties_the_quarantine(
    scenario: Scenario, how: Any
) -> None:
    job_id = scenario.submit()
    fail(scenario, Entry("attempt", job_id, 1), 5)
    ended = scenario.end(only_open(scenario).id, how)
    assert scenario.ledger.quarantine.count() == 0
    if how == "requeued":
        assert ended.publication is not None
        assert ended.publication.entry == Entry("attempt", job_id, 2)
        scenario.claim(job_id, 2)


def test_a_verification_that_is_sent_again_brings_back_the_others(scenario: Scenario) -> None:
    """Given three verifications: one has its result, the message of one arrives too late."""
    job_id = scenario.submit()
    scenario.hand_over(job_id, verifications=[0, 1, 2])
    done = scenario.claim_verification(job_id, 2)
    scenario.ledger.store_result(done.lease, passed(), elapsed=1.0)
    fail(scenario, Entry("verification", job_id, 1, 0), 5)
    assert scenario.verification_refusal(job_id, 1).reason == "finished"
    scenario.ledger.quarantine.retry(None, by="ada")
    assert scenario.swept_entries() == {f"v:{job_id}/1/0", f"v:{job_id}/1/1"}
    for index in (0, 1):
        claim = scenario.claim_verification(job_id, index)
        stored = scenario.ledger.store_result(claim.lease, passed(), elapsed=1.0)
    assert isinstance(stored, Claim)  # the last one settles


def test_a_tenant_changes_only_its_own_entries(new_scenario: ScenarioMaker) -> None:
    scenario = new_scenario(partitions=3)
    by_tenant = {}
    for tenant in ("acme", "zeta"):
        job_id = scenario.submit(labels={"tenant": tenant})
        fail(scenario, Entry("attempt", job_id, 1), 5)
        by_tenant[tenant] = f"a:{job_id}/1"
    quarantine = scenario.ledger.quarantine
    assert [each.id for each in quarantine.entries(tenant="acme")] == [by_tenant["acme"]]
    assert quarantine.drop([by_tenant["zeta"]], by="ada", tenant="acme") == []
    assert quarantine.retry(None, by="ada", tenant="acme") == [by_tenant["acme"]]
    assert [each.id for each in quarantine.entries()] == [by_tenant["zeta"]]


# -- what cannot be read ---------------------------------------------------------------------------


def outbox(scenario: Scenario) -> str:
    return keys.outbox(keys.partition_prefixes(scenario.settings.key_prefix, 1)[0])


@pytest.mark.parametrize(
    "row", ["", "attempt", "attempt|5", "attempt|x|0|0", "attempt|5|-.|0", b"\xff|"]
)
def test_an_unreadable_record_does_not_stop_the_sweep(scenario: Scenario, row: str | bytes) -> None:
    broken, other = scenario.submit(), scenario.submit()
    scenario.ledger.calls.run("HSET", f"{outbox(scenario)}:entries", f"a:{broken}/1", row)
    scenario.advance(scenario.settings.outbox_grace + 1)
    assert scenario.swept_entries() == {f"a:{other}/1"}
    assert scenario.view(broken).reason == "unreadable"
    assert only(scenario).id == f"a:{broken}/1"
    assert only_open(scenario).job_id == broken
    scenario.ledger.quarantine.retry(None, by="ada")  # its queue follows from the job
    assert scenario.swept_entries() == {f"a:{broken}/1"}
    scenario.claim(broken)


@pytest.mark.parametrize("name", ["x:p00-1/1", "a:p00-1", "a:p00-1/1/1", "v:p00-1/1", b"\xff\x00:"])
@pytest.mark.parametrize("index", ["outbox", "leases"])
def test_a_bad_name_does_not_stop_the_sweep(
    scenario: Scenario, name: str | bytes, index: str
) -> None:
    other = scenario.submit()
    key = outbox(scenario).removesuffix("outbox") + index
    scenario.ledger.calls.run("ZADD", key, 1, name)
    scenario.advance(scenario.settings.outbox_grace + 1)
    assert scenario.swept_entries() == {f"a:{other}/1"}
    assert only_open(scenario).reason == "unreadable"
    found = only(scenario)
    assert (found.job_id, found.queue) == (None, None)
    assert scenario.ledger.quarantine.retry([found.id], by="ada") == []
    ended = scenario.ledger.end_escalation(found.escalation, how="requeued", by="ada")
    assert isinstance(ended, ClaimRefused)
    assert scenario.ledger.quarantine.drop([found.id], by="ada") == [found.id]
    assert scenario.ledger.escalations() == []


@pytest.mark.parametrize("row", ["", "x", "null", "[]", "7", '{"count": null}'])
def test_a_damaged_count_of_failures_counts_as_none(scenario: Scenario, row: str) -> None:
    broken, other = scenario.submit(), scenario.submit()
    fail(scenario, Entry("attempt", broken, 1), 1)
    scenario.ledger.calls.run("HSET", f"{outbox(scenario)}:failures", f"a:{broken}/1", row)
    scenario.advance(scenario.settings.outbox_grace * 2 + 1)
    assert scenario.swept_entries() == {f"a:{broken}/1", f"a:{other}/1"}
    assert fail(scenario, Entry("attempt", broken, 1), 1) == []


def test_a_bad_name_behind_a_reason_holds_nobody_up(scenario: Scenario) -> None:
    scenario.ledger.pause("queue:attempt")
    waiting = scenario.submit()
    scenario.refusal(waiting)
    parked = outbox(scenario).removesuffix("outbox") + "parked:queue:attempt"
    scenario.ledger.calls.run("ZADD", parked, "-inf", "garbage", "inf", "a:p00-1")
    assert [(each.reason, each.count) for each in scenario.ledger.parked()] == [
        ("queue:attempt", 3)
    ]
    scenario.ledger.resume("queue:attempt")
    assert scenario.swept_entries() == {f"a:{waiting}/1"}
    assert {each.id for each in scenario.ledger.quarantine.entries()} == {"garbage", "a:p00-1"}


def test_a_damaged_parked_job_a_damaged_limit_and_a_damaged_time_hold_nobody_up(
    new_scenario: ScenarioMaker,
) -> None:
    """Given a tenant whose second job waits for the first, and what the sweep reads is damaged."""
    scenario = new_scenario(quotas={"acme": {"concurrency": 1}})
    running, waiting = (scenario.submit(labels={"tenant": "acme"}) for _ in range(2))
    scenario.claim(running)
    scenario.refusal(waiting)
    prefix = outbox(scenario).removesuffix("outbox")
    run = scenario.ledger.calls.run
    run("HDEL", f"{prefix}job:{waiting}", "task_type")
    run("HSET", f"{prefix}limits", "tenant:acme", "garbage")
    run("SET", f"{prefix}swept_at", "garbage")
    assert f"a:{waiting}/1" in scenario.swept_entries()


def test_the_quarantine_has_a_cap(new_scenario: ScenarioMaker) -> None:
    scenario = new_scenario(escalations_cap=100, publish_tries=1)
    entries = [Entry("attempt", scenario.submit(), 1) for _ in range(102)]
    for entry in entries:
        scenario.advance(1)
        fail(scenario, entry, 1)
    kept = {each.id for each in scenario.ledger.quarantine.entries()}
    assert kept == {str(entry) for entry in entries[2:]}
