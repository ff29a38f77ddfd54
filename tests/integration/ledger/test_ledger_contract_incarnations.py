"""The ledger's contract: idempotency keys in every process, and again after retention."""

from __future__ import annotations

import pytest
from support.jobs import answer, make_job
from support.ledger_scenario import Scenario, ScenarioMaker
from support.settlements import escalates, retries_immediately, succeeds

from mulligan.tasks.ports.ledger import Accepted, ClaimRefused, Entry, KeyConflict
from mulligan.workers.ledger import keys

KEY = "nightly"


@pytest.fixture
def short(new_scenario: ScenarioMaker) -> Scenario:
    """Jobs are kept for 10 s, cycles and escalations for longer."""
    return new_scenario(retention=10.0)


def fail_twice(scenario: Scenario) -> str:
    """Run a job that is escalated after its mandatory retry."""
    job_id = scenario.submit(idempotency_key=KEY)
    first = scenario.claim(job_id)
    scenario.settle(first, retries_immediately(first))
    second = scenario.claim(job_id, 2)
    scenario.settle(second, escalates(second))
    return job_id


def forget(scenario: Scenario, job_id: str) -> None:
    scenario.advance(11)
    scenario.sweep()
    assert scenario.ledger.job(job_id) is None


def test_a_key_used_again_after_retention_records_its_cycle_and_escalation(
    short: Scenario,
) -> None:
    """Given a job whose escalation was resolved, when its key is used after retention and the new
    job fails alike, then it has a cycle and an open escalation of its own."""
    one = fail_twice(short)
    short.end(f"{one}:2", "resolved")
    forget(short, one)
    two = fail_twice(short)
    assert two == f"{one}_2"
    view = short.view(two)
    assert [(cycle.id, cycle.status) for cycle in view.cycles] == [(f"{two}:1:1", "escalated")]
    assert [each.id for each in short.ledger.escalations()] == [f"{two}:2"]
    assert {cycle.job_id for cycle in short.ledger.cycles(since=0, limit=9)} == {one, two}


def test_each_use_of_a_key_has_an_id_of_its_own(short: Scenario) -> None:
    """Given a second job that leaves no record, then a third one still has its own id."""
    one = fail_twice(short)
    forget(short, one)
    two = short.submit(idempotency_key=KEY)
    assert short.accept(make_job(idempotency_key=KEY)) == Accepted(id=two, status="seen")
    claim = short.claim(two)
    short.ledger.store_output(claim.lease, answer())
    short.settle(claim, succeeds(claim))
    assert short.accept(make_job(idempotency_key=KEY)) == Accepted(id=two, status="seen")
    other = make_job(idempotency_key=KEY, prompt="Another.")
    assert short.accept(other) == KeyConflict(id=two)
    short.end(f"{one}:2", "resolved")  # the end of an older record changes nothing
    forget(short, two)
    three = short.submit(idempotency_key=KEY)
    assert (two, three) == (f"{one}_2", f"{one}_3")
    assert short.ledger.latest_id(one) == three


def test_a_key_without_records_keeps_its_id(short: Scenario) -> None:
    one = short.submit(idempotency_key=KEY)
    claim = short.claim(one)
    short.settle(claim, succeeds(claim))
    forget(short, one)
    assert short.submit(idempotency_key=KEY) == one
    assert short.ledger.latest_id(one) == one


def test_records_of_a_release_without_incarnations_are_noticed(short: Scenario) -> None:
    one = fail_twice(short)
    short.ledger.calls.run("DEL", keys.incarnation(keys.prefix_of("mulligan", one), one))
    forget(short, one)
    assert short.submit(idempotency_key=KEY) == f"{one}_2"


def test_a_later_incarnation_can_be_requeued_and_cancelled(short: Scenario) -> None:
    forget(short, fail_twice(short))
    two = fail_twice(short)
    ended = short.end(f"{two}:2", "requeued")
    assert ended.publication is not None
    assert ended.publication.entry == Entry("attempt", two, 3)
    assert short.ledger.cancel(two) == "cancelled"


def test_the_memory_of_an_earlier_incarnation_does_not_count(short: Scenario) -> None:
    forget(short, fail_twice(short))
    assert short.claim(short.submit(idempotency_key=KEY)).memory.counts == {}


# -- digests of another release --------------------------------------------------------------------


def test_a_digest_that_another_release_made_is_compared_by_the_stored_job(
    scenario: Scenario,
) -> None:
    """Given a stored digest of another kind, then the same job is seen and another is refused."""
    job = make_job(idempotency_key=KEY, policy={"escalate_on": ["tool_error", "test_failed"]})
    accepted = scenario.accept(job)
    row = keys.job(keys.prefix_of("mulligan", accepted.id), accepted.id)
    scenario.ledger.calls.run("HSET", row, "digest", "0123456789abcdef")
    assert scenario.accept(job) == Accepted(id=accepted.id, status="seen")
    other = make_job(idempotency_key=KEY, prompt="Another.")
    assert scenario.accept(other) == KeyConflict(id=accepted.id)


# -- the best attempt after a requeue --------------------------------------------------------------


def refuted_job(scenario: Scenario, *, score: float | None = 40.0) -> str:
    """Return a job whose repaired answer failed its delayed verification."""
    job_id, recheck = scenario.repaired_job()
    scenario.advance(601)
    held = scenario.claim_recheck(recheck)
    assert scenario.ledger.settle_cycle(held.lease, status="escalated", score=score)
    assert scenario.view(job_id).best_attempt == 2  # the answer until there is a better one
    scenario.end(recheck.cycle_id, "requeued")
    assert scenario.view(job_id).best_attempt == 2
    return job_id


def settle_third(scenario: Scenario, job_id: str, *, score: float, success: bool) -> int | None:
    claim = scenario.claim(job_id, 3)
    scenario.ledger.store_output(claim.lease, answer("new"))
    ending = succeeds(claim, score=score) if success else escalates(claim, score=score)
    scenario.settle(claim, ending)
    return scenario.view(job_id).best_attempt


@pytest.mark.parametrize(
    ("score", "success", "best"),
    [
        (100.0, True, 3),  # the same score as the refuted answer had
        (75.0, True, 3),  # a success beats a refuted answer, whatever its score was
        (50.0, False, 3),  # more than the 40 of the delayed verification
        (30.0, False, 2),  # less: the refuted answer stays the best there is
    ],
)
def test_a_refuted_answer_ranks_with_the_score_that_refuted_it(
    scenario: Scenario, score: float, success: bool, best: int
) -> None:
    job_id = refuted_job(scenario)
    assert settle_third(scenario, job_id, score=score, success=success) == best


def test_a_delayed_verification_without_a_score_refutes_nothing(scenario: Scenario) -> None:
    job_id = refuted_job(scenario, score=None)
    assert settle_third(scenario, job_id, score=90.0, success=True) == 2


def test_a_late_refutation_does_not_demote_a_newer_answer(scenario: Scenario) -> None:
    """Given a recheck of attempt 2 that ends after a requeued attempt 3, then 3 stays the best."""
    job_id, recheck = scenario.repaired_job()
    scenario.advance(601)
    held = scenario.claim_recheck(recheck)
    row = keys.job(keys.prefix_of("mulligan", job_id), job_id)
    scenario.ledger.calls.run("HSET", row, "best", 3, "best_score", 90, "best_success", 1)
    assert scenario.ledger.settle_cycle(held.lease, status="escalated", score=40.0)
    assert scenario.ledger.calls.run("HMGET", row, "best_score", "best_success") == ["90", "1"]


def test_repeating_the_refutation_changes_nothing(scenario: Scenario) -> None:
    job_id, recheck = scenario.repaired_job()
    scenario.advance(601)
    held = scenario.claim_recheck(recheck)
    for _ in range(2):
        assert scenario.ledger.settle_cycle(held.lease, status="escalated", score=40.0)
    assert isinstance(scenario.ledger.claim_cycle(recheck, worker="w"), ClaimRefused)
    assert len(scenario.ledger.escalations()) == 1
    assert scenario.view(job_id).state == "succeeded"
