"""New test files of an attempt: run apart from the tests that judge it.

Agents add tests. These are code of the answer, so the run that decides does not collect them. A
second run collects everything, as pytest will when the work is merged, and runs only the new tests.
Only its failures count: whatever a new test does to its own run, the tests that were there before
have been judged.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from fnmatch import fnmatch
from pathlib import PurePosixPath

from mulligan.policies.failures.failure import VerificationResult, VerificationStatus
from mulligan.policies.value import Json
from mulligan.tasks.ports.errors import VerifierError
from mulligan.workers.verifiers.pytest.cross_check import (
    MAX_FINDINGS,
    REPORT_CHARACTERS,
    cross_check,
    different,
)
from mulligan.workers.verifiers.pytest.expected_tests import Expected
from mulligan.workers.verifiers.pytest.run import PytestRun

_NO_TESTS = 5


def new_test_files(added: Iterable[str], patterns: Collection[str]) -> tuple[str, ...]:
    """Return the new files that pytest collects by its ``python_files``."""
    python = (name for name in added if name.endswith(".py"))
    return tuple(name for name in python if any(_matches(name, each) for each in patterns))


def _matches(name: str, pattern: str) -> bool:
    """Match as pytest does: a pattern with a slash is about the end of the path."""
    if "/" in pattern:
        return fnmatch(f"/{name}", f"*/{pattern}")
    return fnmatch(PurePosixPath(name).name, pattern)


def add_new_tests(
    result: VerificationResult, run: PytestRun, touched: Collection[str]
) -> VerificationResult:
    """Return the result with what the run of the new tests found. It never gets better.

    A new test that fails counts as a test that was not passed; one that passes does not count.
    """
    if run.transcript.exit_code == _NO_TESTS:  # the arguments select none of them
        return result
    collected = Expected(nodeids=run.transcript.collected or (), exact=True)
    try:
        new = cross_check(run, collected, touched=touched)
    except VerifierError:
        if result.status is VerificationStatus.FAIL:
            return result  # which needs no second opinion
        raise
    counts: dict[str, Json] = {name: new.evidence[name] for name in ("passed", "collected")}
    changes: dict[str, object] = {
        "summary": f"{result.summary}; new tests: {new.summary}",
        "evidence": {**result.evidence, "new_tests": counts},
        "elapsed_seconds": result.elapsed_seconds + new.elapsed_seconds,
    }
    if new.status is VerificationStatus.FAIL:
        evidence = _evidence(result, new) | {"new_tests": counts}
        changes |= {
            "status": VerificationStatus.FAIL,
            "evidence": evidence,
            "errors": different((*result.errors, *new.errors))[:MAX_FINDINGS],
            "score": 100 * evidence["passed"] / evidence["collected"],
        }
    return result.model_copy(update=changes)


def _evidence(result: VerificationResult, new: VerificationResult) -> dict[str, Json]:
    """Return the evidence of both. How a run ended is that of the first one that failed."""
    first, second = result.evidence, new.evidence
    ended = first if result.status is VerificationStatus.FAIL else second
    evidence: dict[str, Json] = {
        **first,
        **{name: ended[name] for name in ("exit_code", "timed_out", "reason") if name in ended},
        "collected": first["collected"] + max(1, second["collected"] - second["passed"]),
        "failed": [
            *first["failed"],
            *(each for each in second["failed"] if each not in first["failed"]),
        ][:MAX_FINDINGS],
    }
    reports = [each["report"] for each in (first, second) if "report" in each]
    if reports:
        evidence["report"] = "\n\n".join(reports)[:REPORT_CHARACTERS]
    return evidence
