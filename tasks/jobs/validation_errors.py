"""Where pydantic's errors become ours: ``field: what is wrong``, in words that are not Python's."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from pydantic_core import ErrorDetails

from mulligan.policies.jobs.job import Job

Place = tuple[int | str, ...]

_LISTS = frozenset({"tuple_type", "list_type", "set_type", "frozen_set_type", "iterable_type"})
_MAPPINGS = frozenset(
    {"dict_type", "mapping_type", "model_type", "model_attributes_type", "dataclass_type"}
)
#: What a mapping may look like, by the model that it is read into.
_EXAMPLES = {
    "Finding": "{message: what is wrong}",
    "Message": "{role: user, content: text}",
    "RunnerSpec": "{kind: openai, model: name}, or the name of a profile",
    "VerifierSpec": "{id: json.object}",
    "Workspace": "{path: directory}",
}
_LONGEST = 60


def explain(
    item: ErrorDetails,
    *,
    whole: str = "job",
    known: Callable[[Place], Sequence[str]] | None = None,
    got: bool = False,
) -> str:
    """One validation error as ``field: what is wrong``, with a suggestion for a typo.

    ``whole`` is what is named if no field is; ``known`` tells the fields beside a place; with
    ``got`` a short value is repeated.
    """
    field = spelled(item["loc"])
    if item["type"] == "extra_forbidden":
        hint = did_you_mean(str(item["loc"][-1]), (known or _job_fields)(item["loc"]))
        return f"{field}: there is no such field{hint}"
    told = meaning(item)
    told = told[0].lower() + told[1:]
    return f"{field or whole}: {told}{_given(item, told) if got else ''}"


def meaning(item: ErrorDetails) -> str:
    """What is wrong, without the place."""
    context = item.get("ctx") or {}
    kind = item["type"]
    if kind == "missing":
        return "is required"
    if kind in _LISTS:
        return f"must be a list, such as {_as_list(item['input'])}"
    if kind in _MAPPINGS:
        example = _EXAMPLES.get(str(context.get("class_name")), "{name: value}")
        return f"must be a mapping, such as {example}"
    if kind == "too_short":
        return f"give at least {context.get('min_length', 1)}"
    if kind == "too_long":
        return f"give at most {context.get('max_length')}"
    message = item["msg"].removeprefix("Value error, ")
    if kind == "enum":
        # An enum's aliases are named twice.
        choices = dict.fromkeys(re.findall(r"'([^']*)'", message))
        return f"must be one of {', '.join(choices)}"
    return message


def without_echoes(errors: Sequence[ErrorDetails]) -> list[ErrorDetails]:
    """The errors that stand for themselves: a list is not too short because an item is wrong."""
    inside = {item["loc"][:end] for item in errors for end in range(len(item["loc"]))}
    return [item for item in errors if item["type"] != "too_short" or item["loc"] not in inside]


def spelled(path: Sequence[str | int]) -> str:
    """``verifiers[1].id``"""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.lstrip(".")


def did_you_mean(name: str, known: Sequence[str]) -> str:
    from rapidfuzz import process  # only for a typo: a producer starts without it

    near = process.extractOne(name, known, score_cutoff=65)
    return f"; did you mean {near[0]!r}?" if near else ""


def _job_fields(loc: Place) -> Sequence[str]:
    return list(Job.model_fields) if len(loc) == 1 else ()


def _as_list(value: object) -> str:
    """What was given, as the list that was meant."""
    words = value.split() if isinstance(value, str) and len(value) < _LONGEST else []
    return f"[{', '.join(words)}]" if words else "[first, second]"


def _given(item: ErrorDetails, told: str) -> str:
    """The value, if it is short and not in the message already."""
    value = item["input"]
    if item["type"] in ("missing", *_LISTS) or not isinstance(value, str | int | float):
        return ""
    given = f" (got {value!r})"
    return given if len(given) < 80 and "not a" not in told else ""
