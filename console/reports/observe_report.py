"""A report on what enforcing would have changed for tasks with ``mode="observe"``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mulligan.console.reports.report_view import ReportTable, ReportView
from mulligan.policies.figures.format import number, percent
from mulligan.policies.repair.retry import Escalate
from mulligan.policies.repair.verdict import Verdict
from mulligan.tasks.ports.ledger import JobView
from mulligan.tasks.user_tasks.task_route import task_mode

#: What enforcing would have done with a task, in the order of the report.
PASSED, MANDATORY, POLICY, ESCALATED = "passed", "mandatory_retry", "policy_retry", "escalation"
WOULD = (PASSED, MANDATORY, POLICY, ESCALATED)
_TITLES = {
    PASSED: "would have passed at once",
    MANDATORY: "would have been retried at once, with a corrected prompt",
    POLICY: "would have been retried because the policy allows it",
    ESCALATED: "would have been escalated",
}
#: Ids of jobs shown for each cause.
_EXAMPLES = 5
#: What the records of observed tasks cannot show.
UNKNOWN = (
    "Not known: whether a retry would have worked. Nothing was run again, so the gain is at most"
    " the retried tasks and may be none.",
    "Not known: what a retried task would have cost: at least one more run, more if it failed"
    " again.",
    "Errors that your verifiers do not check are not counted.",
)


def is_observed(view: JobView, *, since: float) -> bool:
    return task_mode(view.job) == "observe" and view.created_at >= since


def observe_report(views: Sequence[JobView]) -> dict[str, Any]:
    """Aggregate observed jobs by what enforcing would have done, by task type and by cause."""
    last = [(view, view.attempts[-1].verdict) for view in views if view.attempts]
    rows = [(view, would(verdict), _cause(verdict)) for view, verdict in last if verdict]
    counts = Counter(what for _, what, _ in rows)
    types = {view.job.task_type for view, _, _ in rows}
    causes = Counter(cause for _, _, cause in rows if cause)
    return {
        "seen": len(rows),
        "unfinished": len(views) - len(rows),
        **{what: counts[what] for what in WOULD},
        "task_types": {
            name: _counted(what for view, what, _ in rows if view.job.task_type == name)
            for name in sorted(types)
        },
        "causes": {
            cause: {
                **_counted(what for _, what, each in rows if each == cause),
                "examples": [view.id for view, _, each in rows if each == cause][:_EXAMPLES],
            }
            for cause, _ in causes.most_common()
        },
        "unknown": list(UNKNOWN),
    }


def would(verdict: Verdict) -> str:
    """Return what enforcing would have done, from the stored decision."""
    match verdict.decision:
        case None:
            return PASSED
        case Escalate():
            return ESCALATED
        case retry:
            return MANDATORY if retry.mode == "immediate_retry" else POLICY


def _cause(verdict: Verdict) -> str | None:
    if verdict.failure is not None:
        return verdict.failure.label
    return verdict.decision.reason if verdict.decision else None


def _counted(whats: Iterable[str]) -> dict[str, int]:
    counts = Counter(whats)
    return {what: counts[what] for what in WOULD}


def observe_view(report: Mapping[str, Any]) -> ReportView:
    seen = report["seen"]
    return ReportView(
        title="Observed tasks",
        about=f"Observed tasks of the last {report['window_days']} days: {seen}",
        facts=(
            *_reservations(report),
            *(
                (_TITLES[what], f"{number(report[what])} ({percent(report[what] / seen)})")
                for what in WOULD
                if seen
            ),
        ),
        tables=(
            (
                _table("By task type", "task type", report["task_types"]),
                _table("By cause", "cause", report["causes"]),
            )
            if seen
            else ()
        ),
        remarks=_remarks(report),
        document=report,
    )


def _reservations(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    facts = []
    if report["limit_reached"]:
        facts.append(("limit reached", "the ledger holds more jobs; raise --limit"))
    if report["unfinished"]:
        facts.append(
            (
                "without a verdict (still running, lost, or retried by Celery)",
                number(report["unfinished"]),
            )
        )
    return facts


def _table(title: str, name: str, rows: Mapping[str, Mapping[str, Any]]) -> ReportTable:
    return ReportTable(
        title=title,
        columns=(name, *(what.replace("_", " ") for what in WOULD), "examples"),
        rows=tuple(
            (
                each,
                *(number(counts[what]) for what in WOULD),
                ", ".join(counts.get("examples", ())),
            )
            for each, counts in rows.items()
        ),
        empty="no task failed",
    )


def _remarks(report: Mapping[str, Any]) -> tuple[str, ...]:
    seen = report["seen"]
    if not seen:
        return ('Nothing to compare: give a task mode="observe" and let it run.',)
    again = report[MANDATORY] + report[POLICY]
    return (
        f"Enforcing would have rerun {again} of {seen} with a corrected prompt, escalated"
        f" {report[ESCALATED]} and left {report[PASSED]} as they are.",
        *report["unknown"],
    )
