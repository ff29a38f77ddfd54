"""The errors of pydantic as findings: the message of the validator, the place, a stable code."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from mulligan.policies.failures.causes import pydantic_keyword
from mulligan.policies.failures.failure import Finding
from mulligan.policies.value import Json
from mulligan.workers.contract_models import Model, read_as
from mulligan.workers.verifiers.schema_findings import brief, json_path

#: How pydantic announces what a validator raised.
_PREFIXES = ("Value error, ", "Assertion failed, ")


def model_findings(model: Model, value: Json, *, told: Collection[str] = ()) -> list[Finding]:
    """What a model's validators find wrong in a JSON value, but for the places already told."""
    try:
        read_as(model, json.dumps(value))
    except ValidationError as error:
        found = [_finding(item) for item in error.errors(include_url=False)]
        return [finding for finding in found if not _covered(finding.path or "$", told)]
    return []


def _covered(path: str, told: Collection[str]) -> bool:
    """Whether an error at this place, or at one that holds it, was told before."""
    return any(path == known or path.startswith((f"{known}.", f"{known}[")) for known in told)


def _finding(item: ErrorDetails) -> Finding:
    message = item["msg"]
    for prefix in _PREFIXES:
        message = message.removeprefix(prefix)
    missing = item["type"] == "missing"
    return Finding(
        message=message,
        code=pydantic_keyword(item["type"]),
        path=json_path(item["loc"]),
        expected=_plain((item.get("ctx") or {}).get("expected")),
        actual=None if missing else _plain(item["input"]),
    )


def _plain(value: Any) -> Json:
    """Something that can be stored, however odd the value that a validator was given."""
    return brief(json.loads(json.dumps(value, default=str)))
