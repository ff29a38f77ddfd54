"""`mulligan edits`: run a plan of edits, review what waits, roll back, see what was measured."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mulligan.console.cli.commands.run import Json
from mulligan.console.cli.edits import review as edit_review
from mulligan.console.cli.output import screen

if TYPE_CHECKING:
    from mulligan.console.cli.edits.edit_backend import EditBackend
    from mulligan.console.jobfiles.plan_file import PlanFile
    from mulligan.policies.edits.edit import AutonomyMode
    from mulligan.policies.edits.session import EditSession


class Mode(StrEnum):
    """``policies.edits.edit.AutonomyMode``, which costs too much to import for a help text."""

    AUTO = "auto"
    TIERED = "tiered"
    MANUAL = "manual"


Root = Annotated[Path, typer.Option("--root", metavar="DIR", help="The tree to edit.")]
By = Annotated[str | None, typer.Option("--by", help="Who does it; you at this host otherwise.")]
Note = Annotated[str | None, typer.Option("--note", help="Why, for the record.")]


def create_cli() -> typer.Typer:
    cli = typer.Typer(
        help="Edits to a tree: measured, reviewed, and taken back.", no_args_is_help=True
    )
    cli.command("run")(run)
    cli.command("resume")(resume)
    cli.add_typer(edit_review.create_cli(), name="review")
    cli.command("rollback")(rollback)
    cli.command("history")(history)
    cli.command("report")(report)
    return cli


def run(
    plan: Annotated[str, typer.Argument(metavar="PLAN", help="A plan file; - is stdin.")],
    root: Root = Path(),
    mode: Annotated[
        Mode, typer.Option("--mode", help="What may be applied without a person.")
    ] = Mode.TIERED,
    config: Annotated[
        str, typer.Option("--config", metavar="DIR", help="Its configuration tree, below the root.")
    ] = ".",
    queue: Annotated[
        bool, typer.Option("--queue", help="Leave it to this host's edit worker; do not wait.")
    ] = False,
    by: By = None,
    json: Json = False,
) -> None:
    """Apply a plan's edits to a tree, measure each, and keep what is better.

    Exit code 1 if an edit was rejected, 2 if the plan or its suite is wrong.
    """
    from mulligan.console.cli.edits.edit_backend import working
    from mulligan.console.cli.end_escalations import who
    from mulligan.console.cli.exit_codes import stop_on_signals
    from mulligan.console.jobfiles.plan_file import read_plan
    from mulligan.policies.edits.edit import AutonomyMode
    from mulligan.workers.settings.model import load_settings

    stop_on_signals()
    found, chosen = read_plan(plan), AutonomyMode(mode)
    for typo in found.typos():
        screen.note(typo, style="yellow")
    with working(load_settings(), found.suite, queued=queue) as backend:
        session = _begun(backend, found, root, chosen, config, inline=not queue, by=by or who())
        if session.phase == "done":
            again = "to run it again, give the plan another `session`, or none"
            screen.note(f"session {session.id} is done already, this is what it came to; {again}")
        elif not queue:
            session = work_on(backend, session, quiet=json)
    _tell(session, json=json, queued=queue)


def _begun(
    backend: EditBackend,
    found: PlanFile,
    root: Path,
    mode: AutonomyMode,
    config: str,
    *,
    inline: bool,
    by: str,
) -> EditSession:
    from mulligan.tasks.ports.errors import BadInput

    try:
        return backend.engine.begin(
            found.plan, root, mode, suite=found.suite, config=config, inline=inline, by=by
        )
    except BadInput as error:
        suite = (line.startswith("suite: ") for line in error.problems)
        lines = [
            found.placed(line) if of_suite else line
            for line, of_suite in zip(error.problems, suite, strict=True)
        ]
        raise BadInput(*lines) from None


def work_on(backend: EditBackend, session: EditSession, *, quiet: bool) -> EditSession:
    """Drive a session to its end from here, telling of each edit."""
    from mulligan.console.cli.edits.edit_backend import corrected
    from mulligan.console.cli.edits.edit_screen import Progress

    told = Progress(session, quiet=quiet)
    return corrected(backend, backend.engine.drive(session.id, told=told, watch=backend.watch))


def _tell(session: EditSession, *, json: bool, queued: bool = False) -> None:
    from mulligan.console.cli.edits.edit_screen import document, rejected, show_end
    from mulligan.console.cli.exit_codes import ExitCode

    if json:
        screen.emit(document(session))
    elif queued and session.phase != "done":
        screen.say(f"session {session.id}: left to the edit worker of {session.host}")
        screen.say("what waits for you later: `mulligan edits review list`")
    else:
        show_end(session)
    if rejected(session.outcomes):
        raise typer.Exit(int(ExitCode.SOME_FAILED))


def resume(
    session: Annotated[
        str, typer.Argument(metavar="SESSION", help="One that was left unfinished.")
    ],
    json: Json = False,
) -> None:
    """Go on with a session that a dead process left in the middle."""
    from mulligan.console.cli.exit_codes import stop_on_signals

    stop_on_signals()
    done = with_session(session, lambda backend, found: work_on(backend, found, quiet=json))
    _tell(done, json=json)


def with_session(
    session_id: str, act: Callable[[EditBackend, EditSession], EditSession]
) -> EditSession:
    """Do something about a session, with somebody who can measure its suite."""
    from mulligan.console.cli.edits.edit_backend import looking, working
    from mulligan.workers.settings.model import load_settings

    settings = load_settings()
    with looking(settings) as backend:
        found = backend.engine.sessions.get(session_id).session
        with working(settings, found.suite) as backend:
            return act(backend, found)


def rollback(
    name: Annotated[
        str | None, typer.Argument(metavar="[EDIT|SESSION]", help="Or SESSION/EDIT.")
    ] = None,
    root: Annotated[
        Path | None,
        typer.Option("--root", metavar="DIR", help="By this tree's own journal, without a ledger."),
    ] = None,
    to: Annotated[
        int | None,
        typer.Option("--to", metavar="N", min=0, help="With --root: to this checkpoint."),
    ] = None,
    note: Note = None,
    by: By = None,
    json: Json = False,
) -> None:
    """Take an edit back, or all edits of a session, byte for byte.

    What was changed since on the same lines is a conflict: it is reported, and nothing is touched.
    """
    from mulligan.tasks.ports.errors import BadInput

    if root is not None:
        from mulligan.console.cli.edits.checkpoints import journal_rollback

        if note is not None or by is not None:
            raise BadInput("--note, --by: a journal has no place for them: leave out --root")
        journal_rollback(root, name, to, json=json)
    elif to is not None:
        raise BadInput("--to: a checkpoint is of a tree: give --root")
    elif name is None:
        raise BadInput("name an edit or a session; `mulligan edits review list --all` shows them")
    else:
        _roll_back(name, note=note, by=by, json=json)


def _roll_back(name: str, *, note: str | None, by: str | None, json: bool) -> None:
    from mulligan.console.cli.edits.edit_backend import looking
    from mulligan.console.cli.edits.edit_screen import document
    from mulligan.console.cli.edits.find_edit import applied
    from mulligan.console.cli.end_escalations import who
    from mulligan.workers.settings.model import load_settings

    with looking(load_settings()) as backend:
        session_id, edit_id = applied(backend.engine.sessions, name)
        session, text = backend.engine.roll_back(session_id, edit_id, by=by or who(), note=note)
    if json:
        screen.emit(document(session))
    else:
        screen.say(text)


def history(
    session: Annotated[str | None, typer.Option("--session", help="Only of this session.")] = None,
    cluster: Annotated[
        str | None, typer.Option("--cluster", help="Only what changed this cluster's score.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", help="At most so many.", min=1, max=10_000)] = 50,
    json: Json = False,
) -> None:
    """List the effects that were measured, the newest first."""
    from mulligan.console.cli.edits.effect_history import find_deltas, show_deltas

    found = find_deltas(session=session, cluster=cluster, limit=limit)
    if json:
        screen.emit({"deltas": [delta.model_dump(mode="json") for delta in found]})
    else:
        show_deltas(found)


def report(
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write a page with the plot.")
    ] = None,
    session: Annotated[str | None, typer.Option("--session", help="Only of this session.")] = None,
    cluster: Annotated[
        str | None, typer.Option("--cluster", help="Only what changed this cluster's score.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", help="At most so many.", min=1, max=1000)] = 100,
) -> None:
    """Plot the effects that were measured, the oldest first."""
    from mulligan.console.cli.edits.effect_history import find_deltas, page, show_plot

    found = list(reversed(find_deltas(session=session, cluster=cluster, limit=limit)))
    if html is None:
        show_plot(found, cluster)
        return
    html.write_text(page(found, cluster), encoding="utf-8")
    screen.say(f"wrote {html}: {len(found)} measured {'edit' if len(found) == 1 else 'edits'}")
