"""Reports over self-repair cycles, with the wire names of their contract.

A rate over no cycles is None, never a flattering 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from statistics import median
from typing import Any, NamedTuple

from mulligan.policies.cycles.cycle import PROTOCOL_VERSION, CycleStatus, SelfRepairCycle
from mulligan.policies.cycles.guardrail import LOOP_CAP, TIME_SHARE_CAP
from mulligan.policies.jobs.job import MONEY_USED_UP, SECONDS_USED_UP, TOKENS_USED_UP

#: No delayed verification happened in time.
STALE = "missing_delayed_verification"
#: Why a delayed verification did not count.
INVALID_REASONS = (
    "duplicate_task_family",
    "duplicate_prompt_formulation",
    "missing_task_family_context",
    "missing_prompt_context",
    STALE,
)
#: The guardrails and budgets that escalate a cycle before its retry.
BUDGET_REASONS = (
    LOOP_CAP,
    TIME_SHARE_CAP,
    TOKENS_USED_UP,
    SECONDS_USED_UP,
    MONEY_USED_UP,
)


class CycleRow(NamedTuple):
    """What reports read of one cycle."""

    status: str
    created_at: float
    immediate_at: float | None = None
    #: Whether its immediate retry was processed.
    retried: bool = False
    reason: str = ""
    cause: str = ""
    task_type: str = ""
    tenant: str = ""
    #: Whether a delayed verification counted.
    delayed_valid: bool = False
    #: Reason → number of delayed verifications that did not count.
    delayed_invalid: Mapping[str, int] = {}

    @classmethod
    def of(cls, cycle: SelfRepairCycle) -> CycleRow:
        return cls(
            cycle.status.value,
            cycle.created_at,
            cycle.immediate_at,
            cycle.immediate_attempt_id is not None,
            cycle.reason or "",
            str(cycle.metadata.get("causeLabel") or ""),
            str(cycle.metadata.get("taskType") or ""),
        )


def immediate_loop_report(
    cycles: Sequence[SelfRepairCycle | CycleRow],
    *,
    now: float,
    window_days: int,
    limit: int | None = None,
) -> dict[str, Any]:
    """Count the low scores that got their immediate retry, how soon, and how the cycles ended."""
    rows = _rows(cycles)
    statuses = Counter(row.status for row in rows)
    done = [row for row in rows if row.retried]
    latencies = [
        (row.immediate_at - row.created_at) / 60 for row in done if row.immediate_at is not None
    ]
    causes = Counter(row.cause or "unknown" for row in rows)
    return {
        **_head(rows, now=now, window_days=window_days, limit=limit),
        "immediateCompletedCount": len(done),
        "immediateCompletionRate": _rate(len(done), len(rows)),
        **{_count_name(status): statuses[status] for status in CycleStatus},
        "statusCounts": {status.value: statuses[status] for status in CycleStatus},
        "medianImmediateLatencyMinutes": round(median(latencies), 6) if latencies else None,
        "causeLabels": dict(causes.most_common()),
    }


def delayed_verification_report(
    cycles: Sequence[SelfRepairCycle | CycleRow],
    *,
    now: float,
    window_days: int,
    limit: int | None = None,
) -> dict[str, Any]:
    """Count the delayed verifications that counted, did not count (and why) or never happened."""
    rows = _rows(cycles)
    valid = sum(map(verified, rows))
    reasons: Counter[str] = Counter()
    for row in rows:
        for reason, n in row.delayed_invalid.items():
            if reason != STALE:
                reasons[reason] += n
    stale = sum(row.status == CycleStatus.ESCALATED and row.reason == STALE for row in rows)
    reasons[STALE] = stale
    invalid = sum(reasons.values())
    waiting = sum(row.status == CycleStatus.PENDING_DELAYED_VERIFICATION for row in rows)
    return {
        **_head(rows, now=now, window_days=window_days, limit=limit),
        "validCount": valid,
        "invalidCount": invalid,
        "invalidRate": _rate(invalid, valid + invalid),
        "invalidReasons": {
            reason: reasons[reason] for reason in dict.fromkeys((*INVALID_REASONS, *reasons))
        },
        "staleCount": stale,
        "pendingCount": waiting,
    }


def budget_report(
    cycles: Sequence[SelfRepairCycle | CycleRow],
    *,
    now: float,
    window_days: int,
    limit: int | None = None,
) -> dict[str, Any]:
    """Count the cycles that a guardrail or a budget ended before their retry."""
    rows = _rows(cycles)
    spent = [row for row in rows if exhausted(row)]
    reasons = Counter(row.reason for row in spent)
    totals = Counter(row.task_type or "unknown" for row in rows)
    by_type: dict[str, Counter[str]] = {}
    for row in spent:
        by_type.setdefault(row.task_type or "unknown", Counter())[row.reason] += 1
    return {
        **_head(rows, now=now, window_days=window_days, limit=limit),
        "exhaustedCount": len(spent),
        "exhaustionRate": _rate(len(spent), len(rows)),
        "exhaustionReasons": {reason: reasons[reason] for reason in BUDGET_REASONS},
        "taskTypes": {
            name: {
                "totalCycles": totals[name],
                "exhaustedCount": by_type[name].total(),
                "exhaustionRate": _rate(by_type[name].total(), totals[name]),
                "exhaustionReasons": {reason: by_type[name][reason] for reason in BUDGET_REASONS},
            }
            for name in sorted(by_type, key=lambda each: (-by_type[each].total(), each))
        },
    }


def verified(row: CycleRow) -> bool:
    """Whether a delayed verification counted, good or bad. No cycle is completed without one."""
    return row.delayed_valid or row.status == CycleStatus.COMPLETED


def exhausted(row: CycleRow) -> bool:
    """Whether a budget or a guardrail ended a cycle before its retry."""
    never_retried = row.status == CycleStatus.ESCALATED and not row.retried
    return never_retried and row.reason in BUDGET_REASONS


def _rows(cycles: Sequence[SelfRepairCycle | CycleRow]) -> list[CycleRow]:
    return [row if isinstance(row, CycleRow) else CycleRow.of(row) for row in cycles]


def _head(
    rows: Sequence[CycleRow], *, now: float, window_days: int, limit: int | None
) -> dict[str, Any]:
    return {
        "generatedAt": datetime.fromtimestamp(now, UTC).isoformat(),
        "protocolVersion": PROTOCOL_VERSION,
        "windowDays": window_days,
        "totalCycles": len(rows),
        "limitReached": limit is not None and len(rows) >= limit,
    }


def _count_name(status: CycleStatus) -> str:
    """``pending_immediate_retry`` → ``pendingImmediateRetryCount``."""
    first, *rest = status.value.split("_")
    return first + "".join(word.capitalize() for word in rest) + "Count"


def _rate(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None
