"""What an attempt that runs shows of itself: the evidence of its progress, and its processes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

#: What shows that an agent does something: an event of its session, bytes that it prints, a change
#: of its files, CPU time of its processes.
Signal = Literal["event", "output", "files", "cpu"]
SIGNALS: tuple[Signal, ...] = get_args(Signal)
#: What a silent agent waits for: an answer of its model, or a tool that it has called.
WaitsOn = Literal["", "model", "tool"]


@dataclass(frozen=True, kw_only=True)
class AgentProgress:
    """What a worker knows of an attempt that it runs."""

    #: Of each signal, when it was last seen; a signal that was never seen is missing. A worker
    #: sends the seconds since then, and the ledger keeps the time by its own clock.
    at: Mapping[Signal, float] = field(default_factory=dict)
    waits_on: WaitsOn = ""
    #: The state letter of the agent's processes: `R` if any runs, `T` if it is stopped, else `S`.
    state: str = ""
    processes: int = 0
    #: The stuck rule that applies now, in words; empty if none does.
    finding: str = ""

    @property
    def last(self) -> tuple[Signal, float] | None:
        """The newest sign of progress, and when it was seen."""
        found = max(self.at.items(), key=lambda each: each[1], default=None)
        return found

    def moved(self, seconds: float) -> AgentProgress:
        """Return it with all times so many seconds later."""
        return replace(self, at={name: each + seconds for name, each in self.at.items()})

    def since(self, now: float) -> AgentProgress:
        """Return it with times instead of the seconds before ``now``."""
        return replace(self, at={name: now - each for name, each in self.at.items()})

    def as_json(self) -> str:
        fields: dict[str, Any] = {"at": {k: round(v, 3) for k, v in self.at.items()}}
        for name in ("waits_on", "state", "processes", "finding"):
            if value := getattr(self, name):
                fields[name] = value
        return json.dumps(fields, separators=(",", ":"))

    @classmethod
    def parse(cls, text: str) -> AgentProgress:
        """Read what a worker wrote. Raises ValueError if it is damaged."""
        found = json.loads(text)
        waits_on: WaitsOn = found.get("waits_on", "")
        return cls(
            at={name: float(found["at"][name]) for name in SIGNALS if name in found["at"]},
            waits_on=waits_on if waits_on in get_args(WaitsOn) else "",
            state=str(found.get("state", "")),
            processes=int(found.get("processes", 0)),
            finding=str(found.get("finding", "")),
        )
