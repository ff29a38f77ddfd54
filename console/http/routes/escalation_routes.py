"""Escalations over HTTP: list groups; end one escalation, a group, or what a filter selects."""

from __future__ import annotations

import re
import secrets
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Response

from mulligan.console.http.access import Caller, Ops
from mulligan.console.http.context import ConsoleContext
from mulligan.console.http.errors import HttpError, errors, invalid, not_found
from mulligan.console.http.models.escalation_models import (
    BulkRow,
    DryRunResponse,
    EndRequestBody,
    GroupDetail,
    GroupList,
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
    BulkAction,
    EndAction,
    EscalationFilter,
    find_group,
    list_groups,
    run_bulk_action,
    select,
)
from mulligan.tasks.ports.ledger import EscalationEnd
from mulligan.workers.alerts.webhooks import alert_links
from mulligan.workers.ledger.stores.bulk_actions import BATCH

_ID = re.compile(r"^p\d\d-[0-9a-z]{1,64}(:\d{1,9}){1,2}$", re.ASCII)
_BULK_ID = re.compile(r"^b[0-9a-f]{10,40}$", re.ASCII)
Signature = Annotated[
    str, Path(min_length=1, max_length=200, description="v2:… or reason:…", examples=["v2:0a1b"])
]
Target = Annotated[
    str,
    Path(
        min_length=1,
        max_length=200,
        description="A group's signature (v2:…, reason:…) or an escalation's id",
        examples=["v2:0a1b"],
    ),
]


def create_router(context: ConsoleContext) -> APIRouter:
    router = APIRouter(tags=["escalations"])
    _add_reading(router, context)
    _add_ending(router, context)
    _add_bulk_actions(router, context)
    return router


def _add_reading(router: APIRouter, context: ConsoleContext) -> None:
    @router.get("/api/escalations", responses=errors(404))
    def groups(
        caller: Ops,
        state: Literal["open", "all"] = "open",
        tenant: Annotated[str | None, Query(max_length=200)] = None,
        limit: Annotated[int, Query(ge=1, le=500)] = 100,
    ) -> GroupList:
        """List escalations grouped by signature, the newest group first."""
        found = list_groups(
            context.ledger,
            only_open=state == "open",
            tenant=_tenant(caller, tenant or None),
            limit=limit,
        )
        url = _runbook(context)
        rows = [group_document(group, runbook_url=url, texts=caller.texts) for group in found]
        return GroupList.model_validate({"groups": rows})

    @router.get("/api/escalations/{signature}", responses=errors(404))
    def group(
        signature: Signature,
        caller: Ops,
        state: Literal["open", "all"] = "all",
        limit: Annotated[int, Query(ge=1, le=1000)] = 50,
    ) -> GroupDetail:
        """Return a group and its newest escalations."""
        found = find_group(context.ledger, signature, tenant=caller.tenant)
        if found is None:
            raise not_found(f"group of escalations {signature!r}")
        rows = context.ledger.escalations(
            signature=signature, only_open=state == "open", tenant=caller.tenant, limit=limit
        )
        document = {
            "group": group_document(found, runbook_url=_runbook(context), texts=caller.texts),
            "escalations": [escalation_document(row, texts=caller.texts) for row in rows],
        }
        return GroupDetail.model_validate(document)


_STARTED: dict[int | str, dict[str, Any]] = {
    202: {"model": BulkRow, "description": "In progress; see Location"}
}


def _add_ending(router: APIRouter, context: ConsoleContext) -> None:
    """Add each verb twice: for a filter, and for one group or escalation."""
    by_filter: dict[str, Any] = {"responses": {**_STARTED, **errors(404)}}
    by_target: dict[str, Any] = {"responses": {**_STARTED, **errors(404, 409)}}

    @router.post("/api/escalations/resolve", **by_filter)
    def resolve_found(
        body: EndRequestBody, caller: Ops, response: Response
    ) -> BulkRow | DryRunResponse:
        """Resolve what a filter selects. The jobs do not change."""
        return _end(context, caller, "resolved", body, response)

    @router.post("/api/escalations/requeue", **by_filter)
    def requeue_found(
        body: Requeueing, caller: Ops, response: Response
    ) -> BulkRow | DryRunResponse:
        """Requeue the jobs that a filter selects, optionally with another prompt or strategy."""
        return _end(context, caller, "requeued", body, response)

    @router.post("/api/escalations/cancel", **by_filter)
    def cancel_found(
        body: EndRequestBody, caller: Ops, response: Response
    ) -> BulkRow | DryRunResponse:
        """Cancel the jobs that a filter selects."""
        return _end(context, caller, "cancelled", body, response)

    @router.post("/api/escalations/{target}/resolve", **by_target)
    def resolve(
        target: Target, body: EndRequestBody, caller: Ops, response: Response
    ) -> BulkRow | DryRunResponse:
        """Resolve a group, a part of it, or one escalation. The jobs do not change."""
        return _end_at(context, caller, "resolved", target, body, response)

    @router.post("/api/escalations/{target}/requeue", **by_target)
    def requeue(
        target: Target, body: Requeueing, caller: Ops, response: Response
    ) -> BulkRow | DryRunResponse:
        """Requeue the jobs of a group, of a part of it, or of one escalation."""
        return _end_at(context, caller, "requeued", target, body, response)

    @router.post("/api/escalations/{target}/cancel", **by_target)
    def cancel(
        target: Target, body: EndRequestBody, caller: Ops, response: Response
    ) -> BulkRow | DryRunResponse:
        """Cancel the jobs of a group, of a part of it, or of one escalation."""
        return _end_at(context, caller, "cancelled", target, body, response)


def _add_bulk_actions(router: APIRouter, context: ConsoleContext) -> None:
    @router.get("/api/bulk/{bulk_id}", responses=errors(404))
    def bulk(bulk_id: str, caller: Ops) -> BulkRow:
        """Return a bulk action and its progress."""
        return _row(_visible(context, caller, bulk_id))

    @router.post("/api/bulk/{bulk_id}/cancel", responses=errors(404))
    def stop(bulk_id: str, caller: Ops) -> BulkRow:
        """Stop a bulk action. What it has done so far stays done."""
        found = _visible(context, caller, bulk_id)
        context.ledger.bulk_actions.stop(found.id)
        return _row(_visible(context, caller, bulk_id))


# -- ending ----------------------------------------------------------------------------------------


def _end_at(
    context: ConsoleContext,
    caller: Caller,
    how: EscalationEnd,
    target: str,
    body: EndRequestBody,
    response: Response,
) -> BulkRow | DryRunResponse:
    if _ID.match(target):
        return _end_one(context, caller, how, target, body, response)
    if body.signature not in (None, target):
        raise invalid("signature: differs from the path; leave it out of the body")
    if find_group(context.ledger, target, tenant=caller.tenant) is None:
        raise not_found(f"group of escalations {target!r}")
    return _end(context, caller, how, body.model_copy(update={"signature": target}), response)


def _end_one(
    context: ConsoleContext,
    caller: Caller,
    how: EscalationEnd,
    escalation_id: str,
    body: EndRequestBody,
    response: Response,
) -> BulkRow | DryRunResponse:
    """End one escalation, or raise 409 if it cannot be ended like this. Repeating is harmless."""
    if body.ids not in (None, [escalation_id]):
        raise invalid("ids: differ from the path; leave them out of the body")
    found = context.ledger.escalation(escalation_id)
    if found is None or not caller.sees(found.tenant):
        raise not_found(f"escalation {escalation_id!r}")
    if found.state not in ("open", how):
        raise HttpError(409, "ended", f"it was already {found.state} by {found.ended_by}")
    answer = _end(context, caller, how, body.model_copy(update={"ids": [escalation_id]}), response)
    if isinstance(answer, BulkRow) and answer.failed:
        raise HttpError(409, "refused", answer.problems[0].why)
    return answer


def _end(
    context: ConsoleContext,
    caller: Caller,
    how: EscalationEnd,
    body: EndRequestBody,
    response: Response,
) -> BulkRow | DryRunResponse:
    which = _filter(caller, body)
    chosen = select(context.ledger, which)
    if body.dry_run:
        return DryRunResponse.model_validate(dry_run_document(chosen, texts=caller.texts))
    bulks = context.ledger.bulk_actions
    ids = [each.id for each in chosen]
    bulk = bulks.create(_action(caller, how, body), which, ids, per_second=body.per_second)
    if 0 < bulk.total <= BATCH:
        publish = context.services.publish
        run_bulk_action(context.ledger, bulks, publish, bulk.id, token=secrets.token_hex(8))
        bulk = bulks.get(bulk.id) or bulk
    if bulk.state == "running":
        response.status_code = 202
        response.headers["Location"] = f"/api/bulk/{bulk.id}"
    return _row(bulk)


_FILTERS = EscalationFilter.model_fields.keys()


def _filter(caller: Caller, body: EndRequestBody) -> EscalationFilter:
    unknown = [each for each in body.ids or () if not _ID.match(each)]
    if unknown:
        raise invalid(*(f"ids: there is no escalation {each!r}" for each in unknown))
    asked = EscalationFilter(**body.model_dump(include=set(_FILTERS), exclude_none=True))
    if asked.is_everything:
        raise invalid(f"set at least one filter: {', '.join(_FILTERS)}")
    return asked.model_copy(update={"tenant": _tenant(caller, body.tenant)})


def _action(caller: Caller, how: EscalationEnd, body: EndRequestBody) -> EndAction:
    prompt = body.prompt if isinstance(body, Requeueing) else None
    strategy = body.strategy if isinstance(body, Requeueing) else None
    return EndAction(
        how=how,
        by=caller.name,
        note=body.note,
        prompt=prompt,
        decoding=Decoding(**strategy.model_dump()) if strategy else None,
    )


def _tenant(caller: Caller, requested: str | None) -> str | None:
    """Return the tenant to read; raise 404 if a bound caller requests another one."""
    if requested is not None and not caller.sees(requested):
        raise not_found(f"tenant {requested!r}")
    return caller.tenant_filter(requested)


def _visible(context: ConsoleContext, caller: Caller, bulk_id: str) -> BulkAction:
    bulk = context.ledger.bulk_actions.get(bulk_id) if _BULK_ID.match(bulk_id) else None
    if bulk is None or not caller.sees(bulk.which.tenant):
        raise not_found(f"bulk action {bulk_id!r}")
    return bulk


def _row(bulk: BulkAction) -> BulkRow:
    return BulkRow.model_validate(bulk_document(bulk))


def _runbook(context: ConsoleContext) -> str:
    return runbook_link("escalated", alert_links(context.settings))
