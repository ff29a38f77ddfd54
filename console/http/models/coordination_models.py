"""What loops have to do with each other as the API returns it, with or without the names of files.

The API calls an item of a loop a test.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from mulligan.console.http.models.job_models import REDACTED
from mulligan.policies.coordination.decision import Decision, DecisionKind, Overruling
from mulligan.policies.coordination.locks import FileLock, plain_pattern
from mulligan.policies.coordination.order import OrderWord
from mulligan.policies.coordination.wait_graph import Deadlock, Wait, WaitingNode
from mulligan.policies.figures.format import counted
from mulligan.policies.loops.spec import PLAIN_LINE, EventName
from mulligan.tasks.coordination.view import CoordinationView, DeniedItem
from mulligan.tasks.ports.ledger import EmittedEvent

#: Items that a row names of those that can end a wait.
_NAMED = 10


class LockRow(BaseModel):
    """The files that an item has to itself. Times are seconds since 1970."""

    loop: str
    test: str
    files: list[str]
    since: float
    #: When others may take them, because the item has no slot now; null while it has one.
    expires: float | None


class DeniedRow(BaseModel):
    """An item that waits for files."""

    loop: str
    test: str
    files: str
    #: Who has them: `loop/item`.
    holder: str
    #: Whether that one does not have them yet, but waits for them longer.
    reserved: bool = False


class WaitRow(BaseModel):
    """One thing that an item waits for."""

    #: `loop/item`, or `event:name`.
    what: str
    #: The state of the item, or `emitted`; empty if there is none.
    state: str
    #: The items that can end the wait, as far as they are known: the first of them.
    by: list[str]
    #: How many more there are.
    more: int = 0


class WaitingRow(BaseModel):
    """An item that waits for others."""

    loop: str
    test: str
    since: float
    #: Whether a person holds it.
    held: bool
    waits: list[WaitRow]


class EventRow(BaseModel):
    """An event that was given off."""

    event: str
    tenant: str | None
    at: float
    #: The items, as `loop/item`, and the person that gave it off: the first of them.
    by: str
    #: How many more items did.
    more: int = 0
    #: Whether it can be withdrawn: only a person gave it off.
    withdrawable: bool


class OrderRow(BaseModel):
    """An order that is in force."""

    loop: str
    test: str
    order: OrderWord
    by: str
    at: float


class DeadlockRow(BaseModel):
    """Items that wait for each other. The monitor breaks one of the waits within seconds."""

    #: Each waits for the next one, and the last one for the first.
    cycle: list[str]
    #: The item whose wait will be broken, what it will not wait for, and why it is this one: "the
    #: youngest".
    test: str
    wait: str
    rank: str


class OverrulingRow(BaseModel):
    """What overruling a decision does."""

    text: str
    #: The item that it is about, its new order, and the order that ends, if there is one.
    loop: str
    test: str
    order: OrderWord | None
    ends: OrderWord | None


class DecisionRow(BaseModel):
    number: int
    at: float
    kind: DecisionKind
    loop: str
    test: str
    text: str
    by: str
    overruled_by: str | None
    #: Null if there is nothing to overrule, or nothing that the caller may.
    overruling: OverrulingRow | None


class Totals(BaseModel):
    """How many there are, also of those that the limit leaves out."""

    locks: int
    denied: int
    waiting: int
    events: int
    orders: int


class CoordinationDocument(BaseModel):
    """Who has which files, who waits for whom, and what was decided."""

    locks: list[LockRow]
    denied: list[DeniedRow]
    waiting: list[WaitingRow]
    deadlocks: list[DeadlockRow]
    events: list[EventRow]
    #: All that are in force, the oldest first.
    orders: list[OrderRow]
    #: The newest first.
    decisions: list[DecisionRow]
    totals: Totals


class OverruledDecision(BaseModel):
    number: int
    overruled: Literal[True] = True
    #: What was done.
    done: OverrulingRow


class OrderRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    #: Null: the usual rules again, which ends all orders of the item.
    order: OrderWord | None


class EventRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    event: EventName
    #: Whose loops get it, if the token is not bound to a tenant.
    tenant: Annotated[str | None, Field(max_length=200, pattern=PLAIN_LINE)] = None
    #: Take back what a person or another system gave off.
    withdraw: bool = False


class EventAnswer(BaseModel):
    event: str
    #: False: it had been given off before.
    emitted: bool
    #: Whether it was taken back.
    withdrawn: bool = False
    #: How many items waited for it.
    waiting: int = 0


def coordination_document(
    view: CoordinationView, *, limit: int, texts: bool
) -> CoordinationDocument:
    """Return at most ``limit`` rows of each list. ``texts``: whether it names changed files."""
    nodes = sorted(view.graph.nodes.values(), key=lambda each: (each.since, each.name))
    return CoordinationDocument(
        locks=[_lock_row(each, texts=texts) for each in view.locks[:limit]],
        denied=[_denied_row(each, texts=texts) for each in view.denied[:limit]],
        waiting=[_waiting_row(view, each) for each in nodes[:limit]],
        deadlocks=[_deadlock_row(each) for each in view.deadlocks[:limit]],
        events=[_event_row(each) for each in view.events[:limit]],
        orders=[
            OrderRow(
                loop=each.loop,
                test=each.item,
                order=each.order.word,
                by=each.order.by,
                at=each.order.at,
            )
            for each in view.orders[:limit]
        ],
        decisions=[decision_row(view, each, texts=texts) for each in view.decisions[:limit]],
        totals=Totals(
            locks=len(view.locks),
            denied=len(view.denied),
            waiting=len(nodes),
            events=len(view.events),
            orders=len(view.orders),
        ),
    )


def decision_row(view: CoordinationView, decision: Decision, *, texts: bool) -> DecisionRow:
    effect = view.overrulings.get(decision.id)
    return DecisionRow(
        number=int(decision.id),
        at=decision.at,
        kind=decision.kind,
        loop=decision.loop,
        test=decision.item,
        text=_text(decision, texts=texts),
        by=decision.by,
        overruled_by=decision.overruled_by or None,
        overruling=overruling_row(effect) if effect is not None else None,
    )


def overruling_row(effect: Overruling) -> OverrulingRow:
    return OverrulingRow(
        text=effect.text, loop=effect.loop, test=effect.item, order=effect.word, ends=effect.ends
    )


def shown_file(pattern: str, *, texts: bool) -> str:
    """Hide a file that an agent changed: it begins with a slash (see held_files.py)."""
    return plain_pattern(pattern) if texts or not pattern.startswith("/") else REDACTED


def _text(decision: Decision, *, texts: bool) -> str:
    """Return the text of a decision. ``texts``: with the names of files that an agent changed."""
    match decision.kind:
        case "undeclared" if not texts:
            found = counted(len(decision.files), "file")
            return f"it changed {found} that it did not declare: it declares that from now on"
        case "denied":
            return re.sub(
                r"^it waits for (/.*): ",
                lambda found: f"it waits for {shown_file(found[1], texts=texts)}: ",
                decision.text,
            )
    return decision.text


def _lock_row(lock: FileLock, *, texts: bool) -> LockRow:
    return LockRow(
        loop=lock.loop,
        test=lock.item,
        files=[shown_file(each, texts=texts) for each in lock.files],
        since=lock.since,
        expires=lock.expires,
    )


def _denied_row(denied: DeniedItem, *, texts: bool) -> DeniedRow:
    return DeniedRow(
        loop=denied.loop,
        test=denied.item,
        files=shown_file(denied.files, texts=texts),
        holder=denied.holder,
        reserved=denied.reserved,
    )


def _waiting_row(view: CoordinationView, node: WaitingNode) -> WaitingRow:
    return WaitingRow(
        loop=node.loop,
        test=node.item,
        since=node.since,
        held=node.held,
        waits=[_wait_row(view, node, each) for each in node.waits],
    )


def _wait_row(view: CoordinationView, node: WaitingNode, wait: Wait) -> WaitRow:
    enders = view.graph.enders(wait.by)
    return WaitRow(
        what=wait.what,
        state=view.states.get((node.loop, wait.what), ""),
        by=list(enders[:_NAMED]),
        more=max(0, len(enders) - _NAMED),
    )


def _deadlock_row(deadlock: Deadlock) -> DeadlockRow:
    return DeadlockRow(
        cycle=list(deadlock.cycle),
        test=deadlock.victim.name,
        wait=deadlock.wait,
        rank=deadlock.rank,
    )


def _event_row(event: EmittedEvent) -> EventRow:
    return EventRow(
        event=event.name,
        tenant=event.tenant or None,
        at=event.at,
        by=", ".join(event.by),
        more=event.more,
        withdrawable=event.by == (event.person,),
    )
