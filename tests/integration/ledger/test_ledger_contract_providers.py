"""The ledger's contract: how many calls a provider is given, its pauses and its breaker."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from support.ledger_scenario import Scenario, ScenarioMaker
from support.provider_calls import answer_call, ask, fail_call, open_breaker, start_call, submit_for
from support.settlements import retries_by_policy, retries_immediately, succeeds

from mulligan.policies.jobs.breaker import Breaker
from mulligan.policies.jobs.job import Decoding
from mulligan.tasks.ports.ledger import Claim, ClaimRefused, Entry, NextAttempt
from mulligan.workers.ledger import keys

PROVIDER = "eu"
BUSY = ClaimRefused("provider_busy", f"provider:{PROVIDER}")
#: The limit of a provider that is not known yet.
START = 8


@dataclass
class Calls:
    """Jobs that wait for one provider, and the calls that are in flight."""

    scenario: Scenario
    running: list[Claim] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)

    def arrive(self, count: int) -> None:
        """Submit jobs; those that may not start are parked."""
        for _ in range(count):
            self.scenario.advance(0.001)  # so that their order is known
            self._start(submit_for(self.scenario.ledger, "small"))

    def _start(self, job_id: str) -> None:
        taken = ask(self.scenario.ledger, job_id, PROVIDER)
        if isinstance(taken, Claim):
            self.running.append(taken)
        else:
            self.waiting.append(job_id)

    def claim_released(self, entries: list[str]) -> None:
        for entry in entries:
            job_id = Entry.parse(entry).job_id
            self.waiting.remove(job_id)
            self._start(job_id)

    def answer(self, count: int = 1) -> None:
        """Let the oldest calls be answered, and claim what that releases."""
        for _ in range(count):
            self.claim_released(answer_call(self.scenario.ledger, self.running.pop(0)))

    def refuse(self, count: int = 1, *, retry_after: float | None = 5.0) -> None:
        """Let the newest calls be refused with 429."""
        for _ in range(count):
            claim = self.running.pop()
            requeued = fail_call(self.scenario.ledger, claim, status=429, retry_after=retry_after)
            assert requeued.released == ()
            self.waiting.insert(0, claim.job_id)

    def fail(self, count: int = 1, **more: Any) -> None:
        for _ in range(count):
            fail_call(self.scenario.ledger, self.running.pop(0), **more)

    def sweep(self) -> None:
        found = sorted(self.scenario.swept_entries())
        self.claim_released([e for e in found if Entry.parse(e).job_id in self.waiting])

    @property
    def gate(self) -> Breaker:
        return self.scenario.ledger.breakers.all()[PROVIDER]

    @property
    def last_pause(self) -> float:
        """Return how long the last refusal stops the provider."""
        gate = self.gate
        assert gate.last_fault_at is not None
        return gate.until - gate.last_fault_at


@pytest.fixture
def calls(scenario: Scenario) -> Calls:
    return Calls(scenario)


# -- the limit -------------------------------------------------------------------------------------


def test_calls_above_the_limit_wait_and_start_one_by_one(calls: Calls) -> None:
    calls.arrive(START + 3)
    assert (len(calls.running), len(calls.waiting)) == (START, 3)
    view = calls.scenario.view(calls.waiting[0])
    assert (view.state, view.waiting_for, view.attempts[0].claims) == ("waiting", "provider", 0)
    assert (calls.gate.limit, calls.gate.in_flight, calls.gate.parked) == (START, START, 3)


def test_only_the_first_claim_of_a_runner_learns_its_provider_afterwards(calls: Calls) -> None:
    """Given a mapped runner, then its claim has the provider and a refusal costs one round trip."""
    calls.arrive(START)
    ledger = calls.scenario.ledger
    assert [claim.provider for claim in calls.running] == [""] + [PROVIDER] * (START - 1)
    job_id, before = submit_for(ledger, "small"), ledger.round_trips
    assert ledger.claim(Entry("attempt", job_id, 1), worker="worker") == BUSY
    assert ledger.round_trips == before + 1


def test_claims_of_an_unknown_runner_are_limited_too(calls: Calls) -> None:
    """Given as many claims at once as there are workers, before any of them named the provider."""
    ledger = calls.scenario.ledger
    claims = [calls.scenario.claim(submit_for(ledger, "new")) for _ in range(START + 2)]
    named = [ledger.name_provider(claim.lease, PROVIDER) for claim in claims]
    assert named == [None] * START + [BUSY] * 2
    assert calls.scenario.attempt(claims[-1].job_id).claims == 0


def test_a_runner_that_asks_another_provider_now_takes_its_slot(calls: Calls) -> None:
    ledger = calls.scenario.ledger
    job_id = submit_for(ledger, "small")
    start_call(ledger, PROVIDER)
    assert isinstance(ask(ledger, job_id, "us"), Claim)
    assert {name: each.in_flight for name, each in ledger.breakers.all().items()} == {
        PROVIDER: 1,
        "us": 1,
    }


def test_a_fallback_is_limited_by_its_own_provider(scenario: Scenario) -> None:
    """Given a paused primary, when the next attempt asks a fallback on another host, it runs."""
    ledger = scenario.ledger
    claim = start_call(ledger, PROVIDER)
    settlement = retries_by_policy(claim)
    assert isinstance(settlement.then, NextAttempt)
    plan = settlement.then.plan.model_copy(update={"decoding": Decoding(fallback=1)})
    scenario.settle(claim, replace(settlement, then=NextAttempt(plan=plan)))
    ledger.pause(f"provider:{PROVIDER}")
    second = ask(ledger, claim.job_id, "us", 2)
    assert isinstance(second, Claim)
    assert ledger.breakers.all()["us"].in_flight == 1
    assert isinstance(ask(ledger, submit_for(ledger, f"of-{PROVIDER}"), PROVIDER), ClaimRefused)


def test_the_limit_grows_while_it_is_used_and_not_without_demand(calls: Calls) -> None:
    calls.arrive(2)
    calls.answer(2)
    assert calls.gate.limit == START
    calls.arrive(100)
    calls.answer(START)
    assert (calls.gate.limit, calls.gate.in_flight) == (2 * START, 2 * START)


@pytest.mark.parametrize("end", ["expired", "shut down", "settled", "cancelled while parked"])
def test_every_end_of_a_call_frees_its_slot(calls: Calls, end: str) -> None:
    calls.arrive(START + 1)
    (waiting,) = calls.waiting
    scenario, claim = calls.scenario, calls.running[0]
    match end:
        case "expired":
            assert f"a:{waiting}/1" in scenario.expire_leases()
        case "shut down":
            requeued = scenario.ledger.requeue(claim.lease, delay=50, detail="shut down")
            assert not isinstance(requeued, ClaimRefused)
            assert [each.entry.job_id for each in requeued.released] == [waiting]
        case "settled":
            published = scenario.ledger.settle(claim.lease, succeeds(claim))
            assert not isinstance(published, ClaimRefused)
            # An answer without output grows the limit, too.
            assert [each.entry.job_id for each in published] == [waiting]
        case _:
            scenario.ledger.cancel(waiting)
            assert calls.gate.parked == 0
            assert answer_call(scenario.ledger, claim) == []


def test_a_repeated_answer_releases_the_same_entries(calls: Calls) -> None:
    calls.arrive(START + 2)
    first = answer_call(calls.scenario.ledger, calls.running[0])
    assert len(first) == 2  # the freed slot, and the one that the limit grew by
    assert answer_call(calls.scenario.ledger, calls.running[0]) == first


# -- refusals --------------------------------------------------------------------------------------


def test_a_burst_of_refusals_settles_on_what_was_accepted(calls: Calls) -> None:
    """Given a provider that takes 5 calls at once and refuses 3 of 8, then the next burst is 5."""
    calls.arrive(50)
    calls.refuse(3)
    assert (calls.gate.state, calls.gate.limit, calls.gate.refusals) == ("limited", 5, 3)
    calls.answer(5)  # nothing is released during the pause
    assert calls.running == []
    calls.scenario.advance(4)
    calls.sweep()
    assert calls.running == []
    calls.scenario.advance(2)
    refused = calls.waiting[:3]
    calls.sweep()
    assert len(calls.running) == 5
    assert {claim.job_id for claim in calls.running} >= set(refused)  # they go first
    for _ in range(20):
        calls.answer()
        assert len(calls.running) == 5  # the refused number is not tried again so soon


def test_a_storm_of_refusals_is_over_after_one_pause(calls: Calls) -> None:
    """Given 300 jobs for a provider that takes 5 at once, then at most 15 % are refused."""
    calls.arrive(300)
    refusals = 0
    for _ in range(600):
        if len(calls.running) > 5:
            refusals += len(calls.running) - 5
            calls.refuse(len(calls.running) - 5)
        elif calls.running:
            calls.answer()
        elif calls.waiting:
            calls.scenario.advance(1)
            calls.sweep()
        else:
            break
    assert (calls.running, calls.waiting) == ([], [])
    assert refusals <= 45


def test_a_refused_call_waits_for_its_provider_and_loses_no_claim(calls: Calls) -> None:
    calls.arrive(1)
    calls.refuse(retry_after=30)
    view = calls.scenario.view(calls.waiting[0])
    assert (view.state, view.waiting_for) == ("waiting", "provider")
    assert (view.attempts[0].claims, view.attempts[0].faults) == (0, 1)
    assert ask(calls.scenario.ledger, submit_for(calls.scenario.ledger, "small"), PROVIDER) == BUSY
    assert calls.gate.faults == 0  # it is no fault of the provider's health


def test_the_ceiling_is_tried_again_and_the_hold_doubles(calls: Calls) -> None:
    calls.arrive(200)
    calls.refuse(3, retry_after=1)
    holds = []
    for _ in range(2):
        waited = 0
        while len(calls.running) < 6:
            calls.scenario.advance(5)
            waited += 5
            calls.sweep()
            calls.answer(len(calls.running))
        holds.append(waited)
        calls.refuse(1, retry_after=1)
        assert calls.gate.limit == 5
    assert holds[0] >= 20  # 20 times Retry-After
    assert holds[1] >= 2 * 20


def test_an_absurd_retry_after_is_capped(calls: Calls) -> None:
    calls.arrive(1)
    calls.refuse(retry_after=10**9)
    assert calls.gate.until - calls.scenario.ledger.now() <= 3600


def test_a_retry_after_that_proves_too_short_is_not_believed_for_ever(calls: Calls) -> None:
    """Given a provider that always refuses and asks for no wait, then it is asked ever less."""
    calls.arrive(1)
    waits = []
    for _ in range(9):
        calls.refuse(retry_after=0)
        waits.append(calls.last_pause)
        calls.scenario.advance(waits[-1])
        calls.sweep()
    # Doubled from 0.1 s, and never longer than 10 s: 0.1 * 2**7 would be 12.8.
    assert waits == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10], rel=1e-3)
    calls.refuse(retry_after=30)
    assert calls.last_pause == pytest.approx(30, rel=1e-3)


def test_refusals_without_retry_after_back_off(calls: Calls) -> None:
    calls.arrive(1)
    waits = []
    for _ in range(3):
        calls.refuse(retry_after=None)
        waits.append(round(calls.gate.until - calls.scenario.ledger.now()))
        calls.scenario.advance(waits[-1] + 1)
        calls.sweep()
    assert waits == [1, 2, 4]


# -- the breaker -----------------------------------------------------------------------------------


def test_a_blink_of_a_provider_costs_seconds(calls: Calls) -> None:
    """Given 40 jobs with a deadline of 60 s and a provider that fails for one second, then all are
    answered seconds later, and none is escalated."""
    ledger = calls.scenario.ledger
    jobs = [submit_for(ledger, "small", deadline=60) for _ in range(40)]
    started = ledger.now()
    todo = set(jobs)
    while todo and ledger.now() < started + 30:
        for publication in calls.scenario.sweep():
            ledger.stamp([publication.entry])
        for job_id in sorted(todo):
            taken = ask(ledger, job_id, PROVIDER)
            if not isinstance(taken, Claim):
                continue
            if ledger.now() < started + 1:
                fail_call(ledger, taken, delay=0.5)
            else:
                answer_call(ledger, taken)
                calls.scenario.settle(taken, succeeds(taken))
                todo.remove(job_id)
        calls.scenario.advance(0.5)
    assert todo == set()
    assert ledger.now() - started < 10
    assert {calls.scenario.view(job_id).state for job_id in jobs} == {"succeeded"}


def test_faults_in_a_row_open_the_breaker_and_one_probe_is_let_through(calls: Calls) -> None:
    calls.arrive(5)
    calls.fail(4, delay=600)
    assert (calls.gate.state, calls.gate.faults) == ("closed", 4)
    calls.fail(1, delay=600)
    assert calls.gate.state == "open"
    waiting = [submit_parked(calls) for _ in range(3)]
    view = calls.scenario.view(waiting[0])
    assert (view.state, view.waiting_for) == ("waiting", "breaker")
    calls.scenario.advance(2.1)
    assert (calls.gate.state, calls.gate.limit) == ("half_open", 1)
    assert calls.scenario.swept_entries() == {f"a:{waiting[0]}/1"}


def submit_parked(calls: Calls) -> str:
    job_id = submit_for(calls.scenario.ledger, "small")
    assert ask(calls.scenario.ledger, job_id, PROVIDER) == BUSY
    return job_id


def opened(scenario: Scenario) -> float:
    """Return how long a provider's breaker stays open."""
    return round(scenario.ledger.breakers.all()[PROVIDER].until - scenario.ledger.now())


def test_each_failed_probe_doubles_the_wait_up_to_the_cap(scenario: Scenario) -> None:
    open_breaker(scenario.ledger, PROVIDER)
    waits = [opened(scenario)]
    for _ in range(9):
        scenario.advance(waits[-1] + 1)
        fail_call(scenario.ledger, start_call(scenario.ledger, PROVIDER))
        waits.append(opened(scenario))
    assert waits == [2, 4, 8, 16, 32, 64, 128, 256, 300, 300]
    assert scenario.ledger.breakers.all()[PROVIDER].faults == 5 + 9


def test_a_dead_prober_frees_the_probe(scenario: Scenario) -> None:
    """Given a half-open breaker whose probe never reports, then the next probe follows its lease,
    not a wait of minutes."""
    open_breaker(scenario.ledger, PROVIDER)
    scenario.advance(3)
    dead = start_call(scenario.ledger, PROVIDER)
    waiting = submit_for(scenario.ledger, "small")
    assert ask(scenario.ledger, waiting, PROVIDER) == BUSY
    scenario.ledger.cancel(dead.job_id)
    assert scenario.expire_leases() == {f"a:{waiting}/1"}
    assert isinstance(ask(scenario.ledger, waiting, PROVIDER), Claim)


def test_an_answer_closes_the_breaker_and_the_limit_doubles_from_one(calls: Calls) -> None:
    open_breaker(calls.scenario.ledger, PROVIDER)
    calls.arrive(30)
    calls.scenario.advance(3)
    sizes = []
    calls.sweep()
    for _ in range(4):
        sizes.append(len(calls.running))
        calls.answer(len(calls.running))
    assert (calls.gate.state, sizes) == ("closed", [1, 2, 4, 8])


def test_a_refusal_shows_that_the_provider_is_there(calls: Calls) -> None:
    """Given faults in a row or an open breaker, when a call gets a 429, then they are over."""
    calls.arrive(6)
    calls.fail(4, delay=600)
    calls.refuse(retry_after=1)
    calls.fail(1, delay=600)
    assert (calls.gate.state, calls.gate.faults) == ("limited", 1)
    calls.scenario.advance(2)
    calls.sweep()
    for _ in range(4):
        calls.arrive(1)
        calls.fail(1, delay=600)
    assert (calls.gate.state, calls.gate.openings) == ("open", 1)
    calls.scenario.advance(3)
    calls.arrive(1)
    calls.refuse(retry_after=1)
    assert (calls.gate.state, calls.gate.openings, calls.gate.faults) == ("limited", 0, 0)


def test_late_faults_of_earlier_calls_do_not_open_it_again(calls: Calls) -> None:
    calls.arrive(START)
    calls.fail(5)
    before = calls.gate
    calls.scenario.advance(2.1)
    calls.fail(3)
    assert calls.gate.openings == before.openings == 1
    assert calls.gate.state == "half_open"


def test_faults_outside_the_window_do_not_add_up(scenario: Scenario) -> None:
    for _ in range(9):
        fail_call(scenario.ledger, start_call(scenario.ledger, PROVIDER))
        scenario.advance(16)
    assert scenario.ledger.breakers.all()[PROVIDER].state == "closed"


def test_every_change_of_the_breaker_is_an_event(scenario: Scenario) -> None:
    open_breaker(scenario.ledger, PROVIDER)
    scenario.advance(3)
    answer_call(scenario.ledger, start_call(scenario.ledger, PROVIDER))
    events = [event.data for event in scenario.ledger.events()]
    found = [(e["provider"], e["state"]) for e in events if e["type"] == "breaker"]
    assert found == [(PROVIDER, "open"), (PROVIDER, "closed")]


def test_retry_after_of_a_503_pauses_the_provider(calls: Calls) -> None:
    calls.arrive(1)
    calls.fail(status=503, retry_after=20)
    assert (calls.gate.state, calls.gate.faults) == ("limited", 1)
    assert submit_parked(calls)


def test_partitions_learn_together(new_scenario: ScenarioMaker) -> None:
    """Given a breaker that faults in some partitions opened, then it is open in every one."""
    scenario = new_scenario(partitions=3)
    ledger = scenario.ledger
    open_breaker(ledger, PROVIDER)
    jobs = [submit_for(ledger, "small") for _ in range(30)]
    assert {keys.partition_of(job_id) for job_id in jobs} == {"p00", "p01", "p02"}
    for job_id in jobs:
        assert isinstance(ask(ledger, job_id, PROVIDER), ClaimRefused)
        assert scenario.view(job_id).waiting_for == "breaker"
    breaker = ledger.breakers.all()[PROVIDER]
    assert (breaker.openings, breaker.parked, breaker.in_flight) == (1, 30, 0)
    scenario.advance(61)
    assert len(scenario.swept_entries()) == 1  # one probe for all partitions


# -- waiting in general ----------------------------------------------------------------------------


def test_a_parked_job_ends_at_its_deadline_and_not_before(scenario: Scenario) -> None:
    scenario.ledger.pause(f"provider:{PROVIDER}")
    job_id = submit_for(scenario.ledger, "small", deadline=100)
    assert isinstance(ask(scenario.ledger, job_id, PROVIDER), ClaimRefused)
    scenario.advance(95)
    scenario.sweep()
    assert scenario.view(job_id).state == "waiting"
    scenario.advance(6)
    scenario.sweep()
    view = scenario.view(job_id)
    assert (view.state, view.reason) == ("escalated", "deadline")
    assert scenario.ledger.breakers.all()[PROVIDER].parked == 0


def test_retries_are_released_first_then_by_priority_and_arrival(
    new_scenario: ScenarioMaker,
) -> None:
    scenario = new_scenario()
    ledger = scenario.ledger
    retried = submit_for(ledger, "small", priority=9)
    first = ask(ledger, retried, PROVIDER)
    assert isinstance(first, Claim)
    ledger.pause(f"provider:{PROVIDER}")
    late, early, urgent = (
        submit_for(ledger, "small", priority=5),
        submit_for(ledger, "small", priority=5),
        submit_for(ledger, "small", priority=1),
    )
    for job_id in (early, late, urgent):
        ask(ledger, job_id, PROVIDER)
    scenario.settle(first, retries_immediately(first))  # the last to be parked
    ledger.resume(f"provider:{PROVIDER}")
    released = [publication.entry.job_id for publication in scenario.sweep()]
    assert released == [retried, urgent, late, early]  # then by the time of submission


def test_released_entries_delay_nobody(new_fake_scenario: ScenarioMaker) -> None:
    """Given more parked entries than many sweeps release, when their pause ends, then another one
    that is due now is in the very next sweep, and the reasons share the releases."""
    scenario = new_fake_scenario(sweep_limit=50)
    client = scenario.ledger.calls
    many = [submit_for(scenario.ledger, "small", task_type="bulk") for _ in range(200)]
    also_many = [submit_for(scenario.ledger, "small", task_type="more") for _ in range(60)]
    for kind in ("bulk", "more", "other"):
        scenario.ledger.pause(f"task_type:{kind}")
    few = [submit_for(scenario.ledger, "small", task_type="other") for _ in range(3)]
    for job_id in (*many, *also_many, *few):
        assert scenario.refusal(job_id).reason == "paused"
    assert client.run("ZCARD", "mulligan:{p00}:parked:task_type:bulk") == len(many)
    retry = scenario.submit()
    first = scenario.claim(retry)
    due = scenario.ledger.requeue(first.lease, delay=1, detail="503")
    assert not isinstance(due, ClaimRefused)
    for kind in ("bulk", "more", "other"):
        scenario.ledger.resume(f"task_type:{kind}")
    scenario.advance(2)
    swept = scenario.swept_entries()
    assert f"a:{retry}/1" in swept
    assert {f"a:{job_id}/1" for job_id in few} <= swept
    for reason in (many, also_many):  # whichever of them came first
        assert len(swept & {f"a:{job_id}/1" for job_id in reason}) >= 50 // 3
    assert len(swept) <= 50 + 1
    scenario.ledger.stamp([Entry.parse(text) for text in swept])
    assert len(scenario.swept_entries()) == 50


def test_more_reasons_than_a_sweep_releases_take_turns(new_scenario: ScenarioMaker) -> None:
    scenario = new_scenario(sweep_limit=2)
    kinds = [f"kind-{number}" for number in range(4)]
    for kind in kinds:
        scenario.ledger.pause(f"task_type:{kind}")
    parked = {scenario.submit(task_type=kind): kind for kind in kinds for _ in range(6)}
    for kind in kinds:
        scenario.ledger.resume(f"task_type:{kind}")
    released = set()
    for _ in kinds:
        scenario.advance(1)
        found = [each.entry for each in scenario.sweep()]
        scenario.ledger.stamp(found)
        released |= {parked[entry.job_id] for entry in found}
    assert released == set(kinds)


def test_cancelled_entries_leave_their_parking_place(scenario: Scenario) -> None:
    scenario.ledger.pause("task_type:extract")
    job_id = scenario.submit()
    assert scenario.refusal(job_id).reason == "paused"
    scenario.ledger.cancel(job_id)
    calls = scenario.ledger.calls
    left = [calls.run("EXISTS", f"mulligan:{{p00}}:{name}") for name in PARKING]
    assert left == [0] * len(PARKING)


PARKING = ("parked", "parked:task_type:extract", "parked_behind", "stale")


@pytest.mark.parametrize("tenants", [0, 500])
def test_a_claim_does_not_carry_the_quotas(
    new_scenario: ScenarioMaker, tenants: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    quotas = {f"t{n}": {"concurrency": 3, "tokens_per_day": 1000} for n in range(tenants)}
    scenario = new_scenario(quotas=quotas)
    scenario.claim(scenario.submit())
    sizes: list[int] = []
    body = scenario.ledger.calls._body

    def measured(request: Any) -> bytes:
        sizes.append(len(body(request)))
        return body(request)

    monkeypatch.setattr(scenario.ledger.calls, "_body", measured)
    job_id = scenario.submit(labels={"tenant": "t1"})
    sizes.clear()
    claim = scenario.claim(job_id)
    scenario.settle(claim, succeeds(claim))
    scenario.sweep()
    assert max(sizes) < 2000


def test_limits_that_redis_lost_are_written_again(new_scenario: ScenarioMaker) -> None:
    scenario = new_scenario(quotas={"acme": {"concurrency": 1}})
    scenario.claim(scenario.submit(labels={"tenant": "acme"}))
    scenario.ledger.calls.run("DEL", "mulligan:{p00}:limits")
    scenario.sweep()
    assert scenario.refusal(scenario.submit(labels={"tenant": "acme"})).reason == "over_quota"


# -- a person knows better -------------------------------------------------------------------------


def test_resuming_a_provider_ends_the_pause_that_it_asked_for(calls: Calls) -> None:
    calls.arrive(3)
    calls.refuse(retry_after=3000.0)
    assert calls.scenario.swept_entries() == set()
    assert calls.scenario.ledger.resume(f"provider:{PROVIDER}")
    calls.sweep()
    assert calls.waiting == []
    assert not calls.scenario.ledger.resume(f"provider:{PROVIDER}")


def test_resuming_a_provider_lets_one_call_try_it_now(calls: Calls) -> None:
    ledger = calls.scenario.ledger
    open_breaker(ledger, PROVIDER)
    assert ask(ledger, submit_for(ledger, f"of-{PROVIDER}"), PROVIDER) == BUSY
    assert ledger.resume(f"provider:{PROVIDER}")
    tries = [ask(ledger, submit_for(ledger, f"of-{PROVIDER}"), PROVIDER) for _ in range(2)]
    assert [isinstance(each, Claim) for each in tries] == [True, False]
