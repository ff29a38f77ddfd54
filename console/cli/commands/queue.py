"""`mulligan queue`: queue lengths and pauses. A pause lets running attempts finish."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from mulligan.console.cli.backend import CliBackend, open_ledger_backend
from mulligan.console.cli.options import Json
from mulligan.console.cli.output import screen
from mulligan.console.reports.providers import visible_parked
from mulligan.workers.celery.broker.queue_depth import depths
from mulligan.workers.celery.broker.queues import JOB_QUEUES, SHOWN_QUEUES, pause_name

What = Annotated[
    str,
    typer.Argument(
        metavar="WHAT",
        help=f"queue:NAME ({', '.join(JOB_QUEUES)}), task_type:NAME or provider:NAME.",
    ),
]


def list_queues(json: Json = False) -> None:
    """List the queues, what is paused and what waits."""
    with open_ledger_backend() as backend:
        paused = backend.ledger.paused()
        waiting = depths(backend.app, SHOWN_QUEUES)
        parked = visible_parked(backend.services, tenant=None)
    if json:
        rows = [asdict(each) for each in parked]
        screen.emit({"queues": waiting, "paused": paused, "parked": rows})
        return
    for name, depth in waiting.items():
        mark = "  paused" if f"queue:{name}" in paused else ""
        screen.say(f"{name:<15} {depth:>7,}{mark}")
    for what in paused:
        if not what.startswith("queue:"):
            screen.say(f"paused: {what}")
    for each in parked:
        screen.say(str(each))


def pause(what: What, json: Json = False) -> None:
    """Pause a queue, a task type or a provider."""
    name = _pause_name(what)
    with open_ledger_backend() as backend:
        backend.ledger.pause(name)
        _tell(f"{name} paused; to resume: `mulligan queue resume {name}`", backend, json)


def resume(what: What, json: Json = False) -> None:
    """Resume what was paused."""
    name = _pause_name(what)
    with open_ledger_backend() as backend:
        resumed = backend.ledger.resume(name)
        _tell(f"{name} {'resumed' if resumed else 'was not paused'}", backend, json)


def _pause_name(what: str) -> str:
    """Return the name of a pause. A bare queue name is enough."""
    return pause_name(f"queue:{what}" if what in JOB_QUEUES else what)


def _tell(text: str, backend: CliBackend, json: bool) -> None:
    if json:
        document: dict[str, Any] = {"paused": backend.ledger.paused()}
        screen.emit(document)
    else:
        screen.say(text)
