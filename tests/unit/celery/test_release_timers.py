"""Work that waits for a provider is released at the moment when its pause ends."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, cast

from support.doubles import FakeRunner
from support.ledger_scenario import ScenarioMaker, attempt_context
from support.provider_calls import ask, start_call, submit_for

from mulligan.policies.jobs.job import Output
from mulligan.policies.jobs.provider_limits import ProviderLimits
from mulligan.tasks.jobs.attempt import run_attempt
from mulligan.tasks.ports.errors import LedgerUnavailable, TransportFault
from mulligan.tasks.ports.ledger import AttemptLedger, Claim, ClaimRefused, Entry, Publication
from mulligan.workers.celery.release_timers import ReleaseTimers

_PATIENCE = 20.0


class _Ledger:
    """A ledger that records what is released, and may be away."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.away = False

    def release(self, job_id: str, provider: str) -> list[Publication]:
        self.asked.append((job_id, provider))
        if self.away:
            raise LedgerUnavailable("away")
        return [Publication(Entry("attempt", job_id, 1), "attempt", 0)]


def timers(ledger: _Ledger, published: list[Any]) -> ReleaseTimers:
    def publish(publications: Sequence[Publication]) -> None:
        published.extend(publications)

    return ReleaseTimers(cast(AttemptLedger, ledger), publish)


def wait_until_idle() -> None:
    """Wait for all timers, and for those that they start again."""
    while running := [each for each in threading.enumerate() if isinstance(each, threading.Timer)]:
        running[0].join(_PATIENCE)


def test_what_waits_is_released_and_published_after_the_pause() -> None:
    ledger, published = _Ledger(), list[Any]()
    found = timers(ledger, published)
    found.start("p00-1", "api", 0.01)
    wait_until_idle()
    assert ledger.asked == [("p00-1", "api")]
    assert [str(each.entry) for each in published] == ["a:p00-1/1"]


def test_a_burst_of_refusals_releases_once_after_the_last_pause() -> None:
    ledger = _Ledger()
    found = timers(ledger, [])
    for seconds in (0.5, 0.6, 0.7):
        found.start("p00-1", "api", seconds)
    wait_until_idle()
    assert len(ledger.asked) == 1


def test_a_long_pause_and_an_unreachable_ledger_are_left_to_the_sweep() -> None:
    ledger, published = _Ledger(), list[Any]()
    found = timers(ledger, published)
    found.start("p00-1", "api", 3600.0)
    wait_until_idle()
    assert ledger.asked == []
    ledger.away = True
    found.start("p00-1", "api", 0.0)
    wait_until_idle()
    assert (len(ledger.asked), published) == (1, [])


def test_a_refusal_and_a_used_up_allowance_both_start_a_timer(
    new_fake_scenario: ScenarioMaker,
) -> None:
    scenario, started = new_fake_scenario(), list[tuple[str, str, float]]()
    refusal = TransportFault("busy", provider="fake", status=429, retry_after=3.0)
    for answer in (refusal, Output(text="31", provider_wait=2.0)):
        runner = FakeRunner([answer])
        context = attempt_context(
            scenario, runner, release_later=lambda *asked: started.append(asked)
        )
        scenario.advance(10)
        run_attempt(context, Entry("attempt", scenario.submit(), 1))
    assert [(provider, round(seconds)) for _, provider, seconds in started] == [
        ("fake", 3),
        ("fake", 2),
    ]


def test_the_ledger_releases_only_what_the_provider_takes_now(
    new_fake_scenario: ScenarioMaker,
) -> None:
    """Given a provider that is paused for 20 s, and two jobs that wait for it."""
    scenario = new_fake_scenario()
    ledger = scenario.ledger
    ledger.limit_providers(lambda: {"api": ProviderLimits(concurrency=1)})
    ledger.store_output(start_call(ledger, "api").lease, Output(text="31", provider_wait=20.0))
    jobs = [submit_for(ledger, "of-api") for _ in range(2)]
    for job in jobs:
        assert isinstance(ask(ledger, job, "api"), ClaimRefused)
    assert ledger.release(jobs[0], "api") == []
    scenario.advance(21)
    (released,) = ledger.release(jobs[0], "api")
    assert released.entry.job_id == jobs[0]
    assert isinstance(ask(ledger, jobs[0], "api"), Claim)
    assert ledger.release(jobs[0], "api") == []  # asking twice is harmless
