"""The health of loops as the API returns it: which signal is missing, and since when."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from mulligan.console.http.models.loop_models import HolderRow, holder_rows
from mulligan.console.http.models.why_models import WhyRow, why_row
from mulligan.policies.loops.health import HealthCheck, ItemHealth, ItemWaits, LoopHealth
from mulligan.policies.loops.health import MissingSignal as Missing
from mulligan.policies.loops.incident import Incident, Step
from mulligan.policies.loops.loop import LoopState
from mulligan.policies.loops.response import RESPONSE
from mulligan.policies.loops.why import Reason
from mulligan.tasks.loops.monitor import LoopStatus
from mulligan.tasks.loops.view import LoopView


class ItemHealthRow(BaseModel):
    """An item that has a slot."""

    model_config = ConfigDict(from_attributes=True)

    item: str
    status: LoopHealth
    #: The signal that is missing (empty: none), and when it was last seen.
    missing: Missing
    since: float | None
    #: What it waits for; waiting for a model, a tool or a verifier is no sign of trouble.
    waits_on: ItemWaits
    #: The newest evidence of progress; null if nothing is known.
    last_progress: float | None
    #: Whether its processes are stopped.
    stopped: bool
    #: What a stuck rule has found; null without the right to read texts.
    finding: str | None
    worker: str
    job_id: str
    attempt: int


class IncidentRow(BaseModel):
    """Something that should not last, and how far the response to it is."""

    signal: str
    #: Empty: the whole loop.
    item: str
    since: float
    text: str
    #: The last step that was taken, its severity, and when.
    step: Step
    severity: int
    stepped_at: float


class LoopHealthDocument(BaseModel):
    status: LoopHealth
    #: The signal that is missing (empty: none), when it was last seen, and of which item.
    missing: Missing
    since: float | None
    item: str | None
    last_heartbeat: float | None
    #: Seconds since the last heartbeat.
    silent_seconds: float | None
    #: Changes that the planner has not seen yet, and when it planned last.
    waiting_changes: int
    planned_at: float | None
    holders: list[HolderRow]
    #: The items that have a slot.
    items: list[ItemHealthRow]
    #: What runs, or what holds the loop back.
    why: WhyRow
    incidents: list[IncidentRow]


class LoopHealthRow(BaseModel):
    """The health of one of several loops."""

    id: str
    #: The state of the loop, and why it is in it.
    state: LoopState
    reason: str
    status: LoopHealth
    missing: Missing
    since: float | None
    item: str | None
    incidents: list[IncidentRow]


class LoopHealthList(BaseModel):
    #: The newest loop first.
    loops: list[LoopHealthRow]


def health_document(
    view: LoopView, check: HealthCheck, why: Reason, *, now: float, texts: bool
) -> LoopHealthDocument:
    loop, beat = view.snapshot.loop, view.last_heartbeat
    return LoopHealthDocument(
        status=check.status,
        missing=check.missing,
        since=check.since,
        item=check.item or None,
        last_heartbeat=beat,
        silent_seconds=None if beat is None else max(0.0, now - beat),
        waiting_changes=loop.dirty - loop.planned,
        planned_at=loop.planned_at,
        holders=holder_rows(view.holders),
        items=[_item_row(each, texts=texts) for each in check.items],
        why=why_row(why, texts=texts),
        incidents=[incident_row(each) for each in loop.incidents],
    )


def health_row(status: LoopStatus) -> LoopHealthRow:
    check = status.check
    return LoopHealthRow(
        id=status.loop.name,
        state=status.loop.state,
        reason=status.loop.reason,
        status=check.status,
        missing=check.missing,
        since=check.since,
        item=check.item or None,
        incidents=[incident_row(each) for each in status.loop.incidents],
    )


def incident_row(incident: Incident) -> IncidentRow:
    last = RESPONSE[max(0, min(incident.steps, len(RESPONSE)) - 1)]
    return IncidentRow(
        signal=incident.signal,
        item=incident.item,
        since=incident.since,
        text=incident.text,
        step=last.step,
        severity=last.severity,
        stepped_at=incident.stepped_at,
    )


def _item_row(item: ItemHealth, *, texts: bool) -> ItemHealthRow:
    row = ItemHealthRow.model_validate(item)
    return row.model_copy(update={"finding": (row.finding or None) if texts else None})
