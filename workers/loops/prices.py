"""What runners cost, by the configured prices. A cost that is unknown is None, never 0."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mulligan.policies.jobs.job import Job, Output, RunnerSpec
from mulligan.workers.settings.model import Settings
from mulligan.workers.settings.tenant_settings import ModelPrice

_MILLION = 1_000_000


def token_price(spec: RunnerSpec, settings: Settings) -> float | None:
    """Return the highest price of one token of a runner and its fallbacks; None if one has none."""
    found = [_price(names, settings) for names in _names(spec, settings)]
    prices = [each for each in found if each is not None]
    if len(prices) < len(found):
        return None
    return max(max(each.prompt, each.completion) for each in prices) / _MILLION


def cost_of(job: Job, output: Output, settings: Settings) -> float | None:
    """Return what an answer cost; None if its usage or its price is unknown."""
    own = next(_names(job.runner, settings))
    price = _price((own[0], output.model or own[1]), settings) or _price(own, settings)
    usage = output.usage
    if price is None:
        return None
    if usage.prompt_tokens is not None and usage.completion_tokens is not None:
        total = usage.prompt_tokens * price.prompt + usage.completion_tokens * price.completion
        return total / _MILLION
    if usage.total_tokens is not None:
        return usage.total_tokens * max(price.prompt, price.completion) / _MILLION
    return None


def _price(names: tuple[str | None, str | None], settings: Settings) -> ModelPrice | None:
    return next((settings.prices[name] for name in names if name in settings.prices), None)


def _names(spec: RunnerSpec, settings: Settings) -> Iterator[tuple[str | None, str | None]]:
    """Yield the profile and the model of a runner and of each of its fallbacks."""
    profile: Mapping[str, Any] = settings.runners.get(spec.profile or "", {})
    options = {**profile, **spec.options}
    yield spec.profile, options.get("model")
    for each in options.get("fallbacks") or ():
        if isinstance(each, str):
            yield each, settings.runners.get(each, {}).get("model", each)
        elif isinstance(each, Mapping):
            yield each.get("profile"), each.get("model")
