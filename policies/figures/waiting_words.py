"""What a waiting job waits for, in plain words, the same on every surface."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mulligan.policies.figures.format import counted, time_of_day, words
from mulligan.policies.jobs.breaker import Breaker

#: What an entry waits for that is parked behind nothing.
_NOT_PARKED = {"": "a worker", "delay": "its next try", "budget": "its quota"}


def waiting_words(
    waiting_for: str | None,
    behind: str | None,
    *,
    provider: Breaker | None = None,
    now: float = 0.0,
    release: str | None = None,
    schema: int | None = None,
) -> str:
    """Complete the sentence "waits for …".

    ``behind`` is the reason that the entry is parked behind, such as ``quota:acme``. ``provider``
    is the state of that provider, if the reader may know it. ``release`` and ``schema`` are what
    the job needs, if they are known.
    """
    kind, _, name = (behind or "").partition(":")
    match kind:
        case "queue" | "task_type":
            return f"{words(kind)} {name}, which is paused"
        case "quota":
            return f"the quota of {name}"
        case "loop":
            return f"loop {name}, which is paused"
        case "budget":
            return f"the budget of loop {name}"
        case "slot":
            return "a slot of its loop"
        case "merge":
            return "the merge of another item of its loop"
        case "provider" if waiting_for == "pause":
            return f"{name}, which is paused"
        case "provider" if provider is not None:
            return f"{name}: {provider_words(provider, now)}"
        case "provider":
            return f"provider {name}"
        case _ if waiting_for == "version":
            version = "a later version" if release is None else f"version {release} or later"
            return f"a worker of {version}{f' (schema {schema})' if schema else ''}"
        case _:
            return _NOT_PARKED.get(waiting_for or "", words(waiting_for))


def waiting_event_words(event: Mapping[str, Any]) -> str:
    """Complete the sentence "waits for …" about the event of a waiting attempt."""
    return waiting_words(
        event.get("waiting_for"),
        event.get("waiting_behind"),
        release=event.get("needs_release"),
        schema=event.get("needs_schema"),
    )


def provider_words(provider: Breaker, now: float) -> str:
    """Say what a provider does now and why, from the most to the least serious."""
    later = provider.until > now
    at = f"{time_of_day(provider.until)} UTC"
    match provider.state:
        case "out_of_credits":
            return (
                f"out of credits, {f'next try at {at}' if later else 'one call is trying it again'}"
            )
        case "open" if later:
            failed = counted(provider.faults, "time")
            return f"failed {failed} in a row, next try at {at}"
        case "open" | "half_open":
            return "failed, one call is trying it again"
        case _ if later:
            return f"paused by the provider until {at}"
        case _ if provider.used_up and provider.tokens_per_minute is not None:
            spent, of = f"{provider.tokens_used:,}", f"{provider.tokens_per_minute:,}"
            rest = ", running calls need the rest" if provider.in_flight else ""
            return f"{spent} of {of} tokens a minute are used{rest}"
        case _ if provider.used_up:
            return "running calls need what it still allows"
        case _ if 0 < provider.limit <= provider.in_flight:
            running = counted(provider.in_flight, "call")
            return f"{running} at once {'is' if provider.in_flight == 1 else 'are'} running"
        case _:
            return "takes calls"
