"""Turn pydantic's errors into findings: the validator's message, the place, a stable code."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from mulligan.policies.failures.causes import (
    pydantic_expected,
    pydantic_keyword,
    pydantic_message,
)
from mulligan.policies.failures.failure import Finding, json_path
from mulligan.policies.failures.places import Places, any_index
from mulligan.policies.value import Json
from mulligan.workers.contract_models import Model, read_as
from mulligan.workers.verifiers.schema_findings import brief


def model_findings(model: Model, value: Json, *, reported: Sequence[Finding] = ()) -> list[Finding]:
    """Return a model's errors in a JSON value, except at places that are already reported."""
    try:
        read_as(model, json.dumps(value))
    except ValidationError as error:
        known = _known_places(reported)
        below = tuple(place + mark for place in known for mark in ".[")
        places = Places()
        for item in error.errors(include_url=False):
            path = json_path(item["loc"])
            anywhere = any_index(path)
            if known.isdisjoint((path, anywhere)) and not (
                path.startswith(below) or anywhere.startswith(below)
            ):
                places.add((item["type"], item["msg"], anywhere), partial(_finding, item))
        return places.findings
    return []


def _known_places(reported: Sequence[Finding]) -> set[str]:
    """Return the reported paths; of a finding that counts many places, with any index, too."""
    paths = {finding.path or "$" for finding in reported}
    many = {finding.path or "$" for finding in reported if finding.count > 1}
    return paths | {any_index(path) for path in many}


def _finding(item: ErrorDetails) -> list[Finding]:
    missing = item["type"] == "missing"
    found = Finding(
        message=pydantic_message(item["msg"]),
        code=pydantic_keyword(item["type"]),
        path=json_path(item["loc"]),
        expected=_plain(pydantic_expected(item.get("ctx"))),
        actual=None if missing else _plain(item["input"]),
    )
    return [found]


def _plain(value: Any) -> Json:
    """Return a short JSON value, whatever a validator was given."""
    return brief(json.loads(json.dumps(value, default=str)))
