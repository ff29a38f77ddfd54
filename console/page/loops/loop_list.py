"""The list of all loops: how far each is, how it is, what it has used, and what comes next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mulligan.console.http.access import Caller
from mulligan.console.page.loops.loop_remedies import RemedyButton, remedy_button
from mulligan.console.page.loops.loop_signs import HealthSign, loop_sign
from mulligan.policies.figures.format import amount, count, duration, money
from mulligan.policies.loops.budget import Resource, SharedScope
from mulligan.policies.loops.health import HealthCheck
from mulligan.tasks.loops.change import NoSuchLoop
from mulligan.tasks.loops.context import LoopContext
from mulligan.tasks.loops.monitor import check_all
from mulligan.tasks.loops.registry import LoopSummary
from mulligan.tasks.loops.view import view_loop, why_of

#: Loops that are read whole to say what they wait for. The page of each says it, too.
_EXPLAINED = 10
#: Of a loop that was deleted a moment ago.
_UNKNOWN = HealthCheck(status="idle")
_Used = Mapping[tuple[SharedScope, Resource], float]


@dataclass(frozen=True, kw_only=True)
class SpentShare:
    """What a loop has used of the limit that it is nearest to, or in all."""

    text: str
    #: Of the limit; None without one.
    share: float | None = None


@dataclass(frozen=True, kw_only=True)
class LoopLine:
    """One loop of the list."""

    summary: LoopSummary
    sign: HealthSign
    spent: SpentShare | None
    #: What runs, or what it waits for.
    next: str
    #: What changes it.
    remedy: RemedyButton | None = None
    waits: bool = False


def loop_lines(
    context: LoopContext, caller: Caller, found: Sequence[LoopSummary]
) -> list[LoopLine]:
    """Return the lines of loops that were listed."""
    used = context.ledger.loops_used([each.loop.name for each in found])
    checks = check_all(context, tenant=caller.tenant, owner=caller.owner)
    health = {each.loop.name: each.check for each in checks}
    now, left = context.ledger.now(), _EXPLAINED
    lines = []
    for summary, spent in zip(found, used, strict=True):
        explains = not summary.running and summary.loop.state != "completed" and left > 0
        left -= explains
        text, remedy = _why(context, caller, summary) if explains else (_next(summary), None)
        lines.append(
            LoopLine(
                summary=summary,
                sign=loop_sign(health.get(summary.loop.name, _UNKNOWN), now),
                spent=_spent(summary, spent),
                next=text,
                remedy=remedy,
                waits=not summary.running and summary.loop.state != "completed",
            )
        )
    return lines


def _why(
    context: LoopContext, caller: Caller, summary: LoopSummary
) -> tuple[str, RemedyButton | None]:
    try:
        view = view_loop(context, summary.loop.name, tenant=caller.tenant, owner=caller.owner)
    except NoSuchLoop:  # it was deleted a moment ago
        return "", None
    reason = why_of(context, view)
    return reason.text, remedy_button(reason, caller)


def _next(summary: LoopSummary) -> str:
    """Say what runs, with who works on the first one."""
    running = summary.running
    if not running:
        return summary.loop.reason
    live = summary.live[summary.items[running[0]].job_id]
    more = f" and {len(running) - 1} more" if len(running) > 1 else ""
    return f"{running[0]} on {live.worker}{more}" if live.worker else f"{running[0]}{more}"


def _spent(summary: LoopSummary, used: _Used) -> SpentShare | None:
    limits = summary.loop.config.budget.shared()
    if limits:
        key = max(limits, key=lambda each: used.get(each, 0.0) / limits[each])
        spent, limit = used.get(key, 0.0), limits[key]
        scope = " today" if key[0] == "day" else ""
        text = f"{_short(key[1], spent)} / {_unit(key[1], limit)}{scope}"
        return SpentShare(text=text, share=spent / limit)
    for resource in ("money", "tokens"):
        if spent := used.get(("loop", resource), 0.0):
            return SpentShare(text=_unit(resource, spent))
    return None


def _short(resource: Resource, value: float) -> str:
    match resource:
        case "money":
            return money(value)
        case "tokens":
            return count(value)
        case "seconds":
            return duration(value)


def _unit(resource: Resource, value: float) -> str:
    match resource:
        case "money":
            return f"{amount(value)} money"
        case "tokens":
            return f"{count(value)} tokens"
        case "seconds":
            return duration(value)
