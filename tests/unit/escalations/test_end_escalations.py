"""Escalations: filters, ending many at once, and a tenant's view of a group."""

from __future__ import annotations

from typing import Any

import pytest
from support.jobs import answer
from support.ledger_scenario import Scenario, ScenarioMaker
from support.settlements import escalates, retries_immediately, succeeds

from mulligan.policies.jobs.job import Decoding
from mulligan.tasks.escalations.end_escalations import (
    EndAction,
    EscalationFilter,
    NotEnded,
    end_all,
    find_group,
    list_groups,
    select,
)
from mulligan.tasks.ports.errors import BadInput
from mulligan.tasks.ports.ledger import CycleFailure, Entry, Escalation, Publication

SIGNATURE = "v1:a1b2c3"
NOW = 1000.0


def escalate(scenario: Scenario, group_signature: str | None = SIGNATURE, **fields: Any) -> str:
    """Escalate a new job and return the id of the escalation."""
    job_id = scenario.submit(**fields)
    claim = scenario.claim(job_id)
    scenario.settle(claim, escalates(claim, group_signature=group_signature))
    return f"{job_id}:1"


def requeue(**fields: Any) -> EndAction:
    return EndAction(how="requeued", by="ann", **fields)


def end(scenario: Scenario, ids: list[str], action: EndAction) -> tuple[Any, list[Publication]]:
    published: list[Publication] = []
    tally = end_all(scenario.ledger, published.extend, ids, action)
    return tally, published


def read(scenario: Scenario, escalation_id: str) -> Escalation:
    found = scenario.ledger.escalation(escalation_id)
    assert found is not None
    return found


# -- filters ---------------------------------------------------------------------------------------

ONE = Escalation(
    id="p00-a:2", job_id="p00-a", attempt=2, cycle_id=None, signature=SIGNATURE,
    reason="max_attempts", kind="json_invalid", task_type="extract", detail="", tenant="acme",
    at=NOW - 600, state="open", ended_at=None, ended_by=None, note=None,
)  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "fits"),
    [
        ({"signature": SIGNATURE}, True),
        ({"signature": "v1:other"}, False),
        ({"reason": "max_attempts", "kind": "json_invalid"}, True),
        ({"reason": "max_attempts", "kind": "timeout"}, False),
        ({"task_type": "extract", "tenant": "acme"}, True),
        ({"task_type": "extract", "tenant": "globex"}, False),
        ({"older_than": 600}, True),  # 600 s old
        ({"older_than": 601}, False),
        ({"newer_than": 600}, True),
        ({"newer_than": 599}, False),
    ],
)
def test_every_field_of_a_filter_must_fit(fields: dict[str, Any], fits: bool) -> None:
    assert EscalationFilter(**fields).fits(ONE, now=NOW) is fits


def test_a_filter_finds_open_escalations_oldest_first(new_scenario: ScenarioMaker) -> None:
    scenario = new_scenario()
    first = escalate(scenario)
    scenario.advance(100)
    other = escalate(scenario, group_signature="v1:dd", task_type="translate")
    lost = escalate(scenario, group_signature=None)
    second = escalate(scenario)
    scenario.ledger.end_escalation(lost, how="resolved", by="ann")

    def ids(**fields: Any) -> list[str]:
        return [each.id for each in select(scenario.ledger, EscalationFilter(**fields))]

    assert ids(signature=SIGNATURE) == [first, second]
    assert ids(task_type="translate") == [other]
    assert ids(ids=(second, first, first)) == [first, second]
    assert ids(ids=(first, other), task_type="extract") == [first]
    assert ids(ids=(lost,)) == []
    assert set(ids(reason="max_attempts")) == {first, other, second}


def test_age_is_measured_by_the_clock_of_the_ledger(new_fake_scenario: ScenarioMaker) -> None:
    scenario = new_fake_scenario()
    first = escalate(scenario)
    scenario.advance(100)
    second = escalate(scenario)
    (older,) = select(scenario.ledger, EscalationFilter(older_than=50))
    (newer,) = select(scenario.ledger, EscalationFilter(newer_than=50))
    assert (older.id, newer.id) == (first, second)


def test_an_empty_filter_is_refused(new_scenario: ScenarioMaker) -> None:
    with pytest.raises(BadInput, match="select escalations by"):
        select(new_scenario().ledger, EscalationFilter())


def test_all_unknown_ids_are_reported(new_scenario: ScenarioMaker) -> None:
    scenario = new_scenario()
    theirs = escalate(scenario, labels={"tenant": "globex"})
    with pytest.raises(BadInput) as caught:
        select(scenario.ledger, EscalationFilter(ids=("p00-x:1", theirs), tenant="acme"))
    assert tuple(map(str, caught.value.problems)) == (
        "ids: there is no escalation 'p00-x:1'",
        f"ids: there is no escalation {theirs!r}",
    )


# -- ending ----------------------------------------------------------------------------------------


def test_requeueing_publishes_a_new_attempt_and_is_recorded(new_scenario: ScenarioMaker) -> None:
    scenario = new_scenario()
    ids = [escalate(scenario) for _ in range(3)]
    decoding = Decoding(temperature=0.7, fallback=1)
    action = requeue(note="again", prompt="In JSON!", decoding=decoding)
    tally, published = end(scenario, ids, action)
    assert (tally.done, tally.skipped, tally.problems) == (3, 0, ())
    assert len(published) == 3
    for escalation_id in ids:
        record = read(scenario, escalation_id)
        assert (record.state, record.ended_by, record.note) == ("requeued", "ann", "again")
        claim = scenario.claim(record.job_id, 2)
        assert (claim.plan.prompt, claim.plan.decoding) == ("In JSON!", decoding)
    group = scenario.ledger.group(SIGNATURE)
    assert group is not None
    assert (group.open, group.total) == (0, 3)


def test_repeating_an_action_changes_nothing(new_scenario: ScenarioMaker) -> None:
    """The next worker repeats a batch whose worker died before it was committed."""
    scenario = new_scenario()
    ids = [escalate(scenario)]
    end(scenario, ids, requeue())
    tally, published = end(scenario, ids, requeue())
    assert (tally.done, tally.skipped, published) == (1, 0, [])
    assert len(scenario.view(read(scenario, ids[0]).job_id).attempts) == 2


def test_an_escalation_that_ended_otherwise_stays_as_it_is(new_scenario: ScenarioMaker) -> None:
    scenario = new_scenario()
    escalation_id = escalate(scenario)
    scenario.ledger.end_escalation(escalation_id, how="resolved", by="bob", note="known")
    tally, published = end(scenario, [escalation_id], requeue())
    assert (tally.done, tally.skipped, published) == (0, 1, [])
    assert read(scenario, escalation_id).ended_by == "bob"


def test_an_expired_job_cannot_be_requeued_but_resolved(
    new_scenario: ScenarioMaker,
) -> None:
    scenario = new_scenario(retention=100)
    gone = escalate(scenario)
    scenario.advance(101)
    kept = escalate(scenario)
    tally, published = end(scenario, [gone, kept], requeue())
    assert (tally.done, len(published)) == (1, 1)
    assert tally.problems == (
        NotEnded(
            id=gone,
            why="the job is no longer kept: it cannot be requeued, but it can be resolved",
        ),
    )
    assert read(scenario, gone).state == "open"
    tally, _ = end(scenario, [gone], EndAction(how="resolved", by="ann", note="too old"))
    assert tally.done == 1
    assert read(scenario, gone).state == "resolved"


def test_a_requeued_job_is_not_started_twice(new_scenario: ScenarioMaker) -> None:
    """Given a job whose two cycles both failed their delayed verification."""
    scenario = new_scenario()
    job_id = scenario.submit()
    for number in (1, 2):
        claim = scenario.claim(job_id, number)
        scenario.settle(claim, retries_immediately(claim))
    last = scenario.claim(job_id, 3)
    scenario.ledger.store_output(last.lease, answer())
    scenario.settle(last, succeeds(last))
    scenario.advance(601)
    for entry in (Entry("cycle", job_id, 1, 1), Entry("cycle", job_id, 2, 2)):
        lease = scenario.claim_recheck(entry).lease
        scenario.ledger.settle_cycle(lease, status="escalated", score=9, failure=CycleFailure())
    both = [f"{job_id}:1:1", f"{job_id}:2:2"]
    tally, published = end(scenario, both, requeue())
    assert (tally.done, len(published)) == (1, 1)
    assert [problem.id for problem in tally.problems] == both[1:]
    assert "already running" in tally.problems[0].why


def test_cancelling_ends_the_jobs(new_scenario: ScenarioMaker) -> None:
    scenario = new_scenario()
    escalation_id = escalate(scenario)
    end(scenario, [escalation_id], EndAction(how="cancelled", by="ann", note="never mind"))
    view = scenario.view(read(scenario, escalation_id).job_id)
    assert (view.state, view.detail) == ("cancelled", "never mind")


# -- tenants ---------------------------------------------------------------------------------------


def test_a_tenants_group_shows_nothing_of_other_tenants(new_scenario: ScenarioMaker) -> None:
    scenario = new_scenario()
    mine = [escalate(scenario, labels={"tenant": "acme"}) for _ in range(2)]
    scenario.advance(10)
    escalate(scenario, labels={"tenant": "globex"}, task_type="secret_project")
    scenario.advance(10)
    escalate(scenario, group_signature="v1:theirs", labels={"tenant": "globex"})
    (group,) = list_groups(scenario.ledger, tenant="acme")
    assert (group.signature, group.open, group.total) == (SIGNATURE, 2, 2)
    assert (group.task_types, group.tenants) == ({"extract": 2}, {"acme": 2})
    assert f"{group.example}:1" in mine
    assert find_group(scenario.ledger, "v1:theirs", tenant="acme") is None
    assert len(list_groups(scenario.ledger)) == 2


def test_ended_groups_of_a_tenant_are_listed_on_demand(new_scenario: ScenarioMaker) -> None:
    scenario = new_scenario()
    mine = escalate(scenario, labels={"tenant": "acme"})
    escalate(scenario, labels={"tenant": "globex"})
    end(scenario, [mine], EndAction(how="resolved", by="ann"))
    assert list_groups(scenario.ledger, tenant="acme") == []
    (group,) = list_groups(scenario.ledger, tenant="acme", only_open=False)
    assert (group.open, group.total, group.tenants) == (0, 1, {})
