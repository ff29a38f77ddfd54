"""From job files to ended jobs: what `run` and `submit` have in common."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from mulligan.console.cli.backend import CliBackend
from mulligan.console.cli.exit_codes import ExitCode
from mulligan.console.cli.follow_jobs import (
    FollowedJobs,
    LedgerRetry,
    follow,
    latest_event_id,
    look_again,
)
from mulligan.console.cli.output import screen
from mulligan.console.cli.output.live_progress import progress
from mulligan.console.jobfiles.job_file import FoundJob, check_jobs
from mulligan.console.reports.job_document import job_document
from mulligan.console.reports.run_figures import RunFigures
from mulligan.policies.cycles.report import immediate_loop_report
from mulligan.tasks.jobs.submit import submit_jobs
from mulligan.tasks.ports.errors import BadInput, LedgerUnavailable
from mulligan.tasks.ports.ledger import Accepted, JobView

_NUMBERED = re.compile(r"jobs\[(\d+)\]\.(.*)", re.DOTALL)


def hand_in(backend: CliBackend, found: Sequence[FoundJob]) -> list[Accepted]:
    """Submit all or none; every problem is told with its file and line."""
    check_jobs(found, backend.check)
    try:
        return submit_jobs(backend.services.intake, [each.job for each in found])
    except BadInput as error:
        raise BadInput(*(_placed(line, found) for line in error.problems)) from None


def _placed(line: str, found: Sequence[FoundJob]) -> str:
    numbered = _NUMBERED.fullmatch(line)
    if numbered:
        return found[int(numbered[1])].source.place(numbered[2])
    return found[0].source.place(line) if len(found) == 1 else line


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of the jobs of one command."""

    #: The jobs as the ledger has them in the end.
    views: list[JobView]
    #: How many were accepted.
    accepted: int
    #: Whether all was done before the deadline.
    in_time: bool

    @property
    def exit_code(self) -> ExitCode:
        succeeded = sum(view.state == "succeeded" for view in self.views)
        return ExitCode.OK if succeeded == self.accepted else ExitCode.SOME_FAILED


def hand_in_and_wait(
    backend: CliBackend,
    found: Sequence[FoundJob],
    *,
    quiet: bool,
    wait_cycles: bool = False,
    deadline: float | None = None,
) -> Outcome:
    """Submit, show progress and wait."""
    after = latest_event_id(backend.ledger)
    accepted = hand_in(backend, found)
    labels = {answer.id: each.job.label for answer, each in zip(accepted, found, strict=True)}
    following = FollowedJobs.of(labels, wait_cycles=wait_cycles)
    patience = LedgerRetry(
        seconds=backend.patience,
        deadline=deadline,
        watch=backend.watch,
        on_away=lambda error: _tell_away(backend, error),
    )
    with _telling_what_is_left(backend, following):
        if any(answer.status == "seen" for answer in accepted):
            # Its events may be long past.
            patience(lambda: look_again(backend.ledger, following))
        with progress(following, quiet=quiet) as show:
            in_time = follow(
                backend.ledger,
                following,
                after=after,
                patience=patience,
                show=show,
                on_silence=_telling_once(backend.who_is_missing),
            )
        found_again = patience(lambda: [backend.ledger.job(job_id) for job_id in following.jobs])
    views = [view for view in found_again if view is not None]
    return Outcome(views=views, accepted=len(following.jobs), in_time=in_time)


def _tell_away(backend: CliBackend, error: Exception) -> None:
    screen.note(
        f"{error}; waiting for it, up to {backend.patience:g} s (worker_patience)", style="yellow"
    )


def _telling_once(ask: Callable[[], str | None]) -> Callable[[], None]:
    """Asks until there is something to tell, and tells it."""
    told: list[str] = []

    def tell() -> None:
        answer = None if told else ask()
        if answer is not None:
            told.append(answer)
            screen.note(answer, style="yellow")

    return tell


@contextmanager
def _telling_what_is_left(backend: CliBackend, following: FollowedJobs) -> Iterator[None]:
    """Whoever stops waiting, and why ever, is told where the jobs are."""
    try:
        yield
    except KeyboardInterrupt:
        screen.note(f"stopping (Ctrl-C again hurries it); {_left(backend, following)}")
        raise
    except LedgerUnavailable:
        screen.note(f"giving up; {_left(backend, following)}")
        raise


def _left(backend: CliBackend, following: FollowedJobs) -> str:
    count = len(following.jobs) - len(following.ended)
    if not count:
        return "all jobs have ended"
    jobs = "1 unfinished job stays" if count == 1 else f"{count} unfinished jobs stay"
    if backend.stack is None:
        return f"{jobs} in the queue; see `mulligan jobs list`"
    return f"{jobs} in the ledger, and the next `mulligan run` here goes on with them"


def run_document(backend: CliBackend, outcome: Outcome) -> dict[str, Any]:
    """The one document of `--json`: the jobs, and the loop report over their own cycles."""
    cycles = [cycle for view in outcome.views for cycle in view.cycles]
    return {
        "jobs": [job_document(view) for view in outcome.views],
        "report": immediate_loop_report(cycles, now=backend.ledger.now(), window_days=30),
        "figures": RunFigures.of(outcome.views, accepted=outcome.accepted).as_dict(),
    }
