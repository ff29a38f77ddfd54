"""`mulligan edits review`: edits that wait for a decision."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from mulligan.console.cli.edits.edit_backend import EditBackend, ask_for_correction, open_sessions
from mulligan.console.cli.edits.edit_screen import document, rejected, review_document, show_line
from mulligan.console.cli.edits.edits_command import Note, OnlySession, with_session, work_on
from mulligan.console.cli.edits.find_edit import find_any, find_waiting
from mulligan.console.cli.end_escalations import who
from mulligan.console.cli.exit_codes import ExitCode, stop_on_signals
from mulligan.console.cli.options import By, Json
from mulligan.console.cli.output import screen
from mulligan.policies.edits.session import EditRecord, EditSession
from mulligan.tasks.edits.decide import find_edit
from mulligan.workers.settings.model import load_settings

Name = Annotated[str, typer.Argument(metavar="EDIT", help="An edit's id, or SESSION/EDIT.")]


def list_edits(
    all_: Annotated[bool, typer.Option("--all", help="Include edits that do not wait.")] = False,
    session: OnlySession = None,
    limit: Annotated[int, typer.Option("--limit", help="Maximum sessions.", min=1)] = 100,
    json: Json = False,
) -> None:
    """List the edits that wait for review, newest session first."""
    with open_sessions(load_settings()) as backend:
        known = backend.engine.sessions
        sessions, unreadable = ([], []) if session else known.read_recent(limit=limit)
        sessions += [known.get(session).session] if session else []
    shown = [(s, [r for r in s.records if all_ or r.reviewable]) for s in sessions]
    if json:
        edits = [review_document(s, r) for s, records in shown for r in records]
        screen.emit({"edits": edits, "unreadable": [asdict(each) for each in unreadable]})
        return
    for problem in unreadable:
        text = f"session {problem.id} cannot be read by this release: {problem.problem}"
        screen.say(text, style="yellow")
    for each, records in shown:
        if records:
            screen.say(f"{each.id}  {each.root} on {each.host}, mode {each.mode}", style="bold")
            for record in records:
                show_line(record)
    if not any(records for _, records in shown):
        screen.say("no edits" if all_ else "no edits wait for review")


def show(edit: Name, json: Json = False) -> None:
    """Show an edit: its reason, diff, effect and decision."""
    with open_sessions(load_settings()) as backend:
        session_id, edit_id = find_any(backend.engine.sessions, edit)
        session = backend.engine.sessions.get(session_id).session
    record = session.records[find_edit(session, edit_id)]
    if json:
        screen.emit(review_document(session, record))
    else:
        _show(session, record)


def _show(session: EditSession, record: EditRecord) -> None:
    show_line(record)
    facts = {
        "session": session.id,
        "root": f"{session.root} on {session.host}",
        "tier": str(record.tier),
        "rationale": record.edit.rationale,
        "target": record.edit.expected_improvement or "",
        "references": ", ".join(record.edit.references),
        "decided by": record.decided_by or "",
        "note": record.note or "",
    }
    for name, value in facts.items():
        if value:
            screen.say(f"{name}: {value}")
    screen.say(record.diff or "(no diff)")
    if record.reviewable:
        where = f"{session.id}/{record.edit.id}"
        screen.say(
            f"to decide: `mulligan edits review approve {where}`, or `reject {where} --note …`"
        )


def approve(edit: Name, note: Note = None, by: By = None, json: Json = False) -> None:
    """Approve an edit and apply it.

    It still has to pass the gate: exit code 1 if it does not.
    """
    stop_on_signals()
    session_id, edit_id = _find_waiting(edit)

    def act(backend: EditBackend, _: EditSession) -> EditSession:
        approved = backend.engine.approve(session_id, edit_id, by=by or who(), note=note)
        return work_on(backend, approved, quiet=True) if approved.inline else approved

    session = with_session(session_id, act)
    record = session.records[find_edit(session, edit_id)]
    if json:
        screen.emit(document(session))
    elif record.outcome is None:
        screen.say(f"{edit_id}: approved; the edit worker on {session.host} continues")
    else:
        show_line(record)
    if record.outcome is not None and rejected([record.outcome]):
        raise typer.Exit(int(ExitCode.SOME_FAILED))


def reject(
    edit: Name,
    note: Annotated[str, typer.Option("--note", help="Reason, for the record.")],
    by: By = None,
    json: Json = False,
) -> None:
    """Reject an edit."""
    session_id, edit_id = _find_waiting(edit)
    with open_sessions(load_settings()) as backend:
        session = backend.engine.reject(session_id, edit_id, by=by or who(), note=note)
        session = ask_for_correction(backend, session)
    if json:
        screen.emit(document(session))
    else:
        screen.say(f"{edit_id}: rejected_by_user")


def _find_waiting(name: str) -> tuple[str, str]:
    with open_sessions(load_settings()) as backend:
        return find_waiting(backend.engine.sessions, name)
