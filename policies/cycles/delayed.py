"""Delayed verification: checking later, in other words, that a repair lasts."""

from __future__ import annotations

import re
from typing import Literal

from mulligan.policies.jobs.job import Job
from mulligan.policies.problem import Problem
from mulligan.policies.repair.wording import REFORMULATED

#: Prompts at least this similar count as the same formulation.
SAME_FORMULATION = 0.88

InvalidReason = Literal[
    "missing_task_family_context",
    "missing_prompt_context",
    "duplicate_task_family",
    "duplicate_prompt_formulation",
]

_WORD = re.compile(r"\w+", re.UNICODE)


def similarity(one: str, other: str) -> float:
    """Return the share of words that two texts have in common (Jaccard, ignoring case)."""
    first, second = ({w.casefold() for w in _WORD.findall(text)} for text in (one, other))
    if not first and not second:
        return 1.0
    return len(first & second) / len(first | second)


def invalid_reason(
    *,
    source_family: str,
    source_prompt: str,
    family: str | None,
    prompt: str | None,
    other_family: bool = False,
) -> InvalidReason | None:
    """Return why a delayed verification does not count; None if it counts."""
    if not family:
        return "missing_task_family_context"
    if not prompt or not prompt.strip():
        return "missing_prompt_context"
    if other_family and family == source_family:
        return "duplicate_task_family"
    if similarity(source_prompt, prompt) >= SAME_FORMULATION:
        return "duplicate_prompt_formulation"
    return None


def reformulated(job: Job) -> str:
    """Return the task in other words: the producer's prompt, or else our sentences around it."""
    given = job.delayed_verification.prompt
    return given if given is not None else REFORMULATED.format(task=job.task_text)


def suggested(job: Job) -> str | None:
    """Return the task in other words; None if they are too similar to the task to count."""
    words = reformulated(job)
    return words if similarity(job.task_text, words) < SAME_FORMULATION else None


def reformulation_problem(job: Job) -> Problem | None:
    """Return why a job's delayed verification could never count; checked before accepting it."""
    if job.delayed_verification.mode != "reformulate" or job.subject is not None:
        return None
    if suggested(job) is not None:
        return None
    if job.delayed_verification.prompt is not None:
        message = "repeats the task in nearly the same words"
        return Problem.at("delayed_verification.prompt", message)
    message = (
        "the task is too long to reformulate without a model; give delayed_verification.prompt"
    )
    return Problem.at("delayed_verification", message)
