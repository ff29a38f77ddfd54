"""What follows when something about a loop does not get better: a graduated response with timers.

log → notify → alert → escalate, whose severity grows twice → halt. An incident begins when a
condition is found, takes each step once, and ends when the condition does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mulligan.policies.figures.format import duration
from mulligan.policies.loops.health import Condition
from mulligan.policies.loops.incident import Alarm, Incident, Step

#: Incidents of one loop, and characters of a text.
MOST_INCIDENTS = 20
_LONGEST_TEXT = 300


@dataclass(frozen=True, kw_only=True)
class ResponseStep:
    """One step of the response."""

    step: Step
    #: Seconds after the step before it.
    after: float
    #: 1 is the lowest; an escalation that stays begins at 4.
    severity: int


_STALE = 4 * 3600.0
#: The whole response. A halt is last, and only for loops that may escalate by themselves.
RESPONSE: tuple[ResponseStep, ...] = (
    ResponseStep(step="log", after=0.0, severity=1),
    ResponseStep(step="notify", after=60.0, severity=2),
    ResponseStep(step="alert", after=240.0, severity=3),
    ResponseStep(step="escalate", after=600.0, severity=4),
    ResponseStep(step="escalate", after=_STALE, severity=5),
    ResponseStep(step="escalate", after=_STALE, severity=6),
    ResponseStep(step="halt", after=_STALE, severity=7),
)


@dataclass(frozen=True, kw_only=True)
class LoopResponse:
    """What follows from the conditions of a loop."""

    incidents: tuple[Incident, ...] = ()
    alarms: tuple[Alarm, ...] = ()

    @property
    def halts(self) -> str:
        """Why the loop is to be paused; empty if it is not."""
        return next((each.text for each in self.alarms if each.step == "halt"), "")


def respond(
    incidents: Sequence[Incident], conditions: Sequence[Condition], *, may_halt: bool, now: float
) -> LoopResponse:
    """Take the next step of each incident that is due, begin new ones and end those that are over.

    Each incident takes one step at a time, also if nobody has looked at it for long.
    """
    current = {each.key: each for each in conditions}
    known = {each.key for each in incidents}
    new = [
        Incident(signal=each.signal, item=each.item, since=each.since)
        for each in conditions
        if each.key not in known
    ]
    kept: list[Incident] = []
    alarms: list[Alarm] = []
    for incident in [*incidents, *new]:
        if incident.key not in current:
            alarms.append(_ended(incident, now))
        elif len(kept) < MOST_INCIDENTS:
            moved = replace(incident, text=current[incident.key].text[:_LONGEST_TEXT])
            following = _due(moved, may_halt=may_halt, now=now)
            if following is not None:
                alarms.append(_alarm(following, moved))
                moved = replace(moved, steps=incident.steps + 1, stepped_at=now)
            kept.append(moved if following is not None else incident)
    return LoopResponse(incidents=tuple(kept), alarms=tuple(alarms))


def _due(incident: Incident, *, may_halt: bool, now: float) -> ResponseStep | None:
    if incident.steps >= len(RESPONSE):
        return None
    following = RESPONSE[incident.steps]
    if following.step == "halt" and not may_halt:
        return None
    return following if now - incident.stepped_at >= following.after else None


def _alarm(step: ResponseStep, incident: Incident) -> Alarm:
    return Alarm(
        step=step.step,
        severity=step.severity,
        signal=incident.signal,
        item=incident.item,
        since=incident.since,
        text=incident.text,
    )


def _ended(incident: Incident, now: float) -> Alarm:
    text = f"over after {duration(now - incident.since)}: {incident.text}"
    over = ResponseStep(
        step="ended", after=0.0, severity=RESPONSE[max(0, incident.steps - 1)].severity
    )
    return replace(_alarm(over, incident), text=text)
