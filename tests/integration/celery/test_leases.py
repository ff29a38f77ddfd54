"""The thread that renews a process's leases, on a ledger whose clock the test moves."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from support.doubles import fake_ledger
from support.ledger_scenario import Scenario, ScenarioMaker
from support.loops import LoopScenario, item, used
from support.settlements import succeeds
from support.waiting import wait_for

from mulligan.policies.loops.progress import AgentProgress
from mulligan.tasks.ports.cancellation import current
from mulligan.tasks.ports.clock import Clock
from mulligan.tasks.ports.errors import CallCancelled, LedgerUnavailable
from mulligan.tasks.ports.ledger import Claim, ClaimRefused, Entry, Lease
from mulligan.workers.celery.leases import LeaseKeeper

NEVER = 3600.0


@pytest.fixture
def scenario(new_fake_scenario: ScenarioMaker) -> Scenario:
    return new_fake_scenario(hard_limit=1e9)


def idle_keeper(scenario: Scenario, **options: float) -> LeaseKeeper:
    """Return a keeper whose thread sleeps, so that the test renews."""
    return LeaseKeeper(scenario.ledger, interval=NEVER, **options)  # type: ignore[arg-type]


class SlowLedger:
    """A ledger whose clock moves by most of a lease after every renewal."""

    def __init__(self, scenario: Scenario, *, failures: int = 0) -> None:
        self._scenario = scenario
        self._failures = failures
        self.renewals = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._scenario.ledger, name)

    def renew(self, leases: Sequence[Lease]) -> set[Entry]:
        if self._failures > 0:
            self._failures -= 1
            raise LedgerUnavailable("the ledger cannot be reached")
        lost = self._scenario.ledger.renew(leases)
        self._scenario.advance(self._scenario.settings.lease * 0.8)
        self.renewals += 1
        return lost


class UnreachableLedger:
    """A ledger to which nothing can be given back."""

    def requeue(self, lease: Lease, *, delay: float, detail: str) -> None:
        raise LedgerUnavailable("the ledger cannot be reached")


@pytest.mark.parametrize("failures", [0, 3])
def test_a_slow_answer_keeps_its_lease(scenario: Scenario, failures: int) -> None:
    """Given an answer that takes many leases and a ledger that fails for a moment, then the worker
    keeps its attempt."""
    job_id = scenario.submit()
    claim = scenario.claim(job_id)
    slow_ledger = SlowLedger(scenario, failures=failures)
    keeper = LeaseKeeper(slow_ledger, interval=0.001)  # type: ignore[arg-type]
    with keeper.holding(claim.lease, NEVER):
        wait_for(lambda: slow_ledger.renewals >= 6)
        assert scenario.refusal(job_id) == ClaimRefused("held")
        scenario.settle(claim, succeeds(claim))
    renewals = slow_ledger.renewals
    keeper.renew()
    assert slow_ledger.renewals in (renewals, renewals + 1)  # one may have been running


def test_all_leases_of_a_process_are_renewed_in_one_round_trip(scenario: Scenario) -> None:
    claims = [scenario.claim(scenario.submit()) for _ in range(5)]
    renewed: list[Sequence[Lease]] = []

    class Counting(SlowLedger):
        def renew(self, leases: Sequence[Lease]) -> set[Entry]:
            renewed.append(leases)
            return super().renew(leases)

    keeper = LeaseKeeper(Counting(scenario), interval=NEVER)  # type: ignore[arg-type]
    with keeper.holding(claims[0].lease, NEVER), keeper.holding(claims[1].lease, NEVER):
        keeper.renew()
    assert renewed == [[claims[0].lease, claims[1].lease]]


def test_progress_grows_old_until_the_renewal(scenario: Scenario) -> None:
    """Given a watch that has said nothing for 7 s, then the ledger is told so."""
    renewed: list[Lease] = []

    class Keeping(SlowLedger):
        def renew(self, leases: Sequence[Lease]) -> set[Entry]:
            renewed.extend(leases)
            return super().renew(leases)

    now = 100.0
    keeper = LeaseKeeper(
        Keeping(scenario),  # type: ignore[arg-type]
        interval=NEVER,
        clock=Clock(monotonic=lambda: now),
        start_thread=lambda _run: None,
    )
    with keeper.holding(scenario.claim(scenario.submit()).lease, NEVER) as held:
        held.progress(AgentProgress(at={"event": 3.0}))
        now = 107.0
        keeper.renew()
        held.progress(None)
        keeper.renew()
    first, second = renewed
    assert first.progress == AgentProgress(at={"event": 10.0})
    assert second.progress is None


def test_a_lease_is_not_renewed_past_its_hard_deadline(scenario: Scenario) -> None:
    job_id = scenario.submit()
    claim = scenario.claim(job_id)
    keeper = idle_keeper(scenario)
    with keeper.holding(claim.lease, -1.0):
        scenario.advance(scenario.settings.lease - 1)
        keeper.renew()
        scenario.advance(2)
        assert scenario.swept_entries() == {f"a:{job_id}/1"}


def test_a_stuck_slot_is_reported(scenario: Scenario) -> None:
    stuck: list[Entry] = []
    job_id = scenario.submit()
    claim, other = scenario.claim(job_id), scenario.claim(scenario.submit())
    keeper = LeaseKeeper(scenario.ledger, interval=NEVER, on_stuck=stuck.append, stuck_after=60.0)
    with keeper.holding(claim.lease, -61.0), keeper.holding(other.lease, -1.0):
        keeper.renew()
    assert stuck == [Entry("attempt", job_id, 1)]


def test_a_stuck_process_is_replaced() -> None:
    """Given no other handler, then the process exits with code 70 for its supervisor."""
    script = (
        "from mulligan.workers.celery.leases import LeaseKeeper\n"
        "from mulligan.tasks.ports.ledger import Entry, Lease\n"
        "keeper = LeaseKeeper(None, interval=0.001, stuck_after=0.0)\n"
        "with keeper.holding(Lease(Entry('attempt', 'p00-x', 1), 't'), -1.0):\n"
        "    import threading; threading.Event().wait(60)\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], timeout=60, capture_output=True)
    assert ended.returncode == 70
    assert b"a:p00-x/1 is stuck" in ended.stderr


def test_a_lost_lease_is_not_renewed_again(scenario: Scenario) -> None:
    job_id = scenario.submit()
    claim = scenario.claim(job_id)
    slow_ledger = SlowLedger(scenario)
    keeper = LeaseKeeper(slow_ledger, interval=NEVER)  # type: ignore[arg-type]
    with keeper.holding(claim.lease, NEVER):
        scenario.expire_leases()
        successor = scenario.claim(job_id)
        keeper.renew()
        keeper.renew()
        assert slow_ledger.renewals == 1  # the second renewal had no lease left
        assert scenario.ledger.renew([successor.lease]) == set()


def test_a_shutdown_releases_all_leases_at_once(scenario: Scenario) -> None:
    """Given two claimed attempts, when their process shuts down, then the next sweep publishes both
    without waiting for a lease, and the claims are not counted."""
    jobs = [scenario.submit(), scenario.submit()]
    claims = [scenario.claim(job_id) for job_id in jobs]
    keeper = idle_keeper(scenario)
    with keeper.holding(claims[0].lease, NEVER), keeper.holding(claims[1].lease, NEVER):
        keeper.release_all()
        assert scenario.swept_entries() == {f"a:{job_id}/1" for job_id in jobs}
        assert [scenario.attempt(job_id).claims for job_id in jobs] == [0, 0]
        assert isinstance(scenario.claim(jobs[0]), Claim)
        keeper.release_all()  # no lease is left
        assert scenario.refusal(jobs[0]) == ClaimRefused("held")


def test_a_shutdown_cancels_every_call_without_the_ledger_too(scenario: Scenario) -> None:
    claims = [scenario.claim(scenario.submit()) for _ in range(2)]
    keeper = LeaseKeeper(UnreachableLedger(), interval=NEVER)  # type: ignore[arg-type]
    with (
        keeper.holding(claims[0].lease, NEVER) as first,
        keeper.holding(claims[1].lease, NEVER) as second,
    ):
        with pytest.raises(LedgerUnavailable):
            keeper.release_all()
        assert not first.is_sure()
        assert not second.is_sure()


def test_a_claim_during_a_shutdown_is_released_too(scenario: Scenario) -> None:
    job_id = scenario.submit()
    claim = scenario.claim(job_id)
    keeper = idle_keeper(scenario)
    keeper.release_all()
    with keeper.holding(claim.lease, NEVER):
        assert scenario.swept_entries() == {f"a:{job_id}/1"}
        assert scenario.attempt(job_id).claims == 0


def test_a_ledger_on_fakeredis_uses_the_computer_s_clock(scenario: Scenario) -> None:
    before = time.time()
    assert before <= fake_ledger(scenario.settings).now() <= time.time()


# -- errors, sleep and lost leases -----------------------------------------------------------------


class Boottime:
    """A clock that passes only when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    @property
    def clock(self) -> Clock:
        return Clock(boottime=self)


def sleepy_keeper(scenario: Scenario, boottime: Boottime) -> tuple[LeaseKeeper, CountingLedger]:
    ledger = CountingLedger(scenario)
    interval = scenario.settings.lease / 3
    clock, idle = boottime.clock, lambda _run: None
    keeper = LeaseKeeper(ledger, interval=interval, clock=clock, start_thread=idle)  # type: ignore[arg-type]
    return keeper, ledger


class CountingLedger(SlowLedger):
    """A ledger that counts renewals and whose clock stands still."""

    on_renewal: Callable[[], None] = staticmethod(lambda: None)

    def renew(self, leases: Sequence[Lease]) -> set[Entry]:
        self.renewals += 1
        lost = self._scenario.ledger.renew(leases)
        self.on_renewal()
        return lost


def test_the_renewal_thread_survives_every_error(
    scenario: Scenario, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(SlowLedger):
        def renew(self, leases: Sequence[Lease]) -> set[Entry]:
            if self.renewals < 3:
                self.renewals += 1
                raise ZeroDivisionError("a bug")
            return super().renew(leases)

    failing = Failing(scenario)
    keeper = LeaseKeeper(failing, interval=0.001)  # type: ignore[arg-type]
    claim = scenario.claim(scenario.submit())
    with keeper.holding(claim.lease, NEVER):
        wait_for(lambda: failing.renewals >= 6)
    keeper.stop()
    assert "a bug" in caplog.text


def test_a_process_that_slept_past_its_lease_asks_the_ledger_first(scenario: Scenario) -> None:
    """Given a claim and a computer that slept longer than the lease, then the ledger is asked
    whether the lease still holds; it is not asked otherwise."""
    boottime = Boottime()
    keeper, ledger = sleepy_keeper(scenario, boottime)
    job_id = scenario.submit()
    lease = replace(scenario.claim(job_id).lease, sent_at=boottime.now)
    with keeper.holding(lease, NEVER) as held:
        assert held.is_sure()
        assert ledger.renewals == 0
        boottime.now += scenario.settings.lease + 1
        assert held.is_sure()
        assert ledger.renewals == 1
        boottime.now += scenario.settings.lease + 1
        scenario.expire_leases()
        scenario.claim(job_id)
        assert not held.is_sure()
        assert not held.is_sure()
        assert ledger.renewals == 2


def test_a_renewal_makes_a_lease_sure_from_the_time_it_was_sent(scenario: Scenario) -> None:
    boottime = Boottime()
    keeper, ledger = sleepy_keeper(scenario, boottime)
    lease = replace(scenario.claim(scenario.submit()).lease, sent_at=boottime.now)
    with keeper.holding(lease, NEVER) as held:
        boottime.now += scenario.settings.lease - 1
        keeper.renew()
        boottime.now += scenario.settings.lease / 4
        assert held.is_sure()
        assert ledger.renewals == 1
        boottime.now += scenario.settings.lease / 4  # the next renewal may come too late
        assert held.is_sure()
        assert ledger.renewals == 2
        ledger.on_renewal = lambda: boottime.sleep(scenario.settings.lease / 2)  # a late answer
        keeper.renew()
        assert held.is_sure()
        assert ledger.renewals == 4  # too much of the lease had passed when the answer came


def test_a_process_that_sleeps_while_it_asks_for_its_lease_asks_again(scenario: Scenario) -> None:
    boottime = Boottime()
    keeper, ledger = sleepy_keeper(scenario, boottime)
    job_id = scenario.submit()
    lease = replace(scenario.claim(job_id).lease, sent_at=boottime.now)

    def sleep_once() -> None:
        ledger.on_renewal = lambda: None
        boottime.sleep(scenario.settings.lease + 1)
        scenario.expire_leases()
        scenario.claim(job_id)

    with keeper.holding(lease, NEVER) as held:
        boottime.sleep(scenario.settings.lease + 1)
        ledger.on_renewal = sleep_once
        assert not held.is_sure()
    assert ledger.renewals == 2


def test_a_lost_lease_cancels_the_call_that_it_covers(scenario: Scenario) -> None:
    job_id = scenario.submit()
    claim = scenario.claim(job_id)
    keeper = idle_keeper(scenario)
    stopped: list[str] = []

    def call() -> None:
        with current().stopping(lambda: stopped.append("stopped")):
            scenario.expire_leases()
            scenario.claim(job_id)
            keeper.renew()
            assert stopped == ["stopped"]

    with keeper.holding(claim.lease, NEVER):
        for _ in range(2):  # the second call does not even start
            with pytest.raises(CallCancelled):
                call()
    with current().stopping(lambda: None):
        pass  # another lease of this thread is not affected


def test_waiting_for_the_ledger_does_not_count_as_being_stuck(scenario: Scenario) -> None:
    stuck: list[Entry] = []
    waited = 0.0
    keeper = LeaseKeeper(
        scenario.ledger,
        interval=NEVER,
        on_stuck=stuck.append,
        stuck_after=60.0,
        waited=lambda _thread: waited,
    )
    job_id = scenario.submit()
    claim = scenario.claim(job_id)
    with keeper.holding(claim.lease, -100.0):
        waited = 200.0  # the thread has waited since for a Redis that was full
        scenario.advance(scenario.settings.lease - 1)
        keeper.renew()
        scenario.advance(2)
        assert scenario.refusal(job_id) == ClaimRefused("held")
        assert stuck == []
        waited = 0.0
        keeper.renew()
        assert stuck == [Entry("attempt", job_id, 1)]


def test_what_an_attempt_metered_travels_with_the_renewal(scenario: Scenario) -> None:
    """Given an attempt of a loop that says what it has used, when its worker is lost after a
    renewal, then the loop is charged that and not the whole reservation."""
    loops = LoopScenario(scenario)
    loops.create(item("a"), budget={"attempt": {"tokens": 100}, "loop": {"tokens": 1000}})
    loops.plan()
    claim = loops.claim("a")
    keeper = idle_keeper(scenario)
    with keeper.holding(claim.lease, NEVER) as held:
        held.meter({"tokens": 30.0})
        keeper.renew()
    scenario.expire_leases()
    assert used(loops.read())["loop:tokens"] == 30
