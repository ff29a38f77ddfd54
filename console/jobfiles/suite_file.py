"""Suite files: the tasks that edits are measured by. Every error with its file and line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from rapidfuzz import process

from mulligan.console.jobfiles.job_file import JobSource
from mulligan.console.jobfiles.source_document import read_document
from mulligan.policies.edits.suite import Suite, SuiteTask
from mulligan.tasks.jobs.validation_errors import spelled
from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.edits.sessions.suite_jobs import shape_problems


@dataclass(frozen=True)
class FoundSuite:
    """A suite and where it was found, so that any problem of it can be placed."""

    suite: Suite
    source: JobSource

    def refuse(self, problems: Sequence[str]) -> None:
        """Raise BadInput with the problems (``tasks[1].command: …``), each at its line."""
        if problems:
            raise BadInput(*map(self.source.place, problems))


def load_suite(path: str) -> FoundSuite:
    """The suite of a file, or BadInput with every problem; ``-`` is stdin."""
    document = read_document(path)
    source = JobSource(document, ())
    if not isinstance(document.data, dict):
        raise BadInput(f"{document.name}:1: a suite is a mapping with `tasks:`")
    suite, problems = read_suite(document.data)
    if suite is None or problems:
        raise BadInput(*map(source.place, problems))
    return FoundSuite(suite, source)


def read_suite(raw: dict[str, Any]) -> tuple[Suite | None, list[str]]:
    """A suite, if it is one, and every problem as ``field: problem``."""
    try:
        suite = Suite.model_validate(raw)
    except ValidationError as error:
        return None, _explained(error.errors(include_url=False))
    problems = [
        f"tasks[{index}].job.{problem}"
        for index, task in enumerate(suite.tasks)
        for problem in shape_problems(task)
    ]
    return suite, problems


def _explained(errors: Sequence[ErrorDetails]) -> list[str]:
    """One line per error. A list is not also too short because an item of it is wrong."""
    inside = {item["loc"][:end] for item in errors for end in range(len(item["loc"]))}
    return [
        _explain(item)
        for item in errors
        if item["type"] != "too_short" or item["loc"] not in inside
    ]


def _explain(item: ErrorDetails) -> str:
    loc = item["loc"]
    field = spelled(loc)
    if item["type"] == "extra_forbidden":
        return f"{field}: there is no such field{_did_you_mean(str(loc[-1]), _beside(loc))}"
    if item["type"] == "missing":
        return f"{field}: is required"
    if item["type"] == "too_short":
        return f"{field}: give at least {item.get('ctx', {}).get('min_length', 1)}"
    if item["type"] == "tuple_type" and field.endswith("command"):
        return f"{field}: must be a list, a program and its arguments: [python, score.py]"
    message = item["msg"].removeprefix("Value error, ")
    # What a validator of the whole names, it names itself: ``cluster: a job counts for…``.
    if item["type"] == "value_error" and ": " in message:
        return f"{field}.{message}".lstrip(".")
    told = message[0].lower() + message[1:]
    return f"{field or 'suite'}: {told}"


def _beside(loc: Sequence[str | int]) -> list[str]:
    model: type[BaseModel] = Suite if len(loc) == 1 else SuiteTask
    return list(model.model_fields)


def _did_you_mean(name: str, known: Sequence[str]) -> str:
    near = process.extractOne(name, known, score_cutoff=65)
    return f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(known)}"
