"""``contract.schema``: the JSON value in the answer fits a JSON Schema or a pydantic model."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from time import perf_counter
from typing import ClassVar, TypeVar

from pydantic import ConfigDict, Field

from mulligan.policies.failures.failure import Finding, VerificationResult, VerificationStatus
from mulligan.policies.value import Json, Value
from mulligan.tasks.ports.errors import BadInput, TooCostly
from mulligan.tasks.ports.verifiers import Candidate
from mulligan.workers.contract_models import ContractModels, schema_of
from mulligan.workers.killable.pool import call_killable
from mulligan.workers.verifiers.compiled_schema import (
    Schema,
    check_schema,
    fits_schema,
    schema_errors,
)
from mulligan.workers.verifiers.json_text import (
    coercion_warnings,
    extraction_of,
    parse_evidence,
    parse_finding,
)
from mulligan.workers.verifiers.model_findings import model_findings
from mulligan.workers.verifiers.schema_cost import schema_parts

#: Of a value with more different errors than this, only the first ones are reported.
MAX_FINDINGS = 200
R = TypeVar("R")

#: Seconds in which a schema must be compiled, and a value checked.
_COMPILE_SECONDS = 3.0
_CHECK_SECONDS = 10.0
#: Somebody waits for the answer to a submission.
_WAIT_SECONDS = 5.0
#: Parts of a schema times characters of a value that may be checked in this process.
_CHEAP_CHECKS = 4_000_000
#: The same for finding out what is wrong: each part may have an error with each value.
_CHEAP_ERRORS = 50_000


@dataclass(frozen=True)
class Contract:
    """A schema that can be compiled, and the hash of its canonical text."""

    digest: str
    canonical: str
    #: What it costs to check one character of a value; None if nobody knows.
    parts: int | None

    @classmethod
    def of(cls, schema: Schema) -> Contract:
        """Return the contract, from a cache, or raise BadInput with every schema error."""
        try:
            canonical = json.dumps(schema, sort_keys=True, separators=(",", ":"))
        except (TypeError, ValueError) as error:
            raise BadInput.at("schema", f"not JSON: {error}") from error
        except RecursionError:
            raise BadInput.at("schema", "is nested too deeply") from None
        return _checked(canonical)

    def errors(self, value: Json, size: int) -> list[Finding]:
        """Return a finding for every error of a value with this many characters."""
        cost = math.inf if self.parts is None else self.parts * size
        if cost <= _CHEAP_CHECKS and fits_schema(self.canonical, value, linear=True):
            return []
        if cost <= _CHEAP_ERRORS:
            return schema_errors(self.canonical, value, linear=True)
        try:
            return self._killable(schema_errors, value)
        except TooCostly as error:
            # A pattern that takes too many steps would count as an error of the value.
            if '"pattern' in self.canonical or self._killable(fits_schema, value):
                raise
            message = f"does not fit the schema; why is not known, because {error}"
            return [Finding(message=message, code="too_costly", path="$")]

    def _killable(self, check: Callable[[str, Json], R], value: Json) -> R:
        what = "checking the answer against the schema"
        return call_killable(check, self.canonical, value, seconds=_CHECK_SECONDS, what=what)


@lru_cache(maxsize=512)
def _checked(canonical: str) -> Contract:
    parts = schema_parts(json.loads(canonical))
    if parts is not None:
        try:
            check_schema(canonical, linear=True)
        except BadInput:
            parts = None  # a pattern may need the other engine, in another process
    if parts is None:
        try:
            call_killable(
                check_schema,
                canonical,
                seconds=_COMPILE_SECONDS,
                what="compiling the schema",
                wait_seconds=_WAIT_SECONDS,
            )
        except TooCostly as error:
            raise BadInput.at("schema", str(error), "too_costly") from error
    return Contract(hashlib.sha256(canonical.encode()).hexdigest(), canonical, parts)


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
            errors = self._errors(extraction.value, len(extraction.text))
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

    def _errors(self, value: Json, size: int) -> list[Finding]:
        errors = self._contract.errors(value, size)
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
