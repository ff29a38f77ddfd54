"""Reading jobs from plain data. Every problem is reported at once, whatever stage finds it.

A malformed document is not a Job, so its runner and verifiers could not be checked. Its
well-formed parts are therefore checked inside a job whose other parts are valid.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

from pydantic import ValidationError, model_validator
from pydantic_core import PydanticSerializationError

from mulligan.policies.jobs.job import HALF_A_PAIR, Job, joined_surrogates, misfits
from mulligan.policies.nesting import MAX_DEPTH, nested_too_deeply
from mulligan.policies.problem import Problem, until_costly
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
_MOST_VERIFIERS = 50


def read_jobs(raws: Sequence[Any], check: Check, *, single: bool = False) -> list[Job]:
    """Read jobs from plain data. If one is malformed, raise BadInput with every problem of all.

    If all are well-formed, they are not checked here: storing them does that. The problems of a
    ``single`` job have no index.
    """
    read = [inspect_job(raw, lambda _: []) for raw in raws]
    if any(problems for _, problems in read):
        refuse(
            until_costly(
                problem.of_job(None if single else index)
                for index, raw in enumerate(raws)
                for problem in inspect_job(raw, check)[1]
            )
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
    halves = {name for name in raw if isinstance(name, str) and joined_surrogates(name) != name}
    if halves:  # pydantic would look at no other field
        rest = {name: value for name, value in raw.items() if name not in halves}
        _, found = inspect_job(rest, check, also=also, show_values=show_values)
        return None, [Problem.at(joined_surrogates(name), HALF_A_PAIR) for name in halves] + found
    try:
        job = Job.model_validate(raw)
    except ValidationError as error:
        found = problems_of(error, Job, also=also, show_values=show_values)
        wrong = [] if _is_misfit(error) else found
        wrong += _missing_prompt(raw, wrong, also)
        return None, [*wrong, *_problems_of_rest(raw, wrong, check)]
    unstorable = _unstorable(job)
    if unstorable:  # no check can read them
        return None, [*unstorable, *_problems_of_rest(raw, unstorable, check)]
    return job, check(job)


def _is_misfit(error: ValidationError) -> bool:
    """Whether every field is well-formed, and only their combination is not."""
    return all(not item["loc"] for item in error.errors(include_url=False))


def _unstorable(job: Job) -> list[Problem]:
    """Find the fields that JSON cannot hold: options may contain any Python value."""
    found = []
    for name, specs in (("runner", [job.runner]), ("verifiers", job.verifiers)):
        if any(nested_too_deeply(spec.options) for spec in specs):
            found.append(Problem.at(name, f"is nested more than {MAX_DEPTH} levels deep"))
            continue
        try:
            job.model_dump_json(include={name})
        except PydanticSerializationError:
            wrong = "half a surrogate pair, an object"
            found.append(Problem.at(name, f"contains a value that JSON cannot hold ({wrong})"))
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


def _problems_of_rest(
    raw: Mapping[str, Any], wrong: Sequence[Problem], check: Check
) -> list[Problem]:
    """Return the problems of the well-formed fields, as far as no malformed one matters."""
    malformed = {str(problem.path[0]) for problem in wrong if problem.path}
    kept = {name for name in Job.model_fields if name in raw and name not in malformed}
    job = _well_formed_parts(raw, kept)
    known = kept | {"verifiers"}
    together = [
        Problem(each.error.message, each.error.path)
        for each in misfits(job)
        if not each.fields & malformed
    ]
    return together + [
        problem
        for problem in check(job)
        if problem.path
        and problem.path[0] in known
        # The allowed combinations of verifiers depend on the runner.
        and not (problem.path == ("verifiers",) and "runner" not in kept)
    ]


class _Parts(Job):
    """A job whose fields need not fit together."""

    @model_validator(mode="after")
    def _fits_together(self) -> _Parts:
        return self


def _well_formed_parts(raw: Mapping[str, Any], kept: Collection[str]) -> Job:
    """Return a job of the well-formed fields; valid parts replace the rest."""
    sound = dict(_SOUND)
    if "messages" in raw:
        del sound["prompt"]
        sound["messages"] = [{"role": "user", "content": "-"}]
    if "workspace" in raw:
        sound["workspace"] = _SOUND_WORKSPACE
    parts = {name: raw[name] for name in kept}
    return _Parts.model_validate({**sound, **parts, "verifiers": _verifiers(raw.get("verifiers"))})


def _verifiers(raw: Any) -> list[Any]:
    """Return the verifiers in their order, with malformed ones replaced."""
    if not isinstance(raw, list | tuple) or not 1 <= len(raw) <= _MOST_VERIFIERS:
        return list(_SOUND["verifiers"])
    verifiers: list[Any] = []
    for item in raw:
        verifiers.append("json.object")
        with suppress(ValidationError):
            if not _unstorable(Job.model_validate({**_SOUND, "verifiers": [item]})):
                verifiers[-1] = item
    return verifiers


def _a(value: Any) -> str:
    names = {"list": "a list", "str": "text", "NoneType": "nothing", "int": "a number"}
    return names.get(type(value).__name__, f"a {type(value).__name__}")
