"""Selecting escalations and ending them, one or thousands. Repeating an action is harmless.

A bulk action is a record with a fixed list of escalations: jobs that it requeues may escalate
again with the same signature, and it does not act on them a second time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from pydantic import Field

from mulligan.policies.jobs.job import Decoding
from mulligan.policies.value import Value
from mulligan.tasks.ports.errors import BadInput
from mulligan.tasks.ports.ledger import (
    ClaimRefused,
    Ended,
    Escalation,
    EscalationEnd,
    EscalationGroup,
    EscalationLedger,
    Publication,
)

#: Maximum escalations of one bulk action. The rest stay open for a second one.
MOST = 100_000
#: Groups that a filter searches.
_GROUPS = 5000
#: A tenant's escalations that its groups are described by.
_TENANT_ROWS = 5000

Publish = Callable[[Sequence[Publication]], None]


class EscalationFilter(Value):
    """A filter. Every given field must match."""

    signature: str | None = None
    ids: tuple[str, ...] = ()
    reason: str | None = None
    kind: str | None = None
    task_type: str | None = None
    tenant: str | None = None
    #: Limits of the age, in seconds.
    older_than: float | None = Field(default=None, ge=0)
    newer_than: float | None = Field(default=None, ge=0)

    @property
    def is_everything(self) -> bool:
        return self == EscalationFilter()

    def fits(self, escalation: Escalation, *, now: float) -> bool:
        """Whether an escalation matches."""
        age = now - escalation.at
        fields = ("signature", "reason", "kind", "task_type", "tenant")
        return (
            all(getattr(self, name) in (None, getattr(escalation, name)) for name in fields)
            and (self.older_than is None or age >= self.older_than)
            and (self.newer_than is None or age <= self.newer_than)
        )

    def may_have(self, group: EscalationGroup) -> bool:
        """Whether a group may contain a match, so that it must be searched."""
        return (
            self.signature in (None, group.signature)
            and (self.task_type is None or self.task_type in group.task_types)
            and (self.tenant is None or self.tenant in group.tenants)
        )


class EndAction(Value):
    """How to end escalations, and who ends them."""

    how: EscalationEnd
    by: str
    note: str = ""
    #: For `requeued`: a new prompt, and another way to ask.
    prompt: str | None = None
    decoding: Decoding | None = None


class NotEnded(Value):
    """An escalation that is still open, and why."""

    id: str
    why: str


@dataclass(frozen=True, kw_only=True)
class EndedCounts:
    """The result of one batch."""

    done: int = 0
    #: Others ended them first.
    skipped: int = 0
    problems: tuple[NotEnded, ...] = ()


BulkState = Literal["running", "done", "stopped"]


@dataclass(frozen=True, kw_only=True)
class BulkAction:
    """A bulk action and its progress."""

    id: str
    action: EndAction
    which: EscalationFilter
    per_second: float
    total: int
    done: int
    skipped: int
    failed: int
    state: BulkState
    created_at: float
    ended_at: float | None
    #: The first failures.
    problems: tuple[NotEnded, ...] = ()


@dataclass(frozen=True, kw_only=True)
class BulkBatch:
    """The next escalations to end."""

    ids: tuple[str, ...] = ()
    #: Without ids: the seconds to wait, or None if nothing is left to do.
    wait: float | None = None


class BulkActions(Protocol):
    """The store of bulk actions. A batch is leased: if its worker dies, another one takes it."""

    def create(
        self, action: EndAction, which: EscalationFilter, ids: Sequence[str], *, per_second: float
    ) -> BulkAction: ...

    def get(self, bulk_id: str) -> BulkAction | None: ...

    def running(self) -> list[str]:
        """Return the ids of running bulk actions, oldest first."""

    def take(self, bulk_id: str, *, token: str) -> BulkBatch:
        """Take the next batch that the rate allows, under a lease with this token."""

    def commit(self, bulk_id: str, *, token: str, count: int, tally: EndedCounts) -> None:
        """Record that a batch of ``count`` is done; write nothing if the lease is lost."""

    def stop(self, bulk_id: str) -> None:
        """Start no further batch."""


# -- selecting -------------------------------------------------------------------------------------


def select(
    ledger: EscalationLedger, which: EscalationFilter, *, limit: int = MOST
) -> list[Escalation]:
    """Return the open escalations that match, oldest first. BadInput names each unknown id."""
    if which.is_everything:
        raise BadInput(
            "select escalations by signature, id or a filter: task_type, reason, older_than…"
        )
    now = ledger.now()
    found = _by_id(ledger, which) if which.ids else _by_group(ledger, which, limit)
    open_ones = (each for each in found if each.state == "open" and which.fits(each, now=now))
    return sorted(open_ones, key=lambda each: (each.at, each.id))[:limit]


def _by_id(ledger: EscalationLedger, which: EscalationFilter) -> list[Escalation]:
    """Find escalations by id. Another tenant's id counts as unknown."""
    found, unknown = [], []
    for escalation_id in dict.fromkeys(which.ids):
        escalation = ledger.escalation(escalation_id)
        if escalation is None or which.tenant not in (None, escalation.tenant):
            unknown.append(f"ids: there is no escalation {escalation_id!r}")
        else:
            found.append(escalation)
    if unknown:
        raise BadInput(*unknown)
    return found


def _by_group(ledger: EscalationLedger, which: EscalationFilter, limit: int) -> list[Escalation]:
    if which.signature is not None:
        signatures = [which.signature]
    else:
        groups = ledger.groups(only_open=True, limit=_GROUPS)
        signatures = [group.signature for group in groups if which.may_have(group)]
    found: list[Escalation] = []
    for signature in signatures:
        found += ledger.escalations(signature=signature, tenant=which.tenant, limit=limit)
    return found


# -- groups as one tenant sees them ----------------------------------------------------------------


def list_groups(
    ledger: EscalationLedger, *, only_open: bool = True, tenant: str | None = None, limit: int = 100
) -> list[EscalationGroup]:
    """Return groups, newest first. With a tenant, they contain only that tenant's data."""
    if tenant is None:
        return ledger.groups(only_open=only_open, limit=limit)
    rows = ledger.escalations(only_open=False, tenant=tenant, limit=_TENANT_ROWS)
    groups = {group.signature: group for group in ledger.groups(tenant=tenant, limit=limit)}
    if not only_open:
        for signature in dict.fromkeys(row.signature for row in rows):
            group = groups.get(signature) or ledger.group(signature)
            if group is not None:
                groups[signature] = group
    reduced = [_of_tenant(ledger, group, tenant, rows) for group in groups.values()]
    found = [group for group in reduced if group is not None]
    return sorted(found, key=lambda group: group.last_at, reverse=True)[:limit]


def find_group(
    ledger: EscalationLedger, signature: str, *, tenant: str | None = None
) -> EscalationGroup | None:
    """Return a group if it exists; with a tenant, only if it has escalations of that tenant."""
    group = ledger.group(signature)
    if group is None or tenant is None:
        return group
    rows = ledger.escalations(
        signature=signature, only_open=False, tenant=tenant, limit=_TENANT_ROWS
    )
    return _of_tenant(ledger, group, tenant, rows)


def _of_tenant(
    ledger: EscalationLedger, group: EscalationGroup, tenant: str, rows: Sequence[Escalation]
) -> EscalationGroup | None:
    mine = [row for row in rows if row.signature == group.signature]
    if not mine:  # they are older than the rows that were read
        mine = ledger.escalations(signature=group.signature, tenant=tenant, limit=100)
    if not mine:
        return None
    count = group.tenants.get(tenant, 0)
    newest = mine[0]
    return replace(
        group,
        reason=newest.reason,
        kind=newest.kind,
        detail=newest.detail,
        example=newest.job_id,
        task_types=dict(Counter(row.task_type for row in mine if row.state == "open")),
        tenants={tenant: count} if count else {},
        open=count,
        total=max(count, len(mine)),
        first_at=mine[-1].at,
        last_at=newest.at,
    )


# -- ending ----------------------------------------------------------------------------------------


def run_bulk_action(
    ledger: EscalationLedger,
    bulks: BulkActions,
    publish: Publish,
    bulk_id: str,
    *,
    token: str,
    keep_going: Callable[[], bool] = lambda: True,
    on_progress: Callable[[], None] = lambda: None,
) -> float | None:
    """Run a bulk action as fast as its rate allows. Return the seconds to wait; None at its end.

    ``on_progress`` and ``keep_going`` are called after each batch.
    """
    while True:
        bulk = bulks.get(bulk_id)
        batch = bulks.take(bulk_id, token=token)
        if bulk is None or not batch.ids:
            return batch.wait
        tally = end_all(ledger, publish, batch.ids, bulk.action)
        bulks.commit(bulk_id, token=token, count=len(batch.ids), tally=tally)
        on_progress()
        if not keep_going():
            return 0.0


def end_all(
    ledger: EscalationLedger, publish: Publish, ids: Sequence[str], action: EndAction
) -> EndedCounts:
    """End the escalations of a batch and publish the requeued jobs."""
    done, skipped, problems = 0, 0, []
    publications: list[Publication] = []
    for escalation_id in ids:
        match _end(ledger, escalation_id, action):
            case Ended(publication=publication):
                done += 1
                publications += [publication] if publication else []
            case ClaimRefused(reason="finished"):
                ours = _ended_by(ledger, escalation_id, action)
                done, skipped = done + ours, skipped + (not ours)
            case ClaimRefused() as refused:
                problems.append(NotEnded(id=escalation_id, why=_why(refused)))
    publish(publications)
    return EndedCounts(done=done, skipped=skipped, problems=tuple(problems))


def _end(ledger: EscalationLedger, escalation_id: str, action: EndAction) -> Ended | ClaimRefused:
    try:
        return ledger.end_escalation(
            escalation_id,
            how=action.how,
            by=action.by,
            note=action.note,
            prompt=action.prompt,
            decoding=action.decoding,
        )
    except ValueError:
        # A job of another version: one that cannot be read does not stop the others.
        return ClaimRefused("lost", "this version cannot read the stored job")


def _ended_by(ledger: EscalationLedger, escalation_id: str, action: EndAction) -> bool:
    """Whether this same action ended it, in a worker that died before committing the batch."""
    found = ledger.escalation(escalation_id)
    return (
        found is not None
        and (found.state, found.ended_by) == (action.how, action.by)
        and (found.note or "") == action.note
    )


def _why(refused: ClaimRefused) -> str:
    match refused.reason:
        case "gone":
            gone = refused.detail or "its job is no longer stored"
            return f"{gone}: it cannot be requeued, but it can be resolved"
        case "held":
            return "its job is already running; resolve it, or wait until the job ends"
        case _:
            return refused.detail or refused.reason
