"""Converting pydantic's errors to problems, in words that do not need Python."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from mulligan.policies.jobs.job import HALF_A_PAIR
from mulligan.policies.loops.spec import NAME_PATTERN, PLAIN_LINE
from mulligan.policies.problem import FieldError, FieldPath, Problem, ProblemCode
from mulligan.policies.suggestions import did_you_mean, name_hint

_LISTS = frozenset({"tuple_type", "list_type", "set_type", "frozen_set_type", "iterable_type"})
_MAPPINGS = frozenset(
    {"dict_type", "mapping_type", "model_type", "model_attributes_type", "dataclass_type"}
)
_CODES: dict[str, ProblemCode] = {
    "missing": "missing",
    "extra_forbidden": "unknown_field",
    "too_short": "too_short",
    "string_too_short": "too_short",
    "too_long": "too_long",
    "string_too_long": "too_long",
}
#: Our words for pydantic's types of errors, with the names of its context.
_MESSAGES = {
    **dict.fromkeys(
        ("int_type", "int_parsing", "int_parsing_size", "int_from_float"), "must be an integer"
    ),
    **dict.fromkeys(("float_type", "float_parsing"), "must be a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "must be true or false"),
    "missing": "is required",
    "string_type": "must be a string",
    "string_unicode": HALF_A_PAIR,
    "finite_number": "must be a finite number",
    "literal_error": "must be {expected}",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "too_short": "must have {min_length} or more items",
    "too_long": "must have {max_length} or fewer items",
    "string_too_short": "must have {min_length} or more characters",
    "string_too_long": "must have {max_length} or fewer characters",
}
#: Examples of mappings, by the model that reads them.
_EXAMPLES = {
    "Finding": "{message: what is wrong}",
    "ItemSpec": "{id: A-1, prompt: text, verifiers: [json.object]}",
    "ItemVerifier": "{id: json.object}",
    "LoopConfig": "{name: parser, runner: coder}",
    "Message": "{role: user, content: text}",
    "RunnerSpec": "{kind: openai, model: name}, or the name of a profile",
    "VerifierSpec": "{id: json.object}",
    "Workspace": "{path: directory}",
}
_PATTERNS = {
    NAME_PATTERN: "may contain only letters from A to Z, digits and _.-; it must start with a"
    " letter or a digit",
    PLAIN_LINE: "must be one line without control characters",
    r"\S": "must not be blank",
    r"^https?://\S+$": "must start with http:// or https://",
}
#: A pattern that lists characters, and may allow fewer as the first.
_CHARACTERS = re.compile(r"\^(\[\\w\]|\[A-Za-z0-9\])?\[\\w([^\]]*)\][*+]\$")
_FIRST = {r"[\w]": "a letter, a digit or _", "[A-Za-z0-9]": "a letter from A to Z or a digit"}
_PREFIX = re.compile("^(Value error|Assertion failed), ")
_LONGEST = 60


def problems_of(
    error: ValidationError,
    model: type[BaseModel],
    *,
    what: str = "field",
    also: Sequence[str] = (),
    list_known: bool = False,
    show_values: bool = False,
    most: int | None = None,
) -> list[Problem]:
    """Return every problem of a document that is not a ``model``, with suggestions for typos.

    ``what``: the word for a field of the model; ``also``: further names that are allowed;
    ``list_known``: list the known names if none is similar; ``show_values``: quote short values;
    ``most``: leave out further problems, because a suggestion takes time.
    """
    found = []
    for item in without_echoes(error.errors(include_url=False))[:most]:
        problem = problem_of(item, what=what, show_value=show_values)
        if problem.code == "unknown_field":
            known = [*_names_beside(model, problem.path), *(also if len(problem.path) == 1 else ())]
            hint = (name_hint if list_known else did_you_mean)(str(problem.path[-1]), known)
            problem = Problem(problem.message + hint, problem.path, problem.code)
        found.append(problem)
    return found


def problem_of(item: ErrorDetails, *, what: str = "field", show_value: bool = False) -> Problem:
    """Return the problem of one validation error, without a suggestion."""
    # pydantic adds the step "[key]" if the key of a mapping is wrong.
    kind, path = item["type"], tuple(step for step in item["loc"] if step != "[key]")
    if kind == "extra_forbidden":
        return Problem(f"there is no such {what}", path, "unknown_field")
    raised = (item.get("ctx") or {}).get("error")
    if isinstance(raised, FieldError):
        return Problem(raised.message, (*path, *raised.path))
    message = _meaning(item)
    message = message[0].lower() + message[1:]
    code = _CODES.get(kind, "wrong_type" if kind.endswith("_type") else "invalid")
    return Problem(message + (_given(item, message) if show_value else ""), path, code)


def _meaning(item: ErrorDetails) -> str:
    context = item.get("ctx") or {}
    kind = item["type"]
    if kind in _MESSAGES:
        return _MESSAGES[kind].format_map({name: _number(context[name]) for name in context})
    if kind in _LISTS:
        return f"must be a list, such as {_as_list(item['input'])}"
    if kind in _MAPPINGS:
        example = _EXAMPLES.get(str(context.get("class_name")), "{name: value}")
        return f"must be a mapping, such as {example}"
    if kind == "string_pattern_mismatch":
        return _about_pattern(context["pattern"])
    message = _PREFIX.sub("", item["msg"])
    if kind == "enum":
        # pydantic lists the aliases of an enum twice.
        choices = dict.fromkeys(re.findall(r"'([^']*)'", message))
        return f"must be one of {', '.join(choices)}"
    return message


def _number(value: Any) -> Any:
    """Write a whole limit without a fraction, as people do."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _about_pattern(pattern: str) -> str:
    """Say which texts a pattern allows; quote it if it is unknown."""
    match = _CHARACTERS.fullmatch(pattern)
    if match is None:
        return _PATTERNS.get(pattern, f"must match {pattern}")
    first, others = match.groups()
    spaces = ", spaces" if " " in others else ""
    start = f"; it must start with {_FIRST[first]}" if first else ""
    return f"may contain only letters, digits{spaces} and _{others.replace(' ', '')}{start}"


def without_echoes(errors: Sequence[ErrorDetails]) -> list[ErrorDetails]:
    """Drop errors caused by others: a list that is only too short because an item is wrong."""
    inside = {item["loc"][:end] for item in errors for end in range(len(item["loc"]))}
    return [item for item in errors if item["type"] != "too_short" or item["loc"] not in inside]


def _names_beside(model: type[BaseModel], path: FieldPath) -> list[str]:
    """Return the fields that are allowed at the place of an unknown one."""
    owner: type[BaseModel] | None = model
    for step in path[:-1]:
        if owner is not None and isinstance(step, str):
            field = owner.model_fields.get(step)
            owner = _model_in(field.annotation) if field else None
    fields = owner.model_fields if owner else {}
    return [field.alias or name for name, field in fields.items()]


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """Return the model of a field's value or of its items, if any."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = (_model_in(part) for part in get_args(annotation))
    return next((model for model in found if model is not None), None)


def _as_list(value: object) -> str:
    """Write the value as the list that was probably meant."""
    words = value.split() if isinstance(value, str) and len(value) < _LONGEST else []
    return f"[{', '.join(words)}]" if words else "[first, second]"


def _given(item: ErrorDetails, message: str) -> str:
    """Quote the value, if it is short and not already in the message."""
    value = item["input"]
    if item["type"] in ("missing", *_LISTS) or not isinstance(value, str | int | float):
        return ""
    given = f" (got {value!r})"
    return given if len(given) < 80 and repr(value) not in message else ""
