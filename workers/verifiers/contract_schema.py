"""``contract.schema``: the JSON value in the answer fits a JSON Schema or a pydantic model."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from time import perf_counter
from typing import Any, ClassVar

import jsonschema_rs
from jsonschema_rs import ValidationErrorKind
from pydantic import ConfigDict, Field

from mulligan.policies.failures.failure import Finding, VerificationResult, VerificationStatus
from mulligan.policies.problem import Problem
from mulligan.policies.value import Json, Value
from mulligan.tasks.ports.errors import BadInput, VerifierError
from mulligan.tasks.ports.verifiers import Candidate
from mulligan.workers.contract_models import ContractModels, schema_of
from mulligan.workers.verifiers.json_text import (
    coercion_warnings,
    extraction_of,
    parse_evidence,
    parse_finding,
)
from mulligan.workers.verifiers.model_findings import model_findings
from mulligan.workers.verifiers.schema_findings import brief, schema_findings

#: Of a value with more different errors than this, only the first ones are reported.
MAX_FINDINGS = 200
#: More errors than this are not counted.
_MAX_ERRORS = 20_000
_DRAFT_2020_12 = "https://json-schema.org/draft/2020-12/schema"

Schema = dict[str, Any] | bool


@dataclass(frozen=True)
class Contract:
    """A compiled schema and the hash of its canonical text."""

    digest: str
    schema: Schema
    validator: jsonschema_rs.Validator

    @classmethod
    def of(cls, schema: Schema) -> Contract:
        """Return the compiled contract, from a cache, or raise BadInput with every schema error."""
        try:
            canonical = json.dumps(schema, sort_keys=True, separators=(",", ":"))
        except (TypeError, ValueError) as error:
            raise BadInput.at("schema", f"not JSON: {error}") from error
        return _compile(canonical)

    def errors(self, value: Json) -> list[Finding]:
        """Return a finding for every error; many at the same place of an array share one."""
        if self.validator.is_valid(value):
            return []
        errors = islice(self.validator.iter_errors(value), _MAX_ERRORS)
        return schema_findings(map(_decided, errors), self.schema)


def _decided(error: jsonschema_rs.ValidationError) -> jsonschema_rs.ValidationError:
    """Return the error, or raise VerifierError if a pattern was too costly to decide."""
    undecided = ValidationErrorKind.BacktrackLimitExceeded | ValidationErrorKind.RegexEngineFailure
    if isinstance(error.kind, undecided):
        raise VerifierError(f"contract.schema: a pattern is too costly to match: {error.message}")
    return error


@lru_cache(maxsize=512)
def _compile(canonical: str) -> Contract:
    # The canonical text is compiled, so that the order of keys makes no difference.
    schema: Schema = json.loads(canonical)
    _check_against_metaschema(schema)
    try:
        validator = jsonschema_rs.validator_for(schema, validate_formats=True, offline=True)
    except ValueError as error:
        raise BadInput(_schema_problem(error)) from error
    return Contract(hashlib.sha256(canonical.encode()).hexdigest(), schema, validator)


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


class ContractSchema:
    """Evidence: ``contract`` (sha256 of the canonical schema) and ``coercions``, if any.

    A text without JSON fails with the code ``not_json`` and the evidence of ``json.object``.
    A model checks with its JSON Schema and its validators.
    """

    id: ClassVar[str] = "contract.schema"
    slow: bool = False
    #: Built with ``models``: the pydantic models that may be named.
    needs_models: ClassVar[bool] = True

    class Options(Value):
        #: Not ``schema``, which is a method of every pydantic model.
        contract: Schema | None = Field(default=None, alias="schema")
        #: ``package.module:Person`` of an allow-listed module. Submitting adds its schema.
        model: str | None = None
        #: A model that only the submitting process knows; the client sets this.
        taught: str | None = None

        model_config = ConfigDict(populate_by_name=True)

    def __init__(self, options: Options, *, models: ContractModels | None = None) -> None:
        self.options = options
        self._models = models or ContractModels()
        self._model = self._models.load(options.model) if options.model else None
        schema: Schema | None = options.contract
        if schema is None and self._model is not None:
            schema = schema_of(self._model)
        if schema is None:
            raise BadInput.at("schema", "is required, or name a model", "missing")
        self._contract = Contract.of(schema)

    def verify(self, candidate: Candidate) -> VerificationResult:
        started = perf_counter()
        extraction = extraction_of(candidate)
        evidence: dict[str, Json] = {"contract": self._contract.digest}
        if extraction.coercions:
            evidence["coercions"] = list(extraction.coercions)
        if extraction.parsed:
            errors = self._errors(extraction.value)
        else:
            evidence |= parse_evidence(candidate, extraction)
            errors = [parse_finding(extraction, code="not_json")]
        too_many = len(errors) > MAX_FINDINGS
        left_out = (
            (f"more than {MAX_FINDINGS} different errors; the rest are left out",)
            if too_many
            else ()
        )
        return VerificationResult(
            status=VerificationStatus.FAIL if errors else VerificationStatus.PASS,
            verifier_id=self.id,
            summary=_summary(errors),
            evidence=evidence,
            errors=tuple(errors[:MAX_FINDINGS]),
            warnings=coercion_warnings(extraction) + left_out,
            elapsed_seconds=perf_counter() - started,
        )

    def _errors(self, value: Json) -> list[Finding]:
        try:
            errors = self._contract.errors(value)
        except ValueError as error:
            # Python's decoder accepts what JSON cannot write, such as lone surrogates.
            return [Finding(message=f"not a JSON value: {error}", code="not_json", path="$")]
        model = self._model or self._models.find(self._contract.digest, self.options.taught)
        if model is not None:
            errors += model_findings(model, value, reported=errors)
        return errors


def _summary(errors: list[Finding]) -> str:
    if not errors:
        return "fits the contract"
    first = f"{errors[0].path}: {errors[0].message}"
    count = sum(error.count for error in errors)
    return first if count == 1 else f"{count} errors; first {first}"
