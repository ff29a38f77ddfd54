"""An incident of a loop: a condition that should not last, and the steps taken because of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

#: ``ended``: the condition is over. The others: see response.py.
Step = Literal["log", "notify", "alert", "escalate", "halt", "ended"]


@dataclass(frozen=True, kw_only=True)
class Incident:
    """A condition that was found, and how far the response to it is."""

    signal: str
    item: str = ""
    #: Since when the condition holds.
    since: float
    text: str = ""
    #: How many steps were taken, and when the last one was.
    steps: int = 0
    stepped_at: float = 0.0

    @property
    def key(self) -> str:
        return f"{self.signal}:{self.item}"


@dataclass(frozen=True, kw_only=True)
class Alarm:
    """A step that is taken now: what the log, the events and the webhooks say."""

    step: Step
    severity: int
    signal: str
    item: str
    since: float
    text: str


def incidents_to_json(incidents: Sequence[Incident]) -> str:
    """Return them as the ledger keeps them; empty if there are none."""
    return json.dumps([asdict(each) for each in incidents]) if incidents else ""


def incidents_from_json(text: str) -> tuple[Incident, ...]:
    """Read what the ledger keeps. What is damaged or of a later release is left out."""
    try:
        found = json.loads(text or "[]")
        return tuple(Incident(**each) for each in found)
    except (ValueError, TypeError):
        return ()
