"""Views of the cycle reports: immediate retries, delayed verifications, budgets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mulligan.console.reports.report_view import BarChart, ColumnChart, ReportTable, ReportView
from mulligan.policies.cycles.report import CycleRow
from mulligan.policies.figures.format import day as format_day
from mulligan.policies.figures.format import duration, number, percent

#: A day, and its numbers of good and other cycles.
Day = tuple[str, tuple[float, ...]]


def cycles_by_day(
    rows: Sequence[CycleRow], since: float, now: float, is_good: Callable[[CycleRow], bool]
) -> list[Day]:
    """Count cycles by the day they were created."""
    first, last = int(since // 86400), int(now // 86400)
    days = {day: [0.0, 0.0] for day in range(first, last + 1)}
    for row in rows:
        day = min(last, max(first, int(row.created_at // 86400)))
        days[day][0 if is_good(row) else 1] += 1
    return [(format_day(day * 86400), (good, other)) for day, (good, other) in days.items()]


def immediate_loop_view(report: Mapping[str, Any], days: Sequence[Day] = ()) -> ReportView:
    median = report["medianImmediateLatencyMinutes"]
    causes = report["causeLabels"]
    return ReportView(
        title="Immediate self-repair",
        about=_about(report),
        facts=(
            *_cycles(report),
            ("retried at once", number(report["immediateCompletedCount"])),
            ("completion rate", percent(report["immediateCompletionRate"])),
            (
                "median time to the retry's verdict",
                duration(None if median is None else median * 60),
            ),
        ),
        tables=(
            _counts("Status", "status", report["statusCounts"]),
            _counts("Causes", "cause", causes),
        ),
        charts=(
            ColumnChart(
                title="Cycles by day", names=("retried", "not retried"), columns=tuple(days)
            ),
            _bars("Status", report["statusCounts"]),
            _bars("Causes", causes),
        ),
        document=report,
    )


def delayed_verification_view(report: Mapping[str, Any], days: Sequence[Day] = ()) -> ReportView:
    return ReportView(
        title="Delayed verification",
        about=_about(report),
        facts=(
            *_cycles(report),
            ("valid", number(report["validCount"])),
            ("invalid", number(report["invalidCount"])),
            ("invalid rate", percent(report["invalidRate"])),
            ("stale", number(report["staleCount"])),
            ("pending", number(report["pendingCount"])),
        ),
        tables=(_counts("Why invalid", "reason", report["invalidReasons"]),),
        charts=(
            ColumnChart(title="Cycles by day", names=("valid", "not valid"), columns=tuple(days)),
            _bars("Why invalid", report["invalidReasons"]),
        ),
        document=report,
    )


def budget_view(report: Mapping[str, Any], days: Sequence[Day] = ()) -> ReportView:
    return ReportView(
        title="Budgets and guardrails",
        about=_about(report),
        facts=(
            *_cycles(report),
            ("ended before their retry", number(report["exhaustedCount"])),
            ("rate", percent(report["exhaustionRate"])),
        ),
        tables=(
            _counts("Reasons", "reason", report["exhaustionReasons"]),
            ReportTable(
                title="Task types",
                columns=("task type", "cycles", "exhausted", "rate"),
                rows=tuple(
                    (
                        name,
                        number(each["totalCycles"]),
                        number(each["exhaustedCount"]),
                        percent(each["exhaustionRate"]),
                    )
                    for name, each in report["taskTypes"].items()
                ),
                empty="no budget was used up",
            ),
        ),
        charts=(
            ColumnChart(
                title="Cycles by day", names=("exhausted", "not exhausted"), columns=tuple(days)
            ),
            _bars("Reasons", report["exhaustionReasons"]),
        ),
        document=report,
    )


def _about(report: Mapping[str, Any]) -> str:
    return (
        f"Cycles of the last {report['windowDays']} days, as of {report['generatedAt'][:19]} UTC."
    )


def _cycles(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    facts = [("cycles", number(report["totalCycles"]))]
    if report["limitReached"]:
        facts.append(("limit reached", "there may be more; raise --limit"))
    return facts


def _counts(title: str, name: str, counts: Mapping[str, int]) -> ReportTable:
    rows = tuple((each, number(n)) for each, n in counts.items() if n)
    return ReportTable(title=title, columns=(name, "cycles"), rows=rows)


def _bars(title: str, counts: Mapping[str, float]) -> BarChart:
    return BarChart(title=title, bars=tuple((name, n) for name, n in counts.items() if n))
