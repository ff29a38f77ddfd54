"""Escalations: which ones, and ending them, one or four thousand. Acting twice is harmless.

A bulk action is a record with a fixed list of what it is about: jobs that it requeues may escalate
again, alike, and must not be met a second time.
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

#: The most escalations of one bulk action. What is left is open still, and a second one takes it.
MOST = 100_000
#: Groups that are looked through for a filter.
_GROUPS = 5000
#: A tenant's own escalations that its groups are described by.
_LOOKED_AT = 5000

Publish = Callable[[Sequence[Publication]], None]


class EscalationFilter(Value):
    """A filter; everything that is given must fit."""

    signature: str | None = None
    ids: tuple[str, ...] = ()
    reason: str | None = None
    kind: str | None = None
    task_type: str | None = None
    tenant: str | None = None
    #: Seconds since it was escalated: at least, and at most.
    older_than: float | None = Field(default=None, ge=0)
    newer_than: float | None = Field(default=None, ge=0)

    @property
    def is_everything(self) -> bool:
        return self == EscalationFilter()

    def fits(self, escalation: Escalation, *, now: float) -> bool:
        """Whether an escalation is meant."""
        age = now - escalation.at
        named = ("signature", "reason", "kind", "task_type", "tenant")
        asked = {name: getattr(self, name) for name in named}
        return (
            all(want is None or getattr(escalation, name) == want for name, want in asked.items())
            and (self.older_than is None or age >= self.older_than)
            and (self.newer_than is None or age <= self.newer_than)
        )

    def may_have(self, group: EscalationGroup) -> bool:
        """Whether a group may have any that fit: spares looking through it."""
        return (
            self.signature in (None, group.signature)
            and (self.task_type is None or self.task_type in group.task_types)
            and (self.tenant is None or self.tenant in group.tenants)
        )


class EndAction(Value):
    """What is done to each, and who says so."""

    how: EscalationEnd
    by: str
    note: str = ""
    #: For `requeued`: other words for the user, another way to ask.
    prompt: str | None = None
    decoding: Decoding | None = None


class NotEnded(Value):
    """An escalation that is open still, and why."""

    id: str
    why: str


@dataclass(frozen=True, kw_only=True)
class EndedCounts:
    """What became of a batch."""

    done: int = 0
    #: Somebody else ended them first.
    skipped: int = 0
    problems: tuple[NotEnded, ...] = ()


BulkState = Literal["running", "done", "stopped"]


@dataclass(frozen=True, kw_only=True)
class BulkAction:
    """A bulk action and how far it has come."""

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
    #: The first of those that failed.
    problems: tuple[NotEnded, ...] = ()


@dataclass(frozen=True, kw_only=True)
class BulkBatch:
    """Escalations in hand; without any, seconds to wait, or None if nothing is left to do."""

    ids: tuple[str, ...] = ()
    wait: float | None = None


class BulkActions(Protocol):
    """Where bulk actions are on record. A batch is leased: whoever dies leaves it to the next."""

    def create(
        self, action: EndAction, which: EscalationFilter, ids: Sequence[str], *, per_second: float
    ) -> BulkAction: ...

    def get(self, bulk_id: str) -> BulkAction | None: ...

    def running(self) -> list[str]:
        """The oldest first."""

    def take(self, bulk_id: str, *, token: str) -> BulkBatch:
        """The next few that the rate allows, for whoever has the token."""

    def commit(self, bulk_id: str, *, token: str, count: int, tally: EndedCounts) -> None:
        """A batch of so many is worked off; of a lost lease nothing is written."""

    def stop(self, bulk_id: str) -> None:
        """Nothing more of it is begun."""


# -- which -----------------------------------------------------------------------------------------


def select(
    ledger: EscalationLedger, which: EscalationFilter, *, limit: int = MOST
) -> list[Escalation]:
    """The open ones that fit, the oldest first. BadInput names each id that nobody knows."""
    if which.is_everything:
        raise BadInput(
            "say which: a signature, ids, or a filter such as task_type, reason or older_than"
        )
    now = ledger.now()
    found = _by_id(ledger, which) if which.ids else _by_group(ledger, which, limit)
    open_ones = (each for each in found if each.state == "open" and which.fits(each, now=now))
    return sorted(open_ones, key=lambda each: (each.at, each.id))[:limit]


def _by_id(ledger: EscalationLedger, which: EscalationFilter) -> list[Escalation]:
    """An id of another tenant is an id that nobody knows."""
    found, unknown = [], []
    for escalation_id in dict.fromkeys(which.ids):
        escalation = ledger.escalation(escalation_id)
        if escalation is None or which.tenant not in (None, escalation.tenant):
            unknown.append(f"ids: there is no escalation {escalation_id}")
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
    """Groups, the newest first. With a tenant, nothing in them is another's."""
    if tenant is None:
        return ledger.groups(only_open=only_open, limit=limit)
    rows = ledger.escalations(only_open=False, tenant=tenant, limit=_LOOKED_AT)
    groups = {group.signature: group for group in ledger.groups(tenant=tenant, limit=limit)}
    if not only_open:
        for signature in dict.fromkeys(row.signature for row in rows):
            group = groups.get(signature) or ledger.group(signature)
            if group is not None:
                groups[signature] = group
    seen = [_of_tenant(ledger, group, tenant, rows) for group in groups.values()]
    found = [group for group in seen if group is not None]
    return sorted(found, key=lambda group: group.last_at, reverse=True)[:limit]


def find_group(
    ledger: EscalationLedger, signature: str, *, tenant: str | None = None
) -> EscalationGroup | None:
    """A group, if there is one; with a tenant, if it has any of that tenant's."""
    group = ledger.group(signature)
    if group is None or tenant is None:
        return group
    rows = ledger.escalations(signature=signature, only_open=False, tenant=tenant, limit=_LOOKED_AT)
    return _of_tenant(ledger, group, tenant, rows)


def _of_tenant(
    ledger: EscalationLedger, group: EscalationGroup, tenant: str, rows: Sequence[Escalation]
) -> EscalationGroup | None:
    mine = [row for row in rows if row.signature == group.signature]
    if not mine:  # older than all that were looked at
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


# -- acting ----------------------------------------------------------------------------------------


def work(
    ledger: EscalationLedger,
    bulks: BulkActions,
    publish: Publish,
    bulk_id: str,
    *,
    token: str,
    go_on: Callable[[], bool] = lambda: True,
    told: Callable[[], None] = lambda: None,
) -> float | None:
    """Work a bulk action off, as fast as it may be: seconds to wait, or None if it is over.

    ``told`` and ``go_on`` are called after each batch.
    """
    while True:
        bulk = bulks.get(bulk_id)
        batch = bulks.take(bulk_id, token=token)
        if bulk is None or not batch.ids:
            return batch.wait
        tally = end_all(ledger, publish, batch.ids, bulk.action)
        bulks.commit(bulk_id, token=token, count=len(batch.ids), tally=tally)
        told()
        if not go_on():
            return 0.0


def end_all(
    ledger: EscalationLedger, publish: Publish, ids: Sequence[str], action: EndAction
) -> EndedCounts:
    """End each of a batch, and publish what is queued again."""
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
        # A job of another version: one that cannot be read must not hold up the others.
        return ClaimRefused("lost", "the job on record cannot be read by this version")


def _ended_by(ledger: EscalationLedger, escalation_id: str, action: EndAction) -> bool:
    """Whether this very action ended it: by somebody who died before the batch was committed."""
    found = ledger.escalation(escalation_id)
    return (
        found is not None
        and (found.state, found.ended_by) == (action.how, action.by)
        and (found.note or "") == action.note
    )


def _why(refused: ClaimRefused) -> str:
    match refused.reason:
        case "gone":
            gone = refused.detail or "it is no longer on record"
            return f"{gone}: it cannot be queued again, but it can be resolved"
        case "held":
            return "its job is under way already; resolve it, or wait for how that ends"
        case _:
            return refused.detail or refused.reason
