"""From job files to ended jobs: what `run` and `submit` have in common."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from mulligan.console import screen
from mulligan.console.exits import ExitCode
from mulligan.console.figures import Figures
from mulligan.console.following import Following, follow, here_and_now, look_again
from mulligan.console.job_document import job_document
from mulligan.console.jobfile import FoundJob, check_jobs
from mulligan.console.progress import progress
from mulligan.console.station import Station
from mulligan.policies.report import immediate_loop_report
from mulligan.tasks.ledger import Accepted, JobView
from mulligan.tasks.ports import BadInput
from mulligan.tasks.submit import submit_jobs

_NUMBERED = re.compile(r"jobs\[(\d+)\]\.(.*)", re.DOTALL)


def hand_in(station: Station, found: Sequence[FoundJob]) -> list[Accepted]:
    """Submit all or none; every problem is told with its file and line."""
    check_jobs(found, station.check)
    try:
        return submit_jobs(station.shop.intake, [each.job for each in found])
    except BadInput as error:
        raise BadInput(*(_placed(line, found) for line in error.problems)) from None


def _placed(line: str, found: Sequence[FoundJob]) -> str:
    numbered = _NUMBERED.fullmatch(line)
    if numbered:
        return found[int(numbered[1])].source.place(numbered[2])
    return found[0].source.place(line) if len(found) == 1 else line


def hand_in_and_wait(
    station: Station,
    found: Sequence[FoundJob],
    *,
    quiet: bool,
    wait_cycles: bool = False,
    deadline: float | None = None,
) -> tuple[list[JobView], bool]:
    """Submit, show progress and wait; the jobs in the end, and whether all was done in time."""
    after = here_and_now(station.ledger)
    accepted = hand_in(station, found)
    labels = {answer.id: each.job.label for answer, each in zip(accepted, found, strict=True)}
    following = Following.of(labels, wait_cycles=wait_cycles)
    if any(answer.status == "seen" for answer in accepted):
        # Its events may be long past.
        look_again(station.ledger, following)
    in_time = _wait(station, following, after=after, quiet=quiet, deadline=deadline)
    views = (station.ledger.job(job_id) for job_id in following.jobs)
    return [view for view in views if view is not None], in_time


def _wait(
    station: Station, following: Following, *, after: str, quiet: bool, deadline: float | None
) -> bool:
    try:
        with progress(following, quiet=quiet) as show:
            return follow(
                station.ledger,
                following,
                after=after,
                watch=station.watch,
                show=show,
                deadline=deadline,
            )
    except KeyboardInterrupt:
        screen.note(f"stopping (Ctrl-C again hurries it); {_left(station, following)}")
        raise


def _left(station: Station, following: Following) -> str:
    count = len(following.jobs) - len(following.ended)
    if not count:
        return "all jobs have ended"
    jobs = "1 unfinished job stays" if count == 1 else f"{count} unfinished jobs stay"
    if station.stack is None:
        return f"{jobs} in the queue; see `mulligan jobs list`"
    return f"{jobs} in the ledger, and the next `mulligan run` here goes on with them"


def run_document(station: Station, views: Sequence[JobView]) -> dict[str, Any]:
    """The one document of `--json`: the jobs, and the loop report over their own cycles."""
    cycles = [cycle for view in views for cycle in view.cycles]
    return {
        "jobs": [job_document(view) for view in views],
        "report": immediate_loop_report(cycles, now=station.ledger.now(), window_days=30),
        "figures": Figures.of(views).as_dict(),
    }


def exit_code(views: Sequence[JobView]) -> ExitCode:
    done = all(view.state == "succeeded" for view in views)
    return ExitCode.OK if done else ExitCode.SOME_FAILED
