"""Guardrails: how much of a session repairs may take before a person must look."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

LOOP_CAP = "per_skill_loop_cap"
TIME_SHARE_CAP = "session_time_share_cap"


@dataclass(frozen=True, kw_only=True)
class RepairLoad:
    """The repairs in one subject's session, or in one job."""

    #: Repair loops of the same skill.
    loops_of_skill: int = 0
    #: Repair loops of all skills.
    loops: int = 0
    repair_seconds: float = 0.0
    #: Time spent on all attempts, repairs included.
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Guardrail:
    """The limits. ``window`` is the length of a session in seconds."""

    window: float = 5400.0
    loops: int = 2
    share: float = 0.25

    def exhausted(self, session: RepairLoad) -> str | None:
        """Return the limit that forbids one more loop; None if none does.

        The first loop of a session is always allowed: a share of very little time means nothing.
        """
        if session.loops_of_skill >= self.loops:
            return LOOP_CAP
        if not session.loops or not session.seconds:
            return None
        return TIME_SHARE_CAP if session.repair_seconds / session.seconds > self.share else None


@dataclass(frozen=True, kw_only=True)
class LoadStep:
    """One attempt of a session."""

    skill: str
    seconds: float
    repair: bool
    #: Whether it opened a loop.
    loop: bool


def repair_load(steps: Iterable[LoadStep], *, skill: str) -> RepairLoad:
    """Sum up a session for one skill."""
    steps = tuple(steps)
    return RepairLoad(
        loops_of_skill=sum(step.loop and step.skill == skill for step in steps),
        loops=sum(step.loop for step in steps),
        repair_seconds=sum(step.seconds for step in steps if step.repair),
        seconds=sum(step.seconds for step in steps),
    )
