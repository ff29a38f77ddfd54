"""``json.object``: the answer is one JSON object, after free repairs."""

from __future__ import annotations

from time import perf_counter
from typing import ClassVar

from mulligan.policies.failures.failure import VerificationResult, VerificationStatus
from mulligan.policies.value import Value
from mulligan.tasks.ports.verifiers import Candidate
from mulligan.workers.verifiers.json_text import (
    coercion_warnings,
    extraction_of,
    parse_evidence,
    parse_finding,
)


class JsonObject:
    """Evidence: ``shape``, ``truncated``, ``decoder`` and ``coercions``, if any."""

    id: ClassVar[str] = "json.object"
    slow: bool = False

    class Options(Value):
        """No options."""

    def __init__(self, options: Options | None = None) -> None:
        self.options = options or self.Options()

    def verify(self, candidate: Candidate) -> VerificationResult:
        started = perf_counter()
        extraction = extraction_of(candidate)
        evidence = parse_evidence(candidate, extraction)
        if isinstance(extraction.value, dict):
            return VerificationResult(
                status=VerificationStatus.PASS,
                verifier_id=self.id,
                summary="a JSON object",
                evidence=evidence,
                warnings=coercion_warnings(extraction),
                elapsed_seconds=perf_counter() - started,
            )
        finding = parse_finding(extraction)
        return VerificationResult(
            status=VerificationStatus.FAIL,
            verifier_id=self.id,
            summary=finding.message,
            evidence=evidence,
            errors=(finding,),
            elapsed_seconds=perf_counter() - started,
        )
