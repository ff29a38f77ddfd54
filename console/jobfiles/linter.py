"""Checking job files without running anything: every problem of every file, each at its place."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from mulligan.console.jobfiles.job_file import (
    PROMPTS,
    FoundJob,
    JobSource,
    Raw,
    entries,
    prepared,
    read_job,
    split_problem,
)
from mulligan.console.jobfiles.lint_warnings import lint_warnings, repeated_keys
from mulligan.console.jobfiles.source_document import read_document
from mulligan.policies.jobs.job import Job, RunnerSpec
from mulligan.tasks.jobs.submit import JobRules, problems
from mulligan.tasks.jobs.validation_errors import spelled
from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.admission.intake import check_job, workspace_path
from mulligan.workers.contract_models import ContractModels
from mulligan.workers.runners.runner_registry import RunnerRegistry
from mulligan.workers.sandbox.workspace import pack
from mulligan.workers.settings.config_file import config_path
from mulligan.workers.settings.model import Settings, load_settings
from mulligan.workers.verifiers.verifier_registry import VerifierRegistry

_PLACED = re.compile(r":(\d+): (?:((?:jobs|defaults)[\w.\[\]]*|\w+): )?(.*)", re.DOTALL)
#: A job without a mistake; its parts stand in for those that have one.
_SOUND: Raw = {
    "task_type": "job",
    "prompt": "-",
    "runner": {"kind": "scripted", "answers": ["-"]},
    "verifiers": ["json.object"],
}
_SOUND_RUNNER = RunnerSpec.model_validate(_SOUND["runner"])
#: Stands in for a workspace that has a mistake: nobody looks for its directory.
_SOMEWHERE: Raw = {"snapshot": "sha256:-"}


@dataclass(frozen=True, kw_only=True)
class LintFinding:
    """One thing to look at. An error keeps the job from being accepted."""

    file: str
    line: int | None
    severity: Literal["error", "warning"]
    #: ``jobs[2].verifiers[0].id``; empty for the whole file.
    field: str
    message: str
    #: Of warnings: which one it is.
    rule: str | None = None

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        rule = f" [{self.rule}]" if self.rule else ""
        parts = [place, self.severity, self.field, self.message + rule]
        return ": ".join(part for part in parts if part)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class LintReport:
    """What was found, without repetition: a mistake in the defaults is one, not one per job."""

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
    """Every problem and suspicion. Reads the files, what they name, and mulligan.toml; no more."""
    found = LintReport(files=len(paths))
    door = _door(found, allow_inline=allow_inline)
    sound: list[FoundJob] = []
    for path in paths:
        in_file = LintReport()
        sound += _lint_file(path, door, in_file)
        found.jobs += in_file.jobs
        found.add(*sorted(in_file.all, key=lambda each: each.line or 0))
    for each, doubt in repeated_keys(sound):
        found.add(_placed(each.source, doubt.said, doubt.rule))
    return found


def _lint_file(path: str, door: LintIntake | None, found: LintReport) -> list[FoundJob]:
    """Adds what is wrong with a file; its jobs without a mistake."""
    try:
        raws = entries(read_document(path))
    except BadInput as error:
        found.add(*(_of_file(path, problem) for problem in error.problems))
        return []
    sound = []
    for source, raw in raws:
        found.jobs += 1
        job, wrong = read_job(raw, source)
        if wrong:
            wrong = wrong + _unasked(raw, wrong)
        if door is not None:
            wrong = wrong + (door.problems(job) if job and not wrong else door.rest(raw, source))
        found.add(*(_placed(source, problem) for problem in wrong))
        if job is not None and not wrong:
            sound.append(FoundJob(job, source))
            if door is not None:
                doubts = lint_warnings(job, door.settings)
                found.add(*(_placed(source, doubt.said, doubt.rule) for doubt in doubts))
    return sound


def _unasked(raw: Any, wrong: list[str]) -> list[str]:
    """A missing prompt is only seen in a job that is otherwise well-formed: look for it here."""
    told = any("did you mean 'prompt" in line or "give either a prompt" in line for line in wrong)
    if told or not isinstance(raw, dict) or any(name in raw for name in PROMPTS):
        return []
    return ["prompt: is required, or messages, or prompt_file"]


# -- what only the intake knows --------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class LintIntake:
    """The checks of whoever would accept the jobs."""

    settings: Settings
    check: Callable[[Job], list[str]]
    #: Why a directory cannot become a snapshot; each is looked at once.
    unpackable: Callable[[Path], list[str]]

    def problems(self, job: Job) -> list[str]:
        """Everything that keeps a well-formed job from being accepted."""
        found = self.check(job)
        if job.workspace is not None and not any(p.startswith("workspace") for p in found):
            path = workspace_path(job.workspace, self.settings)
            found += self.unpackable(path) if path is not None else []
        return found

    def rest(self, raw: Any, source: JobSource) -> list[str]:
        """The same about those parts of a broken job that are well-formed themselves."""
        if not isinstance(raw, dict):
            return []
        given, _ = prepared(raw, source)
        job = _mended(given)
        found = self.problems(job)
        if job.runner == _SOUND_RUNNER:
            return [problem for problem in found if not problem.startswith("runner.")]
        return found


def _unpackable(path: Path, *, cap: int) -> list[str]:
    try:
        pack(path, max_bytes=cap)
    except BadInput as error:
        own = ("workspace", "workspace.path")
        return [p if split_problem(p)[0] in own else f"workspace.path: {p}" for p in error.problems]
    return []


def _door(found: LintReport, *, allow_inline: bool) -> LintIntake | None:
    """None, and the reasons are findings, if mulligan.toml is not in order."""
    try:
        settings = load_settings(allow_inline=allow_inline)
    except BadInput as error:
        file = str(config_path() or "the environment")
        found.add(*(_error(file, None, "", problem) for problem in error.problems))
        return None
    runners = RunnerRegistry(profiles=settings.runners)
    verifiers = VerifierRegistry(models=ContractModels(settings.model_modules))
    rules = JobRules(
        check=lambda job: check_job(
            job, settings=settings, runners=runners, verifiers=verifiers, local_paths=True
        ),
        prompt_cap=settings.prompt_cap,
        exempt_task_types=settings.exempt_task_types,
    )
    return LintIntake(
        settings=settings,
        check=lambda job: problems(rules, job),
        unpackable=cache(partial(_unpackable, cap=settings.workspace_cap)),
    )


def _mended(raw: Raw) -> Job:
    """A job of what is well-formed in it; sound parts stand in for the rest."""
    sound = {**_SOUND, "verifiers": _verifiers(raw.get("verifiers"))}
    if raw.get("messages"):
        del sound["prompt"]
        sound["messages"] = [{"role": "user", "content": "-"}]
    for name in Job.model_fields:
        if name not in raw or name == "verifiers" or (name == "prompt" and "messages" in sound):
            continue
        try:
            Job.model_validate({**sound, name: raw[name]})
            sound[name] = raw[name]
        except ValidationError:
            if name == "workspace":
                sound[name] = _SOMEWHERE
    return Job.model_validate(sound)


def _verifiers(raw: Any) -> list[Any]:
    """The verifiers at their places, those with a mistake replaced."""
    if not isinstance(raw, list) or not 1 <= len(raw) <= 50:
        return list(_SOUND["verifiers"])
    mended: list[Any] = []
    for item in raw:
        mended.append("json.object")
        with suppress(ValidationError):
            Job.model_validate({**_SOUND, "verifiers": [item]})
            mended[-1] = item
    return mended


# -- places ----------------------------------------------------------------------------------------


def _placed(source: JobSource, problem: str, rule: str | None = None) -> LintFinding:
    """``field: problem`` of a job. What came from the defaults is told of the defaults."""
    name, steps, rest = split_problem(problem)
    path, line = source.owner(steps)
    return LintFinding(
        file=source.document.name,
        line=line,
        severity="error" if rule is None else "warning",
        field=f"{spelled(path)}.{name}".strip("."),
        message=rest,
        rule=rule,
    )


def _of_file(path: str, problem: str) -> LintFinding:
    """``file:line: field: problem``, as the reader of files has it."""
    file = "<stdin>" if path == "-" else path
    rest = problem.removeprefix(file)
    placed = _PLACED.fullmatch(rest)
    if placed:
        return _error(file, int(placed[1]), placed[2] or "", placed[3])
    return _error(file, None, "", rest.removeprefix(": "))


def _error(file: str, line: int | None, field: str, message: str) -> LintFinding:
    return LintFinding(file=file, line=line, severity="error", field=field, message=message)
