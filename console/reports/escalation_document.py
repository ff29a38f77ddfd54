"""Escalations, groups and bulk actions as JSON: one shape for the API and the command line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from mulligan.tasks.escalations.end_escalations import BulkAction
from mulligan.tasks.ports.ledger import Escalation, EscalationGroup

#: Escalations that a dry run lists.
SHOWN = 20
_HIDDEN = "[redacted]"


def group_document(
    group: EscalationGroup, *, runbook_url: str, texts: bool = True
) -> dict[str, Any]:
    """Return a group. Without texts, its detail is redacted, because it may quote an answer."""
    return {
        **_without_quotes(asdict(group), texts),
        "task_types": dict(group.task_types),
        "tenants": dict(group.tenants),
        "runbook_url": runbook_url,
    }


def escalation_document(escalation: Escalation, *, texts: bool = True) -> dict[str, Any]:
    return _without_quotes(asdict(escalation), texts)


def _without_quotes(document: dict[str, Any], texts: bool) -> dict[str, Any]:
    return document if texts or not document["detail"] else {**document, "detail": _HIDDEN}


def bulk_document(bulk: BulkAction) -> dict[str, Any]:
    """Return a bulk action without its prompt."""
    return {
        "id": bulk.id,
        "state": bulk.state,
        "how": bulk.action.how,
        "by": bulk.action.by,
        "note": bulk.action.note or None,
        "filter": bulk.which.model_dump(exclude_defaults=True, mode="json"),
        "per_second": bulk.per_second,
        "total": bulk.total,
        "done": bulk.done,
        "skipped": bulk.skipped,
        "failed": bulk.failed,
        "problems": [problem.model_dump() for problem in bulk.problems],
        "created_at": bulk.created_at,
        "ended_at": bulk.ended_at,
    }


def dry_run_document(chosen: Sequence[Escalation], *, texts: bool = True) -> dict[str, Any]:
    """Return what a bulk action would end."""
    return {
        "dry_run": True,
        "total": len(chosen),
        "task_types": _count(each.task_type for each in chosen),
        "tenants": _count(each.tenant for each in chosen if each.tenant),
        "first": [escalation_document(each, texts=texts) for each in chosen[:SHOWN]],
    }


def _count(names: Any) -> Mapping[str, int]:
    return dict(Counter(names).most_common())
