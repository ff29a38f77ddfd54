"""Read plan files: edits and the suite that measures them; every problem has file and line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mulligan.console.jobfiles.job_file import JobSource
from mulligan.console.jobfiles.source_document import read_document
from mulligan.console.jobfiles.suite_file import SuiteFile
from mulligan.policies.edits.edit import EditPlan
from mulligan.policies.edits.suite import Suite
from mulligan.policies.problem import Problem
from mulligan.policies.suggestions import nearest_name
from mulligan.tasks.jobs.read_job import Check
from mulligan.tasks.jobs.validation_errors import problems_of
from mulligan.tasks.ports.errors import BadInput, refuse
from mulligan.workers.edits.applier_registry import default_registry


@dataclass(frozen=True, kw_only=True)
class PlanFile:
    """A plan, its suite, and their places in files."""

    plan: EditPlan
    source: JobSource
    suite_file: SuiteFile | None = None

    @property
    def suite(self) -> Suite | None:
        return self.suite_file.suite if self.suite_file else None

    def typos(self) -> list[str]:
        """Return the unknown operations that look like a misspelt one."""
        known = default_registry().names()
        unknown = [(i, e.op) for i, e in enumerate(self.plan.edits) if e.op not in known]
        nearest = [(i, op, nearest_name(op, known)) for i, op in unknown]
        return [
            str(self.source.place(_unknown_operation(i, op, near)))
            for i, op, near in nearest
            if near is not None
        ]

    def place(self, problem: Problem) -> Problem:
        """Add the line to a problem of the suite (``suite.tasks[0].command``)."""
        if self.suite_file is None or problem.path[:1] != ("suite",):
            return problem
        inside = Problem(problem.message, problem.path[1:], problem.code)
        return self.suite_file.source.place(inside)


def read_plan(path: str, check: Callable[[], Check]) -> PlanFile:
    """Read a plan file (``-`` is stdin), or raise BadInput with every problem and its suite's.

    ``check`` returns the check of the suite's jobs. It is called only if a file is malformed, so
    that the problems of those jobs are reported at the same time.
    """
    document = read_document(path)
    source = JobSource(document, ())
    plan, found = inspect_plan(document.data)
    problems: list[Problem] = [*map(source.place, found)]
    suite = None
    try:
        suite = _suite_of(document.data, document.folder)
    except BadInput as error:
        problems += error.problems
    if suite is not None and (problems or suite.problems):
        problems += suite.all_problems(check())
    refuse(problems)
    assert plan is not None  # noqa: S101 - without a problem there is a plan
    return PlanFile(plan=plan, source=source, suite_file=suite)


def inspect_plan(raw: Any) -> tuple[EditPlan | None, list[Problem]]:
    """Return the plan, if it is valid, and every problem of its form."""
    if isinstance(raw, list):
        return None, [Problem("put the list under `edits:`", code="wrong_type")]
    if not isinstance(raw, dict):
        return None, [Problem("a plan holds `edits:`, a list of edits", code="wrong_type")]
    try:
        return EditPlan.model_validate(raw), []
    except ValidationError as error:
        return None, problems_of(error, EditPlan, list_known=True, show_values=True)


def _suite_of(raw: Any, folder: Path) -> SuiteFile | None:
    """Read the suite that a plan names, even if the rest of the plan is invalid."""
    benchmark = raw.get("benchmark") if isinstance(raw, dict) else None
    name = benchmark.get("suite") if isinstance(benchmark, dict) else None
    return SuiteFile.read(str(_beside(folder, name))) if isinstance(name, str) and name else None


def _beside(folder: Path, name: str) -> Path:
    """Return a file beside the plan, as a relative path if it is below the current folder."""
    path = folder / name
    try:
        return path.resolve().relative_to(Path.cwd())
    except ValueError:
        return path


def _unknown_operation(index: int, op: str, near: str) -> Problem:
    message = f"there is no operation {op!r}; did you mean {near!r}?"
    return Problem(message, ("edits", index, "op"), "unknown_name")
