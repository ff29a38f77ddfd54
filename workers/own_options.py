"""The options of a user's own task, checked when the task is registered, before anything runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mulligan.tasks.ports import BadInput

OBSERVE = "observe"
#: What is as the app has it while a task is only observed, unless the task itself says.
_OF_THE_APP = ("acks_late", "reject_on_worker_lost", "retry_on_worker_lost", "ignore_result")


def refuse_bad_options(task: type, base: type) -> None:
    """BadInput with a line for each option of a task that cannot be meant as it is given."""
    given = given_options(task, base)
    name = given.get("name") or task.__name__
    problems = list(_problems(task, given))
    if problems:
        raise BadInput(*(f"task {name}: {problem}" for problem in problems))


def given_options(task: type, base: type) -> dict[str, Any]:
    """What a task and its classes up to ``base`` say for themselves."""
    own = task.__mro__[: task.__mro__.index(base)]
    return {name: value for each in reversed(own) for name, value in vars(each).items()}


def leave_to_the_app(task: type, base: type) -> None:
    """An observed task is acknowledged, sent again and told about as the app's other tasks."""
    given = given_options(task, base)
    for name in _OF_THE_APP:
        if name not in given:
            setattr(task, name, None)  # Celery fills it in from the app's configuration


def _problems(task: Any, given: Mapping[str, Any]) -> Iterator[str]:
    if task.mode != OBSERVE:
        yield from _second_authority(task, given)


def _second_authority(task: Any, given: Mapping[str, Any]) -> Iterator[str]:
    """Celery's own retries: an enforced task is retried by its policy alone."""
    count = given.get("max_retries")
    runs = count + 1 if isinstance(count, int) and count > 0 else 4
    instead = f'remove it and say policy={{"max_attempts": {runs}}}, or keep it with mode="observe"'
    if getattr(task, "autoretry_for", ()):
        yield f"autoretry_for: mulligan alone retries this task: {instead}"
    if "max_retries" in given:
        yield f"max_retries: mulligan alone retries this task: {instead}"
    if given.get("retry_on_worker_lost"):
        yield 'retry_on_worker_lost: the sweep does that: remove it, or keep it with mode="observe"'
