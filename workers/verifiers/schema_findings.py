"""Turn jsonschema-rs' errors into findings: exact paths, short values, keywords as codes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from decimal import Decimal
from functools import partial

from jsonschema_rs import ValidationError, ValidationErrorKind

from mulligan.policies.failures.failure import Finding, json_path
from mulligan.policies.failures.places import Places
from mulligan.policies.value import Json, shortened
from mulligan.workers.verifiers.pattern_examples import examples_of

_MESSAGE_CHARACTERS = 300
_VALUE_CHARACTERS = 120
_EXTRA = "is not an allowed property"
#: Extra properties of one object that are reported.
_MAX_EXTRA = 201

Path = Sequence[str | int]


def schema_findings(errors: Iterable[ValidationError], schema: Json = None) -> list[Finding]:
    """Return the findings of a value's errors, with what the schema asks for."""
    places = Places()
    for error in errors:
        kind = error.kind
        names = getattr(kind, "property", None) or tuple(getattr(kind, "unexpected", ()))
        place = tuple("*" if isinstance(part, int) else part for part in error.instance_path)
        key = (kind.name, tuple(error.schema_path), place, names)
        places.add(key, partial(findings_of, error, schema))
    return places.findings


def json_pointer(parts: Path) -> str:
    """Return ``/properties/age/type``."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)


def brief(value: Json) -> Json:
    """Return the value itself if it is short, otherwise the beginning of it."""
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, str):
        return _cut(value, _VALUE_CHARACTERS)
    return shortened(value, _VALUE_CHARACTERS)


def _cut(text: str, limit: int) -> str:
    # A lone surrogate such as "\ud800" cannot be stored or sent: replace it.
    text = text.encode("utf-8", "replace").decode("utf-8")
    return text if len(text) <= limit else text[: limit - 1] + "…"


def findings_of(error: ValidationError, schema: Json = None) -> list[Finding]:
    """Return one finding per wrong place; each missing or extra property is one."""
    kind, path = error.kind, error.instance_path
    match kind:
        case ValidationErrorKind.Required():
            return [_finding(error, [*path, kind.property], expected=kind.property)]
        case (
            ValidationErrorKind.AdditionalProperties() | ValidationErrorKind.UnevaluatedProperties()
        ):
            known = _actual(error)
            return [
                _finding(error, [*path, name], actual=known, message=f"{_quoted(name)} {_EXTRA}")
                for name in kind.unexpected[:_MAX_EXTRA]
            ]
        case ValidationErrorKind.Contains():
            rule = _at(schema, error.schema_path[:-1]) or {}
            return [_finding(error, path, expected=rule.get("contains"))]
    return [_finding(error, path, expected=_types(error) or _expected(kind))]


def _at(schema: Json, path: Path) -> Json:
    """Return the part of the schema at this place; None if it is in another document."""
    for part in path:
        try:
            schema = schema[part]
        except (LookupError, TypeError):
            return None
    return schema


def _code(error: ValidationError) -> str:
    """Return the keyword: also of the bounds of ``contains``, which jsonschema-rs calls that."""
    if isinstance(error.kind, ValidationErrorKind.Contains):
        return str(error.schema_path[-1])
    return error.kind.name


def _quoted(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)


def _finding(
    error: ValidationError,
    path: Path,
    *,
    expected: Json = None,
    actual: Json = None,
    message: str | None = None,
) -> Finding:
    return Finding(
        message=_cut(message or _in_words(error) or error.message, _MESSAGE_CHARACTERS),
        code=_code(error),
        path=_cut(json_path(path), _MESSAGE_CHARACTERS),
        schema_path=json_pointer(error.schema_path),
        expected=brief(expected),
        actual=_actual(error) if actual is None else actual,
        example=_example(error.kind),
    )


def _example(kind: ValidationErrorKind) -> Json:
    if not isinstance(kind, ValidationErrorKind.Pattern):
        return None
    return next(iter(examples_of(kind.pattern)), None)


def _actual(error: ValidationError) -> Json:
    """Return the wrong value or, for a missing or extra property, the existing names."""
    keys_matter = error.kind.name in ("required", "additionalProperties", "unevaluatedProperties")
    if keys_matter and isinstance(error.instance, dict):
        return brief(sorted(error.instance))
    return brief(error.instance)


def _expected(kind: ValidationErrorKind) -> Json:
    """Return what the schema demands: the type, the limit, the options."""
    match kind:
        case ValidationErrorKind.Type():
            return kind.types[0] if len(kind.types) == 1 else kind.types
        case (
            ValidationErrorKind.AnyOf()
            | ValidationErrorKind.OneOfNotValid()
            | ValidationErrorKind.OneOfMultipleValid()
            | ValidationErrorKind.PropertyNames()
        ):
            return None
    values = list(kind.as_dict().values())
    return values[0] if len(values) == 1 else None


def _in_words(error: ValidationError) -> str:
    """Return a message where that of jsonschema-rs is wrong or does not help; else empty."""
    match error.kind:
        case ValidationErrorKind.AnyOf() | ValidationErrorKind.OneOfNotValid():
            return _closest(error, error.kind.context)
        case ValidationErrorKind.OneOfMultipleValid():
            return "it fits more than one of the alternatives; it must fit exactly one"
        case ValidationErrorKind.Contains():
            number = {"minContains": "too few items", "maxContains": "too many items"}
            return f"{number.get(_code(error), 'no item')} as `contains` asks for"
    return ""


def _closest(error: ValidationError, context: list[list[ValidationError]]) -> str:
    """Return the errors of the closest alternative, since "none fits" does not help."""
    branches = [branch for branch in context if branch]
    if not branches:
        return ""
    whole = list(error.instance_path)
    nearest = min(branches, key=lambda branch: _distance(branch, len(whole)))
    errors = "; ".join(
        _cut(e.message, 80)
        if list(e.instance_path) == whole
        else f"{json_path(e.instance_path)}: {_cut(e.message, 80)}"
        for e in nearest[:3]
    )
    return f"it fits none of the alternatives; the closest says: {errors}"


def _distance(branch: list[ValidationError], depth: int) -> tuple[bool, int]:
    """Rank an alternative: one for another type of value last, else by number of errors."""
    return any(_is_type(error, depth) for error in branch), len(branch)


def _is_type(error: ValidationError, depth: int) -> bool:
    return error.kind.name == "type" and len(error.instance_path) == depth


def _types(error: ValidationError) -> list[str] | None:
    """Return the types of the alternatives, if they differ only in them."""
    kind = error.kind
    if not isinstance(kind, ValidationErrorKind.AnyOf | ValidationErrorKind.OneOfNotValid):
        return None
    depth = len(error.instance_path)
    if not all(len(branch) == 1 and _is_type(branch[0], depth) for branch in kind.context):
        return None
    types = [getattr(branch[0].kind, "types", ()) for branch in kind.context]
    return [str(name) for names in types for name in names]
