"""List the tests without the answer, so that an answer cannot hide any.

Tests nearly always import the answer's module at the top, so pytest cannot simply collect a copy
without the answer. There are three ways, in this order:

1. Collect with the answer's modules replaced by stubs that have every name.
2. If that breaks a conftest, collect with the files as they are in the snapshot.
3. A test file that cannot be imported either way is read, not run: its test functions are listed.

Node ids must agree exactly, unless a stub had to make up a value (a list of parameters, say) or
the file was only read: then the test functions must agree.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeGuard

from mulligan.tasks.ports.errors import VerifierError
from mulligan.workers.sandbox.limits import Limits
from mulligan.workers.verifiers.pytest.event_stream import RaisedError, Transcript
from mulligan.workers.verifiers.pytest.run import PytestRun, module_names, run_pytest

#: pytest's exit codes with which the list of tests is usable: success, some files could not be
#: imported, no tests.
_LISTED = (0, 2, 5)


@dataclass(frozen=True, kw_only=True)
class Expected:
    """The tests that a run must report."""

    nodeids: tuple[str, ...]
    #: Whether the parameters in node ids are known; if not, only functions are compared.
    exact: bool
    #: The patterns by which pytest knows test files, new ones included.
    python_files: tuple[str, ...] = ()
    #: If they are not exact: the tests of the files as they are in the snapshot, without stubs.
    on_base: tuple[str, ...] = ()
    #: Listed only because a stub made up a value: they need not exist.
    optional: frozenset[str] = frozenset()

    @property
    def required(self) -> list[str]:
        """The tests that must be run."""
        return [nodeid for nodeid in self.nodeids if nodeid not in self.optional]

    def without_files(self, files: Collection[str]) -> Expected:
        """Return them without the tests of files that are skipped with any answer."""
        kept = tuple(node for node in self.nodeids if node.partition("::")[0] not in files)
        return replace(self, nodeids=kept)

    def with_new(self, run: PytestRun, files: Collection[str]) -> Expected:
        """Return them with the tests of new files, which nobody could list before."""
        collected = run.transcript.collected or ()
        new = [node for node in collected if node.partition("::")[0] in files]
        return replace(self, nodeids=(*self.nodeids, *new)) if new else self

    def missing(self, collected: Sequence[str]) -> list[str]:
        """Return the expected tests that were not collected."""
        present = set(collected)
        if not self.exact:
            present |= {function_of(nodeid) for nodeid in collected}
            return [node for node in self.required if not {node, function_of(node)} & present]
        return [nodeid for nodeid in self.nodeids if nodeid not in present]

    def unknown(self, collected: Sequence[str]) -> list[str]:
        """Return the collected tests that were not expected."""
        known = set(self.nodeids)
        if not self.exact:
            known = {function_of(nodeid) for nodeid in (*known, *self.on_base)}
            return [node for node in collected if function_of(node) not in known]
        return [nodeid for nodeid in collected if nodeid not in known]


def function_of(nodeid: str) -> str:
    """Return a node id without its parameters."""
    return nodeid.partition("[")[0]


def list_expected_tests(
    work: Path,
    args: Sequence[str],
    touched: Sequence[str],
    *,
    timeout: float,
    limits: Limits,
    may_add: bool = False,
) -> Expected:
    """List the tests in a copy without the answer; raise VerifierError if there are none.

    ``may_add``: an answer may add any file, so a module that is missing may become one.
    """
    listing = run_pytest(work, args, timeout=timeout, limits=limits, stubs=touched)
    exact = True
    if not _usable(listing):
        listing = run_pytest(work, args, timeout=timeout, limits=limits, stubs=())
        exact = False
    if not _usable(listing):
        raise VerifierError(f"cannot list the tests:\n{listing.output_tail}")
    transcript = listing.transcript
    read = [
        nodeid
        for error in transcript.collect_errors
        for nodeid in _read_tests(work, error, touched, may_add=may_add)
    ]
    nodeids = (*(transcript.collected or ()), *read)
    if not nodeids:
        raise VerifierError(f"no tests in {' '.join(args) or 'the workspace'}")
    python_files = transcript.python_files
    if exact and not read and not transcript.guessed:
        return Expected(nodeids=nodeids, exact=True, python_files=python_files)
    if exact:
        listing = run_pytest(work, args, timeout=timeout, limits=limits, stubs=())
    base = listing.transcript
    on_base = (base.collected or ()) if _usable(listing) else ()
    complete = all((work / file).exists() for file in touched)
    return Expected(
        nodeids=nodeids,
        exact=False,
        python_files=python_files,
        on_base=on_base,
        optional=_made_up(nodeids, base) if on_base and complete else frozenset(),
    )


def _made_up(nodeids: Sequence[str], base: Transcript) -> frozenset[str]:
    """Return the tests that their files do not have without stubs."""
    unknown = {*(error.nodeid for error in base.collect_errors), *base.skipped_files}
    real = {function_of(nodeid) for nodeid in base.collected or ()}
    return frozenset(
        nodeid
        for nodeid in nodeids
        if nodeid.partition("::")[0] not in unknown and function_of(nodeid) not in real
    )


def _usable(listing: PytestRun) -> bool:
    transcript = listing.transcript
    listed = transcript.exit_code in _LISTED and listing.completed.exit_code == transcript.exit_code
    # Exit code 2 also means that the run was interrupted.
    interrupted = transcript.exit_code == 2 and not transcript.collect_errors
    return listed and not transcript.problems and not interrupted


def _read_tests(
    work: Path, error: RaisedError, touched: Sequence[str], *, may_add: bool
) -> Iterator[str]:
    """List the tests of a file whose import needs the answer; VerifierError for other causes."""
    answers = {name for file in touched for name in module_names(file)}
    missing = error.exception == "ModuleNotFoundError" and error.name not in answers and not may_add
    broken = "SyntaxError" in error.bases and error.frame == (error.nodeid, "<module>")
    if missing or broken:
        fix = "; install it into the workers' Python" if missing else ""
        raise VerifierError(
            f"{error.nodeid} cannot be imported with any answer: {error.message}{fix}"
        )
    path = work / error.nodeid
    if not path.is_file():
        raise VerifierError(f"cannot list {error.nodeid}: {error.message}")
    yield from _test_functions(path.read_text("utf-8", "replace"), error.nodeid)


def _test_functions(source: str, nodeid: str) -> Iterator[str]:
    """Yield the node ids of the test functions in a file's text, by pytest's default names."""
    for node in ast.parse(source).body:
        if _is_test(node):
            yield f"{nodeid}::{node.name}"
        elif isinstance(node, ast.ClassDef) and _is_test_class(node):
            tests = filter(_is_test, node.body)
            yield from (f"{nodeid}::{node.name}::{test.name}" for test in tests)


def _is_test(node: ast.stmt) -> TypeGuard[ast.FunctionDef | ast.AsyncFunctionDef]:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test")


def _is_test_class(node: ast.ClassDef) -> bool:
    bases = " ".join(ast.unparse(base) for base in node.bases)
    return node.name.startswith("Test") or "TestCase" in bases
