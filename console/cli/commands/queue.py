"""`mulligan queue`: how much waits, and pausing. A pause lets running attempts end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mulligan.console.cli.commands.run import Json
from mulligan.console.cli.output import screen
from mulligan.workers.celery.queues import JOB_QUEUES, QUEUES

if TYPE_CHECKING:
    from mulligan.console.cli.backend import CliBackend

What = Annotated[
    str,
    typer.Argument(
        metavar="WHAT",
        help=f"queue:NAME ({', '.join(JOB_QUEUES)}), task_type:NAME or provider:NAME.",
    ),
]


def create_cli() -> typer.Typer:
    cli = typer.Typer(help="See how much waits; pause and resume.", no_args_is_help=True)
    cli.command("list")(list_queues)
    cli.command("pause")(pause)
    cli.command("resume")(resume)
    return cli


def list_queues(json: Json = False) -> None:
    """List the queues, how much waits in each, and what is paused."""
    from mulligan.workers.celery.queue_depth import depths

    with _station() as backend:
        paused = backend.ledger.paused()
        waiting = depths(backend.app, QUEUES)
    if json:
        screen.emit({"queues": waiting, "paused": paused})
        return
    for name, depth in waiting.items():
        mark = "  paused" if f"queue:{name}" in paused else ""
        screen.say(f"{name:<8} {depth:>7,}{mark}")
    for what in paused:
        if not what.startswith("queue:"):
            screen.say(f"paused: {what}")


def pause(what: What, json: Json = False) -> None:
    """Start nothing more of this kind until it is resumed."""
    name = _known(what)
    with _station() as backend:
        backend.ledger.pause(name)
        _tell(f"{name} is paused; `mulligan queue resume {name}` lets it go on", backend, json)


def resume(what: What, json: Json = False) -> None:
    """Lift a pause."""
    name = _known(what)
    with _station() as backend:
        was = name in backend.ledger.paused()
        backend.ledger.resume(name)
        _tell(f"{name} {'goes on' if was else 'was not paused'}", backend, json)


@contextmanager
def _station() -> Iterator[CliBackend]:
    from mulligan.console.cli.backend import reach
    from mulligan.console.cli.open_ledgers import located
    from mulligan.workers.settings.model import load_settings

    with located(load_settings()) as settings:
        yield reach(settings)


def _known(what: str) -> str:
    from mulligan.tasks.ports.errors import BadInput

    kind, _, name = what.partition(":")
    if kind in ("task_type", "provider") and name:
        return what
    if kind == "queue" and name in JOB_QUEUES:
        return what
    if kind in JOB_QUEUES and not name:
        return f"queue:{kind}"
    raise BadInput(
        f"{what!r}: name queue:{', queue:'.join(JOB_QUEUES)}, task_type:NAME or provider:NAME"
    )


def _tell(text: str, backend: CliBackend, json: bool) -> None:
    if json:
        document: dict[str, Any] = {"paused": backend.ledger.paused()}
        screen.emit(document)
    else:
        screen.say(text)
