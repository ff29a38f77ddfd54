"""What a user's own task may name as `verifiers=`: models, ids, options, and plain functions."""

from __future__ import annotations

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
#: A name may have 200 characters; ours put something before it and behind.
_LONGEST = 150
_NO_NAME = re.compile(r"[^\w.:@+-]+")


def as_name(text: str) -> str:
    """A text without what no name may have: ``<lambda>`` is ``lambda``."""
    return _NO_NAME.sub("", text).lstrip(".:@+-")[:_LONGEST] or "task"


class CallableVerifier:
    """A plain function as a verifier: False or an exception fails, a result is taken as it is."""

    slow = False

    def __init__(self, function: Callable[[Any], Any], verifier_id: str | None = None) -> None:
        self._function = function
        self.id = verifier_id or own_id(function)

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


def own_id(function: Callable[[Any], Any]) -> str:
    """The id of a plain function. A partial has the name of what it calls."""
    named = getattr(function, "func", function)
    return f"own.{as_name(getattr(named, '__name__', type(named).__name__))}"


def build_checks(
    checks: Sequence[Check], registry: VerifierRegistry
) -> list[tuple[VerifierSpec, Verifier]]:
    """Each check as a job names it, with its verifier. Functions of one name are numbered."""
    built: list[tuple[VerifierSpec, Verifier]] = []
    for check in checks or (_anything,):
        if isinstance(check, type | str | Mapping):
            spec = _spec(check, registry)
            built.append((spec, registry.build(spec)))
            continue
        verifier = CallableVerifier(check, _free(own_id(check), {spec.id for spec, _ in built}))
        built.append((VerifierSpec(id=verifier.id), verifier))
    return built


def _anything(_answer: str) -> bool:
    """No verifiers: the task did not raise, and that is all that is known."""
    return True


def _spec(check: type[BaseModel] | str | Mapping[str, Any], registry: VerifierRegistry) -> Any:
    if isinstance(check, type):
        registry.models.teach(check)
        return VerifierSpec.model_validate({"id": CONTRACT, "schema": schema_of(check)})
    return VerifierSpec.model_validate(check if isinstance(check, str) else dict(check))


def _free(wanted: str, taken: set[str]) -> str:
    number = 2
    free = wanted
    while free in taken:
        free, number = f"{wanted}-{number}", number + 1
    return free
