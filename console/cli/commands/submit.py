"""`mulligan submit`: submit jobs to the queue. Accepted jobs are in the ledger when it returns."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated

import typer

from mulligan.console.cli.backend import CliBackend, open_running_backend
from mulligan.console.cli.options import Files, Json, Timeout
from mulligan.console.cli.output import screen
from mulligan.console.cli.output.summary import print_summary
from mulligan.console.cli.submission import (
    offline_check,
    run_document,
    submit_and_wait,
    submit_found,
)
from mulligan.console.jobfiles.job_file import FoundJob, find_jobs
from mulligan.workers.settings.model import load_settings


def submit(
    files: Files,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the jobs have ended.")] = False,
    json: Json = False,
    timeout: Timeout = None,
) -> None:
    """Submit jobs to the queue and print their ids."""
    found = find_jobs(files, lambda: offline_check(own_workers=False))
    with open_running_backend(load_settings()) as backend:
        if wait:
            _wait(backend, found, json=json, timeout=timeout)
        else:
            _submit(backend, found, json=json)


def _submit(backend: CliBackend, found: Sequence[FoundJob], *, json: bool) -> None:
    accepted = submit_found(backend, found)
    named = [(answer, each.job.label) for answer, each in zip(accepted, found, strict=True)]
    if json:
        rows = [{"id": a.id, "name": label, "status": a.status} for a, label in named]
        screen.emit({"jobs": rows})
        return
    for answer, label in named:
        seen = "  (already submitted with this idempotency key)" if answer.status == "seen" else ""
        screen.say(f"{answer.id}  {label}{seen}")
    program = screen.program_name()
    screen.note(f"next: {program} jobs show {accepted[0].id} · {program} jobs watch")


def _wait(
    backend: CliBackend, found: Sequence[FoundJob], *, json: bool, timeout: float | None
) -> None:
    deadline = None if timeout is None else time.monotonic() + timeout
    result = submit_and_wait(backend, found, quiet=json, deadline=deadline)
    if json:
        screen.emit(run_document(backend, result))
    else:
        print_summary(result.views, accepted=result.accepted)
    if not result.in_time:
        screen.complain(f"not finished within {timeout:g} s; the jobs stay in the queue")
    raise typer.Exit(int(result.exit_code))
