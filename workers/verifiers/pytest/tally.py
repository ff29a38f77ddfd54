"""Count tests: which passed, which failed and why, which were skipped and by whom."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from mulligan.policies.failures.failure import Finding
from mulligan.policies.value import Json
from mulligan.workers.verifiers.pytest.event_stream import (
    RaisedError,
    TestReport,
    Transcript,
    phases_of,
)

_FINDING_CHARACTERS = 1_200
_ID_CHARACTERS = 200
#: Lines of an error in a report, and characters of each.
_REPORT_LINES = 20
_LINE_CHARACTERS = 200


@dataclass(frozen=True, kw_only=True)
class FailedTest:
    """A test, or a file, that did not pass."""

    nodeid: str
    code: str
    raised: RaisedError
    #: False if pytest accepts the result: the answer skipped its own test, or switched it off.
    failed_for_pytest: bool = True

    @property
    def finding(self) -> Finding:
        raised = self.raised
        if self.code == "syntax_error" and raised.frame and raised.line:
            return Finding(message=_syntax_message(raised), code=self.code, path=raised.frame[0])
        text = raised.message or raised.exception
        if self.code not in ("assertion", "switched_off"):
            named = text if raised.exception in text else f"{raised.exception}: {text}"
            text = named[:_FINDING_CHARACTERS] + self._elsewhere
        return Finding(
            message=text[:_FINDING_CHARACTERS], code=self.code, path=shown_id(self.nodeid)
        )

    @property
    def _elsewhere(self) -> str:
        """The place of an exception that was not raised by the test's own file."""
        frame, line = self.raised.frame, self.raised.line
        if frame is None or line is None or frame[0] == self.nodeid.partition("::")[0]:
            return ""
        return f" ({frame[0]}, line {line})"

    @property
    def report(self) -> str:
        """The failure as pytest shows it: the test's lines, then the error with its white space.

        Empty if that is no more than the finding says.
        """
        whole = self.code == "syntax_error" or "\n" not in self.raised.message
        if whole and not self.raised.source:
            return ""
        lines = self.raised.message.splitlines()[:_REPORT_LINES] or [self.raised.exception]
        errors = [f"E   {line[:_LINE_CHARACTERS]}".rstrip() for line in lines]
        return "\n".join(filter(None, [shown_id(self.nodeid), self.raised.source, *errors]))

    @property
    def evidence(self) -> dict[str, Json]:
        """What signatures are built from: no line numbers, no durations."""
        frame = self.raised.frame
        return {
            "nodeid": shown_id(self.nodeid),
            "exception": self.raised.exception,
            "frame": ":".join(frame) if frame else None,
            "assertion": self.raised.assertion,
        }


def shown_id(nodeid: str) -> str:
    """Return a node id, cut if its parameters are long."""
    return nodeid if len(nodeid) <= _ID_CHARACTERS else f"{nodeid[: _ID_CHARACTERS - 1]}…"


def _syntax_message(raised: RaisedError) -> str:
    """Return ``SyntaxError in line 3, `print(`: '(' was never closed``."""
    *context, error = raised.message.splitlines() or [raised.exception]
    # Below the place come the line and a mark under the error.
    source = f", `{context[1].strip()[:_LINE_CHARACTERS]}`" if len(context) > 1 else ""
    name, _, reason = error.partition(": ")
    return f"{name} in line {raised.line}{source}: {reason or 'invalid syntax'}"


@dataclass(frozen=True, kw_only=True)
class TestTally:
    """The tests of a run by their outcome."""

    passed: frozenset[str]
    failed: tuple[FailedTest, ...]
    #: Skipped by the tests' own marks and fixtures.
    skipped: frozenset[str]

    def with_failed(self, reasons: Mapping[str, str]) -> TestTally:
        """Return it with further failures, which pytest knows nothing about."""
        further = [
            FailedTest(
                nodeid=nodeid,
                code="switched_off",
                raised=RaisedError(exception="SwitchedOff", assertion=reason, message=reason),
                failed_for_pytest=False,
            )
            for nodeid, reason in reasons.items()
        ]
        return TestTally(
            passed=self.passed - reasons.keys(),
            failed=(*self.failed, *further),
            skipped=self.skipped - reasons.keys(),
        )


def tally(transcript: Transcript) -> TestTally:
    """Count a run's tests. A skip inside the answer is a failure: it would hide any other."""
    passed, skipped, failed = set(), set(), []
    for nodeid, reports in transcript.phases().items():
        outcome = _outcome(reports)
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


def _outcome(reports: list[TestReport]) -> TestReport | str:
    """Return the report that fails the test, or ``passed``, ``skipped``, ``unfinished``."""
    for report in reports:
        if report.outcome == "failed":
            return report
        if report.outcome == "skipped" and report.raised and report.raised.by_answer:
            return report
    if any(report.outcome == "skipped" for report in reports):
        # A test that is expected to fail and fails has passed.
        return "passed" if any(report.xfail for report in reports) else "skipped"
    complete = phases_of(reports) == ["setup", "call", "teardown"]
    return "passed" if complete else "unfinished"


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
