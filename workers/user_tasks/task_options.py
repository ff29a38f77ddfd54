"""Checks of the options of a user's task, made when the task is registered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel, TypeAdapter, ValidationError

from mulligan.policies.jobs.exemption import is_exempt
from mulligan.policies.jobs.job import Name, PolicySpec, VerifierSpec
from mulligan.policies.problem import Problem
from mulligan.policies.repair.retry import leaves_room_to_retry
from mulligan.policies.suggestions import did_you_mean, nearest_name
from mulligan.tasks.jobs.submit import TOO_FEW_ATTEMPTS
from mulligan.tasks.jobs.validation_errors import problem_of, problems_of
from mulligan.tasks.ports.errors import BadInput
from mulligan.tasks.user_tasks.task_route import TaskMode
from mulligan.workers.contract_models import ContractModels, schema_of
from mulligan.workers.runners.runner_options import read_options
from mulligan.workers.settings.model import Settings
from mulligan.workers.user_tasks.verifier_specs import as_name
from mulligan.workers.verifiers.verifier_registry import VerifierRegistry

_MODES = get_args(TaskMode)
_OPTIONS = ("verifiers", "task_type", "mode", "policy")
#: Celery lets a task have any attribute, so only a name very similar to an option is a mistake.
_CUTOFF = 0.85
#: Similar to an option, but no mistake.
_ALLOWED = ("model",)
#: Options of an observed task that default to the app's configuration.
_APP_DEFAULTS = ("acks_late", "reject_on_worker_lost", "retry_on_worker_lost", "ignore_result")


def refuse_bad_options(task: type, base: type, settings: Settings) -> None:
    """Raise BadInput with every invalid option of a task."""
    options = declared_options(task, base)
    name = options.get("name") or task.__name__
    problems = [
        *_misspelt(options, base),
        *_mode(task),
        *_policy(task, settings, task_type=task_type_of(task, name)),
        *_task_type(task),
        *_verifiers(task, settings),
    ]
    if getattr(task, "mode", None) != "observe":
        problems += _celery_retries(task, options)
        limits = (getattr(task, name, None) for name in ("time_limit", "soft_time_limit"))
        problems += long_limits(settings, *limits)
    if problems:
        raise BadInput(*(f"task {name}: {problem}" for problem in problems))


def long_limits(settings: Settings, hard: object, soft: object) -> Iterator[Problem]:
    """Find time limits above that of a claim, after which another worker runs the task, too."""
    for name, limit in (("time_limit", hard), ("soft_time_limit", soft)):
        if isinstance(limit, int | float) and limit > settings.hard_limit:
            message = (
                f"{limit:g} s is above hard_limit ({settings.hard_limit:g} s), after which another"
                f" worker may run the task: install(app, hard_limit={limit:g})"
            )
            yield Problem.at(name, message, "not_allowed")


def declared_options(task: type, base: type) -> dict[str, Any]:
    """Return the attributes that a task and its classes below ``base`` declare."""
    classes = task.__mro__[: task.__mro__.index(base)]
    return {name: value for each in reversed(classes) for name, value in vars(each).items()}


def use_app_defaults(task: type, base: type) -> None:
    """Let an observed task be acknowledged, redelivered and reported like the app's other tasks."""
    options = declared_options(task, base)
    for name in _APP_DEFAULTS:
        if name not in options:
            setattr(task, name, None)  # Celery fills it in from the app's configuration


def _misspelt(options: Mapping[str, Any], base: type) -> Iterator[Problem]:
    """Find misspelt options, which would have no effect."""
    # Not hasattr: asking Celery's base for its app binds it to one.
    known = {name for each in base.__mro__ for name in vars(each)}.union(_ALLOWED)
    for name, value in options.items():
        if name.startswith("_") or name in known or callable(value):
            continue
        is_mode = isinstance(value, str) and value in _MODES
        option = nearest_name(name, _OPTIONS, cutoff=_CUTOFF) or ("mode" if is_mode else None)
        if option:
            message = f"there is no such option; did you mean {option!r}?"
            yield Problem(message, (name,), "unknown_field")


def _mode(task: Any) -> Iterator[Problem]:
    if task.mode not in _MODES:
        hint = did_you_mean(str(task.mode), _MODES)
        yield Problem.at("mode", f'must be "enforce" or "observe", not {task.mode!r}{hint}')


def task_type_of(task: Any, name: str) -> str:
    return str(task.task_type or as_name(name))


def _policy(task: Any, settings: Settings, *, task_type: str) -> Iterator[Problem]:
    policy = task.policy
    if isinstance(policy, Mapping):
        try:
            policy = read_options(PolicySpec, policy)
        except BadInput as error:
            yield from (problem.below("policy") for problem in error.problems)
            return
    if not isinstance(policy, PolicySpec):
        message = f'must be a mapping such as {{"max_attempts": 4}}, not {policy!r}'
        yield Problem.at("policy", message, "wrong_type")
    elif not leaves_room_to_retry(policy, exempt=is_exempt(task_type, settings.exempt_task_types)):
        yield Problem.at("policy.max_attempts", TOO_FEW_ATTEMPTS)


def _task_type(task: Any) -> Iterator[Problem]:
    if task.task_type is None:
        return
    try:
        TypeAdapter(Name).validate_python(task.task_type)
    except ValidationError as error:
        yield problem_of(error.errors()[0], show_value=True).below("task_type")


def _verifiers(task: Any, settings: Settings) -> Iterator[Problem]:
    if isinstance(task.verifiers, str) or not isinstance(task.verifiers, Sequence):
        message = f"must be a list, such as verifiers=[Person], not {task.verifiers!r}"
        yield Problem.at("verifiers", message, "wrong_type")
        return
    registry = VerifierRegistry(models=ContractModels(settings.model_modules))
    for index, check in enumerate(task.verifiers):
        for problem in _check(check, registry):
            yield problem.below("verifiers", index)


def _check(check: Any, registry: VerifierRegistry) -> Iterator[Problem]:
    """Find the problems of one verifier."""
    if isinstance(check, type) and issubclass(check, BaseModel):
        try:
            schema_of(check)
        except BadInput as error:
            yield from error.problems
    elif isinstance(check, str | Mapping):
        try:
            spec = VerifierSpec.model_validate(check)
        except ValidationError as error:
            yield from problems_of(error, VerifierSpec)
            return
        yield from registry.check_one(spec, None)
    elif isinstance(check, type) or not callable(check):
        message = f"is a pydantic model, an id, a mapping or a function, not {check!r}"
        yield Problem(message, code="wrong_type")


def _celery_retries(task: Any, options: Mapping[str, Any]) -> Iterator[Problem]:
    """Refuse Celery's retries, because only its policy retries an enforced task."""
    count = options.get("max_retries")
    runs = count + 1 if isinstance(count, int) and count > 0 else 4
    message = (
        "only mulligan retries this task: remove it and set"
        f' policy={{"max_attempts": {runs}}}, or keep it with mode="observe"'
    )
    if getattr(task, "autoretry_for", ()):
        yield Problem.at("autoretry_for", message, "not_allowed")
    if "max_retries" in options:
        yield Problem.at("max_retries", message, "not_allowed")
    if options.get("retry_on_worker_lost"):
        message = 'the sweep does that: remove it, or keep it with mode="observe"'
        yield Problem.at("retry_on_worker_lost", message, "not_allowed")
