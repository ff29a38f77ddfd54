"""The faults of a run: each happens at the nth call of a port, so that a run can be repeated."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Literal

#: Before or after a call's effect; every process and every port.
PROCESS_FAULTS = ("crash_before", "crash_after", "freeze_before", "freeze_after", "slow")
#: Calls to Redis. The last three last for some seconds and concern everybody.
REDIS_FAULTS = ("lose_request", "lose_reply", "redis_away", "redis_refuses", "redis_restart")
BROKER_FAULTS = ("lose_message", "duplicate", "delay", "broker_away", "purge", "unsendable")
PROVIDER_FAULTS = ("provider_away", "provider_limit", "provider_unpaid")
VERIFIER_FAULTS = ("verifier_broken",)
RECEIVER_FAULTS = ("receiver_away",)
#: Calls to a repository. The last one lasts for some seconds and concerns everybody.
REPOSITORY_FAULTS = ("lose_request", "lose_reply", "repository_away")
#: Just before a call to a repository, people put commits on the branches of its loops.
PUSH = "push"

Refusal = Literal["OOM", "READONLY", "BUSY", "LOADING"]
REFUSALS: tuple[Refusal, ...] = ("OOM", "READONLY", "BUSY", "LOADING")


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault, at the nth call of a port that has this name."""

    kind: str
    #: The name of a script (`settle`), of a command (`hset`), of a call to a repository
    #: (`git_land`), of a step (`merge_landed`), or `publish`, `answer`, `verify`, `post`.
    call: str
    nth: int = 1
    #: How long it lasts, for those that last.
    seconds: float = 0.0
    refusal: Refusal = "OOM"
    #: Only calls of this process count, if it is given.
    process: str | None = None

    def __str__(self) -> str:
        text = f"{self.kind} at call {self.nth} of {self.call}"
        if self.process:
            text += f" by {self.process}"
        if self.kind == "redis_refuses":
            text += f" with {self.refusal}"
        return f"{text} for {self.seconds:g} s" if self.seconds else text


@dataclass
class FaultPlan:
    """The faults of one run, and how many calls of each port there were."""

    faults: list[Fault] = field(default_factory=list)
    active: bool = True
    _calls: Counter[tuple[str | None, str]] = field(default_factory=Counter)

    def add(self, fault: Fault) -> None:
        """Plan a fault; its number counts the calls from now on."""
        done = self._calls[fault.process, fault.call]
        self.faults.append(replace(fault, nth=fault.nth + done))

    def count(self, call: str) -> int:
        """Return how many calls there were."""
        return self._calls[None, call]

    def at(self, call: str, process: str) -> list[Fault]:
        """Count a call, and return the faults that happen at it."""
        self._calls[None, call] += 1
        self._calls[process, call] += 1
        if not self.active:
            return []
        return [
            fault
            for fault in self.faults
            if fault.call == call
            and fault.process in (None, process)
            and fault.nth == self._calls[fault.process, call]
        ]
