"""``pytest.subprocess``: the workspace's tests accept the answer.

Limits: the answer and its tests share a process. Rewriting the JUnit file, exiting the process,
adding configuration, hiding, skipping or adding tests is detected from outside, and the known ways
to change the run itself by hooks inside (``tamper_hooks.py``). Code that reads or writes the
memory of its process in other ways can still forge a run, so results say ``in_process``.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import Any, ClassVar, TypeVar, cast

from pydantic import Field, field_validator

from mulligan.extras import find_missing
from mulligan.policies.failures.failure import VerificationResult
from mulligan.policies.jobs.job import Seconds
from mulligan.policies.value import Value
from mulligan.tasks.ports.blobs import BlobStore
from mulligan.tasks.ports.errors import BadInput, VerifierError
from mulligan.tasks.ports.verifiers import Candidate
from mulligan.workers.sandbox.layout import AnswerLayout, LaidOutAnswer
from mulligan.workers.sandbox.limits import Limits
from mulligan.workers.sandbox.private import private_directory
from mulligan.workers.verifiers.pytest.allowed_arguments import check_arguments
from mulligan.workers.verifiers.pytest.cross_check import VERIFIER_ID, cross_check
from mulligan.workers.verifiers.pytest.event_stream import RaisedError
from mulligan.workers.verifiers.pytest.expected_tests import Expected, list_expected_tests
from mulligan.workers.verifiers.pytest.new_tests import add_new_tests, new_test_files
from mulligan.workers.verifiers.pytest.run import PytestRun, run_pytest
from mulligan.workers.verifiers.pytest.switched_off import (
    BASE_ARGUMENTS,
    BaseTests,
    find_suspects,
    run_on_base,
    switched_off,
)
from mulligan.workers.verifiers.pytest.tally import tally

#: For people only: the corrected prompt never quotes warnings.
LANDLOCK_WARNING = (
    "confined by Landlock: tests that use sockets, multiprocessing or /tmp fail here;"
    " install bubblewrap"
)
#: pytest's exit codes after all tests ran: they passed, or some failed.
_FINISHED = (0, 1)
_DENIED = ("Permission denied", "Operation not permitted")
#: What was found last about workspaces without an answer, shared by the threads of a worker.
_on_base: OrderedDict[Any, object] = OrderedDict()
_MOST_KEPT = 256
_lock = threading.Lock()
Found = TypeVar("Found")


class PytestSubprocess:
    """Runs pytest on a private copy with the answer in it; partial credit is passed / collected.

    Evidence: ``exit_code``, ``timed_out``, ``passed``, ``collected``, ``failed`` (node id,
    exception, frame, assertion), ``report`` (the first failures as pytest shows them), ``reason``
    (``conftest_broken``, ``early_exit``, ``crash``), ``new_tests`` (passed and collected) and
    ``coercions``, if any.
    Codes: ``assertion``, ``exception``, ``import_error``, ``syntax_error``, ``collection_error``,
    ``timeout``, ``early_exit``, ``crash``, ``forged``, ``no_tests``, ``switched_off``.
    """

    id: ClassVar[str] = VERIFIER_ID
    slow: bool = True
    needs_blobs: ClassVar[bool] = True
    needs_workspace: ClassVar[bool] = True

    class Options(Value):
        #: What follows ``pytest`` on a command line: files, node ids, ``-k``, ``-m``, ``-x``…
        args: tuple[str, ...] = ()
        timeout: Seconds = Field(default=60.0, gt=0, le=3600)
        #: Whether results and corrected prompts show the lines of failing tests.
        show_source: bool = True

        @field_validator("args")
        @classmethod
        def _check_args(cls, args: tuple[str, ...]) -> tuple[str, ...]:
            check_arguments(args)
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
        self._layout = AnswerLayout(blobs=blobs, limits=limits or Limits(), root=root)

    @property
    def longest(self) -> float:
        """The longest time of two listings without the answer and the run itself.

        New tests, and skipped tests without the answer, run in what is left of it.
        """
        return 3 * self.options.timeout + 60.0

    def verify(self, candidate: Candidate) -> VerificationResult:
        """Judge the answer by its tests; raise VerifierError if they cannot be listed or run."""
        if candidate.workspace is None:
            raise BadInput(f"{self.id} needs a workspace")
        if problem := find_missing("junitparser", "pytest"):
            raise VerifierError(problem)
        with self._layout.lay_out(candidate) as answer:
            deadline = monotonic() + 3 * self.options.timeout
            expected = self._expected_tests(answer)
            new = new_test_files(answer.added, expected.python_files)
            run = run_pytest(
                answer.work,
                (*self.options.args, *(f"--ignore={name}" for name in new)),
                timeout=self.options.timeout,
                limits=self._layout.limits,
                answer=_own_files(answer),
                show_source=self.options.show_source,
            )
            base = self._run_suspects(answer, run, expected, deadline)
            result = cross_check(
                run,
                expected.without_files(base.skipped_files),
                touched=answer.touched,
                restored=answer.restored,
                added=answer.added,
                off=switched_off(run, base, guess=answer.may_add),
            )
            warnings = answer.warnings + _sandbox_warnings(run)
            if new and run.transcript.exit_code in _FINISHED:
                second = self._run_new_tests(answer, new, deadline)
                result = add_new_tests(result, second, answer.touched)
                warnings += _sandbox_warnings(second)
        return result.model_copy(
            update={
                "evidence": result.evidence
                | answer.evidence
                | {"isolation": list(run.completed.layers)},
                "warnings": tuple(dict.fromkeys(result.warnings + warnings)),
            }
        )

    def _run_new_tests(
        self, answer: LaidOutAnswer, files: Sequence[str], deadline: float
    ) -> PytestRun:
        """Run the tests of new files. Nothing depends on them but their own failures.

        So no file is watched as the answer's: new tests and their helpers may do what tests do.
        """
        return run_pytest(
            answer.work,
            self.options.args,
            timeout=self._time_left(deadline),
            limits=self._layout.limits,
            only=files,
            show_source=self.options.show_source,
        )

    def _expected_tests(self, answer: LaidOutAnswer) -> Expected:
        """List the tests without the answer, once per snapshot, arguments and touched files."""

        def make(work: Path) -> Expected:
            return list_expected_tests(
                work,
                self.options.args,
                answer.touched,
                timeout=self.options.timeout,
                limits=self._layout.limits,
                may_add=answer.may_add,
            )

        return self._once_on_base(answer, (), make)

    def _run_suspects(
        self, answer: LaidOutAnswer, run: PytestRun, expected: Expected, deadline: float
    ) -> BaseTests:
        """Run the tests that the answer may have switched off without it, if there are any.

        Raises VerifierError if too little time is left for it.
        """
        changed = answer.touched and run.transcript.exit_code in _FINISHED
        suspects = find_suspects(run, expected, _own_files(answer)) if changed else ()
        if not suspects:
            return BaseTests()

        def make(work: Path) -> BaseTests:
            def run_some(only: Sequence[str], fill: bool) -> PytestRun:
                timeout = self._time_left(deadline)
                found = run_pytest(
                    work,
                    (*self.options.args, *BASE_ARGUMENTS),
                    timeout=timeout,
                    limits=self._layout.limits,
                    only=only,
                    fill=answer.touched if fill else None,
                )
                if found.completed.timed_out and timeout < self.options.timeout:
                    raise VerifierError("no time is left to run skipped tests without the answer")
                return found

            return run_on_base(run_some, suspects)

        return self._once_on_base(answer, suspects, make)

    def _once_on_base(
        self, answer: LaidOutAnswer, what: tuple[str, ...], make: Callable[[Path], Found]
    ) -> Found:
        """Return what is known about the workspace without the answer, or find it out."""
        key = (answer.base, self.options.args, answer.touched, what)
        with _lock:
            known = _on_base.get(key)
        if known is not None:
            return cast("Found", known)
        with private_directory(self._layout.root) as work:
            answer.write_base(work)
            found = make(work)
        with _lock:
            _on_base[key] = found
            while len(_on_base) > _MOST_KEPT:
                _on_base.popitem(last=False)
        return found

    def _time_left(self, deadline: float) -> float:
        return min(self.options.timeout, max(1.0, deadline - monotonic()))


def _own_files(answer: LaidOutAnswer) -> list[str]:
    """Return the files whose content is the answer's."""
    return [name for name in answer.touched if name not in answer.restored]


def _sandbox_warnings(run: PytestRun) -> tuple[str, ...]:
    """Warn if a test may have failed because of the sandbox and not because of the answer."""
    by_landlock = any(layer.startswith("landlock") for layer in run.completed.layers)
    if by_landlock and any(_was_denied(test.raised) for test in tally(run.transcript).failed):
        return (LANDLOCK_WARNING,)
    return ()


def _was_denied(error: RaisedError) -> bool:
    return "PermissionError" in error.bases or any(said in error.message for said in _DENIED)
