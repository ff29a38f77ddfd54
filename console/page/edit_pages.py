"""The pages of edits: edits that wait, sessions, and one edit with its diff and measured effect."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fastapi import APIRouter
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse

from mulligan.console.http.context import ConsoleContext
from mulligan.console.http.routes.edit_routes import (
    Reader,
    find_edit,
    find_session,
    find_waiting,
    recent_sessions,
    visible_deltas,
    workspace_of,
)
from mulligan.console.page.job_story_page import DiffLine
from mulligan.console.page.render import page
from mulligan.console.reports.charts import change_bar
from mulligan.policies.edits.edit import EditOutcome
from mulligan.policies.edits.session import EditDelta, EditRecord, EditSession
from mulligan.policies.figures.format import change

_MAX_SESSIONS = 50
_MAX_MEASURED = 15
_MAX_SIMILAR = 5
_MAX_DIFF_LINES = 2000

_KINDS: dict[str, Literal["add", "del"]] = {"+": "add", "-": "del"}
#: The beginnings of header lines in a diff.
_HEADERS = (
    "--- ", "+++ ", "@@", "diff --git ", "old mode ", "new mode ", "new file mode ",
    "deleted file mode ",
)  # fmt: skip

#: The mark of each status, by the state that has the same mark.
_MARKS = {
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
    """The change of one cluster's score, as a bar and as text."""

    name: str
    bar: Markup
    text: str
    #: Whether the edit should improve it.
    is_target: bool = False


def add(router: APIRouter, context: ConsoleContext) -> None:
    @router.get("/edits")
    def edits(request: Request, caller: Reader) -> HTMLResponse:
        recent, unreadable = recent_sessions(context, caller, limit=_MAX_SESSIONS)
        return page(
            request,
            "edits.html",
            caller=caller,
            waiting=find_waiting(context, caller),
            sessions=[(each, workspace_of(context, each), _counts(each)) for each in recent],
            unreadable=unreadable,
            measured=_with_bars(visible_deltas(context, caller, limit=_MAX_MEASURED)),
            now=context.ledger.now(),
            marks=_MARKS,
        )

    @router.get("/edits/{session}")
    def session(request: Request, caller: Reader, session: str) -> HTMLResponse:
        found = find_session(context, caller, session)
        scale = max([_scale(outcome) for outcome in found.outcomes], default=0.0)
        return page(
            request,
            "edit_session.html",
            caller=caller,
            s=found,
            workspace=workspace_of(context, found),
            rows=[
                (record, _status(found, record), _target_row(record, scale))
                for record in found.records
            ],
            counts=_counts(found),
            can_roll_back=found.phase != "done"
            or any(outcome.status == "applied" for outcome in found.outcomes),
            now=context.ledger.now(),
            marks=_MARKS,
        )

    @router.get("/edits/{session}/{edit}")
    def edit(request: Request, caller: Reader, session: str, edit: str) -> HTMLResponse:
        found = find_session(context, caller, session)
        record = find_edit(found, edit)
        return page(
            request,
            "edit_review.html",
            caller=caller,
            s=found,
            workspace=workspace_of(context, found),
            r=record,
            e=record.edit,
            edit_status=_status(found, record),
            diff=_diff_lines(record.diff) if caller.texts else [],
            effects=_effect_rows(record, found.benchmark.max_regression),
            similar=_similar(visible_deltas(context, caller), found, record),
            payload=_payload(record) if caller.texts else None,
            now=context.ledger.now(),
            marks=_MARKS,
        )


def _status(session: EditSession, record: EditRecord) -> str:
    """Return the status of an edit's outcome, or the progress of an edit without one."""
    if record.outcome is not None:
        return record.outcome.status
    in_progress = session.at is not None and session.records[session.at].edit.id == record.edit.id
    return "measuring" if in_progress else "to_do"


def _counts(session: EditSession) -> list[tuple[str, int]]:
    """Return the number of edits in each status, in the order of the marks."""
    found = [_status(session, record) for record in session.records]
    return [(status, found.count(status)) for status in _MARKS if status in found]


def _payload(record: EditRecord) -> str:
    """Return the edit's payload as JSON, without a diff that the page shows anyway."""
    shown = {k: v for k, v in record.edit.payload.items() if k != "diff" or not record.diff}
    return json.dumps(shown, indent=2, ensure_ascii=False) if shown else ""


def _diff_lines(diff: str) -> list[DiffLine]:
    """Return the first lines of a unified diff and the number of those left out."""
    lines = diff.removesuffix("\n").split("\n") if diff else []
    found = [DiffLine(kind=_kind(line), text=line) for line in lines[:_MAX_DIFF_LINES]]
    if len(lines) > _MAX_DIFF_LINES:
        found.append(DiffLine(kind="place", text=f"… {len(lines) - _MAX_DIFF_LINES} more lines"))
    return found


def _kind(line: str) -> Literal["add", "del", "place", "same"]:
    if line.startswith(_HEADERS):
        return "place"
    return _KINDS.get(line[:1], "same")


# -- effects ---------------------------------------------------------------------------------------


def _effect_rows(record: EditRecord, max_regression: float) -> list[EffectRow]:
    """Return the change of each cluster, the target first, and the overall change last."""
    done = record.outcome
    if done is None or done.benchmark_delta is None:
        return []
    target = record.edit.expected_improvement
    scale = _scale(done)
    ordered = sorted(done.cluster_deltas.items(), key=lambda item: (item[0] != target, item[0]))
    found = [
        EffectRow(
            name=name,
            bar=_bar(value, scale, done.status, limit=max_regression),
            text=change(value),
            is_target=name == target,
        )
        for name, value in ordered
    ]
    overall = _bar(done.benchmark_delta, scale, done.status)
    text = change(done.benchmark_delta)
    return [*found, EffectRow(name="overall", bar=overall, text=text, is_target=target is None)]


def _target_row(record: EditRecord, scale: float) -> EffectRow | None:
    """Return the change of an edit's target."""
    done, target = record.outcome, record.edit.expected_improvement
    if done is None or done.benchmark_delta is None:
        return None
    value = done.benchmark_delta if target is None else done.cluster_deltas.get(target, 0.0)
    bar = _bar(value, scale, done.status)
    return EffectRow(name=target or "overall", bar=bar, text=change(value))


def _bar(value: float, scale: float, status: str, *, limit: float = 0.0) -> Markup:
    kept = status == "applied"
    return change_bar(value, scale, label=change(value), limit=limit, kept=kept)


def _with_bars(
    deltas: Sequence[EditDelta], cluster: str | None = None
) -> list[tuple[EditDelta, Markup, str]]:
    """Return each delta with the change of a cluster, or the overall one, as a bar and as text."""
    values = [d.benchmark_delta if cluster is None else d.cluster_deltas[cluster] for d in deltas]
    scale = max(map(abs, values), default=0.0)
    return [
        (delta, _bar(value, scale, delta.status), change(value))
        for delta, value in zip(deltas, values, strict=True)
    ]


def _similar(
    deltas: Sequence[EditDelta], session: EditSession, record: EditRecord
) -> list[tuple[EditDelta, Markup, str]]:
    """Return the effects of other edits with the same target, newest first."""
    target = record.edit.expected_improvement
    if target is None:
        return []
    found = [
        delta
        for delta in deltas
        if target in delta.cluster_deltas
        and delta.cluster == target
        and (delta.session, delta.edit_id) != (session.id, record.edit.id)
    ]
    return _with_bars(found[:_MAX_SIMILAR], target)


def _scale(done: EditOutcome) -> float:
    """Return the largest change."""
    return max([abs(done.benchmark_delta or 0.0), *map(abs, done.cluster_deltas.values())])
