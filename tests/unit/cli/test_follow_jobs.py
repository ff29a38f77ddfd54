"""Following jobs to their end: unfinished and lost jobs, an unreachable ledger, no workers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.ledger_scenario import ScenarioMaker
from support.provider_calls import fail_call, start_call
from support.releases import NEXT, NEXT_WORKER, of_release
from support.settlements import succeeds

from mulligan.console.cli import follow_jobs
from mulligan.console.cli.exit_codes import ExitCode
from mulligan.console.cli.follow_jobs import FollowedJobs, LedgerRetry, follow
from mulligan.console.cli.output.live_progress import describe_event
from mulligan.console.cli.output.summary import summary_lines
from mulligan.console.cli.submission import RunResult
from mulligan.console.reports.run_figures import RunFigures
from mulligan.tasks.ports.errors import LedgerRefused, LedgerUnavailable
from mulligan.workers.backends import follow as feeds
from mulligan.workers.backends.follow import LedgerFeed
from mulligan.workers.ledger.redis_ledger import RedisLedger


def test_a_waiting_job_is_unfinished_and_not_lost(new_fake_scenario: ScenarioMaker) -> None:
    scenario = new_fake_scenario()
    figures = RunFigures.of([scenario.view(scenario.submit())], accepted=1)
    assert (figures.lost, figures.unfinished) == (0, 1)
    assert summary_lines(figures)[1] == "cycles 0 · lost 0 · unfinished 1"


def test_a_job_that_the_ledger_no_longer_has_is_lost() -> None:
    figures = RunFigures.of([], accepted=1)
    assert (figures.jobs, figures.lost, figures.unfinished) == (1, 1, 0)
    assert RunResult(views=[], accepted=1, in_time=True).exit_code == ExitCode.SOME_FAILED


# -- what a job waits for --------------------------------------------------------------------------


def test_a_waiting_attempt_says_what_it_waits_for_and_why(new_fake_scenario: ScenarioMaker) -> None:
    ledger = new_fake_scenario().ledger
    fail_call(ledger, start_call(ledger, "openai-eu"), status=429, retry_after=60)
    assert lines_of(ledger)[-1] == "test  attempt 1  waiting for provider openai-eu: 429"


def test_a_job_that_waits_for_a_later_version_can_be_followed(
    new_fake_scenario: ScenarioMaker,
) -> None:
    scenario = new_fake_scenario()
    job_id = of_release(scenario, NEXT).submit(labels={"a": "b"})
    scenario.refusal(job_id)
    assert lines_of(scenario.ledger)[-1] == f"test  attempt 1  waiting for {NEXT_WORKER}"


def lines_of(ledger: RedisLedger) -> list[str]:
    """The lines of `mulligan jobs watch` about everything that has happened."""
    seen = FollowedJobs({})
    return [
        line
        for event in ledger.events()
        if (line := describe_event(seen.note_any(event, lambda _: "test"), event))
    ]


# -- an unreachable ledger -------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _shorten_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow_jobs, "_PAUSE", 0.001)
    monkeypatch.setattr(feeds, "BLOCK", 0.001)


def failing(times: int, error: type[LedgerUnavailable] = LedgerUnavailable) -> Callable[[], str]:
    """Return a read that fails this many times before it returns."""
    left = [times]

    def read() -> str:
        left[0] -= 1
        if left[0] >= 0:
            raise error("the ledger cannot be reached")
        return "news"

    return read


def test_an_unreachable_ledger_is_reported_once_and_retried() -> None:
    restarts: list[None] = []
    reported: list[Exception] = []
    retry = LedgerRetry(
        seconds=600, restart_dead=lambda: restarts.append(None), on_unreachable=reported.append
    )
    assert retry(failing(3)) == "news"
    assert len(restarts) == 3
    assert [str(error) for error in reported] == ["the ledger cannot be reached"]


def test_retries_end_after_their_seconds_and_at_the_deadline() -> None:
    for retry in (LedgerRetry(seconds=0), LedgerRetry(seconds=600, deadline=0.0)):
        with pytest.raises(LedgerUnavailable):
            retry(failing(1))


def test_a_refusal_of_the_ledger_is_not_retried() -> None:
    with pytest.raises(LedgerRefused):
        LedgerRetry(seconds=600)(failing(1, LedgerRefused))


# -- no workers ------------------------------------------------------------------------------------


def test_silence_is_reported_until_the_job_ends(
    new_fake_scenario: ScenarioMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "SILENCE", 0.0)
    scenario = new_fake_scenario()
    job_id = scenario.submit()
    reports: list[None] = []

    def finish_job() -> None:
        reports.append(None)
        if len(reports) == 3:
            claim = scenario.claim(job_id)
            scenario.settle(claim, succeeds(claim))

    jobs = FollowedJobs.of({job_id: "a job"})
    feed = LedgerFeed(scenario.ledger)
    assert follow(scenario.ledger, jobs, feed, retry=LedgerRetry(), on_silence=finish_job)
    assert len(reports) >= 3
