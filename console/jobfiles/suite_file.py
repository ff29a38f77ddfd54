"""Read suite files: the tasks that measure edits; every error has file and line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from mulligan.console.jobfiles.job_file import JobSource
from mulligan.console.jobfiles.source_document import read_document
from mulligan.policies.edits.suite import Suite
from mulligan.policies.problem import Problem
from mulligan.tasks.jobs.read_job import Check
from mulligan.tasks.jobs.validation_errors import problems_of
from mulligan.workers.edits.sessions.suite_jobs import job_problems


@dataclass(frozen=True)
class SuiteFile:
    """A file with a suite, valid or not."""

    source: JobSource
    #: None if there are problems.
    suite: Suite | None
    problems: tuple[Problem, ...]

    @classmethod
    def read(cls, path: str) -> SuiteFile:
        """Read the file (``-`` is stdin); raise BadInput if it cannot be read at all."""
        document = read_document(path)
        suite, problems = inspect_suite(document.data)
        return cls(JobSource(document, ()), suite, tuple(problems))

    def all_problems(self, check: Check) -> list[Problem]:
        """Return every problem of its form and of ``check`` in its jobs, with its line."""
        return [*map(self.source.place, inspect_suite(self.source.document.data, check)[1])]


def inspect_suite(raw: Any, check: Check = lambda _: []) -> tuple[Suite | None, list[Problem]]:
    """Return the suite, if it is valid, and every problem of it and of its jobs."""
    if not isinstance(raw, dict):
        return None, [Problem("a suite is a mapping with `tasks:`", code="wrong_type")]
    suite, problems = None, []
    try:
        suite = Suite.model_validate(raw)
    except ValidationError as error:
        problems += problems_of(error, Suite, list_known=True)
    tasks = raw.get("tasks")
    for index, task in enumerate(tasks if isinstance(tasks, list) else ()):
        job = task.get("job") if isinstance(task, dict) else None
        if isinstance(job, dict):
            problems += [each.below("tasks", index, "job") for each in job_problems(job, check)]
    return (None if problems else suite), problems
