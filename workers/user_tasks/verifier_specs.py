"""The values of a user task's `verifiers=`: models, ids, mappings and plain functions."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from mulligan.policies.failures.failure import VerificationResult, VerificationStatus
from mulligan.policies.jobs.job import VerifierSpec
from mulligan.tasks.ports.verifiers import Candidate, Verifier
from mulligan.workers.contract_models import CONTRACT, schema_of
from mulligan.workers.verifiers.verifier_registry import VerifierRegistry

Check = type[BaseModel] | str | Mapping[str, Any] | Callable[[Any], Any]
#: A name may have 200 characters, and we add a prefix and a suffix.
_MAX_LENGTH = 150
_NOT_ALLOWED = re.compile(r"[^\w.:@+-]+")


def as_name(text: str) -> str:
    """Remove the characters that names may not contain: ``<lambda>`` becomes ``lambda``."""
    return _NOT_ALLOWED.sub("", text).lstrip(".:@+-")[:_MAX_LENGTH] or "task"


class CallableVerifier:
    """A plain function as a verifier: False or an exception fails, a result is used unchanged."""

    slow = False

    def __init__(self, function: Callable[[Any], Any], verifier_id: str | None = None) -> None:
        self._function = function
        self.id = verifier_id or function_id(function)

    def verify(self, candidate: Candidate) -> VerificationResult:
        try:
            answer = self._function(candidate.text)
        except (AssertionError, ValueError, TypeError) as error:
            return self._result(VerificationStatus.FAIL, str(error) or type(error).__name__)
        if isinstance(answer, VerificationResult):
            return answer
        if answer is False:
            return self._result(VerificationStatus.FAIL, f"{self.id} says no")
        return self._result(VerificationStatus.PASS, f"{self.id} says yes")

    def _result(self, status: VerificationStatus, summary: str) -> VerificationResult:
        failed = status is VerificationStatus.FAIL
        return VerificationResult.model_validate(
            {
                "status": status,
                "verifier_id": self.id,
                "summary": summary,
                "errors": [summary] if failed else [],
                "evidence": {"kind": "reasoning_error"} if failed else {},
            }
        )


def function_id(function: Callable[[Any], Any]) -> str:
    """Return the id of a plain function. A partial has the name of the function it calls."""
    named = getattr(function, "func", function)
    return f"own.{as_name(getattr(named, '__name__', type(named).__name__))}"


def build_checks(
    checks: Sequence[Check], registry: VerifierRegistry
) -> list[tuple[VerifierSpec, Verifier]]:
    """Build each check's spec and verifier. Functions with the same name are numbered."""
    built: list[tuple[VerifierSpec, Verifier]] = []
    for check in checks or (_anything,):
        if isinstance(check, type | str | Mapping):
            spec = _spec(check, registry)
            built.append((spec, registry.build(spec)))
            continue
        used = {spec.id for spec, _ in built}
        verifier = CallableVerifier(check, _unused(function_id(check), used))
        built.append((VerifierSpec(id=verifier.id), verifier))
    return built


def _anything(_answer: str) -> bool:
    """Pass every answer: without verifiers it is enough that the task did not raise."""
    return True


def _spec(check: type[BaseModel] | str | Mapping[str, Any], registry: VerifierRegistry) -> Any:
    if isinstance(check, type):
        registry.models.register(check)
        return VerifierSpec.model_validate({"id": CONTRACT, "schema": schema_of(check)})
    return VerifierSpec.model_validate(check if isinstance(check, str) else dict(check))


def _unused(verifier_id: str, used: set[str]) -> str:
    numbered = (f"{verifier_id}-{number}" for number in itertools.count(2))
    return next(each for each in itertools.chain([verifier_id], numbered) if each not in used)
