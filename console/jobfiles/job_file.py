"""Job files: one job, a list, or `jobs:` with `defaults:`. Every error with its file and line."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from mulligan.console.jobfiles.prompt_file import expand_prompt_file
from mulligan.console.jobfiles.source_document import SourceDocument, line_of, read_document
from mulligan.policies.jobs.job import (
    Budget,
    DelayedVerification,
    Job,
    Message,
    PolicySpec,
    Workspace,
)
from mulligan.tasks.jobs.validation_errors import did_you_mean, explain, spelled, without_echoes
from mulligan.tasks.ports.errors import BadInput

#: What a file may say besides the fields of a job.
_FILE_FIELDS = ("prompt_file", "vars")
#: A job that has one of these does not take another one from the defaults.
PROMPTS = ("prompt", "prompt_file", "messages")
_NESTED: dict[str, type[BaseModel]] = {
    "policy": PolicySpec,
    "budget": Budget,
    "workspace": Workspace,
    "delayed_verification": DelayedVerification,
    "messages": Message,
}
_STEP = re.compile(r"\[(\d+)\]|([^.\[\]]+)")

Raw = dict[str, Any]


@dataclass(frozen=True)
class JobSource:
    """Where a job stands, so that any problem of it can be placed."""

    document: SourceDocument
    #: From the top of the file to the job: ``("jobs", 2)``.
    path: tuple[str | int, ...]
    #: From the top of the file to the defaults, if it has any.
    defaults: tuple[str | int, ...] | None = None

    def place(self, problem: str) -> str:
        """``field: problem`` as ``file:line: jobs[2].field: problem``."""
        field, steps, rest = split_problem(problem)
        name = f"{spelled(self.path)}.{field}".strip(".")
        line = self.owner(steps)[1]
        return f"{self.document.name}:{line}: {name}: {rest}".replace(": : ", ": ")

    def owner(self, steps: Sequence[str | int]) -> tuple[tuple[str | int, ...], int]:
        """Who has a field, or the nearest one above it, and its line: the job or its defaults."""
        root = self.document.root
        owners = [self.path] if self.defaults is None else [self.path, self.defaults]
        for end in range(len(steps), 0, -1):
            for path in owners:
                line, found = line_of(root, (*path, *steps[:end]))
                if found:
                    return path, line
        return self.path, line_of(root, self.path)[0]


def split_problem(problem: str) -> tuple[str, list[str | int], str]:
    """``verifiers[1].id: problem`` as the field, the steps to it and the problem alone."""
    field, colon, rest = problem.partition(": ")
    if not colon:
        return "", [], problem
    parts = (number or name for number, name in _STEP.findall(field))
    return field, [int(part) if part.isdigit() else part for part in parts], rest


@dataclass(frozen=True)
class FoundJob:
    """A job and where it was found."""

    job: Job
    source: JobSource


def load_jobs(paths: Sequence[str]) -> list[Job]:
    """Every job of the files, or BadInput with every problem of all of them."""
    return [found.job for found in find_jobs(paths)]


def find_jobs(paths: Sequence[str]) -> list[FoundJob]:
    """Every job with its place; ``-`` is stdin."""
    problems: list[str] = []
    jobs: list[FoundJob] = []
    for path in paths:
        try:
            jobs += _jobs_of(read_document(path))
        except BadInput as error:
            problems += error.problems
    if problems:
        raise BadInput(*problems)
    return jobs


def check_jobs(jobs: Sequence[FoundJob], check: Callable[[Job], list[str]]) -> None:
    """Raise BadInput with what ``check`` finds wrong, each problem at its place."""
    problems = [found.source.place(line) for found in jobs for line in check(found.job)]
    if problems:
        raise BadInput(*problems)


def _jobs_of(document: SourceDocument) -> list[FoundJob]:
    problems: list[str] = []
    jobs: list[FoundJob] = []
    for source, raw in entries(document):
        job, wrong = read_job(raw, source)
        problems += map(source.place, wrong)
        if job is not None:
            jobs.append(FoundJob(job, source))
    if problems:
        raise BadInput(*problems)
    return jobs


def entries(document: SourceDocument) -> list[tuple[JobSource, Any]]:
    """The raw jobs of a file, defaults merged in; BadInput if it has no such shape."""
    data, whole = document.data, JobSource(document, ())
    if isinstance(data, list):
        return [(JobSource(document, (i,)), raw) for i, raw in enumerate(_some(data, whole, ""))]
    if not isinstance(data, dict):
        raise BadInput(f"{document.name}:1: a job file holds a job, a list of jobs or `jobs:`")
    if "jobs" not in data:
        if "defaults" in data:
            raise BadInput(whole.place("defaults: is only of use beside `jobs:`"))
        return [(whole, data)]
    _only(data, ("jobs", "defaults"), whole)
    defaults = data.get("defaults") or {}
    if not isinstance(defaults, dict):
        raise BadInput(whole.place("defaults: must be a mapping of job fields"))
    if not isinstance(data["jobs"], list):
        raise BadInput(whole.place("jobs: must be a list of jobs"))
    return [
        (JobSource(document, ("jobs", i), ("defaults",)), _merged(defaults, raw))
        for i, raw in enumerate(_some(data["jobs"], whole, "jobs: "))
    ]


def _some(jobs: list[Any], whole: JobSource, field: str) -> list[Any]:
    if not jobs:
        raise BadInput(whole.place(f"{field}there are no jobs in it"))
    return jobs


def _only(data: Raw, known: Sequence[str], whole: JobSource) -> None:
    unknown = [name for name in data if name not in known]
    if unknown:
        hints = {name: did_you_mean(name, known) for name in unknown}
        raise BadInput(
            *(
                whole.place(
                    f"{name}: there is no such field beside `jobs:`"
                    + (hints[name] or "; fields that all jobs share go under `defaults:`")
                )
                for name in unknown
            )
        )


# -- defaults -------------------------------------------------------------------------------------


def _merged(defaults: Raw, own: Any) -> Any:
    """A job over the defaults: mappings merge key by key, and null takes a default back."""
    if not isinstance(own, dict):
        return own
    base = dict(defaults)
    if any(name in own for name in PROMPTS):
        base = {name: value for name, value in base.items() if name not in PROMPTS}
        if "prompt_file" not in own:
            base.pop("vars", None)
    if _other_runner(base.get("runner"), own.get("runner")):
        base.pop("runner")
    both = {name: _as_mapping(name, base[name]) for name in base}
    mine = {name: _as_mapping(name, own[name]) if name in both else own[name] for name in own}
    return _deep(both, mine)


def _as_mapping(name: str, value: Any) -> Any:
    return {"profile": value} if name == "runner" and isinstance(value, str) else value


def _other_runner(default: Any, own: Any) -> bool:
    """Whether a job names another runner than the defaults: then nothing of theirs fits it."""
    default, own = _as_mapping("runner", default), _as_mapping("runner", own)
    if not (isinstance(default, dict) and isinstance(own, dict)):
        return False
    named = own.get("kind"), own.get("profile")
    return named != (None, None) and named != (default.get("kind"), default.get("profile"))


def _deep(base: Mapping[str, Any], own: Mapping[str, Any]) -> Raw:
    merged = dict(base)
    for name, value in own.items():
        below = merged.get(name)
        if value is None and name in merged:
            del merged[name]
        elif isinstance(value, dict) and isinstance(below, dict):
            merged[name] = _deep(below, value)
        else:
            merged[name] = value
    return merged


# -- one job --------------------------------------------------------------------------------------


def read_job(raw: Any, source: JobSource) -> tuple[Job | None, list[str]]:
    """A job, if it is one, and every problem as ``field: problem``."""
    if not isinstance(raw, dict):
        return None, ["a job is a mapping with task_type, prompt, runner, verifiers"]
    raw, problems = prepared(raw, source)
    try:
        return Job.model_validate(raw), problems
    except ValidationError as error:
        wrong = without_echoes(error.errors(include_url=False))
        return None, problems + [explain(item, known=_fields_beside, got=True) for item in wrong]


def prepared(raw: Raw, source: JobSource) -> tuple[Raw, list[str]]:
    """A job with its prompt in place and paths that hold from anywhere, and what went wrong."""
    folder = source.document.folder
    raw, problems = expand_prompt_file(raw, folder, own_vars=_own(source).get("vars"))
    workspace = raw.get("workspace")
    if isinstance(workspace, dict) and isinstance(workspace.get("path"), str):
        raw = {**raw, "workspace": {**workspace, "path": str(folder / workspace["path"])}}
    return raw, problems


def _own(source: JobSource) -> Raw:
    """The job as it stands in the file, before the defaults."""
    found = source.document.data
    for step in source.path:
        found = found[step]
    return found if isinstance(found, dict) else {}


def _fields_beside(loc: tuple[str | int, ...]) -> list[str]:
    if len(loc) == 1:
        return [*Job.model_fields, *_FILE_FIELDS]
    model = _NESTED.get(str(loc[0]))
    return list(model.model_fields) if model else []
