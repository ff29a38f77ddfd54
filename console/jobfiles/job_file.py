"""Read job files: one job, a list, or `jobs:` with `defaults:`; every error has file and line."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mulligan.console.jobfiles.file_kinds import refuse_other_kinds
from mulligan.console.jobfiles.prompt_file import expand_prompt_file
from mulligan.console.jobfiles.source_document import (
    FileProblem,
    SourceDocument,
    line_of,
    read_document,
)
from mulligan.policies.jobs.job import Job
from mulligan.policies.problem import FieldPath, Problem
from mulligan.policies.suggestions import did_you_mean
from mulligan.tasks.jobs.read_job import PROMPTS, Check, inspect_job
from mulligan.tasks.ports.errors import BadInput, refuse

#: Fields of a job that exist only in files.
_FILE_FIELDS = ("prompt_file", "vars")
Raw = dict[str, Any]


@dataclass(frozen=True)
class JobSource:
    """Where a job is in its file, to locate its problems."""

    document: SourceDocument
    #: From the top of the file to the job: ``("jobs", 2)``.
    path: FieldPath
    #: From the top of the file to the defaults, if it has any.
    defaults: FieldPath | None = None

    def place(self, problem: Problem) -> FileProblem:
        """Return a problem of the job with its line, in the job or in the defaults."""
        owner, line = self.owner(problem.path)
        path = (*owner, *problem.path)
        return FileProblem(problem.message, path, problem.code, file=self.document.name, line=line)

    def owner(self, path: FieldPath) -> tuple[FieldPath, int]:
        """Return which of job and defaults has the field or its nearest parent, and its line."""
        root = self.document.root
        owners = [self.path] if self.defaults is None else [self.path, self.defaults]
        for end in range(len(path), 0, -1):
            for owner in owners:
                line, found = line_of(root, (*owner, *path[:end]))
                if found:
                    return owner, line
        return self.path, line_of(root, self.path)[0]

    def refuse(self, path: str, message: str) -> BadInput:
        """Return the error for one problem of the file itself."""
        return BadInput(self.place(Problem(message, (path,) if path else ())))


@dataclass(frozen=True)
class FoundJob:
    """A job and its place in a file."""

    job: Job
    source: JobSource


def find_jobs(paths: Sequence[str], check: Callable[[], Check] | None = None) -> list[FoundJob]:
    """Return every job with its place (``-`` is stdin), or raise BadInput with every problem.

    ``check`` returns the check of the side that accepts the jobs. It is called only if a file is
    malformed, so that the problems of its other jobs are reported at the same time.
    """
    files = [_entries_of(path) for path in paths]
    read = [
        (source, *read_entry(raw, source, _nothing)) for raws, _ in files for source, raw in raws
    ]
    if any(unreadable for _, unreadable in files) or any(wrong for _, _, wrong in read):
        refuse(dict.fromkeys(_all_problems(files, check)))
    return [FoundJob(job, source) for source, job, _ in read if job is not None]


def _entries_of(path: str) -> tuple[list[tuple[JobSource, Any]], Sequence[Problem]]:
    """Return the raw jobs of a file, or its problems."""
    try:
        return read_entries(path), ()
    except BadInput as error:
        return [], error.problems


def read_entries(path: str) -> list[tuple[JobSource, Any]]:
    """Return the raw jobs of a file with their places, or raise BadInput."""
    document = read_document(path, if_empty="; `mulligan init` writes an example")
    return entries(refuse_other_kinds(document, "job"))


def _all_problems(
    files: Sequence[tuple[list[tuple[JobSource, Any]], Sequence[Problem]]],
    check: Callable[[], Check] | None,
) -> Iterator[Problem]:
    checked: Check = _nothing
    try:
        checked = check() if check is not None else _nothing
    except BadInput as error:  # the settings are invalid, too
        yield from error.problems
    for raws, unreadable in files:
        yield from unreadable
        for source, raw in raws:
            yield from map(source.place, read_entry(raw, source, checked)[1])


def _nothing(_: Job) -> list[Problem]:
    return []


def check_jobs(jobs: Sequence[FoundJob], check: Check) -> None:
    """Raise BadInput with what ``check`` finds wrong, each problem at its place."""
    placed = (found.source.place(problem) for found in jobs for problem in check(found.job))
    refuse(dict.fromkeys(placed))


def entries(document: SourceDocument) -> list[tuple[JobSource, Any]]:
    """Return the raw jobs of a file merged with the defaults; BadInput for any other shape."""
    data, whole = document.data, JobSource(document, ())
    if isinstance(data, list):
        return [(JobSource(document, (i,)), raw) for i, raw in enumerate(_some(data, whole, ""))]
    if not isinstance(data, dict):
        raise whole.refuse("", "a job file holds a job, a list of jobs or `jobs:`")
    if "jobs" not in data:
        if "defaults" in data:
            raise whole.refuse("defaults", "is only of use beside `jobs:`")
        return [(whole, data)]
    _only(data, ("jobs", "defaults"), whole)
    defaults = data.get("defaults") or {}
    if not isinstance(defaults, dict):
        raise whole.refuse("defaults", "must be a mapping of job fields")
    if not isinstance(data["jobs"], list):
        raise whole.refuse("jobs", "must be a list of jobs")
    return [
        (JobSource(document, ("jobs", i), ("defaults",)), _merged(defaults, raw))
        for i, raw in enumerate(_some(data["jobs"], whole, "jobs"))
    ]


def _some(jobs: list[Any], whole: JobSource, field: str) -> list[Any]:
    if not jobs:
        raise whole.refuse(field, "there are no jobs in it")
    return jobs


def _only(data: Raw, known: Sequence[str], whole: JobSource) -> None:
    """Refuse fields beside `jobs:` that are not ``known``."""
    shared = "; fields that all jobs share go under `defaults:`"
    refuse(
        whole.place(
            Problem(
                f"there is no such field beside `jobs:`{did_you_mean(name, known) or shared}",
                (name,),
                "unknown_field",
            )
        )
        for name in data
        if name not in known
    )


# -- defaults -------------------------------------------------------------------------------------


def _merged(defaults: Raw, own: Any) -> Any:
    """Merge a job into the defaults: mappings merge key by key, and null removes a default."""
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
    """Whether a job names another runner, so that the defaults' options do not fit."""
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


def read_entry(raw: Any, source: JobSource, check: Check) -> tuple[Job | None, list[Problem]]:
    """Return the job, if it is valid, and every problem of its form and of ``check``."""
    if not isinstance(raw, dict):
        return inspect_job(raw, check)
    raw, problems = prepared(raw, source)
    job, wrong = inspect_job(raw, check, also=_FILE_FIELDS, show_values=True)
    return job, problems + wrong


def prepared(raw: Raw, source: JobSource) -> tuple[Raw, list[Problem]]:
    """Return a job with its prompt filled in and absolute paths, and the problems."""
    folder = source.document.folder
    raw, problems = expand_prompt_file(raw, folder, own_vars=_own(source).get("vars"))
    return with_absolute_path(raw, folder), problems


def with_absolute_path(raw: Raw, folder: Path) -> Raw:
    """Return a job, a loop or an item whose workspace or repository is at an absolute path."""
    workspace = raw.get("workspace")
    if isinstance(workspace, dict):
        if isinstance(workspace.get("path"), str):
            workspace = {**workspace, "path": str(folder / workspace["path"])}
        raw = {**raw, "workspace": with_absolute_git(workspace, "git", folder)}
    return with_absolute_git(raw, "repo", folder)


def with_absolute_git(raw: Raw, field: str, folder: Path) -> Raw:
    """Make the path of a repository absolute. A URL and the name of a profile stay as they are."""
    name = raw.get(field)
    if not isinstance(name, str) or "\0" in name or ":" in name:
        return raw
    is_path = name.startswith((".", "~", "/")) or (folder / name).is_dir()
    if not is_path:
        return raw
    path = folder / Path(name).expanduser()
    # As the file system reads it: the parent of a link is that of its target.
    return {**raw, field: str(path.resolve() if ".." in path.parts else path)}


def _own(source: JobSource) -> Raw:
    """Return the job as written in the file, without the defaults."""
    found = source.document.data
    for step in source.path:
        found = found[step]
    return found if isinstance(found, dict) else {}
