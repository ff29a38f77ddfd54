"""The report of a loop for people: facts, tables and charts; and its JSON document."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import TypeAdapter

from mulligan.console.reports.report_view import BarChart, LineChart, ReportTable, ReportView
from mulligan.policies.figures.format import (
    UNKNOWN,
    count,
    counted,
    duration,
    money,
    number,
    shortened,
    timestamp,
    words,
)
from mulligan.policies.loops.budget import Resource
from mulligan.policies.loops.heal_record import HEAL_OUTCOMES
from mulligan.policies.loops.loop import SHOWN_STATES
from mulligan.policies.loops.loop_report import LoopReport
from mulligan.policies.repair.instruction import one_line

_DOCUMENTS = TypeAdapter(LoopReport)
_AMOUNTS: dict[Resource, Callable[[float | None], str]] = {
    "tokens": count,
    "money": money,
    "seconds": duration,
}
#: Items of the critical path that are named.
_MOST_NAMED = 12
_LONGEST_MESSAGE = 160


def loop_document(report: LoopReport) -> dict[str, Any]:
    """Return a report as JSON-ready data."""
    document: dict[str, Any] = _DOCUMENTS.dump_python(report, mode="json")
    return document


def loop_view(report: LoopReport) -> ReportView:
    return ReportView(
        title=f"Loop {report.id}",
        about=_about(report),
        facts=_facts(report),
        tables=(
            _costs(report),
            _gave_up(report),
            _failures(report),
            _heals(report),
            *((_heal_counts(report),) if report.healed else ()),
            _left(report),
        ),
        charts=_charts(report),
        remarks=_remarks(report),
        document=loop_document(report),
    )


def _about(report: LoopReport) -> str:
    reason = f" ({report.reason})" if report.reason else ""
    started = f", started {timestamp(report.started_at)}" if report.started_at else ""
    return f"{report.status}{reason}{started}, as of {timestamp(report.at)}."


def _facts(report: LoopReport) -> tuple[tuple[str, str], ...]:
    others = [state for state in SHOWN_STATES if state != "passed" and report.counts.get(state)]
    return (
        ("passed", f"{number(report.counts.get('passed', 0))} of {number(report.total)}"),
        (
            "other items",
            ", ".join(f"{number(report.counts[each])} {each}" for each in others) or "none",
        ),
        ("may end", report.estimate.text),
        ("critical path", _critical_path(report)),
    )


def _critical_path(report: LoopReport) -> str:
    length = report.critical_path_length
    if not length:
        return "nothing is left"
    named = " → ".join(report.critical_path[:_MOST_NAMED])
    more = f" … {length - _MOST_NAMED:,} more" if length > _MOST_NAMED else ""
    return f"{counted(length, 'item')}: {named}{more}"


def _charts(report: LoopReport) -> tuple[BarChart | LineChart, ...]:
    estimate = report.estimate
    ends = None
    if report.status == "running" and estimate.earliest and estimate.latest:
        ends = (estimate.earliest, estimate.latest)
    return (
        BarChart(
            title="Items by state",
            bars=tuple(
                (state, float(report.counts[state]))
                for state in SHOWN_STATES
                if report.counts.get(state)
            ),
        ),
        LineChart(
            title="Items left",
            points=tuple((each.at, float(each.left)) for each in report.burn_down),
            ends=ends,
            floor=float(estimate.not_included),
        ),
    )


def _costs(report: LoopReport) -> ReportTable:
    return ReportTable(
        title="Cost",
        columns=("scope", "resource", "used", "reserved", "limit", "per passed item",
                 "rest is enough for"),
        rows=tuple(
            (
                each.scope,
                each.resource,
                _AMOUNTS[each.resource](each.used)
                + (f", {counted(each.unknown, 'attempt')} unknown" if each.unknown else ""),
                _AMOUNTS[each.resource](each.reserved),
                "none" if each.limit is None else _AMOUNTS[each.resource](each.limit),
                _AMOUNTS[each.resource](each.per_passed_item),
                UNKNOWN if each.enough_for is None else counted(each.enough_for, "item"),
            )
            for each in report.cost
        ),
        empty="nothing was used yet",
    )  # fmt: skip


def _gave_up(report: LoopReport) -> ReportTable:
    return ReportTable(
        title="Gave up",
        columns=("state", "reason", "items", "examples"),
        rows=tuple(
            (each.state, each.reason, number(each.items), ", ".join(each.examples))
            for each in report.gave_up
        ),
        empty="no item failed or is quarantined",
    )


def _failures(report: LoopReport) -> ReportTable:
    quoted = any(each.message is not None for each in report.failures)
    return ReportTable(
        title="Failed attempts",
        columns=("failure", "attempts", "items", "passed in the end", "examples", "signature",
                 *(("message",) if quoted else ())),
        rows=tuple(
            (
                f"{each.kind}.{each.cause}" if each.cause else each.kind,
                number(each.attempts),
                number(each.items),
                number(each.passed),
                ", ".join(each.examples),
                each.signature,
                *((shortened(one_line(each.message or ""), _LONGEST_MESSAGE),) if quoted else ()),
            )
            for each in report.failures
        ),
        empty="no attempt failed",
    )  # fmt: skip


def _heal_counts(report: LoopReport) -> ReportTable:
    return ReportTable(
        title="What helped",
        columns=("action", *HEAL_OUTCOMES),
        rows=tuple(
            (words(each.action), *(number(each.outcomes.get(name, 0)) for name in HEAL_OUTCOMES))
            for each in report.healed
        ),
    )


def _heals(report: LoopReport) -> ReportTable:
    return ReportTable(
        title="Healing",
        columns=("at", "item", "action", "reason", "outcome", "by"),
        rows=tuple(
            (
                timestamp(each.at),
                each.item or "the loop",
                words(each.action) + (f" ({each.parameter})" if each.parameter else ""),
                each.reason or UNKNOWN,
                each.outcome + (f": {each.result}" if each.result else ""),
                each.by,
            )
            for each in report.heals
        ),
        empty="nothing was healed",
    )


def _left(report: LoopReport) -> ReportTable:
    return ReportTable(
        title="What is left",
        columns=("item", "title", "state", "why", "do"),
        rows=tuple(
            (
                each.id,
                each.title,
                f"{each.state} for {duration(report.at - each.since)}",
                each.why,
                each.command or "",
            )
            for each in report.left
        ),
        empty="nothing",
    )


def _remarks(report: LoopReport) -> tuple[str, ...]:
    hidden = report.left_total - len(report.left)
    found = {
        f"{counted(hidden, 'more item')} left, not listed.": hidden > 0,
        f"Failed attempts are those of the last runs of {number(report.runs_read)} of"
        f" {counted(report.runs, 'item')}: of what gave up, then of the newest.": (
            report.runs_read < report.runs
        ),
        "Items left: those that the loop has now, by the time at which each was last done.": (
            bool(report.burn_down)
        ),
    }
    return tuple(text for text, applies in found.items() if applies)
