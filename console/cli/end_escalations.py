"""End escalations from the command line: dry run, confirmation, progress and result."""

from __future__ import annotations

import getpass
import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.progress import TimeRemainingColumn as Remaining

from mulligan.console.cli.backend import CliBackend, open_ledger_backend
from mulligan.console.cli.confirmation import confirm
from mulligan.console.cli.exit_codes import ExitCode
from mulligan.console.cli.output import screen
from mulligan.console.reports.escalation_document import SHOWN, bulk_document, dry_run_document
from mulligan.policies.figures.format import counted
from mulligan.tasks.escalations.end_escalations import (
    BulkAction,
    EndAction,
    EscalationFilter,
    run_bulk_action,
    select,
)
from mulligan.tasks.ports.ledger import Escalation
from mulligan.workers.ledger.stores.bulk_actions import RedisBulkActions

_VERBS = {"resolved": "resolve", "requeued": "requeue", "cancelled": "cancel"}
#: Seconds between two looks at the progress while other workers do the work.
_POLL_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True)
class EndRequest:
    """What to end, and how."""

    which: EscalationFilter
    action: EndAction
    per_second: float
    dry_run: bool
    yes: bool
    json: bool

    @property
    def verb(self) -> str:
        return _VERBS[self.action.how]


def who() -> str:
    """Return user@host, for the record."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError):  # a container's user often has no name
        name = f"uid{os.getuid()}"
    return f"{name}@{socket.gethostname()}"


def end(request: EndRequest) -> None:
    """End the escalations, together with any control worker; exit 1 if some could not be ended."""
    with open_ledger_backend() as backend:
        chosen = select(backend.ledger, request.which)
        if request.dry_run:
            _print_dry_run(request, chosen)
            return
        if chosen and not request.yes:
            what = f"{request.verb} {counted(len(chosen), 'job')}"
            hint = ", or --dry-run to see which"
            confirm(what, hint=hint, show=lambda: _show(chosen, screen.note))
        bulks = backend.ledger.bulk_actions
        ids = [each.id for each in chosen]
        bulk = bulks.create(request.action, request.which, ids, per_second=request.per_second)
        bulk = _work(backend, bulks, bulk, request)
    _print_result(request, bulk)
    if bulk.failed:
        raise typer.Exit(int(ExitCode.SOME_FAILED))


# -- before ----------------------------------------------------------------------------------------


def _print_dry_run(request: EndRequest, chosen: Sequence[Escalation]) -> None:
    if request.json:
        screen.emit(dry_run_document(chosen))
        return
    if not chosen:
        screen.say("no open escalations match")
        return
    _show(chosen, screen.say)
    screen.say(f"this would {request.verb} {counted(len(chosen), 'job')}; nothing was changed")


def _show(chosen: Sequence[Escalation], say: Callable[[str], None]) -> None:
    for each in chosen[:SHOWN]:
        say(f"  {each.id}  {each.task_type}  {each.reason}")
    if len(chosen) > SHOWN:
        say(f"  and {len(chosen) - SHOWN:,} more")
    say(f"  total: {shares(dry_run_document(chosen)['task_types'])}")


# -- progress --------------------------------------------------------------------------------------


def _work(
    backend: CliBackend, bulks: RedisBulkActions, bulk: BulkAction, request: EndRequest
) -> BulkAction:
    """Run the action, beside any control worker. They share its rate."""

    def look() -> BulkAction:
        return bulks.get(bulk.id) or bulk

    token = secrets.token_hex(8)
    with _stop_on_signals() as stop, _bar(request, bulk.total) as show:
        while not stop.is_set():
            wait = run_bulk_action(
                backend.ledger,
                bulks,
                backend.services.intake.publish,
                bulk.id,
                token=token,
                on_progress=lambda: show(look()),
                keep_going=lambda: not stop.is_set(),
            )
            now = look()
            show(now)
            if wait is None:
                return now
            stop.wait(min(wait, _POLL_SECONDS))
    bulks.stop(bulk.id)
    now = look()
    how = request.action.how
    screen.note(f"stopped: {now.done:,} of {now.total:,} {how}; the others are unchanged")
    raise typer.Exit(int(ExitCode.INTERRUPTED))


@contextmanager
def _stop_on_signals() -> Iterator[threading.Event]:
    """Yield an event that the first Ctrl-C or SIGTERM sets; a second one interrupts the batch."""
    stop = threading.Event()

    def handle(number: int, _: FrameType | None) -> None:
        stop.set()
        signal.signal(number, signal.default_int_handler)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _bar(request: EndRequest, total: int) -> Iterator[Callable[[BulkAction], None]]:
    """Show a progress bar if stderr is a terminal."""
    if not sys.stderr.isatty() or not total:
        yield lambda _: None
        return

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Remaining())
    with Progress(*columns, console=screen.err(), transient=True) as progress:
        task = progress.add_task(request.verb, total=total)
        yield lambda bulk: progress.update(task, completed=bulk.done + bulk.skipped + bulk.failed)


# -- after -----------------------------------------------------------------------------------------


def _print_result(request: EndRequest, bulk: BulkAction) -> None:
    if request.json:
        screen.emit(bulk_document(bulk))
        return
    if not bulk.total:
        screen.say("no open escalations match")
        return
    screen.say(f"{counted(bulk.done, 'job')} {bulk.action.how} by {bulk.action.by}")
    if bulk.state == "stopped":
        screen.say("stopped by another user; the others are unchanged")
    if bulk.skipped:
        screen.say(f"{bulk.skipped:,} skipped: already ended by someone else")
    if bulk.failed:
        _complain(request, bulk)


def _complain(request: EndRequest, bulk: BulkAction) -> None:
    shown = [f"{problem.id}: {problem.why}" for problem in bulk.problems]
    more = bulk.failed - len(shown)
    screen.complain(
        f"{counted(bulk.failed, 'job')} could not be {request.action.how} and are still open:",
        *shown,
    )
    if more > 0:
        screen.complain(f"and {more:,} more")


def shares(counts: Mapping[str, int]) -> str:
    """Return names with their counts."""
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())
