"""The figures of a run, computed from the ledger's time stamps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any

from mulligan.policies.jobs.job import TERMINAL
from mulligan.tasks.jobs.job_story import first_try
from mulligan.tasks.ports.ledger import AttemptView, JobView


@dataclass(frozen=True, kw_only=True)
class RunFigures:
    jobs: int
    first_try: int
    succeeded: int
    #: Accepted jobs that the ledger no longer has.
    lost: int
    #: Jobs that have not ended. They continue in the ledger.
    unfinished: int
    #: From the settling of an attempt to the start of its immediate retry; None without a retry.
    retry_p50_ms: float | None
    #: None if no runner reported its usage.
    tokens: int | None
    repair_tokens: int | None
    cycles: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, views: Sequence[JobView], *, accepted: int | None = None) -> RunFigures:
        """Compute the figures. ``accepted`` is the expected number of jobs, if it is known."""
        jobs = len(views) if accepted is None else accepted
        latencies = [seconds for view in views for seconds in retry_latencies(view)]
        attempts = [attempt for view in views for attempt in view.attempts]
        return cls(
            jobs=jobs,
            first_try=sum(first_try(view) for view in views),
            succeeded=sum(view.state == "succeeded" for view in views),
            lost=jobs - len(views),
            unfinished=sum(view.state not in TERMINAL for view in views),
            retry_p50_ms=round(median(latencies) * 1000, 3) if latencies else None,
            tokens=_tokens(attempts),
            repair_tokens=_tokens([a for a in attempts if a.plan.number > 1], default=0),
            cycles=dict(Counter(c.status.value for view in views for c in view.cycles)),
        )

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def retry_latencies(view: JobView) -> Iterator[float]:
    for before, after in pairwise(view.attempts):
        if (
            after.plan.mode == "immediate_retry"
            and before.settled_at is not None
            and after.started_at is not None
        ):
            yield after.started_at - before.settled_at


def _tokens(attempts: Sequence[AttemptView], default: int | None = None) -> int | None:
    used = [a.output.usage.total_tokens for a in attempts if a.output is not None]
    reported = [tokens for tokens in used if tokens is not None]
    return sum(reported) if reported else default


def tokens_of(view: JobView) -> int | None:
    return _tokens(view.attempts)
