"""Turn pydantic's errors into findings: the validator's message, the place, a stable code."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from mulligan.policies.failures.causes import pydantic_keyword
from mulligan.policies.failures.failure import Finding, json_path
from mulligan.policies.value import Json
from mulligan.workers.contract_models import Model, read_as
from mulligan.workers.verifiers.schema_findings import brief

#: What pydantic puts before a validator's message.
_PREFIXES = ("Value error, ", "Assertion failed, ")


def model_findings(model: Model, value: Json, *, reported: Collection[str] = ()) -> list[Finding]:
    """Return a model's errors in a JSON value, except below paths that are already reported."""
    try:
        read_as(model, json.dumps(value))
    except ValidationError as error:
        found = [_finding(item) for item in error.errors(include_url=False)]
        return [finding for finding in found if not _is_below(finding.path or "$", reported)]
    return []


def _is_below(path: str, paths: Collection[str]) -> bool:
    """Return whether a path is one of these or below one of them."""
    return any(path == known or path.startswith((f"{known}.", f"{known}[")) for known in paths)


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
    """Return a short JSON value, whatever a validator was given."""
    return brief(json.loads(json.dumps(value, default=str)))
