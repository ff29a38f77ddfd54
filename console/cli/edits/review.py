"""`mulligan edits review`: what waits for a person, what it would change, and the decision."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from mulligan.console.cli.commands.run import Json
from mulligan.console.cli.output import screen

if TYPE_CHECKING:
    from mulligan.console.cli.edits.edit_backend import EditBackend
    from mulligan.policies.edits.session import EditRecord, EditSession

Name = Annotated[str, typer.Argument(metavar="EDIT", help="An edit's id, or SESSION/EDIT.")]
By = Annotated[str | None, typer.Option("--by", help="Who decides; you at this host otherwise.")]


def create_cli() -> typer.Typer:
    cli = typer.Typer(help="Edits that wait for a person.", no_args_is_help=True)
    cli.command("list")(list_edits)
    cli.command("show")(show)
    cli.command("approve")(approve)
    cli.command("reject")(reject)
    return cli


def list_edits(
    all_: Annotated[bool, typer.Option("--all", help="Those that do not wait, too.")] = False,
    session: Annotated[str | None, typer.Option("--session", help="Only of this session.")] = None,
    limit: Annotated[int, typer.Option("--limit", help="Of so many sessions.", min=1)] = 100,
    json: Json = False,
) -> None:
    """List the edits that wait, the newest session first."""
    from mulligan.console.cli.edits.edit_backend import looking
    from mulligan.console.cli.edits.edit_screen import review_document, show_line
    from mulligan.workers.settings.model import load_settings

    with looking(load_settings()) as backend:
        known = backend.engine.sessions
        sessions = [known.get(session).session] if session else known.recent(limit=limit)
    shown = [(s, [r for r in s.records if all_ or r.reviewable]) for s in sessions]
    if json:
        screen.emit({"edits": [review_document(s, r) for s, records in shown for r in records]})
        return
    for each, records in shown:
        if records:
            screen.say(f"{each.id}  {each.root} on {each.host}, mode {each.mode}", style="bold")
            for record in records:
                show_line(record)
    if not any(records for _, records in shown):
        screen.say("no edits" if all_ else "nothing waits for review")


def show(edit: Name, json: Json = False) -> None:
    """Show one edit: why, what it changes, what was measured, who decided."""
    from mulligan.console.cli.edits.edit_backend import looking
    from mulligan.console.cli.edits.edit_screen import review_document
    from mulligan.console.cli.edits.find_edit import any_edit
    from mulligan.workers.settings.model import load_settings

    with looking(load_settings()) as backend:
        session_id, edit_id = any_edit(backend.engine.sessions, edit)
        session = backend.engine.sessions.get(session_id).session
    record = session.records[session.index(edit_id) or 0]
    if json:
        screen.emit(review_document(session, record))
    else:
        _show(session, record)


def _show(session: EditSession, record: EditRecord) -> None:
    from mulligan.console.cli.edits.edit_screen import show_line

    show_line(record)
    facts = {
        "session": session.id,
        "root": f"{session.root} on {session.host}",
        "tier": str(record.tier),
        "rationale": record.edit.rationale,
        "meant to better": record.edit.expected_improvement or "",
        "references": ", ".join(record.edit.references),
        "decided by": record.decided_by or "",
        "note": record.note or "",
    }
    for name, value in facts.items():
        if value:
            screen.say(f"{name}: {value}")
    screen.say(record.diff or "(it cannot be told what it would change)")
    if record.reviewable:
        where = f"{session.id}/{record.edit.id}"
        screen.say(f"decide: `mulligan edits review approve {where}`, or `reject {where} --note …`")


def approve(
    edit: Name,
    note: Annotated[str | None, typer.Option("--note", help="Why, for the record.")] = None,
    by: By = None,
    json: Json = False,
) -> None:
    """Let an edit be applied. It still has to pass the gate: exit code 1 if it does not."""
    from mulligan.console.cli.edits.edit_screen import document, rejected, show_line
    from mulligan.console.cli.edits.edits_command import with_session, work_on
    from mulligan.console.cli.end_escalations import who
    from mulligan.console.cli.exit_codes import ExitCode, stop_on_signals

    stop_on_signals()
    session_id, edit_id = _waiting(edit)

    def act(backend: EditBackend, _: EditSession) -> EditSession:
        approved = backend.engine.approve(session_id, edit_id, by=by or who(), note=note)
        return work_on(backend, approved, quiet=True) if approved.inline else approved

    session = with_session(session_id, act)
    record = session.records[session.index(edit_id) or 0]
    if json:
        screen.emit(document(session))
    elif record.outcome is None:
        screen.say(f"{edit_id}: approved; the edit worker of {session.host} goes on with it")
    else:
        show_line(record)
    if record.outcome is not None and rejected([record.outcome]):
        raise typer.Exit(int(ExitCode.SOME_FAILED))


def reject(
    edit: Name,
    note: Annotated[str, typer.Option("--note", help="Why; it stays on record.")],
    by: By = None,
    json: Json = False,
) -> None:
    """Decide that an edit is not applied."""
    from mulligan.console.cli.edits.edit_backend import corrected, looking
    from mulligan.console.cli.edits.edit_screen import document
    from mulligan.console.cli.end_escalations import who
    from mulligan.workers.settings.model import load_settings

    session_id, edit_id = _waiting(edit)
    with looking(load_settings()) as backend:
        rejected = backend.engine.reject(session_id, edit_id, by=by or who(), note=note)
        session = corrected(backend, rejected)
    if json:
        screen.emit(document(session))
    else:
        screen.say(f"{edit_id}: rejected_by_user (rejected)")


def _waiting(name: str) -> tuple[str, str]:
    from mulligan.console.cli.edits.edit_backend import looking
    from mulligan.console.cli.edits.find_edit import waiting
    from mulligan.workers.settings.model import load_settings

    with looking(load_settings()) as backend:
        return waiting(backend.engine.sessions, name)
