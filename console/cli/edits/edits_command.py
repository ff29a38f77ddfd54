"""`mulligan edits`: run a plan of edits, roll it back and see measured effects."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from mulligan.console.cli.edits.checkpoints import journal_rollback
from mulligan.console.cli.edits.edit_backend import (
    EditBackend,
    ask_for_correction,
    open_edit_backend,
    open_sessions,
)
from mulligan.console.cli.edits.edit_screen import Progress, document, rejected, show_end
from mulligan.console.cli.edits.effect_history import effect_chart, effect_table, find_deltas
from mulligan.console.cli.edits.find_edit import find_applied
from mulligan.console.cli.end_escalations import who
from mulligan.console.cli.exit_codes import ExitCode, stop_on_signals
from mulligan.console.cli.options import By, Json
from mulligan.console.cli.output import screen
from mulligan.console.cli.output.report_output import ReportForm, deliver
from mulligan.console.jobfiles.plan_file import PlanFile, read_plan
from mulligan.policies.edits.edit import AutonomyMode
from mulligan.policies.edits.session import EditSession
from mulligan.tasks.jobs.read_job import Check
from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.admission.intake import offline_rules
from mulligan.workers.backends.follow import LedgerFeed
from mulligan.workers.settings.model import load_settings

Root = Annotated[Path, typer.Option("--root", metavar="DIR", help="Tree to edit.")]
Note = Annotated[str | None, typer.Option("--note", help="Reason, for the record.")]
OnlySession = Annotated[str | None, typer.Option("--session", help="Only this session.")]
OnlyCluster = Annotated[
    str | None, typer.Option("--cluster", help="Only edits that changed this cluster's score.")
]


def run(
    plan: Annotated[str, typer.Argument(metavar="PLAN", help="A plan file; - is stdin.")],
    root: Root = Path(),
    mode: Annotated[
        AutonomyMode, typer.Option("--mode", help="Which edits are applied without a review.")
    ] = AutonomyMode.TIERED,
    config: Annotated[
        str,
        typer.Option("--config", metavar="DIR", help="Configuration folder, relative to the root."),
    ] = ".",
    queue: Annotated[
        bool, typer.Option("--queue", help="Queue it for this host's edit worker and return.")
    ] = False,
    by: By = None,
    json: Json = False,
) -> None:
    """Apply the edits of a plan and keep those that help.

    Each edit is measured by the plan's suite. Exit code 1 if an edit was rejected, 2 if the plan
    or its suite is invalid.
    """
    stop_on_signals()
    found = read_plan(plan, suite_checks)
    for typo in found.typos():
        screen.note(typo, style="yellow")
    with open_edit_backend(load_settings(), found.suite, queued=queue) as backend:
        with _at_lines(found):
            session = backend.engine.begin(
                found.plan,
                root,
                mode,
                suite=found.suite,
                config=config,
                inline=not queue,
                by=by or who(),
            )
        if session.phase == "done":
            again = "to run it again, change or remove `session` in the plan"
            screen.note(f"session {session.id} is already done; {again}")
        elif not queue:
            session = work_on(backend, session, quiet=json)
    _show_result(session, json=json, queued=queue)


def suite_checks() -> Check:
    """Return the checks of a suite's jobs where a plan is applied."""
    return offline_rules(load_settings(allow_inline=True)).check


@contextmanager
def _at_lines(found: PlanFile) -> Iterator[None]:
    """Add the file and line to every problem."""
    try:
        yield
    except BadInput as error:
        raise BadInput(*map(found.place, error.problems)) from None


def work_on(backend: EditBackend, session: EditSession, *, quiet: bool) -> EditSession:
    """Run a session to its end in this process, and print each edit."""
    progress = Progress(session, quiet=quiet)
    feed = LedgerFeed(backend.ledger)
    ended = backend.engine.drive(session.id, on_progress=progress, wait=feed.take)
    return ask_for_correction(backend, ended)


def _show_result(session: EditSession, *, json: bool, queued: bool = False) -> None:
    if json:
        screen.emit(document(session))
    elif queued and session.phase != "done":
        screen.say(f"session {session.id}: queued for the edit worker on {session.host}")
        screen.say("to review later: `mulligan edits review list`")
    else:
        show_end(session)
    if rejected(session.outcomes):
        raise typer.Exit(int(ExitCode.SOME_FAILED))


def resume(
    session: Annotated[str, typer.Argument(metavar="SESSION", help="Id of the session.")],
    json: Json = False,
) -> None:
    """Continue a session that was interrupted."""
    stop_on_signals()
    done = with_session(session, lambda backend, found: work_on(backend, found, quiet=json))
    _show_result(done, json=json)


def with_session(
    session_id: str, act: Callable[[EditBackend, EditSession], EditSession]
) -> EditSession:
    """Act on a session with a backend that can measure its suite."""
    settings = load_settings()
    with open_sessions(settings) as backend:
        found = backend.engine.sessions.get(session_id).session
        with open_edit_backend(settings, found.suite) as backend:
            return act(backend, found)


def rollback(
    name: Annotated[
        str | None, typer.Argument(metavar="EDIT|SESSION", help="Edit, SESSION/EDIT or session.")
    ] = None,
    root: Annotated[
        Path | None,
        typer.Option(
            "--root", metavar="DIR", help="Use this tree's own journal, without a ledger."
        ),
    ] = None,
    to: Annotated[
        int | None,
        typer.Option("--to", metavar="N", min=0, help="With --root: the checkpoint to return to."),
    ] = None,
    note: Note = None,
    by: By = None,
    json: Json = False,
) -> None:
    """Roll back an edit, or all edits of a session, byte for byte.

    If the same lines were changed since, the conflict is reported and nothing is changed.
    """
    if root is not None:
        if note is not None or by is not None:
            raise BadInput("--note and --by cannot be used with --root")
        journal_rollback(root, name, to, json=json)
    elif to is not None:
        raise BadInput.at("--to", "needs --root")
    elif name is None:
        raise BadInput("name an edit or a session; see `mulligan edits review list --all`")
    else:
        _roll_back(name, note=note, by=by, json=json)


def _roll_back(name: str, *, note: str | None, by: str | None, json: bool) -> None:
    with open_sessions(load_settings()) as backend:
        session_id, edit_id = find_applied(backend.engine.sessions, name)
        session, text = backend.engine.roll_back(session_id, edit_id, by=by or who(), note=note)
    if json:
        screen.emit(document(session))
    else:
        screen.say(text)


def history(
    session: OnlySession = None,
    cluster: OnlyCluster = None,
    limit: Annotated[int, typer.Option("--limit", help="Maximum rows.", min=1, max=10_000)] = 50,
    json: Json = False,
) -> None:
    """List measured effects, newest first."""
    found = find_deltas(session=session, cluster=cluster, limit=limit)
    deliver(effect_table(found), ReportForm(json=json))


def report(
    html: Annotated[
        Path | None,
        typer.Option(
            "--html", metavar="FILE", help="Write an HTML page with the chart to this file."
        ),
    ] = None,
    session: OnlySession = None,
    cluster: OnlyCluster = None,
    limit: Annotated[int, typer.Option("--limit", help="Maximum rows.", min=1, max=1000)] = 100,
) -> None:
    """Plot measured effects, oldest first."""
    found = list(reversed(find_deltas(session=session, cluster=cluster, limit=limit)))
    deliver(effect_chart(found, cluster), ReportForm(html=html))
