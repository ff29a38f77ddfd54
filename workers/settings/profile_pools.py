"""Where the jobs of a runner profile run, and for how long: its ``pool`` and ``hard_limit``.

Both are options of every kind of profile, and of profiles only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from mulligan.policies.jobs.job import EXTERNAL, Seconds
from mulligan.policies.jobs.routing import AttemptPool
from mulligan.policies.problem import Problem

if TYPE_CHECKING:
    from mulligan.workers.settings.model import Settings

POOL, HARD_LIMIT = "pool", "hard_limit"
#: Maximum seconds of an agent's claim.
LONGEST_CLAIM = 4 * 3600.0

_SECONDS: TypeAdapter[float] = TypeAdapter(Seconds)


def profile_pool(profile: Mapping[str, Any]) -> AttemptPool:
    """Return the pool of a profile; a profile with an unknown one is never used."""
    return "agent" if profile.get(POOL) == "agent" else ""


def pool_problems(profile: Mapping[str, Any]) -> list[Problem]:
    """Return the problems of a profile's ``pool`` and ``hard_limit``."""
    found = []
    pool = profile.get(POOL, "")
    if pool not in ("", "agent"):
        found.append(Problem.at(POOL, f"must be agent, not {pool!r}; or leave it out"))
    if pool == "agent" and profile.get("kind") == EXTERNAL:
        message = "external work waits for its subject, in no pool: leave it out"
        found.append(Problem.at(POOL, message, "not_allowed"))
    if HARD_LIMIT in profile:
        found += _limit_problems(profile)
    return found


def _limit_problems(profile: Mapping[str, Any]) -> list[Problem]:
    if profile_pool(profile) != "agent":
        message = 'only a profile with pool = "agent" may have its own; raise MULLIGAN_HARD_LIMIT'
        return [Problem.at(HARD_LIMIT, message, "not_allowed")]
    seconds = _seconds(profile[HARD_LIMIT])
    if seconds is None:
        message = f"must be seconds above 0, or 20s, 10m, 1h, not {profile[HARD_LIMIT]!r}"
        return [Problem.at(HARD_LIMIT, message)]
    if seconds > LONGEST_CLAIM:
        return [Problem.at(HARD_LIMIT, f"{seconds:g} s is more than 4 h ({LONGEST_CLAIM:g} s)")]
    return []


def own_limits(settings: Settings) -> dict[str, float]:
    """Return the maximum seconds of a claim for each profile that has its own."""
    return {
        name: _seconds(profile[HARD_LIMIT]) or 0.0
        for name, profile in settings.runners.items()
        if HARD_LIMIT in profile and not pool_problems(profile)
    }


def claim_limit(profile: str | None, settings: Settings) -> float:
    """Return the maximum seconds of a claim for a profile, or for a runner without one."""
    return own_limits(settings).get(profile or "", settings.hard_limit)


def longest_claim(settings: Settings) -> float:
    """Return the maximum seconds of any claim."""
    return max(settings.hard_limit, *own_limits(settings).values(), 0.0)


def has_agents(settings: Settings) -> bool:
    """Whether some profile uses the pool of agents."""
    return any(profile_pool(profile) == "agent" for profile in settings.runners.values())


def _seconds(value: Any) -> float | None:
    """Read a duration above 0; None if it is none."""
    try:
        seconds = _SECONDS.validate_python(value)
    except ValidationError:
        return None
    return seconds if seconds > 0 and not isinstance(value, bool) else None
