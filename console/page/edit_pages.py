"""Edits: what waits for a person, sessions, and one edit with its diff and its measured effect."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import APIRouter, Depends
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse

from mulligan.console.http.access import Caller
from mulligan.console.http.context import ConsoleContext
from mulligan.console.http.routes.edit_routes import (
    edit_engine,
    edit_named,
    session_named,
    unbound,
    waiting,
    workspace_of,
)
from mulligan.console.page.job_story_page import DiffLine
from mulligan.console.page.render import page
from mulligan.console.reports.charts import change_bar
from mulligan.policies.edits.edit import EditOutcome
from mulligan.policies.edits.session import EditDelta, EditRecord, EditSession
from mulligan.policies.figures.format import change

Reader = Annotated[Caller, Depends(unbound("producer", "ops"))]
_SESSIONS = 50
_MEASURED = 15
_ALIKE = 5
#: Of a diff, so many lines are shown: more than anybody reads.
_LINES = 2000

_KINDS: dict[str, Literal["add", "del"]] = {"+": "add", "-": "del"}
#: Lines of a diff that say where and what, not how the text changes.
_PLACES = (
    "--- ", "+++ ", "@@", "diff --git ", "old mode ", "new mode ", "new file mode ",
    "deleted file mode ",
)  # fmt: skip

#: For each status the state whose mark says the same.
MARKED = {
    "applied": "succeeded",
    "pending_review": "waiting",
    "skipped": "skipped",
    "rejected_by_gate": "fail",
    "rejected_by_user": "cancelled",
    "rolled_back": "requeued",
    "measuring": "running",
    "to_do": "queued",
}


@dataclass(frozen=True, kw_only=True)
class EffectRow:
    """How one cluster changed, drawn and in figures."""

    name: str
    bar: Markup
    text: str
    #: Whether it is what the edit was meant to better.
    aimed: bool = False


def add(router: APIRouter, context: ConsoleContext) -> None:
    @router.get("/edits")
    def edits(request: Request, caller: Reader) -> HTMLResponse:
        sessions = edit_engine(context).sessions
        recent = sessions.recent(limit=_SESSIONS)
        return page(
            request,
            "edits.html",
            caller=caller,
            waiting=waiting(context),
            sessions=[(each, workspace_of(context, each), _counts(each)) for each in recent],
            measured=_measured(sessions.deltas(limit=_MEASURED)),
            now=context.ledger.now(),
            marked=MARKED,
        )

    @router.get("/edits/{session}")
    def session(request: Request, caller: Reader, session: str) -> HTMLResponse:
        found = session_named(context, session)
        most = max([_most(outcome) for outcome in found.outcomes], default=0.0)
        return page(
            request,
            "edit_session.html",
            caller=caller,
            s=found,
            workspace=workspace_of(context, found),
            rows=[
                (record, status_of(found, record), _aimed(record, most)) for record in found.records
            ],
            counts=_counts(found),
            takes_back=_can_be_rolled_back(found),
            now=context.ledger.now(),
            marked=MARKED,
        )

    @router.get("/edits/{session}/{edit}")
    def edit(request: Request, caller: Reader, session: str, edit: str) -> HTMLResponse:
        found = session_named(context, session)
        record = edit_named(found, edit)
        return page(
            request,
            "edit_review.html",
            caller=caller,
            s=found,
            workspace=workspace_of(context, found),
            r=record,
            e=record.edit,
            standing=status_of(found, record),
            diff=diff_lines(record.diff) if caller.texts else [],
            effects=effects(record, found.benchmark.max_regression),
            alike=_alike(context, found, record),
            payload=_payload(record) if caller.texts else None,
            now=context.ledger.now(),
            marked=MARKED,
        )


def _measured(deltas: Sequence[EditDelta]) -> list[tuple[EditDelta, Markup, str]]:
    most = max([abs(delta.benchmark_delta) for delta in deltas], default=0.0)
    return [
        (
            delta,
            _bar(delta.benchmark_delta, most, delta.status),
            change(delta.benchmark_delta),
        )
        for delta in deltas
    ]


def status_of(session: EditSession, record: EditRecord) -> str:
    """An outcome's status, or how far an edit without one has come."""
    if record.outcome is not None:
        return record.outcome.status
    at_work = session.at is not None and session.records[session.at].edit.id == record.edit.id
    return "measuring" if at_work else "to_do"


def _counts(session: EditSession) -> list[tuple[str, int]]:
    """How many edits are in which status, in the order of the marks."""
    found = [status_of(session, record) for record in session.records]
    return [(status, found.count(status)) for status in MARKED if status in found]


def _can_be_rolled_back(session: EditSession) -> bool:
    applied = any(outcome.status == "applied" for outcome in session.outcomes)
    return applied or session.phase != "done"


def _payload(record: EditRecord) -> str:
    """What the edit was given, but for a diff that is shown anyway."""
    shown = {k: v for k, v in record.edit.payload.items() if k != "diff" or not record.diff}
    return json.dumps(shown, indent=2, ensure_ascii=False) if shown else ""


def diff_lines(diff: str) -> list[DiffLine]:
    """A unified diff, line by line; what is beyond the first lines is only counted."""
    lines = diff.removesuffix("\n").split("\n") if diff else []
    found = [DiffLine(kind=_kind(line), text=line) for line in lines[:_LINES]]
    if len(lines) > _LINES:
        found.append(DiffLine(kind="place", text=f"… {len(lines) - _LINES} more lines"))
    return found


def _kind(line: str) -> Literal["add", "del", "place", "same"]:
    if line.startswith(_PLACES):
        return "place"
    return _KINDS.get(line[:1], "same")


# -- effects ---------------------------------------------------------------------------------------


def effects(record: EditRecord, max_regression: float) -> list[EffectRow]:
    """Each cluster's change, the one that was aimed at first, and the overall one last."""
    done = record.outcome
    if done is None or done.benchmark_delta is None:
        return []
    target = record.edit.expected_improvement
    most = _most(done)
    ordered = sorted(done.cluster_deltas.items(), key=lambda item: (item[0] != target, item[0]))
    found = [
        EffectRow(
            name=name,
            bar=_bar(value, most, done.status, limit=max_regression),
            text=change(value),
            aimed=name == target,
        )
        for name, value in ordered
    ]
    overall = _bar(done.benchmark_delta, most, done.status)
    text = change(done.benchmark_delta)
    return [*found, EffectRow(name="overall", bar=overall, text=text, aimed=target is None)]


def _aimed(record: EditRecord, most: float) -> EffectRow | None:
    """The change of what an edit was meant to better, on the scale of its session."""
    done, target = record.outcome, record.edit.expected_improvement
    if done is None or done.benchmark_delta is None:
        return None
    value = done.benchmark_delta if target is None else done.cluster_deltas.get(target, 0.0)
    drawn = _bar(value, most, done.status)
    return EffectRow(name=target or "overall", bar=drawn, text=change(value))


def _bar(value: float, most: float, status: str, *, limit: float = 0.0) -> Markup:
    kept = status == "applied"
    return change_bar(value, most, label=change(value), limit=limit, kept=kept)


def _alike(
    context: ConsoleContext, session: EditSession, record: EditRecord
) -> Sequence[Mapping[str, object]]:
    """What other edits with the same aim measured, the newest first."""
    target = record.edit.expected_improvement
    if target is None:
        return []
    found = [
        delta
        for delta in edit_engine(context).sessions.deltas()
        if target in delta.cluster_deltas
        and delta.cluster == target
        and (delta.session, delta.edit_id) != (session.id, record.edit.id)
    ][:_ALIKE]
    most = max([abs(delta.cluster_deltas[target]) for delta in found], default=0.0)
    return [
        {
            "delta": delta,
            "bar": _bar(delta.cluster_deltas[target], most, delta.status),
            "text": change(delta.cluster_deltas[target]),
        }
        for delta in found
    ]


def _most(done: EditOutcome) -> float:
    return max([abs(done.benchmark_delta or 0.0), *map(abs, done.cluster_deltas.values())])
