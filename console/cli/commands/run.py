"""`mulligan run`: start what is needed, run the jobs, print the results and stop."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from mulligan.console.cli.backend import open_backend_for
from mulligan.console.cli.exit_codes import ExitCode, stop_on_signals
from mulligan.console.cli.options import Files, Json, Timeout
from mulligan.console.cli.output import screen
from mulligan.console.cli.output.summary import print_summary
from mulligan.console.cli.submission import offline_check, run_document, submit_and_wait
from mulligan.console.jobfiles.job_file import find_jobs
from mulligan.workers.settings.model import load_settings


def run(
    files: Files,
    json: Json = False,
    show_repair: Annotated[
        bool, typer.Option("--show-repair", help="Print one corrected prompt as a diff.")
    ] = False,
    wait_cycles: Annotated[
        bool, typer.Option("--wait-cycles", help="Also wait for delayed verifications.")
    ] = False,
    always_zero: Annotated[
        bool, typer.Option("--always-zero", help="Exit 0 even if jobs were escalated.")
    ] = False,
    timeout: Timeout = None,
) -> None:
    """Run jobs and wait for them.

    If no broker is configured, it starts its own Redis and workers and stops them at the end.
    """
    stop_on_signals()
    found = find_jobs(files, lambda: offline_check(own_workers=True))
    settings = load_settings()
    deadline = None if timeout is None else time.monotonic() + timeout
    with open_backend_for(settings, found) as backend:
        result = submit_and_wait(
            backend, found, quiet=json, wait_cycles=wait_cycles, deadline=deadline
        )
        document = run_document(backend, result) if json else None
    if document is not None:
        screen.emit(document)
    else:
        print_summary(
            result.views,
            accepted=result.accepted,
            show_repair=show_repair,
            suggest_up=True,
            home=backend.unusual_home,
        )
    if not result.in_time:
        screen.complain(f"not finished within {timeout:g} s; unfinished jobs stay in the ledger")
    code = ExitCode.OK if always_zero and result.in_time else result.exit_code
    raise typer.Exit(int(code))
