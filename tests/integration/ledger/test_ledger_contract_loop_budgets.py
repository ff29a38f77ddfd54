"""The ledger's contract: budgets of loops, which no number of claims at once can exceed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from support.doubles import FakeRunner
from support.jobs import answer
from support.ledger_scenario import Scenario
from support.loops import ADA, LoopScenario, document, item, used
from support.settlements import retries_immediately, succeeds

from mulligan.policies.jobs.job import Decoding
from mulligan.tasks.jobs.attempt import BYTES_PER_TOKEN, request_of
from mulligan.tasks.jobs.context import ResolvedRunner
from mulligan.tasks.loops import change
from mulligan.tasks.loops.change import LoopConflict
from mulligan.tasks.loops.view import why
from mulligan.tasks.ports.errors import BadInput, TransportFault
from mulligan.tasks.ports.ledger import Claim, Entry

DAY = 86400


@pytest.fixture
def loops(scenario: Scenario) -> LoopScenario:
    return LoopScenario(scenario, slots=1000)


def budget(**scopes: Any) -> dict[str, Any]:
    return {"budget": scopes, "concurrency": 1000}


def limit(loops: LoopScenario, count: int, **scopes: Any) -> None:
    """Limit a loop after its items were admitted. Later, no more are admitted than fit."""
    loops.create(*items(count), concurrency=1000)
    loops.plan()
    change.configure(loops.context, "alpha", {"budget": scopes}, ADA)


def items(count: int) -> list[dict[str, Any]]:
    return [item(f"i{n}") for n in range(count)]


def test_claims_at_once_never_reserve_more_than_the_budget(loops: LoopScenario) -> None:
    limit(loops, 1000, attempt={"tokens": 100}, loop={"tokens": 2550})
    jobs = [record.job_id for record in loops.read().snapshot.items.values()]
    assert len(jobs) == len(set(jobs)) == 1000

    def claim(job_id: str) -> bool:
        entry = Entry("attempt", job_id, 1)
        return isinstance(loops.scenario.ledger.claim(entry, worker="w"), Claim)

    with ThreadPoolExecutor(16) as pool:
        claimed = sum(pool.map(claim, jobs))
    assert claimed == 25
    assert loops.read().budget.reserved == {"tokens": 2500}


def test_a_claim_says_what_the_attempt_may_use(loops: LoopScenario) -> None:
    limits = budget(attempt={"tokens": 100, "seconds": 60}, item={"tokens": 500})
    loops.create(*items(1), **limits)
    loops.plan()
    assert loops.claim("i0").allowance == {"tokens": 100, "seconds": 60}


@pytest.mark.parametrize(
    ("limits", "admitted"),
    [
        ({"attempt": {"tokens": 100}, "loop": {"tokens": 350}}, 3),
        ({"attempt": {"tokens": 100}, "loop": {"tokens": 50}}, 1),  # alone, it takes what is left
        ({"loop": {"tokens": 350}}, 1),  # without a cap, one at a time
        ({"attempt": {"tokens": 100}}, 5),
        ({"attempt": {"seconds": 60}, "day": {"seconds": 120}}, 2),
    ],
)
def test_no_more_items_are_admitted_than_fit_into_the_budget(
    loops: LoopScenario, limits: dict[str, Any], admitted: int
) -> None:
    loops.create(*items(5), **budget(**limits))
    assert len(loops.admitted()) == admitted
    assert loops.admitted() == []


def test_what_was_not_used_is_given_back(loops: LoopScenario) -> None:
    limit(loops, 3, attempt={"tokens": 100}, loop={"tokens": 200})
    first = loops.claim("i0")
    loops.claim("i1")
    assert loops.refusal("i2").reason == "over_quota"
    stored = loops.scenario.ledger.store_output(first.lease, answer(tokens=40))
    assert isinstance(stored, list)
    # 60 tokens are left beside the reservation of i1: too few for another attempt's cap.
    assert loops.refusal("i2").reason == "over_quota"
    assert used(loops.read())["loop:tokens"] == 40


def test_the_last_attempt_takes_what_is_left(loops: LoopScenario) -> None:
    limit(loops, 2, attempt={"tokens": 100}, loop={"tokens": 130})
    loops.passes("i0", tokens=90)
    assert loops.claim("i1").allowance["tokens"] == 40


def test_attempts_without_a_cap_run_one_at_a_time(loops: LoopScenario) -> None:
    limit(loops, 2, loop={"tokens": 1000})
    claim = loops.claim("i0")
    assert claim.allowance == {"tokens": 1000}
    assert loops.refusal("i1").reason == "over_quota"
    loops.scenario.ledger.store_output(claim.lease, answer(tokens=10))
    loops.settle(claim, succeeds(claim))
    assert loops.admitted() == ["i1"]
    assert loops.claim("i1").allowance == {"tokens": 990}


def test_an_entry_that_waited_for_the_budget_is_released_once_it_fits(loops: LoopScenario) -> None:
    limit(loops, 3, attempt={"tokens": 100}, loop={"tokens": 150})
    claim = loops.claim("i0")
    assert loops.refusal("i1").reason == "over_quota"
    assert loops.refusal("i2").reason == "over_quota"
    loops.scenario.ledger.store_output(claim.lease, answer(tokens=1))
    loops.settle(claim, succeeds(claim))
    loops.plan()  # gives the slots back that were left while waiting
    waiting = [loops.scenario.view(loops.item(name).job_id) for name in ("i1", "i2")]
    assert sorted(view.state for view in waiting) == ["queued", "waiting"]


def test_raising_a_budget_releases_what_waited_for_it(loops: LoopScenario) -> None:
    limit(loops, 3, attempt={"tokens": 100}, loop={"tokens": 150})
    loops.claim("i0")
    for name in ("i1", "i2"):
        assert loops.refusal(name).reason == "over_quota"
    change.configure(loops.context, "alpha", {"budget": {"loop": {"tokens": 250}}}, ADA)
    assert sorted(loops.admitted()) == ["i1"]
    loops.claim("i1")
    assert loops.refusal("i2").reason == "over_quota"


def test_reservations_of_different_sizes_add_up(loops: LoopScenario) -> None:
    limit(loops, 4, attempt={"tokens": 100}, loop={"tokens": 230})
    loops.claim("i0")
    change.configure(loops.context, "alpha", {"budget": {"attempt": {"tokens": 50}}}, ADA)
    assert loops.claim("i1").allowance == {"tokens": 50}
    assert loops.claim("i2").allowance == {"tokens": 50}
    assert loops.read().budget.reserved == {"tokens": 200}
    assert loops.refusal("i3").reason == "over_quota"  # 30 are left


def test_unknown_usage_counts_as_the_whole_reservation(loops: LoopScenario) -> None:
    limit(loops, 1, attempt={"tokens": 100}, loop={"tokens": 1000})
    loops.passes("i0", tokens=None)
    assert used(loops.read())["loop:tokens"] == 100
    assert loops.read().unknown["tokens"] == 1


def test_a_lost_worker_is_charged_what_it_metered(loops: LoopScenario) -> None:
    limit(loops, 1, attempt={"tokens": 100}, loop={"tokens": 1000})
    claim = loops.claim("i0")
    loops.scenario.ledger.renew([replace(claim.lease, metered={"tokens": 30.0})])
    loops.scenario.expire_leases()
    assert used(loops.read())["loop:tokens"] == 30
    assert loops.read().budget.reserved == {}


def test_a_lost_worker_that_metered_nothing_is_charged_its_reservation(loops: LoopScenario) -> None:
    limit(loops, 1, attempt={"tokens": 100}, loop={"tokens": 1000})
    loops.claim("i0")
    loops.scenario.expire_leases()
    assert used(loops.read())["loop:tokens"] == 100
    assert used(loops.read())["loop:seconds"] >= 30


@pytest.mark.parametrize(
    ("maybe_served", "tokens"),
    [
        (False, 0),  # the provider refused, so nothing was used
        (True, 100),  # it may have answered: unknown is never 0
    ],
)
def test_a_fault_costs_what_it_may_have_cost(
    loops: LoopScenario, maybe_served: bool, tokens: float
) -> None:
    limit(loops, 1, attempt={"tokens": 100}, loop={"tokens": 1000})
    claim = loops.claim("i0")
    fault = TransportFault("no answer", provider="fake", maybe_served=maybe_served)
    loops.scenario.ledger.requeue(claim.lease, delay=0.0, detail="no answer", fault=fault)
    assert used(loops.read()).get("loop:tokens", 0) == tokens


@pytest.mark.parametrize("maybe_served", [False, True])
def test_a_fault_costs_what_the_agent_had_used(loops: LoopScenario, maybe_served: bool) -> None:
    """Given an agent that asks its provider often, and is refused in the end."""
    limit(loops, 1, attempt={"tokens": 100}, loop={"tokens": 1000})
    claim = loops.claim("i0")
    fault = TransportFault("no credits", provider="fake", maybe_served=maybe_served)
    lease = replace(claim.lease, metered={"tokens": 70.0})
    loops.scenario.ledger.requeue(lease, delay=0.0, detail="no credits", fault=fault)
    assert used(loops.read())["loop:tokens"] == 70
    assert loops.read().unknown.get("tokens", 0) == 0


def test_a_failure_without_an_answer_costs_what_was_used(loops: LoopScenario) -> None:
    limit(loops, 1, attempt={"tokens": 100}, loop={"tokens": 1000})
    claim = loops.claim("i0")
    metered = replace(claim, lease=replace(claim.lease, metered={"tokens": 70.0}))
    loops.settle(metered, retries_immediately(claim))
    assert used(loops.read())["loop:tokens"] == 70


def test_a_retry_reserves_again(loops: LoopScenario) -> None:
    limit(loops, 1, attempt={"tokens": 100}, loop={"tokens": 150})
    claim = loops.claim("i0")
    loops.scenario.ledger.store_output(claim.lease, answer(tokens=80))
    loops.settle(claim, retries_immediately(claim))
    assert loops.claim("i0", 2).allowance["tokens"] == 70


def test_a_budget_that_is_used_up_pauses_the_loop_and_raising_it_resumes(
    loops: LoopScenario,
) -> None:
    loops.create(
        *items(3), **{**budget(attempt={"tokens": 50}, loop={"tokens": 60}), "concurrency": 1}
    )
    loops.plan()
    loops.passes("i0", tokens=60)
    loops.plan()
    assert (loops.loop().state, loops.loop().paused_by) == ("paused", "budget")
    assert loops.loop().reason == "the loop budget of tokens is used up"
    with pytest.raises(LoopConflict, match=r"raise budget\.loop\.tokens"):
        loops.move("resume")
    change.configure(loops.context, "alpha", {"budget": {"loop": {"tokens": 500}}}, ADA)
    loops.plan()
    assert loops.loop().state == "running"
    assert loops.item("i1").state == "running"
    loops.claim("i1")


def test_a_new_day_resumes_a_loop_that_had_used_up_its_day(loops: LoopScenario) -> None:
    loops.create(
        *items(2), **{**budget(attempt={"tokens": 50}, day={"tokens": 50}), "concurrency": 1}
    )
    loops.plan()
    loops.passes("i0", tokens=50)
    loops.plan()
    assert loops.loop().state == "paused"
    loops.scenario.advance(DAY)
    assert "l:p00-alpha/1" in loops.scenario.swept_entries()
    loops.plan()
    assert loops.loop().state == "running"
    loops.claim("i1")


def test_a_loop_warns_at_half_at_four_fifths_and_at_the_end(loops: LoopScenario) -> None:
    limit(loops, 5, attempt={"tokens": 30}, loop={"tokens": 100})
    for name in ("i0", "i1", "i2", "i3"):
        loops.passes(name, tokens=27)
    warned = [
        event.data["percent"]
        for event in loops.scenario.ledger.events()
        if event.type == "loop" and "percent" in event.data
    ]
    assert warned == [50, 80, 100]


def test_money_follows_from_the_tokens_and_the_price(loops: LoopScenario) -> None:
    loops.price = 0.01
    limit(loops, 3, attempt={"tokens": 100}, loop={"money": 2.5})
    first = loops.claim("i0")
    loops.claim("i1")
    assert first.allowance == {"tokens": 100, "money": 1.0}
    assert loops.refusal("i2").reason == "over_quota"
    loops.scenario.ledger.store_output(first.lease, answer(tokens=100), money=0.7)
    assert used(loops.read())["loop:money"] == pytest.approx(0.7)


def test_an_attempt_without_a_limit_is_charged_when_its_worker_is_lost(
    loops: LoopScenario,
) -> None:
    loops.create(*items(2))
    loops.plan()
    loops.claim("i0")
    loops.claim("i1")
    loops.scenario.advance(20)
    loops.move("stop")
    reading = loops.read()
    assert used(reading)["loop:seconds"] == pytest.approx(40, abs=1)
    assert reading.unknown["tokens"] == 2


def test_a_limit_that_is_set_while_attempts_run_counts_them_as_everything(
    loops: LoopScenario,
) -> None:
    """Given attempts without a limit, when one is set, then the next waits for their end."""
    loops.create(*items(3))
    loops.plan()
    running = [loops.claim("i0"), loops.claim("i1")]
    limits = {"budget": {"attempt": {"tokens": 50}, "loop": {"tokens": 100}}}
    change.configure(loops.context, "alpha", limits, ADA)
    assert loops.refusal("i2").reason == "over_quota"
    loops.plan()
    text = why(loops.context, "alpha", "i2").text
    assert text == "i2 waits: attempts that began before the loop budget of tokens still run"
    for claim in running:
        loops.scenario.ledger.store_output(claim.lease, answer(tokens=10))
        loops.settle(claim, succeeds(claim))
    loops.plan()
    loops.claim("i2")


def test_a_new_price_counts_from_the_next_plan_on(loops: LoopScenario) -> None:
    loops.price = 0.01
    limit(loops, 2, attempt={"tokens": 100}, loop={"money": 2.5})
    loops.price = 0.02
    loops.plan()
    assert loops.claim("i0").allowance == {"tokens": 100, "money": 2.0}
    version = loops.loop().version
    loops.plan()
    assert loops.loop().version == version  # nothing is written again


def test_a_budget_of_money_needs_a_price(loops: LoopScenario) -> None:
    with pytest.raises(BadInput, match="has no price"):
        loops.create(*items(1), **budget(loop={"money": 1}))


def test_the_budget_of_an_item_is_that_of_its_job(loops: LoopScenario) -> None:
    loops.create(*items(1), **budget(item={"tokens": 500, "seconds": "30m"}))
    loops.plan()
    job = loops.scenario.view(loops.item("i0").job_id).job
    assert (job.budget.tokens, job.budget.seconds) == (500, 1800)


def test_stopping_a_loop_charges_what_was_running(loops: LoopScenario) -> None:
    limit(loops, 1, attempt={"tokens": 100}, loop={"tokens": 1000})
    loops.claim("i0")
    loops.move("stop")
    assert used(loops.read())["loop:tokens"] == 100
    assert loops.read().budget.reserved == {}


def test_the_rest_of_the_money_limits_the_tokens_of_a_call(loops: LoopScenario) -> None:
    """Given a budget of money only, then the runner is given what can be paid for."""
    loops.price = 0.001
    loops.create(*items(1), **budget(loop={"money": 0.5}))
    loops.plan()
    claim = loops.claim("i0")
    runner = ResolvedRunner(runner=FakeRunner(["{}"]), timeout=7.0, decoding=Decoding())
    request = request_of(claim, runner, prompt="x" * 40, price=loops.price)
    assert request.token_allowance == 500 - 40 // BYTES_PER_TOKEN


def test_an_added_item_with_a_dearer_runner_raises_what_attempts_reserve(
    loops: LoopScenario,
) -> None:
    dear = {"kind": "scripted", "answers": ["dear"]}
    loops.price = 0.0001
    loops.create(*items(1), **budget(attempt={"tokens": 100}, loop={"money": 1.0}))
    loops.price = 0.01
    change.inject(
        loops.context, "alpha", document(*(item(f"d{n}", runner=dear) for n in range(5))).items, ADA
    )
    assert len(loops.admitted()) == 1  # 100 tokens of the dearest runner are the whole budget
