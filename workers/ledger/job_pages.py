"""Pages of jobs, newest first, filtered inside Redis. The work for one page is bounded.

All jobs are ordered by the time they were accepted, those of one state by the time they entered it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.ledger import keys
from mulligan.workers.ledger.partitions import Partitioned
from mulligan.workers.ledger.stored.rows import tokens_of
from mulligan.workers.ledger.stored.stored_bodies import read_records

#: Maximum jobs of a partition to filter for one page: with a rare label, pages are short.
SCAN = 2000
_CURSOR = re.compile(r"^(\d{1,16}(?:\.\d{1,6})?)~([\w-]{1,64})$", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class JobFilter:
    """A selection of jobs. ``since`` and ``until`` refer to the time that orders the jobs."""

    #: The beginning of the job's name.
    name: str | None = None
    state: str | None = None
    task_type: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    tenant: str | None = None
    #: The producer that submitted them.
    owner: str | None = None
    since: float | None = None
    until: float | None = None


@dataclass(frozen=True, kw_only=True)
class JobRow:
    """A job without its texts."""

    id: str
    task_type: str
    name: str
    state: str
    tenant: str | None
    waiting_for: str | None
    waiting_behind: str | None
    reason: str | None
    detail: str | None
    best_attempt: int | None
    attempts: int
    #: None until a runner reports its usage.
    tokens: int | None
    seconds: float
    labels: Mapping[str, str]
    idempotency_key: str | None
    created_at: float
    finished_at: float | None


@dataclass(frozen=True)
class JobPage:
    jobs: Sequence[JobRow]
    #: Where the next page begins; None after the last. Even a short page may have one.
    cursor: str | None


#: (time, id) of a job; later is greater.
_Position = tuple[float, str]


@dataclass(frozen=True)
class _PartitionPage:
    """One partition's jobs for a page."""

    #: Whether no older jobs match.
    done: bool
    reached: _Position
    rows: list[tuple[_Position, JobRow]]


class JobPages(Partitioned):
    """Lists of jobs. Each method is one round trip."""

    def page_jobs(
        self, jobs: JobFilter, *, limit: int, cursor: str | None = None, scan: int = SCAN
    ) -> JobPage:
        """Return one page. Raises BadInput for an invalid cursor."""
        request = _request(jobs, limit, scan, cursor)
        answers = self.calls.many("page_jobs", [(prefix, request) for prefix in self.prefixes()])
        parts = [_read_page(answer) for answer in answers]
        # The order is known only as far back as every partition was read.
        known = max((part.reached for part in parts if not part.done), default=None)
        found = (row for part in parts for row in part.rows)
        rows = sorted(found, key=lambda row: row[0], reverse=True)
        safe = [row for row in rows if known is None or row[0] >= known]
        page = safe[:limit]
        end = page[-1][0] if len(safe) > limit else known
        return JobPage([row for _, row in page], f"{end[0]!r}~{end[1]}" if end else None)

    def find_jobs(
        self, ids: Sequence[str], *, tenant: str | None = None, owner: str | None = None
    ) -> list[JobRow]:
        """Return the jobs with these ids in their order, without unknown or other tenants' jobs.

        ``owner``: only what this producer submitted.
        """
        by_prefix: dict[str, list[str]] = {}
        for job_id in dict.fromkeys(ids):
            by_prefix.setdefault(self._prefix(job_id), []).append(job_id)
        requests = [
            (prefix, {"ids": some, "tenant": tenant, "owner": owner})
            for prefix, some in by_prefix.items()
        ]
        answers = self.calls.many("page_jobs", requests)
        found = {row.id: row for answer in answers for _, row in _read_page(answer).rows}
        return [found[job_id] for job_id in dict.fromkeys(ids) if job_id in found]


def _request(jobs: JobFilter, limit: int, scan: int, cursor: str | None) -> dict[str, Any]:
    newest, before = "+inf" if jobs.until is None else repr(jobs.until * 1000), None
    if cursor is not None:
        match = _CURSOR.match(cursor)
        if match is None:
            raise BadInput.at("cursor", "is not a page's cursor; leave it out for the first page")
        newest, before = match.groups()
    return {
        "set": keys.jobs("", jobs.state),
        "max": newest,
        "before": before,
        "min": "-inf" if jobs.since is None else repr(jobs.since * 1000),
        "name": jobs.name,
        "task_type": jobs.task_type,
        "labels": dict(jobs.labels) or None,
        "tenant": jobs.tenant,
        "owner": jobs.owner,
        "limit": limit,
        "scan": scan,
    }


def _read_page(answer: list[Any]) -> _PartitionPage:
    done, score, last, rows = answer
    found = read_records((_name(text), partial(_row, text, float(at))) for at, text in rows)
    return _PartitionPage(bool(int(done)), (float(score), str(last)), found)


def _name(text: str) -> str:
    """Return the key of a row for the log: the script has encoded its id."""
    return f"job:{json.loads(text)['id']}"


def _row(text: str, at: float) -> tuple[_Position, JobRow]:
    raw: dict[str, Any] = json.loads(text)
    row = JobRow(
        id=raw["id"],
        task_type=raw.get("task_type", ""),
        name=raw.get("name", ""),
        state=raw["state"],
        tenant=raw.get("tenant"),
        waiting_for=raw.get("waiting_for") or None,
        waiting_behind=raw.get("waiting_behind") or None,
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
