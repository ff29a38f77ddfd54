"""Submit jobs and wait for them: what `run` and `submit` share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from mulligan.console.cli.backend import CliBackend
from mulligan.console.cli.exit_codes import ExitCode
from mulligan.console.cli.follow_jobs import (
    FollowedJob,
    FollowedJobs,
    LedgerRetry,
    follow,
    read_again,
)
from mulligan.console.cli.output import screen
from mulligan.console.cli.output.live_progress import progress
from mulligan.console.jobfiles.job_file import FoundJob
from mulligan.console.reports.job_document import job_document
from mulligan.console.reports.run_figures import RunFigures
from mulligan.policies.cycles.report import immediate_loop_report
from mulligan.tasks.jobs.read_job import Check
from mulligan.tasks.jobs.submit import submit_jobs
from mulligan.tasks.ports.errors import BadInput, LedgerUnavailable
from mulligan.tasks.ports.ledger import Accepted, Event, JobView
from mulligan.workers.admission.intake import offline_rules
from mulligan.workers.backends.follow import LedgerFeed
from mulligan.workers.settings.model import load_settings


def offline_check(*, own_workers: bool) -> Check:
    """Return the check for jobs of files that are malformed anyway.

    ``own_workers``: whether the command starts workers if none are configured.
    """
    settings = load_settings()
    if own_workers and settings.broker_url is None:
        settings = load_settings(allow_inline=True)
    return offline_rules(settings).problems


def submit_found(backend: CliBackend, found: Sequence[FoundJob]) -> list[Accepted]:
    """Submit all jobs, or raise BadInput with every problem, its file and its line."""
    try:
        return submit_jobs(backend.services.intake, [each.job for each in found])
    except BadInput as error:
        placed = (found[each.index or 0].source.place(each) for each in error.problems)
        raise BadInput(*dict.fromkeys(placed)) from None


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """The results of the jobs of one command."""

    #: The jobs as they are in the ledger at the end.
    views: list[JobView]
    #: How many were accepted.
    accepted: int
    #: Whether all ended before the deadline.
    in_time: bool

    @property
    def exit_code(self) -> ExitCode:
        succeeded = sum(view.state == "succeeded" for view in self.views)
        return ExitCode.OK if succeeded == self.accepted else ExitCode.SOME_FAILED


def submit_and_wait(
    backend: CliBackend,
    found: Sequence[FoundJob],
    *,
    quiet: bool,
    wait_cycles: bool = False,
    deadline: float | None = None,
) -> RunResult:
    """Submit the jobs, show progress and wait."""
    feed = LedgerFeed(backend.ledger)
    accepted = submit_found(backend, found)
    labels = {answer.id: each.job.label for answer, each in zip(accepted, found, strict=True)}
    jobs = FollowedJobs.of(labels, wait_cycles=wait_cycles)
    seen = any(answer.status == "seen" for answer in accepted)
    with progress(jobs, quiet=quiet) as show:
        return wait_for_jobs(backend, jobs, feed, seen=seen, show=show, deadline=deadline)


def wait_for_jobs(
    backend: CliBackend,
    jobs: FollowedJobs,
    feed: LedgerFeed,
    *,
    seen: bool,
    show: Callable[[FollowedJob, Event], None],
    deadline: float | None = None,
    later: str = "",
) -> RunResult:
    """Follow jobs until they have ended. ``feed``: opened before they were submitted.

    ``seen``: whether some were submitted before, so that their events may be in the past.
    ``later``: how to go on after an interruption, if a command does.
    """
    retry = LedgerRetry(
        seconds=backend.patience,
        deadline=deadline,
        restart_dead=backend.restart_dead,
        on_unreachable=lambda error: _note_waiting(backend, error),
    )
    with _note_unfinished(backend, jobs, later):
        if seen:
            retry(lambda: read_again(backend.ledger, jobs))
        in_time = follow(
            backend.ledger,
            jobs,
            feed,
            retry=retry,
            show=show,
            on_silence=_note_once(backend.missing_worker),
        )
        views = retry(lambda: [backend.ledger.job(job_id) for job_id in jobs.jobs])
    known = [view for view in views if view is not None]
    return RunResult(views=known, accepted=len(jobs.jobs), in_time=in_time)


def _note_waiting(backend: CliBackend, error: Exception) -> None:
    screen.note(
        f"{error}; waiting for it, up to {backend.patience:g} s (worker_patience)", style="yellow"
    )


def _note_once(find_problem: Callable[[], str | None]) -> Callable[[], None]:
    """Return a function that looks for a problem until it finds and shows one."""
    shown: list[str] = []

    def look() -> None:
        problem = None if shown else find_problem()
        if problem is not None:
            shown.append(problem)
            screen.note(problem, style="yellow")

    return look


@contextmanager
def _note_unfinished(backend: CliBackend, jobs: FollowedJobs, later: str) -> Iterator[None]:
    """Say where the jobs are if the wait is interrupted."""
    try:
        yield
    except KeyboardInterrupt:
        screen.note(f"stopping (press Ctrl-C again to hurry); {_unfinished(backend, jobs, later)}")
        raise
    except LedgerUnavailable:
        screen.note(f"giving up; {_unfinished(backend, jobs, later)}")
        raise


def _unfinished(backend: CliBackend, jobs: FollowedJobs, later: str) -> str:
    count = len(jobs.jobs) - len(jobs.ended)
    if later:
        return later
    if not count:
        return "all jobs have ended"
    stay = "1 unfinished job stays" if count == 1 else f"{count} unfinished jobs stay"
    if backend.stack is None:
        return f"{stay} in the queue; see `mulligan jobs list`"
    return f"{stay} in the ledger, and the next `mulligan run` here continues them"


def run_document(backend: CliBackend, result: RunResult) -> dict[str, Any]:
    """Return the document of `--json`: the jobs, the report over their cycles, the figures."""
    cycles = [cycle for view in result.views for cycle in view.cycles]
    return {
        "jobs": [job_document(view) for view in result.views],
        "report": immediate_loop_report(cycles, now=backend.ledger.now(), window_days=30),
        "figures": RunFigures.of(result.views, accepted=result.accepted).as_dict(),
    }
