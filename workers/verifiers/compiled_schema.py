"""Compile a JSON Schema and find a value's errors.

Both may take for ever, and keep every thread of the process from running: ``contract_schema`` calls
them in a killable child, unless the schema is cheap.
"""

from __future__ import annotations

import json
from functools import lru_cache
from itertools import islice
from typing import Any

import jsonschema_rs
from jsonschema_rs import ValidationErrorKind

from mulligan.policies.failures.failure import Finding
from mulligan.policies.problem import Problem
from mulligan.policies.value import Json
from mulligan.tasks.ports.errors import BadInput, VerifierError
from mulligan.workers.verifiers.bounded_regex import LINEAR
from mulligan.workers.verifiers.schema_findings import brief, schema_findings

#: More errors than this are not counted.
_MAX_ERRORS = 20_000
_DRAFT_2020_12 = "https://json-schema.org/draft/2020-12/schema"

Schema = dict[str, Any] | bool


def check_schema(canonical: str, *, linear: bool = False) -> None:
    """Raise BadInput with every error of a schema. ``linear``: patterns in the linear engine."""
    _compile(canonical, linear)


def schema_errors(canonical: str, value: Json, *, linear: bool = False) -> list[Finding]:
    """Return a finding for every error; many at the same place of an array share one."""
    schema, validator = _compile(canonical, linear)
    try:
        if validator.is_valid(value):
            return []
        errors = islice(validator.iter_errors(value), _MAX_ERRORS)
        return schema_findings(map(_decided, errors), schema)
    except ValueError as error:
        # Python's decoder accepts what JSON cannot write, such as lone surrogates.
        return [Finding(message=f"not a JSON value: {error}", code="not_json", path="$")]


def fits_schema(canonical: str, value: Json, *, linear: bool = False) -> bool:
    """Return whether a value has no error, without finding out which it has."""
    try:
        return _compile(canonical, linear)[1].is_valid(value)
    except ValueError:  # not a JSON value
        return False


def _decided(error: jsonschema_rs.ValidationError) -> jsonschema_rs.ValidationError:
    """Return the error, or raise VerifierError if a pattern was too costly to decide."""
    undecided = ValidationErrorKind.BacktrackLimitExceeded | ValidationErrorKind.RegexEngineFailure
    if isinstance(error.kind, undecided):
        raise VerifierError(f"contract.schema: a pattern is too costly to match: {error.message}")
    return error


@lru_cache(maxsize=256)
def _compile(canonical: str, linear: bool) -> tuple[Schema, jsonschema_rs.Validator]:
    # The canonical text is compiled, so that the order of keys makes no difference.
    schema: Schema = json.loads(canonical)
    _check_against_metaschema(schema)
    try:
        options = LINEAR if linear else None
        return schema, jsonschema_rs.validator_for(
            schema, validate_formats=True, offline=True, pattern_options=options
        )
    except ValueError as error:
        raise BadInput(_schema_problem(error)) from error


def _check_against_metaschema(schema: Schema) -> None:
    """Raise BadInput with all errors of a schema; jsonschema-rs itself names only the first."""
    draft = schema.get("$schema", _DRAFT_2020_12) if isinstance(schema, dict) else _DRAFT_2020_12
    if not isinstance(draft, str):
        raise BadInput.at("schema.$schema", "must be the address of a draft")
    try:
        metaschema = jsonschema_rs.validator_for({"$schema": draft, "$ref": draft}, offline=True)
    except ValueError as error:
        raise BadInput.at(
            "schema.$schema",
            f"{brief(draft)!r} is not a known draft; use 2020-12 or draft-07, or leave it out",
        ) from error
    # The metaschema consists of parts, and one mistake may violate several of them.
    problems = dict.fromkeys(_schema_problem(error) for error in metaschema.iter_errors(schema))
    if problems:
        raise BadInput(*problems)


def _schema_problem(error: ValueError) -> Problem:
    if not isinstance(error, jsonschema_rs.ValidationError):
        return Problem.at("schema", str(error))
    return Problem(brief(error.message), ("schema", *error.instance_path))
