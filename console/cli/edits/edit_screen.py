"""Sessions and edits on a terminal and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from mulligan.console.cli.edits.effect_history import changes
from mulligan.console.cli.output import screen
from mulligan.policies.edits.edit import EditOutcome
from mulligan.policies.edits.session import EditRecord, EditSession

_STYLES = {
    "applied": "green",
    "pending_review": "yellow",
    "rejected_by_gate": "red",
    "rejected_by_user": "red",
}
#: Characters of an error to show.
_MAX_ERROR = 500


def document(session: EditSession) -> dict[str, Any]:
    """Return the document that `--json` prints."""
    outcomes = [outcome.model_dump(mode="json") for outcome in session.outcomes]
    return {"session": session.id, "outcomes": outcomes}


def review_document(session: EditSession, record: EditRecord) -> dict[str, Any]:
    """Return one edit with everything a reviewer needs."""
    return {
        "session": session.id,
        "root": session.root,
        "host": session.host,
        "edit": record.edit.model_dump(mode="json"),
        "tier": record.tier,
        "outcome": record.outcome.model_dump(mode="json") if record.outcome else None,
        "diff": record.diff,
        "approved_by": record.approved_by,
        "decided_by": record.decided_by,
        "decided_at": record.decided_at,
        "note": record.note,
    }


class Progress:
    """Prints each edit when it is decided, and on a terminal also the edit being measured."""

    def __init__(self, session: EditSession, *, quiet: bool) -> None:
        self._printed = {r.edit.id for r in session.records if r.outcome is not None}
        self._quiet = quiet
        self._live = screen.err().is_terminal and not quiet

    def __call__(self, session: EditSession) -> None:
        for record in session.records:
            if record.outcome is None:
                self._printed.discard(record.edit.id)
            elif record.edit.id not in self._printed:
                self._printed.add(record.edit.id)
                if not self._quiet:
                    show_line(record)
        trial, at = session.trial, session.at
        if self._live and session.suite and at is not None and trial and trial.runs:
            repeat = trial.runs[0].repeat + 1
            times = "" if session.suite.runs == 1 else f", repeat {repeat} of {session.suite.runs}"
            screen.note(f"{session.records[at].edit.id}: applied, measuring{times}…")


def show_line(record: EditRecord) -> None:
    """Print ``e1  set_model_param models.small: applied (kept)  extraction +0.200``."""
    edit, done = record.edit, record.outcome
    line = f"{edit.id}  {edit.op} {edit.target}"
    if done is None:
        screen.say(f"{line}: pending")
        return
    line = f"{line}: {done.status} ({done.reason})"
    if done.benchmark_delta is not None:
        line = f"{line}  {changes(done.benchmark_delta, done.cluster_deltas)}"
    screen.say(line, style=_STYLES.get(done.status))
    if done.error and done.reason != "no_op":
        _say_indented(done.error)
    for note in done.notes:
        _say_indented(f"note: {note}")


def _say_indented(text: str) -> None:
    shown = text if len(text) <= _MAX_ERROR else f"{text[:_MAX_ERROR]}…"
    for line in shown.splitlines():
        screen.say(f"    {line}", style="dim")


def show_end(session: EditSession) -> None:
    """Print the outcomes and what to do next."""
    counts = Counter(outcome.status for outcome in session.outcomes)
    summary = ", ".join(f"{count} {status}" for status, count in counts.items())
    screen.say(f"session {session.id}: {summary or 'nothing decided'}")
    if any(record.reviewable for record in session.records):
        screen.say("to review: `mulligan edits review list`")
    if counts["applied"]:
        screen.say(f"to roll back: `mulligan edits rollback {session.id}`")


def rejected(outcomes: Sequence[EditOutcome]) -> bool:
    return any(outcome.status.startswith("rejected") for outcome in outcomes)
