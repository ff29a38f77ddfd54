"""Reports as people read them: facts, tables and plots, whatever they are drawn on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

_NOTHING = "–"
_BLOCKS = "▁▂▃▄▅▆▇█"
#: Columns of a plot over time, and blocks of a sparkline.
_COLUMNS = 60
_BLOCKS_SHOWN = 24


@dataclass(frozen=True, kw_only=True)
class ReportTable:
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    #: What is said where there are no rows.
    empty: str = "nothing"


@dataclass(frozen=True, kw_only=True)
class BarChart:
    """One bar per name."""

    title: str
    bars: tuple[tuple[str, float], ...]
    unit: str = ""


@dataclass(frozen=True, kw_only=True)
class ColumnChart:
    """Stacked columns over time: a label and one number per name."""

    title: str
    names: tuple[str, ...]
    columns: tuple[tuple[str, tuple[float, ...]], ...]


@dataclass(frozen=True, kw_only=True)
class ReportView:
    title: str
    about: str
    facts: tuple[tuple[str, str], ...]
    tables: tuple[ReportTable, ...] = ()
    plots: tuple[BarChart | ColumnChart, ...] = ()


def percent(share: float | None) -> str:
    return _NOTHING if share is None else f"{share:.1%}"


def sparkline(series: Sequence[float]) -> str:
    """``▁▃█``: as few blocks as fit a table."""
    shown = condense(series, _BLOCKS_SHOWN)
    top = max(shown, default=0)
    return "".join(_BLOCKS[min(7, int(8 * n / (top or 1)))] for n in shown)


def condense(series: Sequence[float], at_most: int) -> list[float]:
    """Neighbours added up until there are few enough."""
    factor = max(1, -(-len(series) // at_most))
    first = len(series) % factor
    head = [sum(series[:first])] if first else []
    return head + [sum(series[i : i + factor]) for i in range(first, len(series), factor)]


# -- over cycles -----------------------------------------------------------------------------------

Day = tuple[str, tuple[float, ...]]


def immediate_loop_view(report: Mapping[str, Any], days: Sequence[Day] = ()) -> ReportView:
    median = report["medianImmediateLatencyMinutes"]
    causes = report["causeLabels"]
    return ReportView(
        title="Immediate self-repair",
        about=_about(report),
        facts=(
            *_cycles(report),
            ("with their immediate retry", str(report["immediateCompletedCount"])),
            ("completion rate", percent(report["immediateCompletionRate"])),
            ("median time to it", _NOTHING if median is None else f"{median * 60:.3g} s"),
        ),
        tables=(
            _counts("Status", "status", report["statusCounts"]),
            _counts("Causes", "cause", causes),
        ),
        plots=(
            _over_days("Cycles by day", ("retried", "not retried"), days),
            _bars("Status", report["statusCounts"]),
            _bars("Causes", causes),
        ),
    )


def delayed_verification_view(report: Mapping[str, Any], days: Sequence[Day] = ()) -> ReportView:
    return ReportView(
        title="Delayed verification",
        about=_about(report),
        facts=(
            *_cycles(report),
            ("valid", str(report["validCount"])),
            ("invalid", str(report["invalidCount"])),
            ("invalid rate", percent(report["invalidRate"])),
            ("stale", str(report["staleCount"])),
            ("still to come", str(report["pendingCount"])),
        ),
        tables=(_counts("Why invalid", "reason", report["invalidReasons"]),),
        plots=(
            _over_days("Cycles by day", ("valid", "not valid"), days),
            _bars("Why invalid", report["invalidReasons"]),
        ),
    )


def budget_view(report: Mapping[str, Any], days: Sequence[Day] = ()) -> ReportView:
    types = report["taskTypes"]
    return ReportView(
        title="Budgets and guardrails",
        about=_about(report),
        facts=(
            *_cycles(report),
            ("ended before their retry", str(report["exhaustedCount"])),
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
                        str(each["totalCycles"]),
                        str(each["exhaustedCount"]),
                        percent(each["exhaustionRate"]),
                    )
                    for name, each in types.items()
                ),
                empty="no budget was used up",
            ),
        ),
        plots=(
            _over_days("Cycles by day", ("exhausted", "not exhausted"), days),
            _bars("Reasons", report["exhaustionReasons"]),
        ),
    )


def _about(report: Mapping[str, Any]) -> str:
    return f"Cycles of {report['windowDays']} days, as of {report['generatedAt'][:19]} UTC."


def _cycles(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    facts = [("cycles", str(report["totalCycles"]))]
    if report["limitReached"]:
        facts.append(("limit reached", "there may be more: raise --limit"))
    return facts


def _counts(title: str, name: str, counts: Mapping[str, int]) -> ReportTable:
    rows = tuple((each, str(n)) for each, n in counts.items() if n)
    return ReportTable(title=title, columns=(name, "cycles"), rows=rows)


def _bars(title: str, counts: Mapping[str, float], unit: str = "") -> BarChart:
    return BarChart(
        title=title, bars=tuple((name, n) for name, n in counts.items() if n), unit=unit
    )


def _over_days(title: str, names: tuple[str, ...], days: Sequence[Day]) -> ColumnChart:
    return ColumnChart(title=title, names=names, columns=tuple(days))


# -- failures and money ----------------------------------------------------------------------------


def failures_view(report: Mapping[str, Any]) -> ReportView:
    rows = report["failures"]
    step, start = report["step_seconds"], datetime.fromisoformat(report["since"]).timestamp()
    return ReportView(
        title="Failures",
        about=f"The last {report['window']}, as of {report['generated_at'][:19]} UTC.",
        facts=(
            ("failed attempts", str(sum(row["count"] for row in rows))),
            ("signatures", str(len(rows))),
        ),
        tables=(
            ReportTable(
                title="Signatures",
                columns=("signature", "kind", "n", "before", "course", "repaired", "task types",
                         "example"),
                rows=tuple(_failure_row(row) for row in rows),
                empty="no attempt failed",
            ),
        ),
        plots=(
            _failures_over_time(rows, start=start, step=step),
            BarChart(
                title="Signatures",
                bars=tuple((f"{_kind(row)} {row['signature']}", row["count"]) for row in rows[:15]),
            ),
        ),
    )  # fmt: skip


def _kind(row: Mapping[str, Any]) -> str:
    return f"{row['kind']}.{row['cause']}" if row["cause"] else str(row["kind"])


def _failure_row(row: Mapping[str, Any]) -> tuple[str, ...]:
    types = ", ".join(f"{name} {n}" for name, n in list(row["task_types"].items())[:3])
    mark = {1: " ▲", 0: "", -1: " ▼"}[row["trend"]]
    return (
        row["signature"] + (" (muted)" if row["muted"] else ""),
        _kind(row),
        f"{row['count']}{mark}",
        str(row["before"]),
        sparkline(row["series"]),
        f"{row['repaired']} of {row['tried']}" if row["tried"] else _NOTHING,
        types,
        row["example"] or _NOTHING,
    )


def _failures_over_time(
    rows: Sequence[Mapping[str, Any]], *, start: float, step: int
) -> ColumnChart:
    """By kind: five of them at most can be told apart."""
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    shown = kinds[:4] + (["others"] if len(kinds) > 4 else [])
    length = max((len(row["series"]) for row in rows), default=0)
    series = {name: [0.0] * length for name in shown}
    for row in rows:
        into = series[row["kind"] if row["kind"] in kinds[:4] else "others"]
        for place, n in enumerate(row["series"]):
            into[place] += n
    thin = {name: condense(each, _COLUMNS) for name, each in series.items()}
    count = len(next(iter(thin.values()), []))
    width = step * max(1, -(-length // _COLUMNS))
    return ColumnChart(
        title="Failed attempts",
        names=tuple(shown),
        columns=tuple(
            (
                datetime.fromtimestamp(start + place * width, UTC).strftime("%m-%d %H:%M"),
                tuple(thin[name][place] for name in shown),
            )
            for place in range(count)
        ),
    )


def cost_view(report: Mapping[str, Any]) -> ReportView:
    total = report["total"]
    by = report["by"]
    names = [" · ".join(value or "(none)" for value in line["of"].values()) for line in
             report["lines"]]  # fmt: skip
    return ReportView(
        title="Cost",
        about=f"The last {report['window']}, as of {report['generated_at'][:19]} UTC.",
        facts=(
            ("tokens", _number(total["tokens"])),
            ("money", _money(total, report["priced"])),
            ("of which repairs", percent(total["repairs_share"])),
            ("tokens per success", _number(total["tokens_per_success"])),
            ("attempts whose usage is unknown", str(total["unknown_attempts"])),
            ("tokens without a price", f"{total['unpriced_tokens']:,}"),
        ),
        tables=(
            ReportTable(
                title="By " + ", ".join(by),
                columns=(*by, "attempts", "tokens", "first", "repairs", "per success", "money",
                         "of which repairs", "unknown"),
                rows=tuple(_cost_row(line, report["priced"]) for line in report["lines"]),
                empty="no attempt was settled",
            ),
        ),
        plots=(
            ColumnChart(
                title="Tokens",
                names=("first attempts", "repairs"),
                columns=tuple(
                    (name, (line["first"]["tokens"] or 0, line["repairs"]["tokens"] or 0))
                    for name, line in list(zip(names, report["lines"], strict=True))[:_COLUMNS]
                ),
            ),
            BarChart(
                title="Money",
                bars=tuple(
                    (name, line["money"])
                    for name, line in zip(names, report["lines"], strict=True)
                    if line["money"]
                )[:15],
            ),
        ),
    )  # fmt: skip


def _cost_row(line: Mapping[str, Any], priced: bool) -> tuple[str, ...]:
    return (
        *(value or "(none)" for value in line["of"].values()),
        str(line["attempts"]),
        _number(line["tokens"]),
        _number(line["first"]["tokens"]),
        _number(line["repairs"]["tokens"]),
        _number(line["tokens_per_success"]),
        _money(line, priced),
        _money(line["repairs"], priced),
        str(line["unknown_attempts"]),
    )


def _money(used: Mapping[str, Any], priced: bool) -> str:
    amount = used["money"]
    if amount is not None:
        return f"{amount:,.4f}" if 0 < amount < 1 else f"{amount:,.2f}"
    if not priced:
        return "unknown: set prices"
    return "unknown: no usage told" if used["tokens"] is None else "unknown: no price"


def _number(value: float | None) -> str:
    return _NOTHING if value is None else f"{value:,.0f}"
