"""Which tests there are, found without the answer, so that an answer cannot hide any.

Tests nearly always import the answer's module at the top, so a copy without the answer cannot
simply be collected. Three ways, in this order:

1. Collect with the answer's modules replaced by stubs that have every name.
2. If that breaks a conftest, collect with the files as they are in the snapshot.
3. A test file that cannot be imported either way is read, not run: its test functions are listed.

Node ids must agree exactly, unless a stub was asked something only the real module knows (a list
of parameters, say) or the file was only read: then the test functions must agree.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

from mulligan.tasks.ports.errors import VerifierError
from mulligan.workers.sandbox.subprocesses import Limits
from mulligan.workers.verifiers.pytest.event_stream import RaisedError
from mulligan.workers.verifiers.pytest.run import PytestRun, module_names, run_pytest

#: pytest's exit codes after which the list of tests can be used: all well, some files could not
#: be imported, no tests.
_LISTED = (0, 2, 5)


@dataclass(frozen=True, kw_only=True)
class Expected:
    """The tests that must be reported."""

    nodeids: tuple[str, ...]
    #: Whether the parameters in node ids are known; otherwise only functions are compared.
    exact: bool

    def missing(self, collected: Sequence[str]) -> list[str]:
        """Tests that should have been collected and were not."""
        there = set(collected)
        if not self.exact:
            there |= {function_of(nodeid) for nodeid in collected}
            return [node for node in self.nodeids if not {node, function_of(node)} & there]
        return [nodeid for nodeid in self.nodeids if nodeid not in there]

    def unknown(self, collected: Sequence[str]) -> list[str]:
        """Tests that were collected and should not exist."""
        known = set(self.nodeids)
        if not self.exact:
            known = {function_of(nodeid) for nodeid in known}
            return [node for node in collected if function_of(node) not in known]
        return [nodeid for nodeid in collected if nodeid not in known]


def function_of(nodeid: str) -> str:
    """A node id without parameters."""
    return nodeid.partition("[")[0]


def expect(
    work: Path, args: Sequence[str], touched: Sequence[str], *, timeout: float, limits: Limits
) -> Expected:
    """The tests in a copy of the snapshot without the answer; VerifierError if there are none."""
    listing = run_pytest(work, args, timeout=timeout, limits=limits, stubs=touched)
    exact = True
    if not _usable(listing):
        listing = run_pytest(work, args, timeout=timeout, limits=limits, stubs=())
        exact = False
    if not _usable(listing):
        raise VerifierError(f"pytest.subprocess: cannot list the tests:\n{listing.last_words}")
    transcript = listing.transcript
    read = [
        nodeid
        for error in transcript.collect_errors
        for nodeid in _read_tests(work, error, touched)
    ]
    nodeids = (*(transcript.collected or ()), *read)
    if not nodeids:
        raise VerifierError(f"pytest.subprocess: no tests in {' '.join(args) or 'the workspace'}")
    return Expected(nodeids=nodeids, exact=exact and not read and not transcript.guessed)


def _usable(listing: PytestRun) -> bool:
    transcript = listing.transcript
    listed = transcript.exit_code in _LISTED and listing.completed.exit_code == transcript.exit_code
    # Exit code 2 is also a run that somebody broke off.
    broken_off = transcript.exit_code == 2 and not transcript.collect_errors
    return listed and not transcript.problems and not broken_off


def _read_tests(work: Path, error: RaisedError, touched: Sequence[str]) -> Iterator[str]:
    """The test functions of a file that could not be imported, unless that is not our doing."""
    answers = {name for file in touched for name in module_names(file)}
    missing = error.exception == "ModuleNotFoundError" and error.name not in answers
    broken = "SyntaxError" in error.bases and error.frame == (error.nodeid, "<module>")
    if missing or broken:
        raise VerifierError(
            f"pytest.subprocess: {error.nodeid} cannot be imported, whatever the answer:"
            f" {error.exception}: {error.message}"
        )
    path = work / error.nodeid
    if not path.is_file():
        raise VerifierError(f"pytest.subprocess: cannot list {error.nodeid}: {error.message}")
    yield from functions_in(path.read_text("utf-8", "replace"), error.nodeid)


def functions_in(source: str, nodeid: str) -> Iterator[str]:
    """Node ids of the test functions in a file's text, by pytest's default names."""
    for node in ast.parse(source).body:
        if _is_test(node):
            yield f"{nodeid}::{node.name}"
        elif isinstance(node, ast.ClassDef) and _is_test_class(node):
            yield from (f"{nodeid}::{node.name}::{child.name}" for child in _tests(node))


def _is_test(node: ast.stmt) -> TypeGuard[ast.FunctionDef | ast.AsyncFunctionDef]:
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    return node.name.startswith("test")


def _tests(node: ast.ClassDef) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (child for child in node.body if _is_test(child))


def _is_test_class(node: ast.ClassDef) -> bool:
    bases = " ".join(ast.unparse(base) for base in node.bases)
    return node.name.startswith("Test") or "TestCase" in bases
