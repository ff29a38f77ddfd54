"""The thread that keeps a process's leases, on a ledger whose clock the test moves."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence

import pytest
from support.doubles import fake_ledger
from support.ledger_scenario import Scenario, ScenarioMaker
from support.settlements import succeeds
from support.waiting import wait_for

from mulligan.tasks.ports.errors import LedgerUnavailable
from mulligan.tasks.ports.ledger import Claim, ClaimRefused, Entry, Lease
from mulligan.workers.celery.leases import LeaseKeeper

NEVER = 3600.0


@pytest.fixture
def scenario(new_fake_scenario: ScenarioMaker) -> Scenario:
    return new_fake_scenario(hard_limit=1e9)


def quiet_keeper(scenario: Scenario, **options: float) -> LeaseKeeper:
    """A keeper whose thread sleeps: the test renews."""
    return LeaseKeeper(scenario.ledger, interval=NEVER, **options)  # type: ignore[arg-type]


class Slowly:
    """A ledger on which most of a lease passes after every renewal."""

    def __init__(self, scenario: Scenario, *, away: int = 0) -> None:
        self._play = scenario
        self._away = away
        self.renewals = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._play.ledger, name)

    def renew(self, leases: Sequence[Lease]) -> set[Entry]:
        if self._away > 0:
            self._away -= 1
            raise LedgerUnavailable("the ledger is away")
        lost = self._play.ledger.renew(leases)
        self._play.advance(self._play.settings.lease * 0.8)
        self.renewals += 1
        return lost


@pytest.mark.parametrize("away", [0, 3])
def test_a_slow_answer_keeps_its_lease(scenario: Scenario, away: int) -> None:
    """Given an answer that takes many lease times, and a ledger that was away for a moment, then
    the attempt is still its worker's."""
    job_id = scenario.submit()
    claim = scenario.claim(job_id)
    slowly = Slowly(scenario, away=away)
    keeper = LeaseKeeper(slowly, interval=0.001)  # type: ignore[arg-type]
    with keeper.holding(claim.lease, NEVER):
        wait_for(lambda: slowly.renewals >= 6)
        assert scenario.refusal(job_id) == ClaimRefused("held")
        scenario.settle(claim, succeeds(claim))
    renewals = slowly.renewals
    keeper.renew()
    assert slowly.renewals in (renewals, renewals + 1)  # one may have been under way


def test_all_leases_of_a_process_are_renewed_in_one_round_trip(scenario: Scenario) -> None:
    claims = [scenario.claim(scenario.submit()) for _ in range(5)]
    asked: list[Sequence[Lease]] = []

    class Counting(Slowly):
        def renew(self, leases: Sequence[Lease]) -> set[Entry]:
            asked.append(leases)
            return super().renew(leases)

    keeper = LeaseKeeper(Counting(scenario), interval=NEVER)  # type: ignore[arg-type]
    with keeper.holding(claims[0].lease, NEVER), keeper.holding(claims[1].lease, NEVER):
        keeper.renew()
    assert asked == [[claims[0].lease, claims[1].lease]]


def test_a_lease_is_not_renewed_past_its_hard_deadline(scenario: Scenario) -> None:
    job_id = scenario.submit()
    claim = scenario.claim(job_id)
    keeper = quiet_keeper(scenario)
    with keeper.holding(claim.lease, -1.0):
        scenario.advance(scenario.settings.lease - 1)
        keeper.renew()
        scenario.advance(2)
        assert scenario.swept_entries() == {f"a:{job_id}/1"}


def test_a_slot_that_stays_stuck_is_reported(scenario: Scenario) -> None:
    stuck: list[Entry] = []
    job_id = scenario.submit()
    claim, other = scenario.claim(job_id), scenario.claim(scenario.submit())
    keeper = LeaseKeeper(scenario.ledger, interval=NEVER, on_stuck=stuck.append, stuck_after=60.0)
    with keeper.holding(claim.lease, -61.0), keeper.holding(other.lease, -1.0):
        keeper.renew()
    assert stuck == [Entry("attempt", job_id, 1)]


def test_a_stuck_process_is_replaced() -> None:
    """Given nobody who handles it otherwise, then the process ends, and its supervisor sees 70."""
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


def test_a_lost_lease_is_forgotten(scenario: Scenario) -> None:
    job_id = scenario.submit()
    claim = scenario.claim(job_id)
    slowly = Slowly(scenario)
    keeper = LeaseKeeper(slowly, interval=NEVER)  # type: ignore[arg-type]
    with keeper.holding(claim.lease, NEVER):
        scenario.expire_leases()
        heir = scenario.claim(job_id)
        keeper.renew()
        keeper.renew()
        assert slowly.renewals == 1  # the second time there was nothing left to renew
        assert scenario.ledger.renew([heir.lease]) == set()


def test_a_shutdown_gives_everything_back_at_once(scenario: Scenario) -> None:
    """Given two attempts in hand, when their process is shut down, then the next sweep publishes
    both, without waiting for a lease, and no claim is held against them."""
    jobs = [scenario.submit(), scenario.submit()]
    claims = [scenario.claim(job_id) for job_id in jobs]
    keeper = quiet_keeper(scenario)
    with keeper.holding(claims[0].lease, NEVER), keeper.holding(claims[1].lease, NEVER):
        keeper.release_all()
        assert scenario.swept_entries() == {f"a:{job_id}/1" for job_id in jobs}
        assert [scenario.attempt(job_id).claims for job_id in jobs] == [0, 0]
        assert isinstance(scenario.claim(jobs[0]), Claim)
        keeper.release_all()  # nothing is held any more
        assert scenario.refusal(jobs[0]) == ClaimRefused("held")


def test_what_is_claimed_during_a_shutdown_is_given_back_too(scenario: Scenario) -> None:
    job_id = scenario.submit()
    claim = scenario.claim(job_id)
    keeper = quiet_keeper(scenario)
    keeper.release_all()
    with keeper.holding(claim.lease, NEVER):
        assert scenario.swept_entries() == {f"a:{job_id}/1"}
        assert scenario.attempt(job_id).claims == 0


def test_a_ledger_in_memory_runs_on_the_computer_s_clock(scenario: Scenario) -> None:
    before = time.time()
    assert before <= fake_ledger(scenario.settings).now() <= time.time()
