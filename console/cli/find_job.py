"""Find a job by its id, key, name or task type."""

from __future__ import annotations

from collections.abc import Sequence

from mulligan.policies.suggestions import did_you_mean
from mulligan.tasks.ports.errors import BadInput
from mulligan.tasks.ports.ledger import JobView
from mulligan.workers.ledger.redis_ledger import RedisLedger
from mulligan.workers.ledger.stored.job_ids import job_ids_of_key

#: Jobs that are searched for names and prefixes.
_RECENT = 2000


def find_job(ledger: RedisLedger, ref: str) -> JobView:
    """Find by id, idempotency key, unique prefix of an id, or the newest by name or task type.

    The keys of tenants and producers are searched among recent jobs, like names.
    """
    ids = job_ids_of_key(ref, partitions=ledger.numbers().first)
    of_key = (ledger.latest_id(each) for each in ids)
    for job_id in (ref, *of_key):
        view = ledger.job(job_id)
        if view is not None:
            return view
    recent = ledger.jobs(limit=_RECENT)
    found = _by_prefix(ref, recent) or _by_name(ref, recent)
    view = ledger.job(found) if found else None
    if view is None:
        raise BadInput(f"no job {ref!r}{_hint(ref, recent)}")
    return view


def _by_prefix(ref: str, recent: Sequence[JobView]) -> str | None:
    if len(ref) < 4:
        return None
    found = [v.id for v in recent if v.id.startswith(ref) or v.id.partition("-")[2].startswith(ref)]
    if len(found) > 1:
        raise BadInput(f"{ref!r} is the beginning of {len(found)} jobs: {', '.join(found[:5])}…")
    return found[0] if found else None


def _by_name(ref: str, recent: Sequence[JobView]) -> str | None:
    named = [view.id for view in recent if ref in (view.job.idempotency_key, view.job.name)]
    typed = [view.id for view in recent if view.job.task_type == ref]
    return next(iter(named + typed), None)


def _hint(ref: str, recent: Sequence[JobView]) -> str:
    if not recent:
        return ": the ledger has no jobs"
    known = {name for view in recent for name in (view.job.label, view.job.task_type)}
    return did_you_mean(ref, known) or "; see `mulligan jobs list`"
