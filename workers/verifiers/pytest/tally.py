"""Count tests: which passed, which failed and why, which were skipped and by whom."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from mulligan.policies.failures.failure import Finding
from mulligan.policies.value import Json
from mulligan.workers.verifiers.pytest.event_stream import RaisedError, TestReport, Transcript

_FINDING_CHARACTERS = 1_200


@dataclass(frozen=True, kw_only=True)
class FailedTest:
    """A test, or a file, that did not pass."""

    nodeid: str
    code: str
    raised: RaisedError
    #: False if pytest accepts the result: the answer skipped its own test.
    failed_for_pytest: bool = True

    @property
    def finding(self) -> Finding:
        text = self.raised.message or self.raised.exception
        named = text if self.raised.exception in text else f"{self.raised.exception}: {text}"
        return Finding(
            message=(text if self.code == "assertion" else named)[:_FINDING_CHARACTERS],
            code=self.code,
            path=self.nodeid,
        )

    @property
    def evidence(self) -> dict[str, Json]:
        """What signatures are built from: no line numbers, no durations."""
        frame = self.raised.frame
        return {
            "nodeid": self.nodeid,
            "exception": self.raised.exception,
            "frame": ":".join(frame) if frame else None,
            "assertion": self.raised.assertion,
        }


@dataclass(frozen=True, kw_only=True)
class TestTally:
    """The tests of a run by their outcome."""

    passed: frozenset[str]
    failed: tuple[FailedTest, ...]
    #: Skipped by the tests' own marks and fixtures.
    skipped: frozenset[str]


def tally(transcript: Transcript, touched: Collection[str]) -> TestTally:
    """Count a run's tests. A skip inside the answer is a failure: it would hide any other."""
    passed, skipped, failed = set(), set(), []
    for nodeid, reports in transcript.phases().items():
        outcome = _outcome(reports, touched)
        match outcome:
            case TestReport():
                failed.append(_failed(nodeid, outcome))
            case "passed":
                passed.add(nodeid)
            case "skipped":
                skipped.add(nodeid)
    failed += [
        FailedTest(nodeid=error.nodeid, code=_code(error, "collection_error"), raised=error)
        for error in transcript.collect_errors
    ]
    return TestTally(passed=frozenset(passed), failed=tuple(failed), skipped=frozenset(skipped))


def _outcome(reports: list[TestReport], touched: Collection[str]) -> TestReport | str:
    """Return the report that fails the test, or ``passed``, ``skipped``, ``unfinished``."""
    for report in reports:
        if report.outcome == "failed":
            return report
        if report.outcome == "skipped" and _by_answer(report, touched):
            return report
    if any(report.outcome == "skipped" for report in reports):
        # A test that is expected to fail and fails has passed.
        return "passed" if any(report.xfail for report in reports) else "skipped"
    complete = [report.when for report in reports] == ["setup", "call", "teardown"]
    return "passed" if complete else "unfinished"


def _by_answer(report: TestReport, touched: Collection[str]) -> bool:
    raised = report.raised
    deliberate = raised is not None and {"Skipped", "XFailed", "SkipTest"} & set(raised.bases)
    return bool(deliberate) and passes_through(raised, touched)


def passes_through(raised: RaisedError | None, touched: Collection[str]) -> bool:
    """Return whether an exception's traceback contains a file of the answer."""
    return raised is not None and not set(touched).isdisjoint(raised.files)


def _failed(nodeid: str, report: TestReport) -> FailedTest:
    raised = report.raised or RaisedError(exception="Failed", message="failed without an exception")
    if report.outcome == "skipped":
        message = f"the answer skips its own test: {raised.message}"
        raised = raised.model_copy(update={"message": message})
        return FailedTest(nodeid=nodeid, code="exception", raised=raised, failed_for_pytest=False)
    return FailedTest(nodeid=nodeid, code=_code(raised, "exception"), raised=raised)


def _code(raised: RaisedError, otherwise: str) -> str:
    bases = {raised.exception, *raised.bases}
    for exception, code in (
        ("AssertionError", "assertion"),
        ("Failed", "assertion"),
        ("SyntaxError", "syntax_error"),
        ("ImportError", "import_error"),
    ):
        if exception in bases:
            return code
    return otherwise


@dataclass(frozen=True, kw_only=True)
class JUnit:
    """The counts in the JUnit file, for comparison."""

    tests: int
    failed: int


def read_junit(data: bytes | None) -> JUnit | None:
    """Count the tests in the file and those that failed; None if it cannot be read."""
    if data is None:
        return None
    from junitparser import Error, Failure, JUnitXml, TestSuite  # an extra: not every worker has it

    try:
        xml = JUnitXml.fromstring(data)
        suites = [xml] if isinstance(xml, TestSuite) else list(xml)
        cases = [case for suite in suites for case in suite]
        names = {(case.classname, case.name) for case in cases}
        bad = {
            (case.classname, case.name)
            for case in cases
            if any(isinstance(result, Failure | Error) for result in case.result)
        }
    except Exception:  # an answer can write anything into the file
        return None
    return JUnit(tests=len(names), failed=len(bad))
