"""Reading jobs from plain data. Every problem is reported at once, whatever stage finds it.

A malformed document is not a Job, so its runner and verifiers could not be checked. Its
well-formed parts are therefore checked inside a job whose other parts are valid.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from mulligan.policies.jobs.job import Job
from mulligan.policies.problem import Problem
from mulligan.policies.suggestions import nearest_name
from mulligan.tasks.jobs.validation_errors import problems_of
from mulligan.tasks.ports.errors import refuse

#: Finds every reason not to accept a well-formed job.
Check = Callable[[Job], list[Problem]]

#: A job has one of these. A job file may name a file instead.
PROMPTS = ("prompt", "prompt_file", "messages")
#: A valid job; its parts replace malformed ones.
_SOUND: dict[str, Any] = {
    "task_type": "job",
    "prompt": "-",
    "runner": {"kind": "scripted", "answers": ["-"]},
    "verifiers": ["json.object"],
}
#: Replaces a malformed workspace; its directory is not looked up.
_SOUND_WORKSPACE = {"snapshot": "sha256:-"}
#: Fields that are only well-formed together.
_TOGETHER = ("runner", "subject")
_MOST_VERIFIERS = 50


def read_job(raw: Any) -> Job:
    """Read a job from plain data. Raise BadInput with every problem of its form."""
    job, problems = inspect_job(raw, lambda _: [])
    refuse(problems)
    assert job is not None  # noqa: S101 - without a problem there is a job
    return job


def read_jobs(raws: Sequence[Any], check: Check, *, single: bool = False) -> list[Job]:
    """Read jobs from plain data. If one is malformed, raise BadInput with every problem of all.

    If all are well-formed, they are not checked here: storing them does that. The problems of a
    ``single`` job have no index.
    """
    read = [inspect_job(raw, lambda _: []) for raw in raws]
    if any(problems for _, problems in read):
        refuse(
            problem.of_job(None if single else index)
            for index, raw in enumerate(raws)
            for problem in inspect_job(raw, check)[1]
        )
    return [job for job, _ in read if job is not None]


def inspect_job(
    raw: Any, check: Check, *, also: Sequence[str] = (), show_values: bool = False
) -> tuple[Job | None, list[Problem]]:
    """Return a job, if the data is well-formed, and every problem of its form and content.

    ``also``: further fields that are allowed, because the caller has already read them.
    """
    if not isinstance(raw, Mapping):
        message = f"a job is a mapping with task_type, prompt, runner and verifiers, not {_a(raw)}"
        return None, [Problem(message, code="wrong_type")]
    try:
        job = Job.model_validate(raw)
    except ValidationError as error:
        wrong = problems_of(error, Job, also=also, show_values=show_values)
        return None, [*wrong, *_missing_prompt(raw, wrong, also), *_problems_of_rest(raw, check)]
    unstorable = _unstorable(job)
    return None if unstorable else job, [*unstorable, *check(job)]


def _unstorable(job: Job) -> list[Problem]:
    """Find the fields that JSON cannot hold: options may contain any Python value."""
    found = []
    for name in ("runner", "verifiers"):
        try:
            job.model_dump_json(include={name})
        except PydanticSerializationError:
            message = "contains a value that JSON cannot hold (half a surrogate pair, an object)"
            found.append(Problem.at(name, message))
    return found


def _missing_prompt(
    raw: Mapping[str, Any], wrong: Sequence[Problem], also: Sequence[str]
) -> list[Problem]:
    """Find a missing prompt: the model reports it only in a job that is otherwise well-formed."""
    known = [*Job.model_fields, *also]
    slips = (str(p.path[0]) for p in wrong if p.code == "unknown_field" and len(p.path) == 1)
    noticed = any(p.path[:1] in (("prompt",), ("messages",)) for p in wrong)
    if noticed or any(name in raw for name in PROMPTS):
        return []
    if any(nearest_name(slip, known) in PROMPTS for slip in slips):
        return []
    either = "or messages, or prompt_file" if "prompt_file" in also else "or messages"
    return [Problem.at("prompt", f"is required, {either}", "missing")]


def _problems_of_rest(raw: Mapping[str, Any], check: Check) -> list[Problem]:
    job, kept = _well_formed_parts(raw)
    return [
        problem
        for problem in check(job)
        if problem.path
        and problem.path[0] in kept
        # The allowed combinations of verifiers depend on the runner.
        and not (problem.path == ("verifiers",) and "runner" not in kept)
    ]


def _well_formed_parts(raw: Mapping[str, Any]) -> tuple[Job, set[str]]:
    """Return a job of the well-formed fields, and their names; valid parts replace the rest."""
    parts, kept = {**_SOUND, "verifiers": _verifiers(raw.get("verifiers"))}, {"verifiers"}
    if raw.get("messages"):
        del parts["prompt"]
        parts["messages"] = [{"role": "user", "content": "-"}]
    given = [name for name in Job.model_fields if name in raw and name != "verifiers"]
    together = tuple(name for name in given if name in _TOGETHER)
    for names in (together, *((name,) for name in given)):
        if kept.issuperset(names) or ("prompt" in names and "messages" in parts):
            continue
        tried = {**parts, **{name: raw[name] for name in names}}
        with suppress(ValidationError):
            Job.model_validate(tried)
            parts = tried
            kept.update(names)
    if "workspace" in raw and "workspace" not in kept:
        parts["workspace"] = _SOUND_WORKSPACE
    return Job.model_validate(parts), kept


def _verifiers(raw: Any) -> list[Any]:
    """Return the verifiers in their order, with malformed ones replaced."""
    if not isinstance(raw, list | tuple) or not 1 <= len(raw) <= _MOST_VERIFIERS:
        return list(_SOUND["verifiers"])
    verifiers: list[Any] = []
    for item in raw:
        verifiers.append("json.object")
        with suppress(ValidationError):
            Job.model_validate({**_SOUND, "verifiers": [item]})
            verifiers[-1] = item
    return verifiers


def _a(value: Any) -> str:
    names = {"list": "a list", "str": "text", "NoneType": "nothing", "int": "a number"}
    return names.get(type(value).__name__, f"a {type(value).__name__}")
