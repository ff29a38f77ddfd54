"""Pages of jobs, newest first, filtered where they are. The work of one page is bounded.

All jobs are in the order of their acceptance; those of one state in the order of coming into it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.ledger import keys
from mulligan.workers.ledger.partitions import Partitioned
from mulligan.workers.ledger.rows import tokens_of

#: So many jobs of a partition are looked at for one page: a rare label ends with a short page.
SCAN = 2000
_CURSOR = re.compile(r"^(\d{1,16}(?:\.\d{1,6})?)~([\w-]{1,64})$", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class JobFilter:
    """Which jobs. ``since`` and ``until`` are about the time that the jobs are ordered by."""

    #: How its name begins.
    name: str | None = None
    state: str | None = None
    task_type: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    tenant: str | None = None
    since: float | None = None
    until: float | None = None


@dataclass(frozen=True, kw_only=True)
class JobRow:
    """One job without its texts."""

    id: str
    task_type: str
    name: str
    state: str
    tenant: str | None
    waiting_for: str | None
    reason: str | None
    detail: str | None
    best_attempt: int | None
    attempts: int
    #: None while nobody told any usage.
    tokens: int | None
    seconds: float
    labels: Mapping[str, str]
    idempotency_key: str | None
    created_at: float
    finished_at: float | None


@dataclass(frozen=True)
class JobPage:
    jobs: Sequence[JobRow]
    #: Where the next page begins; None: there is none. A short page may have one.
    cursor: str | None


#: Where a partition was left, comparable: later is greater.
_Place = tuple[float, str]


@dataclass(frozen=True)
class _Part:
    """What one partition has for a page."""

    done: bool
    reached: _Place
    rows: list[tuple[_Place, JobRow]]


class JobPages(Partitioned):
    """Jobs as lists show them. Each method is one round trip."""

    def page_jobs(
        self, wanted: JobFilter, *, limit: int, cursor: str | None = None, scan: int = SCAN
    ) -> JobPage:
        """One page. BadInput for a cursor that no page gave."""
        request = _request(wanted, limit, scan, cursor)
        answers = self.calls.many("page_jobs", [(prefix, request) for prefix in self._prefixes()])
        parts = [_part(answer) for answer in answers]
        # Only down to where every partition has looked is the order known.
        known = max((part.reached for part in parts if not part.done), default=None)
        found = (row for part in parts for row in part.rows)
        rows = sorted(found, key=lambda row: row[0], reverse=True)
        safe = [row for row in rows if known is None or row[0] >= known]
        page = safe[:limit]
        place = page[-1][0] if len(safe) > limit else known
        return JobPage([row for _, row in page], f"{place[0]!r}~{place[1]}" if place else None)

    def find_jobs(self, ids: Sequence[str], *, tenant: str | None = None) -> list[JobRow]:
        """The jobs with these ids, in their order. Unknown ones and other tenants' are left out."""
        by_prefix: dict[str, list[str]] = {}
        for job_id in dict.fromkeys(ids):
            by_prefix.setdefault(self._prefix(job_id), []).append(job_id)
        requests = [(prefix, {"ids": some, "tenant": tenant}) for prefix, some in by_prefix.items()]
        answers = self.calls.many("page_jobs", requests)
        found = {row.id: row for answer in answers for _, row in _part(answer).rows}
        return [found[job_id] for job_id in dict.fromkeys(ids) if job_id in found]


def _request(wanted: JobFilter, limit: int, scan: int, cursor: str | None) -> dict[str, Any]:
    newest, before = "+inf" if wanted.until is None else repr(wanted.until * 1000), None
    if cursor is not None:
        match = _CURSOR.match(cursor)
        if match is None:
            raise BadInput.at(
                "cursor", "is not one that a page gave; leave it out for the first page"
            )
        newest, before = match.groups()
    return {
        "set": keys.jobs("", wanted.state),
        "max": newest,
        "before": before,
        "min": "-inf" if wanted.since is None else repr(wanted.since * 1000),
        "name": wanted.name,
        "task_type": wanted.task_type,
        "labels": dict(wanted.labels) or None,
        "tenant": wanted.tenant,
        "limit": limit,
        "scan": scan,
    }


def _part(answer: list[Any]) -> _Part:
    done, score, last, rows = answer
    found = [_row(json.loads(text), float(at)) for at, text in rows]
    return _Part(bool(int(done)), (float(score), str(last)), found)


def _row(raw: dict[str, Any], at: float) -> tuple[_Place, JobRow]:
    row = JobRow(
        id=raw["id"],
        task_type=raw.get("task_type", ""),
        name=raw.get("name", ""),
        state=raw["state"],
        tenant=raw.get("tenant"),
        waiting_for=raw.get("waiting_for") or None,
        reason=raw.get("reason") or None,
        detail=raw.get("detail") or None,
        best_attempt=int(raw["best"]) if raw.get("best") else None,
        attempts=int(raw.get("attempt", 1)),
        tokens=tokens_of(raw),
        seconds=float(raw.get("seconds", 0)),
        labels=raw.get("labels") or {},
        idempotency_key=raw.get("idempotency_key"),
        created_at=float(raw.get("created_at", 0)) / 1000,
        finished_at=float(raw["finished_at"]) / 1000 if raw.get("finished_at") else None,
    )
    return (at, row.id), row
