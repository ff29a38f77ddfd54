"""Read the tokens of a call to a model, as SDKs report them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mulligan.policies.jobs.job import MOST_TOKENS, Usage
from mulligan.policies.value import shortened

#: Our names, and the others that SDKs have for them.
_NAMES = {
    "prompt_tokens": ("prompt_tokens", "input_tokens"),
    "completion_tokens": ("completion_tokens", "output_tokens"),
    "total_tokens": ("total_tokens",),
}


def read_usage(usage: Any) -> Usage:
    """Read a mapping or an SDK's object. Raises TypeError if it has none of the known numbers."""
    found = {ours: _number(usage, names) for ours, names in _NAMES.items()}
    if set(found.values()) == {None}:
        for name in (name for names in _NAMES.values() for name in names):
            if (value := _value(usage, name)) is not None:
                raise TypeError(
                    f"report_usage: {name} is {shortened(repr(value), 40)}, not a whole number from"
                    f" 0 to {MOST_TOKENS:,}"
                )
        raise TypeError(
            "report_usage needs prompt_tokens and completion_tokens, or total_tokens, not"
            f" a {type(usage).__name__} without them"
        )
    prompt, completion = found["prompt_tokens"], found["completion_tokens"]
    if found["total_tokens"] is None and prompt is not None and completion is not None:
        found["total_tokens"] = prompt + completion
    return Usage(**found)


def _number(usage: Any, names: tuple[str, ...]) -> int | None:
    values = (_value(usage, name) for name in names)
    plausible = (each for each in values if isinstance(each, int) and 0 <= each <= MOST_TOKENS)
    return next(plausible, None)


def _value(usage: Any, name: str) -> Any:
    return usage.get(name) if isinstance(usage, Mapping) else getattr(usage, name, None)
