"""Cross-check a pytest run: map every exit code, and find every contradiction.

Three records of a run must agree: the tests listed without the answer, the events sent while it
ran, and what is left when it ended (exit code and JUnit file). An answer that forges only one of
them cannot pass.
"""

from __future__ import annotations

import signal
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from mulligan.policies.failures.failure import Finding, VerificationResult, VerificationStatus
from mulligan.policies.value import Json
from mulligan.tasks.ports.errors import VerifierError
from mulligan.workers.sandbox.subprocesses import signal_name
from mulligan.workers.verifiers.pytest.expected_tests import Expected
from mulligan.workers.verifiers.pytest.run import PytestRun
from mulligan.workers.verifiers.pytest.tally import (
    TestTally,
    passes_through,
    read_junit,
    shown_id,
    tally,
)

VERIFIER_ID = "pytest.subprocess"
MAX_FINDINGS = 50
#: Failures in the report, and its characters.
_MAX_REPORTED = 3
REPORT_CHARACTERS = 2_500


@dataclass(frozen=True, kw_only=True)
class PytestVerdict:
    """What is wrong with a run as a whole; without it, the tests decide."""

    code: str
    message: str
    reason: str | None = None
    #: The test or the file that was running.
    path: str | None = None
    #: Whether the tests that passed until then count.
    partial: bool = False


def cross_check(
    run: PytestRun,
    expected: Expected,
    *,
    touched: Collection[str],
    restored: Collection[str] = (),
    added: Collection[str] = (),
    off: Mapping[str, str] = MappingProxyType({}),
) -> VerificationResult:
    """Return the result of a run, or raise VerifierError if it says nothing about the answer.

    ``touched`` are the answer's files, ``restored`` the protected files that it changed,
    ``added`` new files, which may contain further tests, and ``off`` the tests that it switched
    off, each with a reason.
    """
    counted = tally(run.transcript).with_failed(off)
    verdict = _unfinished(run) or _by_exit_code(run, touched)
    if verdict is None or verdict.partial or run.transcript.problems:
        verdict = _contradiction(run, expected.with_new(run, added), counted) or verdict
    warnings = tuple(f"{name} is protected and was restored" for name in restored)
    return _result(run, expected, counted, verdict, warnings)


def _unfinished(run: PytestRun) -> PytestVerdict | None:
    """Return a verdict if pytest did not finish. It names the test that was running."""
    completed, transcript = run.completed, run.transcript
    path = shown_id(transcript.unfinished) if transcript.unfinished else None
    doing = "" if path is None else f" in {path}" if "::" in path else f" while importing {path}"
    if completed.timed_out:
        message = f"the tests were stopped after {completed.elapsed:.0f} s{doing}"
        return PytestVerdict(code="timeout", message=message, path=path, partial=True)
    if transcript.exit_code is not None:
        return None
    if completed.signal == signal.SIGXCPU:
        message = f"the tests used all their processor time{doing}"
        return PytestVerdict(code="timeout", message=message, path=path, partial=True)
    if not transcript.started:
        raise VerifierError(f"pytest did not start:\n{run.output_tail}")
    if completed.signal:
        message = f"it was killed by {signal_name(completed.signal)}"
        return PytestVerdict(code="crash", message=message, path=path, reason="crash")
    message = (
        f"the process ended (exit code {completed.exit_code}) before pytest did:"
        " the code must not exit the process"
    )
    return PytestVerdict(code="early_exit", message=message, path=path, reason="early_exit")


def _by_exit_code(run: PytestRun, touched: Collection[str]) -> PytestVerdict | None:
    """Return a verdict for pytest's exit codes other than 0 and 1."""
    code = run.transcript.exit_code
    match code:
        case 0 | 1:
            return None
        case 2 if run.transcript.collect_errors:
            return None
        case 3:
            return _internal_error(run, touched)
        case 4:
            message = f"pytest cannot start with this answer:\n{_start_error(run)}"
            return PytestVerdict(code="collection_error", message=message, reason="conftest_broken")
        case 5:
            return PytestVerdict(code="no_tests", message="pytest finds no tests with this answer")
    raised = run.transcript.interrupted
    reason = f": {raised.exception}: {raised.message}" if raised else ""
    message = f"the test run was interrupted (exit code {code}){reason}"
    return PytestVerdict(code="early_exit", message=message, reason="early_exit")


def _start_error(run: PytestRun) -> str:
    """Return the error that pytest marks in its output, or else the end of the output."""
    lines = f"{run.completed.stdout}\n{run.completed.stderr}".splitlines()
    marked = [line[1:].rstrip() for line in lines if line.startswith("E ")]
    return textwrap.dedent("\n".join(marked))[:1500] or run.output_tail


def _internal_error(run: PytestRun, touched: Collection[str]) -> PytestVerdict:
    """Return the verdict on an error inside pytest: the answer's fault only if it raised it."""
    raised = run.transcript.internal_error
    if raised is None or not passes_through(raised, touched):
        raise VerifierError(f"internal error of pytest:\n{run.output_tail}")
    where = f"{raised.frame[0]} in {raised.frame[1]}" if raised.frame else "the answer"
    message = f"{where} raised {raised.exception}, which ended the test run: {raised.message}"
    return PytestVerdict(code="early_exit", message=message, reason="early_exit")


def _contradiction(run: PytestRun, expected: Expected, counted: TestTally) -> PytestVerdict | None:
    """Return a verdict if the records of the run disagree."""
    problem = next(_disagreements(run, expected, counted), None)
    if problem is None:
        return None
    return PytestVerdict(code="forged", message=f"the test results cannot be trusted: {problem}")


def _disagreements(run: PytestRun, expected: Expected, counted: TestTally) -> Iterator[str]:
    transcript, completed = run.transcript, run.completed
    yield from transcript.problems
    if completed.timed_out or transcript.exit_code is None:
        return
    if completed.exit_code != transcript.exit_code:
        ended = completed.exit_code if completed.signal is None else f"signal {completed.signal}"
        yield f"pytest ended with {transcript.exit_code}, the process with {ended}"
    if not transcript.collect_errors:
        yield from _hidden_tests(run, expected, counted)
        yield from _outcome_mismatches(run, counted)


def _hidden_tests(run: PytestRun, expected: Expected, counted: TestTally) -> Iterator[str]:
    """Yield tests that the answer kept from running, or added."""
    collected = run.transcript.collected or ()
    if missing := expected.missing((*collected, *(test.nodeid for test in counted.failed))):
        yield f"{missing[0]} was not run"
    if unknown := expected.unknown(collected):
        yield f"{unknown[0]} was run but does not exist without the answer"
    unreported = set(collected) - run.transcript.phases().keys()
    # After a failure the rest may be left out on purpose (-x).
    if unreported and not counted.failed:
        yield f"{min(unreported)} was collected but not reported"


def _outcome_mismatches(run: PytestRun, counted: TestTally) -> Iterator[str]:
    """Compare the exit code and the JUnit file with the events."""
    failed = [test.nodeid for test in counted.failed if test.failed_for_pytest]
    if run.transcript.exit_code == 0 and failed:
        yield f"exit code 0 although {failed[0]} failed"
    if run.transcript.exit_code == 1 and not failed:
        yield "exit code 1 although no test failed"
    junit = read_junit(run.junit)
    if junit is None:
        yield "the JUnit file is missing or damaged"
        return
    # JUnit's report has a test for each file that was skipped.
    tests = len(run.transcript.phases()) + len(run.transcript.skipped_files)
    if (junit.tests, junit.failed) != (tests, len(failed)):
        yield f"the JUnit file has {junit.tests} tests, {junit.failed} failed; the events differ"


def _result(
    run: PytestRun,
    expected: Expected,
    counted: TestTally,
    verdict: PytestVerdict | None,
    warnings: tuple[str, ...],
) -> VerificationResult:
    score = _Score.of(run, expected, counted, verdict)
    findings = list(different(test.finding for test in counted.failed))
    if verdict is not None:
        whole = Finding(message=verdict.message, code=verdict.code, path=verdict.path)
        findings.insert(0, whole)
    evidence: dict[str, Json] = {
        "exit_code": run.completed.exit_code,
        "timed_out": run.completed.timed_out,
        "passed": score.passed,
        "collected": score.collected,
        "failed": [test.evidence for test in counted.failed[:MAX_FINDINGS]],
    }
    if report := _report(counted):
        evidence["report"] = report
    if verdict is not None and verdict.reason is not None:
        evidence["reason"] = verdict.reason
    status = _status(findings, score)
    return VerificationResult(
        status=status,
        verifier_id=VERIFIER_ID,
        summary=_summary(verdict, score, counted),
        evidence=evidence,
        errors=tuple(findings[:MAX_FINDINGS]),
        warnings=warnings,
        elapsed_seconds=run.completed.elapsed,
        score=None if status is VerificationStatus.SKIPPED else score.points,
        in_process=True,
    )


def different(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return each finding once: several files may fail because of one error in the answer."""
    return tuple({(each.code, each.path, each.message): each for each in findings}.values())


def _report(counted: TestTally) -> str:
    """Return the first different failures, for people and for the corrected prompt."""
    by_message = {test.raised.message: test for test in reversed(counted.failed)}.values()
    reports = [report for test in reversed(by_message) if (report := test.report)]
    return "\n\n".join(reports[:_MAX_REPORTED])[:REPORT_CHARACTERS]


@dataclass(frozen=True, kw_only=True)
class _Score:
    """Tests passed and tests expected to pass; those skipped by their own marks do not count."""

    passed: int
    collected: int

    @classmethod
    def of(
        cls, run: PytestRun, expected: Expected, counted: TestTally, verdict: PytestVerdict | None
    ) -> _Score:
        nodes = set(expected.required)
        if not expected.exact:
            # Only functions are known, not parameters: count at least every function.
            ran = set(run.transcript.collected or ())
            nodes = ran if len(ran) >= len(nodes) else nodes | ran
        nodes |= {test.nodeid for test in counted.failed if not test.failed_for_pytest}
        nodes -= counted.skipped
        trusted = verdict is None or verdict.partial
        return cls(passed=len(counted.passed & nodes) if trusted else 0, collected=len(nodes))

    @property
    def points(self) -> float:
        return 100 * self.passed / self.collected if self.collected else 0.0


def _status(findings: list[Finding], score: _Score) -> VerificationStatus:
    if findings:
        return VerificationStatus.FAIL
    return VerificationStatus.PASS if score.collected else VerificationStatus.SKIPPED


def _summary(verdict: PytestVerdict | None, score: _Score, counted: TestTally) -> str:
    if verdict is not None:
        return verdict.message.splitlines()[0]
    if not score.collected:
        return f"all {len(counted.skipped)} tests are skipped by their own marks"
    summary = f"{score.passed} of {score.collected} tests passed"
    if counted.failed:
        first = counted.failed[0]
        said = first.raised.assertion or first.raised.exception
        summary += f"; {shown_id(first.nodeid)}: {said}"
    return summary
