"""`mulligan report observe`: what enforcing would have changed, from what was only recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import typer

from mulligan.console.cli.open_ledgers import open_located_ledger
from mulligan.console.cli.options import Json
from mulligan.console.cli.output import screen
from mulligan.policies.repair.retry import Escalate
from mulligan.policies.repair.verdict import Verdict
from mulligan.tasks.ports.ledger import JobView
from mulligan.workers.settings.model import load_settings

#: What enforcing would have done with a task, in the order in which people are told.
PASSED, MANDATORY, POLICY, ESCALATED = "passed", "mandatory_retry", "policy_retry", "escalation"
WOULD = (PASSED, MANDATORY, POLICY, ESCALATED)
_WORDS = {
    PASSED: "would have passed at once",
    MANDATORY: "would have been retried at once, with a corrected prompt",
    POLICY: "would have been retried because the policy allows it",
    ESCALATED: "would have gone to a person",
}
#: How many ids stand for the rest.
_EXAMPLES = 5
#: What no record of an observed task can tell.
UNKNOWN = (
    "whether a retry would have worked: nothing was run again, so the gain is at most the"
    " retried tasks and may be none",
    "what a retried task would have cost: one more run at least, more if it failed again",
    "what is wrong with a task that passed: only your verifiers were asked",
)


def observe(
    window_days: Annotated[int, typer.Option(help="Days to look back.", min=1, max=365)] = 7,
    limit: Annotated[
        int, typer.Option(help="Maximum jobs to look at, newest first.", min=10, max=50_000)
    ] = 5000,
    json: Json = False,
) -> None:
    """What enforcing would change for observed tasks.

    Observed tasks are those that run with mode="observe".
    """
    with open_located_ledger(load_settings()) as ledger:
        now = ledger.now()
        newest = ledger.jobs(limit=limit)
        since = now - window_days * 86400
        found = (ledger.job(view.id) for view in newest if _observed(view, since))
        report = observe_report([view for view in found if view is not None])
    report = {"window_days": window_days, "limit_reached": len(newest) >= limit, **report}
    if json:
        screen.emit(report)
    else:
        _print(report)


def _observed(view: JobView, since: float) -> bool:
    return view.job.labels.get("mode") == "observe" and view.created_at >= since


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
    """What enforcing would have done, from the decision that was stored instead."""
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


def _print(report: Mapping[str, Any]) -> None:
    seen = report["seen"]
    screen.say(f"observed tasks of {report['window_days']} days: {seen}")
    if report["limit_reached"]:
        screen.say("the ledger holds more jobs than were looked at: raise --limit")
    if report["unfinished"]:
        screen.say(f"without a verdict, running or lost on the way: {report['unfinished']}")
    if not seen:
        screen.say('nothing to compare: give a task mode="observe" and let it run')
        return
    for what in WOULD:
        screen.say(f"{_WORDS[what]}: {report[what]} ({report[what] / seen:.1%})")
    for name, counts in report["task_types"].items():
        screen.say(f"task type  {name}: {_summary(counts)}")
    for name, counts in report["causes"].items():
        screen.say(f"cause  {name}: {_summary(counts)}; {', '.join(counts['examples'])}")
    again = report[MANDATORY] + report[POLICY]
    screen.say(
        f"Enforcing would have run {again} of {seen} again with what was wrong, called a person"
        f" for {report[ESCALATED]}, and left {report[PASSED]} as they are."
    )
    for line in report["unknown"]:
        screen.say(f"not known: {line}")


def _summary(counts: Mapping[str, Any]) -> str:
    return ", ".join(f"{what} {counts[what]}" for what in WOULD if counts[what])
