"""Jobs that really ran, in threads of this process, for tests of the console."""

from __future__ import annotations

from functools import partial
from typing import Any

from mulligan.console.http.context import ConsoleContext
from mulligan.policies.jobs.job import TERMINAL
from mulligan.tasks.jobs.submit import submit_jobs
from mulligan.tasks.ports.ledger import JobView
from mulligan.workers.local.local_stack import local_stack
from support.jobs import read_job
from support.waiting import wait_for


def run_jobs(context: ConsoleContext, *jobs: dict[str, Any]) -> list[JobView]:
    """Submit jobs to the console's ledger and run them in this process until they end."""
    with local_stack(context.services.settings, context.ledger, slots=2) as stack:
        accepted = submit_jobs(stack.intake, [read_job(job) for job in jobs])
        return [wait_for(partial(_ended, context, each.id), "a job to end") for each in accepted]


def _ended(context: ConsoleContext, job_id: str) -> JobView | None:
    view = context.ledger.job(job_id)
    return view if view is not None and view.state in TERMINAL else None
