"""Plan files and suite files: every problem with its file and line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from rapidfuzz import process

from mulligan.console.jobfiles.job_file import JobSource
from mulligan.console.jobfiles.source_document import SourceDocument, read_document
from mulligan.policies.edits.edit import BenchmarkSpec, Edit, EditPlan
from mulligan.policies.edits.suite import Suite, SuiteTask
from mulligan.tasks.jobs.validation_errors import spelled
from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.edits.applier_registry import default_registry
from mulligan.workers.edits.sessions.suite_jobs import shape_problems

_M = TypeVar("_M", bound=BaseModel)
#: The model of what stands at the end of a path.
_NESTED: dict[str, type[BaseModel]] = {
    "": EditPlan,
    "benchmark": BenchmarkSpec,
    "edits": Edit,
    "tasks": SuiteTask,
}


@dataclass(frozen=True, kw_only=True)
class PlanFile:
    """A plan, its suite, and where both stand."""

    plan: EditPlan
    suite: Suite | None
    source: JobSource
    suite_source: JobSource | None = None

    def typos(self) -> list[str]:
        """Operations that nobody knows, but that look like one: they cannot be applied."""
        known = default_registry().names()
        return [
            self.source.place(f"edits[{i}].op: {typo}")
            for i, edit in enumerate(self.plan.edits)
            if edit.op not in known and (typo := _typo(edit.op, known))
        ]

    def placed(self, problem: str) -> str:
        """A problem of the suite (``tasks[0].command: …``) at its line."""
        return (self.suite_source or self.source).place(problem.removeprefix("suite: "))


def read_plan(path: str) -> PlanFile:
    """A plan file, ``-`` is stdin; BadInput with every problem of it and of its suite."""
    document = read_document(path)
    source = JobSource(document, ())
    data = document.data
    if isinstance(data, list):
        raise BadInput(source.place("put the list under `edits:`"))
    plan = _validated(EditPlan, data, document, "a plan holds `edits:`, a list of edits")
    named = plan.benchmark.suite
    if named is None:
        return PlanFile(plan=plan, suite=None, source=source)
    suite, suite_source = read_suite(str(_beside(document.folder, named)))
    return PlanFile(plan=plan, suite=suite, source=source, suite_source=suite_source)


def read_suite(path: str) -> tuple[Suite, JobSource]:
    """A suite file, and where its tasks stand."""
    document = read_document(path)
    suite = _validated(Suite, document.data, document, "a suite holds `tasks:`, a list of tasks")
    source = JobSource(document, ())
    problems = [
        source.place(f"tasks[{i}].job.{problem}")
        for i, task in enumerate(suite.tasks)
        for problem in shape_problems(task)
    ]
    if problems:
        raise BadInput(*problems)
    return suite, source


def _beside(folder: Path, name: str) -> Path:
    """A file relative to the plan; as people would write it, if it is below this folder."""
    path = folder / name
    try:
        return path.resolve().relative_to(Path.cwd())
    except ValueError:
        return path


def _typo(op: str, known: Sequence[str]) -> str:
    near = process.extractOne(op, known, score_cutoff=80)
    return f"there is no operation {op!r}; did you mean {near[0]!r}?" if near else ""


def _validated(model: type[_M], data: Any, document: SourceDocument, shape: str) -> _M:
    if not isinstance(data, dict):
        raise BadInput(f"{document.name}:1: {shape}")
    try:
        return model.model_validate(data)
    except ValidationError as error:
        source = JobSource(document, ())
        found = error.errors(include_url=False)
        raise BadInput(*(source.place(_explained(model, item)) for item in found)) from None


def _explained(model: type[BaseModel], item: ErrorDetails) -> str:
    loc = item["loc"]
    field = spelled(loc)
    match item["type"]:
        case "extra_forbidden":
            known = _fields_beside(model, loc)
            near = process.extractOne(str(loc[-1]), known, score_cutoff=65)
            hint = f"; did you mean {near[0]!r}?" if near else f"; there are: {', '.join(known)}"
            return f"{field}: there is no such field{hint}"
        case "missing":
            return f"{field}: is required"
        case "too_short":
            return f"{field}: give at least one"
        case "string_pattern_mismatch":
            return f"{field}: give letters, digits, '_', '-' and '.' only (got {item['input']!r})"
        case _:
            message = item["msg"].removeprefix("Value error, ")
            # The validators of a whole plan name the field themselves.
            return f"{field}: {message[0].lower()}{message[1:]}" if field else message


def _fields_beside(model: type[BaseModel], loc: Sequence[str | int]) -> list[str]:
    names = [part for part in loc[:-1] if isinstance(part, str)]
    owner = _NESTED.get(names[0]) if names else model
    return list((owner or model).model_fields)
