"""Warnings about jobs that are valid but probably not intended: a rule, a reason and a fix."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from mulligan.console.jobfiles.job_file import FoundJob
from mulligan.policies.jobs.job import Job
from mulligan.policies.problem import Problem
from mulligan.workers.runners.local import LocalOptions
from mulligan.workers.settings.model import Settings

#: JSON in any language has fewer characters per token, so this gives a lower bound.
_CHARACTERS_PER_TOKEN = 4
_SHORT_TEXT = 4
_DEEPEST = 20
#: Answers of these runners cost something.
_COSTLY = ("openai", "command")
#: These return only text and do not change the workspace.
_TEXT_ONLY = ("openai", "local", "scripted")
#: A verifier with this share of the weight can fail alone while the score stays at 70 or more.
_LIGHT_SHARE = 0.3


class LintWarning(NamedTuple):
    rule: str
    #: What is suspicious, and what to do.
    problem: Problem


def lint_warnings(job: Job, settings: Settings) -> Iterator[LintWarning]:
    """Yield every warning about one job."""
    runner = _runner(job, settings)
    yield from _no_contract(job)
    yield from _no_budget(job, runner)
    yield from _small_cap(job, runner)
    yield from _light(job)
    yield from _unused_answer(job, runner)


def repeated_keys(found: Sequence[FoundJob]) -> Iterator[tuple[FoundJob, LintWarning]]:
    """Yield jobs with the idempotency key of another job: all but the first are refused."""
    first: dict[str, FoundJob] = {}
    for each in found:
        key = each.job.idempotency_key
        if key is None:
            continue
        other = first.setdefault(key, each)
        if other.job != each.job:
            line = other.source.owner(("idempotency_key",))[1]
            message = (
                f"{key!r} is that of another job ({other.source.document.name}:{line}): this one"
                " will be refused"
            )
            yield each, LintWarning("repeated-key", Problem.at("idempotency_key", message))


def _runner(job: Job, settings: Settings) -> dict[str, Any]:
    """Return the runner's options, including those of its profile."""
    profile = settings.runners.get(job.runner.profile or "", {})
    return {"kind": job.runner.kind, **profile, **job.runner.options}


def _no_contract(job: Job) -> Iterator[LintWarning]:
    if {spec.id for spec in job.verifiers} == {"json.object"}:
        message = "any JSON object passes, {} too; add contract.schema to say what belongs in it"
        yield LintWarning("no-contract", Problem(message, ("verifiers", 0)))


def _no_budget(job: Job, runner: Mapping[str, Any]) -> Iterator[LintWarning]:
    if runner["kind"] in _COSTLY and job.budget.tokens is None and job.budget.seconds is None:
        message = (
            f"there is none, and up to {job.policy.max_attempts} attempts are paid for; give tokens"
            " or seconds"
        )
        yield LintWarning("no-budget", Problem.at("budget", message))


def _small_cap(job: Job, runner: Mapping[str, Any]) -> Iterator[LintWarning]:
    default = LocalOptions().max_tokens if runner["kind"] == "local" else None
    cap = runner.get("max_tokens", default)
    sizes = [
        _shortest(spec.options.get("schema"))
        for spec in job.verifiers
        if spec.id == "contract.schema"
    ]
    needed = max(sizes, default=0) // _CHARACTERS_PER_TOKEN
    if isinstance(cap, int) and cap < needed:
        message = (
            f"{cap} is too small: the shortest answer that keeps the contract takes about {needed}"
        )
        yield LintWarning("small-max-tokens", Problem.at("runner.max_tokens", message))


def _light(job: Job) -> Iterator[LintWarning]:
    total = sum(spec.weight for spec in job.verifiers)
    for index, spec in enumerate(job.verifiers):
        share = spec.weight / total
        if spec.required and spec.weight < 1 and share <= _LIGHT_SHARE:
            message = (
                f"{spec.id} is required but only {share:.0%} of the score: if it alone fails, the"
                f" score is {int(100 - 100 * share)} and no immediate retry follows; give it more"
                " weight, or required: false"
            )
            yield LintWarning("light-verifier", Problem(message, ("verifiers", index, "weight")))


def _unused_answer(job: Job, runner: Mapping[str, Any]) -> Iterator[LintWarning]:
    tested = any(spec.id == "pytest.subprocess" for spec in job.verifiers)
    if tested and runner["kind"] in _TEXT_ONLY and job.workspace and not job.workspace.output_file:
        message = "the tests never see the answer; say with output_file which file it becomes"
        yield LintWarning("unused-answer", Problem.at("workspace", message))


def _shortest(schema: Any, depth: int = 0) -> int:
    """Estimate the characters of the shortest sensible value; 0 if unknown."""
    if not isinstance(schema, dict) or depth > _DEEPEST:
        return 0
    if "const" in schema or schema.get("enum"):
        values = [schema["const"]] if "const" in schema else schema["enum"]
        return min(len(json.dumps(value, ensure_ascii=False)) for value in values)
    choices = schema.get("anyOf") or schema.get("oneOf")
    if choices:
        return min(_shortest(choice, depth + 1) for choice in choices)
    match schema.get("type"):
        case "object":
            known = schema.get("properties", {})
            names = schema.get("required", [])
            return 2 + sum(len(n) + 4 + _shortest(known.get(n), depth + 1) for n in names)
        case "array":
            items = _shortest(schema.get("items"), depth + 1)
            return 2 + int(schema.get("minItems", 0)) * (items + 1)
        case "string":
            short = min(_SHORT_TEXT, schema.get("maxLength", _SHORT_TEXT))
            return 2 + int(max(short, schema.get("minLength", 0)))
        case "boolean":
            return 4
    return 1
