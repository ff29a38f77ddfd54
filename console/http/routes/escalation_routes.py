"""Escalations over HTTP: alike ones are one row; end one, a group, or what a filter finds."""

from __future__ import annotations

import re
import secrets
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path, Query, Response

from mulligan.console.http.access import Caller, needs
from mulligan.console.http.context import Site
from mulligan.console.http.errors import Problem, errors, invalid, not_found
from mulligan.console.http.models.escalation_models import (
    BulkRow,
    DryRun,
    Ending,
    GroupDetail,
    Groups,
    Requeueing,
)
from mulligan.console.reports.escalation_document import (
    bulk_document,
    dry_run_document,
    escalation_document,
    group_document,
)
from mulligan.policies.escalations.alerts import runbook_link
from mulligan.policies.jobs.job import Decoding
from mulligan.tasks.escalations.end_escalations import (
    Action,
    Bulk,
    Which,
    find_group,
    list_groups,
    select,
    work,
)
from mulligan.tasks.ports.ledger import EscalationEnd
from mulligan.workers.alerts.webhooks import places
from mulligan.workers.ledger.bulk_actions import BATCH, RedisBulks

_ID = re.compile(r"^p\d\d-[0-9a-z]{1,64}(:\d{1,9}){1,2}$", re.ASCII)
_BULK_ID = re.compile(r"^b[0-9a-f]{10,40}$", re.ASCII)
Ops = Annotated[Caller, Depends(needs("ops"))]
Signature = Annotated[
    str, Path(min_length=1, max_length=200, description="v1:… or reason:…", examples=["v1:0a1b"])
]
Target = Annotated[
    str,
    Path(
        min_length=1,
        max_length=200,
        description="A group's signature (v1:…, reason:…), or the id of one escalation",
        examples=["v1:0a1b"],
    ),
]


def create_router(site: Site) -> APIRouter:
    router = APIRouter(tags=["escalations"])
    _add_reading(router, site)
    _add_ending(router, site)
    _add_bulks(router, site)
    return router


def _add_reading(router: APIRouter, site: Site) -> None:
    @router.get("/api/escalations", responses=errors(404))
    def groups(
        caller: Ops,
        state: Literal["open", "all"] = "open",
        tenant: Annotated[str | None, Query(max_length=200)] = None,
        limit: Annotated[int, Query(ge=1, le=500)] = 100,
    ) -> Groups:
        """Escalations grouped by signature, the newest group first."""
        found = list_groups(
            site.ledger,
            only_open=state == "open",
            tenant=_whose(caller, tenant or None),
            limit=limit,
        )
        url = _runbook(site)
        rows = [group_document(group, runbook_url=url, texts=caller.texts) for group in found]
        return Groups.model_validate({"groups": rows})

    @router.get("/api/escalations/{signature}", responses=errors(404))
    def group(
        signature: Signature,
        caller: Ops,
        state: Literal["open", "all"] = "all",
        limit: Annotated[int, Query(ge=1, le=1000)] = 50,
    ) -> GroupDetail:
        """A group and its newest escalations, each with who ended it."""
        found = find_group(site.ledger, signature, tenant=caller.tenant)
        if found is None:
            raise not_found(f"group of escalations {signature}")
        rows = site.ledger.escalations(
            signature=signature, only_open=state == "open", tenant=caller.tenant, limit=limit
        )
        document = {
            "group": group_document(found, runbook_url=_runbook(site), texts=caller.texts),
            "escalations": [escalation_document(row, texts=caller.texts) for row in rows],
        }
        return GroupDetail.model_validate(document)


_ANSWERS: dict[int | str, dict[str, Any]] = {
    202: {"model": BulkRow, "description": "Under way; see Location"}
}


def _add_ending(router: APIRouter, site: Site) -> None:
    """Each verb twice: on what a filter finds, and on one group or one escalation."""
    many: dict[str, Any] = {"responses": {**_ANSWERS, **errors(404)}}
    one: dict[str, Any] = {"responses": {**_ANSWERS, **errors(404, 409)}}

    @router.post("/api/escalations/resolve", **many)
    def resolve_found(body: Ending, caller: Ops, response: Response) -> BulkRow | DryRun:
        """Resolve what a filter finds: it is dealt with, its jobs stay as they are."""
        return _end(site, caller, "resolved", body, response)

    @router.post("/api/escalations/requeue", **many)
    def requeue_found(body: Requeueing, caller: Ops, response: Response) -> BulkRow | DryRun:
        """Queue the jobs again that a filter finds, with another prompt or strategy if given."""
        return _end(site, caller, "requeued", body, response)

    @router.post("/api/escalations/cancel", **many)
    def cancel_found(body: Ending, caller: Ops, response: Response) -> BulkRow | DryRun:
        """Give up what a filter finds: its jobs end as cancelled."""
        return _end(site, caller, "cancelled", body, response)

    @router.post("/api/escalations/{target}/resolve", **one)
    def resolve(target: Target, body: Ending, caller: Ops, response: Response) -> BulkRow | DryRun:
        """Resolve a group, some of it, or one escalation: its jobs stay as they are."""
        return _end_at(site, caller, "resolved", target, body, response)

    @router.post("/api/escalations/{target}/requeue", **one)
    def requeue(
        target: Target, body: Requeueing, caller: Ops, response: Response
    ) -> BulkRow | DryRun:
        """Queue the jobs of a group again, of some of it, or of one escalation."""
        return _end_at(site, caller, "requeued", target, body, response)

    @router.post("/api/escalations/{target}/cancel", **one)
    def cancel(target: Target, body: Ending, caller: Ops, response: Response) -> BulkRow | DryRun:
        """Give up a group, some of it, or one escalation: its jobs end as cancelled."""
        return _end_at(site, caller, "cancelled", target, body, response)


def _add_bulks(router: APIRouter, site: Site) -> None:
    @router.get("/api/bulk/{bulk_id}", responses=errors(404))
    def bulk(bulk_id: str, caller: Ops) -> BulkRow:
        """How far a bulk action has come."""
        return _row(_visible(site, caller, bulk_id))

    @router.post("/api/bulk/{bulk_id}/cancel", responses=errors(404))
    def stop(bulk_id: str, caller: Ops) -> BulkRow:
        """Begin nothing more of a bulk action; what it did stays done."""
        found = _visible(site, caller, bulk_id)
        _bulks(site).stop(found.id)
        return _row(_visible(site, caller, bulk_id))


# -- ending ----------------------------------------------------------------------------------------


def _end_at(
    site: Site,
    caller: Caller,
    how: EscalationEnd,
    target: str,
    body: Ending,
    response: Response,
) -> BulkRow | DryRun:
    if _ID.match(target):
        return _end_one(site, caller, how, target, body, response)
    if body.signature not in (None, target):
        raise invalid("signature: the path names another one; leave it out of the body")
    if find_group(site.ledger, target, tenant=caller.tenant) is None:
        raise not_found(f"group of escalations {target}")
    return _end(site, caller, how, body.model_copy(update={"signature": target}), response)


def _end_one(
    site: Site,
    caller: Caller,
    how: EscalationEnd,
    escalation_id: str,
    body: Ending,
    response: Response,
) -> BulkRow | DryRun:
    """One escalation, told at once: 409 if it cannot be ended so. The same again is harmless."""
    if body.ids not in (None, [escalation_id]):
        raise invalid("ids: the path names one escalation; leave them out of the body")
    found = site.ledger.escalation(escalation_id)
    if found is None or not caller.sees(found.tenant):
        raise not_found(f"escalation {escalation_id}")
    if found.state not in ("open", how):
        raise Problem(409, "ended", f"it was {found.state} already, by {found.ended_by}")
    answer = _end(site, caller, how, body.model_copy(update={"ids": [escalation_id]}), response)
    if isinstance(answer, BulkRow) and answer.failed:
        raise Problem(409, "refused", answer.problems[0].why)
    return answer


def _end(
    site: Site, caller: Caller, how: EscalationEnd, body: Ending, response: Response
) -> BulkRow | DryRun:
    which = _which(caller, body)
    chosen = select(site.ledger, which)
    if body.dry_run:
        return DryRun.model_validate(dry_run_document(chosen, texts=caller.texts))
    bulks = _bulks(site)
    ids = [each.id for each in chosen]
    bulk = bulks.create(_action(caller, how, body), which, ids, per_second=body.per_second)
    if 0 < bulk.total <= BATCH:
        publish = site.shop.publisher.publish
        work(site.ledger, bulks, publish, bulk.id, token=secrets.token_hex(8))
        bulk = bulks.get(bulk.id) or bulk
    if bulk.state == "running":
        response.status_code = 202
        response.headers["Location"] = f"/api/bulk/{bulk.id}"
    return _row(bulk)


_SAY_WHICH = "say which: signature, ids, reason, kind, task_type, tenant, older_than or newer_than"


def _which(caller: Caller, body: Ending) -> Which:
    unknown = [each for each in body.ids or () if not _ID.match(each)]
    if unknown:
        raise invalid(*(f"ids: there is no escalation {each}" for each in unknown))
    asked = Which(
        signature=body.signature,
        ids=tuple(body.ids or ()),
        reason=body.reason,
        kind=body.kind,
        task_type=body.task_type,
        tenant=body.tenant,
        older_than=body.older_than,
        newer_than=body.newer_than,
    )
    if asked.is_everything:
        raise invalid(_SAY_WHICH)
    return asked.model_copy(update={"tenant": _whose(caller, body.tenant)})


def _action(caller: Caller, how: EscalationEnd, body: Ending) -> Action:
    prompt = body.prompt if isinstance(body, Requeueing) else None
    strategy = body.strategy if isinstance(body, Requeueing) else None
    return Action(
        how=how,
        by=caller.name,
        note=body.note,
        prompt=prompt,
        decoding=Decoding(**strategy.model_dump()) if strategy else None,
    )


def _whose(caller: Caller, tenant: str | None) -> str | None:
    """Whose escalations these are about; another tenant's are not there for a bound caller."""
    if caller.tenant is None or tenant in (None, caller.tenant):
        return caller.tenant or tenant
    raise not_found(f"tenant {tenant}")


def _visible(site: Site, caller: Caller, bulk_id: str) -> Bulk:
    bulk = _bulks(site).get(bulk_id) if _BULK_ID.match(bulk_id) else None
    if bulk is None or not caller.sees(bulk.which.tenant):
        raise not_found(f"bulk action {bulk_id}")
    return bulk


def _row(bulk: Bulk) -> BulkRow:
    return BulkRow.model_validate(bulk_document(bulk))


def _bulks(site: Site) -> RedisBulks:
    return RedisBulks(site.ledger.calls, prefix=site.settings.key_prefix)


def _runbook(site: Site) -> str:
    return runbook_link("escalated", places(site.settings))
