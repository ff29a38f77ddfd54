"""Check job files without running anything: every problem of every file, with its line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

from mulligan.console.jobfiles.job_file import FoundJob, JobSource, read_entries, read_entry
from mulligan.console.jobfiles.lint_warnings import LintWarning, lint_warnings, repeated_keys
from mulligan.console.jobfiles.source_document import FileProblem
from mulligan.policies.jobs.job import Job
from mulligan.policies.problem import Problem
from mulligan.tasks.jobs.read_job import Check
from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.admission.intake import offline_rules, workspace_path
from mulligan.workers.sandbox.workspace import pack
from mulligan.workers.settings.config_file import config_path
from mulligan.workers.settings.model import Settings, load_settings


@dataclass(frozen=True, kw_only=True)
class LintFinding:
    """An error, with which the job would be refused, or a warning."""

    file: str
    line: int | None
    severity: Literal["error", "warning"]
    #: ``jobs[2].verifiers[0].id``; empty for the whole file.
    field: str
    message: str
    #: The name of a warning.
    rule: str | None = None

    @property
    def place(self) -> str:
        return self.file if self.line is None else f"{self.file}:{self.line}"

    @property
    def text(self) -> str:
        """The message without the place and the severity."""
        field = f"{self.field}: " if self.field else ""
        return f"{field}{self.message}{f' [{self.rule}]' if self.rule else ''}"

    def __str__(self) -> str:
        return f"{self.place}: {self.severity}: {self.text}"

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class LintReport:
    """The findings without repetition: a mistake in the defaults is one, not one per job."""

    jobs: int = 0
    files: int = 0
    _found: dict[LintFinding, None] = field(default_factory=dict)

    def add(self, *findings: LintFinding) -> None:
        self._found.update(dict.fromkeys(findings))

    @property
    def all(self) -> list[LintFinding]:
        return list(self._found)

    def count(self, severity: Literal["error", "warning"]) -> int:
        return sum(1 for each in self._found if each.severity == severity)


def lint_files(paths: Sequence[str], *, allow_inline: bool) -> LintReport:
    """Return every error and warning. Read only the files, what they name, and mulligan.toml."""
    found = LintReport(files=len(paths))
    intake = _intake(found, allow_inline=allow_inline)
    sound: list[FoundJob] = []
    for path in paths:
        in_file = LintReport()
        sound += _lint_file(path, intake, in_file)
        found.jobs += in_file.jobs
        found.add(*sorted(in_file.all, key=lambda each: each.line or 0))
    for each, warning in repeated_keys(sound):
        found.add(_warning(each.source, warning))
    return found


def _lint_file(path: str, intake: LintIntake | None, found: LintReport) -> list[FoundJob]:
    """Add the findings of a file and return its jobs without errors."""
    try:
        raws = read_entries(path)
    except BadInput as error:
        found.add(*map(_finding, error.problems))
        return []
    sound = []
    for source, raw in raws:
        found.jobs += 1
        job, wrong = read_entry(raw, source, intake.problems if intake else lambda _: [])
        found.add(*(_finding(source.place(problem)) for problem in wrong))
        if job is not None and not wrong:
            sound.append(FoundJob(job, source))
            if intake is not None:
                warnings = lint_warnings(job, intake.settings)
                found.add(*(_warning(source, warning) for warning in warnings))
    return sound


# -- what only the intake knows --------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class LintIntake:
    """The checks with which the jobs would be accepted."""

    settings: Settings
    check: Check
    #: Why a directory cannot be packed; each is checked once.
    unpackable: Callable[[Path], list[Problem]]

    def problems(self, job: Job) -> list[Problem]:
        """Return every reason to refuse a well-formed job."""
        found = self.check(job)
        if job.workspace is not None and not any(p.path[0] == "workspace" for p in found):
            path = workspace_path(job.workspace, self.settings)
            found += self.unpackable(path) if path is not None else []
        return found


def _unpackable(path: Path, *, cap: int) -> list[Problem]:
    try:
        pack(path, max_bytes=cap)
    except BadInput as error:
        return list(error.problems)
    return []


def _intake(found: LintReport, *, allow_inline: bool) -> LintIntake | None:
    """Return the checks, or None after adding the problems of mulligan.toml."""
    try:
        settings = load_settings(allow_inline=allow_inline)
    except BadInput as error:
        file = str(config_path() or "the environment")
        found.add(*(_finding(FileProblem(str(each), file=file)) for each in error.problems))
        return None
    return LintIntake(
        settings=settings,
        check=offline_rules(settings).problems,
        unpackable=cache(partial(_unpackable, cap=settings.workspace_cap)),
    )


# -- places ----------------------------------------------------------------------------------------


def _finding(problem: Problem, rule: str | None = None) -> LintFinding:
    return LintFinding(
        file=problem.file if isinstance(problem, FileProblem) else "",
        line=problem.line if isinstance(problem, FileProblem) else None,
        severity="error" if rule is None else "warning",
        field=problem.field,
        message=problem.message,
        rule=rule,
    )


def _warning(source: JobSource, warning: LintWarning) -> LintFinding:
    return _finding(source.place(warning.problem), warning.rule)
