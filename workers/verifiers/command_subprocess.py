"""``command.subprocess``: a program accepts or rejects the answer with its exit code."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path, PurePath
from typing import ClassVar

from pydantic import Field

from mulligan.policies.failures.command_output import first_error
from mulligan.policies.failures.failure import Finding, VerificationResult, VerificationStatus
from mulligan.policies.jobs.job import Seconds
from mulligan.policies.value import Json, Value
from mulligan.tasks.ports.blobs import BlobStore
from mulligan.tasks.ports.verifiers import Candidate
from mulligan.workers.sandbox.confinement import Endpoint
from mulligan.workers.sandbox.layout import AnswerLayout, LaidOutAnswer
from mulligan.workers.sandbox.limits import Limits
from mulligan.workers.sandbox.subprocesses import Completed, clean_environment, run, signal_name

_TAIL_CHARACTERS = 2_000


class CommandSubprocess:
    """Runs argv in a private copy of the workspace, with the answer on stdin.

    Without a workspace the directory is empty. Evidence: ``argv``, ``exit_code``, ``signal``,
    ``timed_out``, ``stderr_tail``, ``stdout_tail``, ``isolation`` (what confined it), ``error``
    (the program's own first one) and ``coercions``, if any.
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
        #: The only places that it may connect to, as `host:port`; only mulligan.toml may name them.
        network: tuple[Endpoint, ...] = Field(default=(), max_length=50)

    def __init__(
        self,
        options: Options,
        *,
        blobs: BlobStore | None = None,
        limits: Limits | None = None,
        root: Path | None = None,
    ) -> None:
        self.options = options
        self._layout = AnswerLayout(
            blobs=blobs, limits=(limits or Limits()).reaching(options.network), root=root
        )

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
        printed = replace(
            completed, stdout=answer.clean(completed.stdout), stderr=answer.clean(completed.stderr)
        )
        error = first_error(printed.stderr, printed.stdout)
        # Where the program is installed is of no use to a reader, and differs between workers.
        program, *rest = self.options.argv
        argv = [PurePath(program).name, *map(answer.clean, rest)]
        finding = self._finding(printed, argv[0], error)
        return VerificationResult(
            status=VerificationStatus.FAIL if finding else VerificationStatus.PASS,
            verifier_id=self.id,
            summary=finding.message if finding else f"{argv[0]} accepts the answer",
            evidence=_evidence(printed, argv, error if finding else "") | answer.evidence,
            errors=(finding,) if finding else (),
            warnings=answer.warnings,
            elapsed_seconds=completed.elapsed,
        )

    def _finding(self, completed: Completed, program: str, error: str) -> Finding | None:
        reason = f": {error}" if error else ""
        if completed.timed_out:
            message = f"{program} was stopped after {self.options.timeout:g} s{reason}"
            return Finding(message=message, code="timeout", path=program)
        expected = self.options.expect_exit
        if completed.signal is not None and 128 + completed.signal != expected:
            message = f"{program} was killed by {signal_name(completed.signal)}{reason}"
            return Finding(message=message, code="signal", path=program, actual=completed.signal)
        if completed.exit_code in (expected, None):
            return None
        instead = f" instead of {expected}" if expected else ""
        return Finding(
            message=f"{program} exited with code {completed.exit_code}{instead}{reason}",
            code="exit_code",
            path=program,
            expected=expected,
            actual=completed.exit_code,
        )


def _evidence(completed: Completed, argv: list[str], error: str) -> dict[str, Json]:
    evidence: dict[str, Json] = {
        "argv": [*argv],
        "exit_code": completed.exit_code,
        "signal": completed.signal,
        "timed_out": completed.timed_out,
        "stderr_tail": completed.stderr[-_TAIL_CHARACTERS:],
        "stdout_tail": completed.stdout[-_TAIL_CHARACTERS:],
        "isolation": list(completed.layers),
    }
    return evidence | ({"error": error} if error else {})
