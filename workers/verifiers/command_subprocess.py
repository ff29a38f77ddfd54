"""``command.subprocess``: a program accepts or rejects the answer with its exit code."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from mulligan.policies.failures.failure import Finding, VerificationResult, VerificationStatus
from mulligan.policies.jobs.job import Seconds
from mulligan.policies.value import Json, Value
from mulligan.tasks.ports.blobs import BlobStore
from mulligan.tasks.ports.verifiers import Candidate
from mulligan.workers.sandbox.layout import AnswerLayout, LaidOutAnswer
from mulligan.workers.sandbox.subprocesses import Completed, Limits, clean_environment, run

_TAIL_CHARACTERS = 2_000


class CommandSubprocess:
    """Runs argv in a private copy of the workspace, with the answer on stdin.

    Without a workspace the directory is empty. Evidence: ``argv``, ``exit_code``, ``signal``,
    ``timed_out``, ``stderr_tail``, ``stdout_tail`` and ``coercions``, if any.
    Codes: ``exit_code``, ``signal``, ``timeout``.
    """

    id: ClassVar[str] = "command.subprocess"
    slow: bool = True
    needs_blobs: ClassVar[bool] = True

    class Options(Value):
        #: The program and its arguments, never a shell line; if empty, the check is skipped.
        argv: tuple[str, ...] = ()
        timeout: Seconds = Field(default=60.0, gt=0, le=3600)
        expect_exit: int = Field(default=0, ge=0, le=255)

    def __init__(
        self,
        options: Options,
        *,
        blobs: BlobStore | None = None,
        limits: Limits | None = None,
        root: Path | None = None,
    ) -> None:
        self.options = options
        self._layout = AnswerLayout(blobs=blobs, limits=limits or Limits(), root=root)

    @property
    def longest(self) -> float:
        return self.options.timeout + 60.0

    def verify(self, candidate: Candidate) -> VerificationResult:
        """Judge by the exit code; raise VerifierError if the program is missing."""
        if not self.options.argv:
            return VerificationResult(
                status=VerificationStatus.SKIPPED,
                verifier_id=self.id,
                summary="no command to run",
                evidence={"argv": []},
            )
        with self._layout.lay_out(candidate) as answer:
            completed = run(
                self.options.argv,
                cwd=answer.work,
                timeout=self.options.timeout,
                env=clean_environment(answer.work.parent),
                limits=self._layout.limits,
                stdin=candidate.text,
            )
        return self._result(completed, answer)

    def _result(self, completed: Completed, answer: LaidOutAnswer) -> VerificationResult:
        finding = self._finding(completed)
        return VerificationResult(
            status=VerificationStatus.FAIL if finding else VerificationStatus.PASS,
            verifier_id=self.id,
            summary=finding.message if finding else f"{self.options.argv[0]} accepts the answer",
            evidence=self._evidence(completed) | answer.evidence,
            errors=(finding,) if finding else (),
            warnings=answer.warnings,
            elapsed_seconds=completed.elapsed,
        )

    def _evidence(self, completed: Completed) -> dict[str, Json]:
        return {
            "argv": list(self.options.argv),
            "exit_code": completed.exit_code,
            "signal": completed.signal,
            "timed_out": completed.timed_out,
            "stderr_tail": completed.stderr[-_TAIL_CHARACTERS:],
            "stdout_tail": completed.stdout[-_TAIL_CHARACTERS:],
        }

    def _finding(self, completed: Completed) -> Finding | None:
        program, expected = self.options.argv[0], self.options.expect_exit
        output = _last_lines(completed)
        if completed.timed_out:
            message = f"{program} was stopped after {self.options.timeout:g} s{output}"
            return Finding(message=message, code="timeout", path=program)
        if completed.signal is not None:
            message = f"{program} was killed by {_signal_name(completed.signal)}{output}"
            return Finding(message=message, code="signal", path=program, actual=completed.signal)
        if completed.exit_code != expected:
            message = f"{program} exited with code {completed.exit_code}, not {expected}{output}"
            return Finding(
                message=message,
                code="exit_code",
                path=program,
                expected=expected,
                actual=completed.exit_code,
            )
        return None


def _last_lines(completed: Completed) -> str:
    """Return the end of the output, where programs give their reason."""
    text = completed.stderr.strip() or completed.stdout.strip()
    lines = text.splitlines()[-5:]
    return ": " + "\n".join(lines)[-500:] if lines else ""


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
