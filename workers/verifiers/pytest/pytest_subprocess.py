"""``pytest.subprocess``: the workspace's own tests accept the answer.

What remains possible: code that runs inside the test process can, with effort, find the nonce of
the event stream and write a whole false run, restore what it exchanged in pytest, or leave the
process by means of its own. Everything short of that (rewriting the JUnit file, ending the
process, planting configuration, hiding, skipping or exchanging tests) is found from outside. The
process also has the worker's user: run verify workers as a user, or in a container, of their own.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, field_validator

from mulligan.extras import find_missing
from mulligan.policies.failures.failure import VerificationResult
from mulligan.policies.jobs.job import Seconds, escapes
from mulligan.policies.value import Value
from mulligan.tasks.ports.blobs import BlobStore
from mulligan.tasks.ports.errors import BadInput, VerifierError
from mulligan.tasks.ports.verifiers import Candidate
from mulligan.workers.sandbox.layout import AnswerLayout, LaidOutAnswer
from mulligan.workers.sandbox.subprocesses import Limits
from mulligan.workers.sandbox.workspace import content_address, private_directory, unpack
from mulligan.workers.verifiers.pytest.expected_tests import Expected, expect
from mulligan.workers.verifiers.pytest.judge import VERIFIER_ID, judge
from mulligan.workers.verifiers.pytest.run import run_pytest

#: Arguments that would take the run out of our sight or make it wait for a person.
_REFUSED_ARGUMENTS = (
    "--junitxml", "--junit-xml", "--collect-only", "--co", "--pdb", "--trace", "--numprocesses",
    "--dist", "--rootdir", "--confcutdir", "--config-file", "--basetemp", "--help", "-h",
    "--version", "-V", "--fixtures", "--markers", "--setup-plan", "--setup-only", "--cache-show",
)  # fmt: skip


class PytestSubprocess:
    """Runs pytest on a private copy with the answer in it; partial credit is passed / collected.

    Evidence: ``exit_code``, ``timed_out``, ``passed``, ``collected``, ``failed`` (node id,
    exception, frame, assertion), ``reason`` (``conftest_broken``, ``early_exit``) and, where there
    were any, ``coercions``. Codes:
    ``assertion``, ``exception``, ``import_error``, ``syntax_error``, ``collection_error``,
    ``timeout``, ``early_exit``, ``forged``, ``no_tests``.
    """

    id: ClassVar[str] = VERIFIER_ID
    slow: bool = True
    needs_blobs: ClassVar[bool] = True
    needs_workspace: ClassVar[bool] = True

    class Options(Value):
        #: What follows ``pytest`` on a command line: files, node ids, ``-k``, ``-m``, ``-x``…
        args: tuple[str, ...] = ()
        timeout: Seconds = Field(default=60.0, gt=0, le=3600)

        @field_validator("args")
        @classmethod
        def _acceptable(cls, args: tuple[str, ...]) -> tuple[str, ...]:
            for arg in args:
                if _refused(arg):
                    raise ValueError(f"{arg!r} cannot be used here")
                if not arg.startswith("-") and escapes(arg.partition("::")[0]) and arg != ".":
                    raise ValueError(f"{arg!r} must stay inside the workspace")
            return args

    def __init__(
        self,
        options: Options,
        *,
        blobs: BlobStore | None = None,
        limits: Limits | None = None,
        root: Path | None = None,
    ) -> None:
        self.options = options
        self._bench = AnswerLayout(blobs=blobs, limits=limits or Limits(), root=root)

    @property
    def longest(self) -> float:
        """Two listings without the answer and the run itself, each with the whole timeout."""
        return 3 * self.options.timeout + 60.0

    def verify(self, candidate: Candidate) -> VerificationResult:
        """Judge the answer by its tests; VerifierError if they cannot be listed or run."""
        if candidate.workspace is None:
            raise BadInput(f"{self.id} needs a workspace")
        if problem := find_missing("junitparser", "pytest"):
            raise VerifierError(f"{self.id}: {problem}")
        with self._bench.laid_out(candidate) as laid:
            expected = self._expected(laid)
            run = run_pytest(
                laid.work,
                self.options.args,
                timeout=self.options.timeout,
                limits=self._bench.limits,
            )
        result = judge(run, expected, touched=laid.touched, restored=laid.restored)
        return result.model_copy(
            update={
                "evidence": result.evidence | laid.evidence,
                "warnings": result.warnings + laid.warnings,
            }
        )

    def _expected(self, laid: LaidOutAnswer) -> Expected:
        """The tests without the answer, listed once per snapshot, arguments and answered files."""
        key = (content_address(laid.snapshot), self.options.args, laid.touched)
        known = _LISTED.get(key)
        if known is None:
            with private_directory(self._bench.root) as work:
                unpack(laid.snapshot, work)
                known = expect(
                    work,
                    self.options.args,
                    laid.touched,
                    timeout=self.options.timeout,
                    limits=self._bench.limits,
                )
            _LISTED.put(key, known)
        return known


def _refused(arg: str) -> bool:
    name = arg.partition("=")[0]
    # Short options may have their value attached: -n4, -cfile.
    return name in _REFUSED_ARGUMENTS or arg[:2] in ("-n", "-c")


class _Listed:
    """The most recent lists of tests, shared by the threads of a worker."""

    _KEPT = 256

    def __init__(self) -> None:
        self._lists: OrderedDict[Any, Expected] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Any) -> Expected | None:
        with self._lock:
            return self._lists.get(key)

    def put(self, key: Any, expected: Expected) -> None:
        with self._lock:
            self._lists[key] = expected
            while len(self._lists) > self._KEPT:
                self._lists.popitem(last=False)


_LISTED = _Listed()
