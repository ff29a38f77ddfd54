"""Building jobs from a caller's arguments: the contract, the defaults and every problem."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from pydantic import BaseModel

from mulligan.client.schema_form import with_form
from mulligan.policies.jobs.job import Job
from mulligan.policies.problem import Problem
from mulligan.tasks.jobs.read_job import inspect_job
from mulligan.tasks.ports.errors import BadInput, refuse
from mulligan.workers.contract_models import (
    CONTRACT,
    ContractModels,
    is_model,
    reference_of,
    schema_of,
)

if TYPE_CHECKING:
    from mulligan.policies.jobs.job import (
        Budget,
        DelayedVerification,
        OnDone,
        PolicySpec,
        RunnerSpec,
        VerifierSpec,
        Workspace,
    )

Ask = str | Job | Mapping[str, Any]
#: The contract weighs twice as much as valid JSON.
_WEIGHT = 2.0
_NOTHING_CHECKED = "give returns=Model or verifiers=[…]: an unchecked answer cannot succeed"
_NO_RUNNER = "name a profile of the workers' mulligan.toml: runner='small', or set default_runner"


class JobOptions(TypedDict, total=False):
    """The fields of a job, as keywords. docs/job-files.md says what each means."""

    runner: str | Mapping[str, Any] | RunnerSpec | None
    verifiers: Sequence[str | Mapping[str, Any] | VerifierSpec]
    task_type: str | None
    name: str | None
    system: str | None
    labels: Mapping[str, str] | None
    idempotency_key: str | None
    budget: Mapping[str, Any] | Budget | None
    policy: Mapping[str, Any] | PolicySpec | None
    workspace: str | PathLike[str] | Mapping[str, Any] | Workspace | None
    delayed_verification: Mapping[str, Any] | DelayedVerification | None
    on_done: Mapping[str, Any] | OnDone | None
    memory_scope: Literal["job", "input", "task_type"]
    deadline: float | str
    priority: int


@dataclass(frozen=True, kw_only=True)
class RequestDefaults:
    """The defaults for all jobs of one call."""

    #: The verifier spec of ``returns``, and its name.
    contract: Mapping[str, Any] | None
    title: str | None
    #: The default runner.
    runner: Any


@dataclass(frozen=True)
class JobDraft:
    """One job as its caller described it."""

    #: The document, whether or not it is well-formed.
    raw: Any
    #: Problems that only the client can find.
    problems: list[Problem] = field(default_factory=list)

    @cached_property
    def read(self) -> tuple[Job | None, list[Problem]]:
        """The job, if the document is well-formed, and every problem of its form."""
        job, problems = inspect_job(self.raw, lambda _: [])
        return (None if self.problems else job), problems

    @property
    def job(self) -> Job | None:
        return self.read[0]


def draft_jobs(
    asks: Sequence[tuple[Ask, Mapping[str, Any]]], asked: RequestDefaults
) -> list[JobDraft]:
    """Return the draft of each job, with the contract and the defaults filled in."""
    return [_draft(ask, options, asked) for ask, options in asks]


def well_formed(
    drafts: Sequence[JobDraft], check: Callable[[Sequence[JobDraft]], list[Problem]]
) -> list[Job]:
    """Return the jobs. If one is malformed, raise BadInput with every problem of all of them.

    ``check`` finds every problem of the drafts. It is called only if one is malformed, because
    storing the jobs checks them, too.
    """
    jobs = [draft.job for draft in drafts if draft.job is not None]
    if len(jobs) == len(drafts):
        return jobs
    found = check(drafts)
    refuse(
        problem.of_job(index if len(drafts) > 1 else None)
        for index, draft in enumerate(drafts)
        for problem in _merged(draft, [each for each in found if each.index == index])
    )
    return jobs


def _merged(draft: JobDraft, found: Sequence[Problem]) -> list[Problem]:
    """Let the client's problems replace others about the same field or the whole job."""
    own = {problem.path for problem in draft.problems}
    others = (problem for problem in found if problem.path[:1] not in own and () not in own)
    return [*draft.problems, *others]


def _draft(ask: Ask, options: Mapping[str, Any], asked: RequestDefaults) -> JobDraft:
    if not isinstance(ask, str | Job | Mapping):
        message = f"a job is a prompt, a mapping or a Job, not a {type(ask).__name__}"
        return JobDraft({}, [Problem(message, code="wrong_type")])
    raw, contract, problems = _fields(ask), asked.contract, []
    raw.update({name: value for name, value in options.items() if value is not None})
    given = raw.get("verifiers", ())
    if not isinstance(given, list | tuple):
        message = 'must be a list, such as ["json.object"]'
        problems.append(Problem.at("verifiers", message, "wrong_type"))
        given = ()
    raw["verifiers"] = [*_contract_verifiers(contract), *given]
    if contract is not None and isinstance(raw.get("prompt"), str):
        # Without the form, the first attempt would be wasted.
        raw["prompt"] = with_form(raw["prompt"], contract["schema"])
    raw.setdefault("task_type", asked.title or "ask")
    raw.setdefault("runner", asked.runner)
    if isinstance(raw.get("workspace"), str | PathLike):
        raw["workspace"] = {"path": str(raw["workspace"])}
    if not raw["verifiers"] and not problems:
        problems.append(Problem.at("verifiers", _NOTHING_CHECKED, "missing"))
    if raw["runner"] is None:
        problems.append(Problem.at("runner", _NO_RUNNER, "missing"))
    return JobDraft(raw, problems)


def _fields(ask: Ask) -> dict[str, Any]:
    if isinstance(ask, str):
        return {"prompt": ask}
    return ask.model_dump(mode="json", exclude_defaults=True) if isinstance(ask, Job) else dict(ask)


def _contract_verifiers(contract: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    if contract is None:
        return []
    spec = {**contract, "weight": _WEIGHT}
    schema = contract["schema"]
    is_object = isinstance(schema, Mapping) and schema.get("type") == "object"
    return [{"id": "json.object"}, spec] if is_object else [spec]


def check_returns(returns: Any) -> None:
    """Raise BadInput unless it is a JSON Schema or a type that an answer can be read as."""
    if isinstance(returns, Mapping):
        return
    if returns is str:
        raise BadInput.at(
            "returns", "text is what comes back without it: give verifiers=[…] instead"
        )
    if isinstance(returns, BaseModel):
        raise BadInput.at(
            "returns", f"give the class {type(returns).__name__}, not an instance of it"
        )
    try:
        schema_of(returns)
    except Exception as error:  # pydantic raises various errors for what is not a type
        if is_model(returns):
            raise
        allowed = "a pydantic model, a type such as list[Person] or a dataclass, or a JSON Schema"
        raise BadInput.at("returns", f"must be {allowed}, not {returns!r}") from error


def title_of(returns: Any) -> str | None:
    """Return the default task type of a job that returns this."""
    if isinstance(returns, type):
        return returns.__name__
    title = returns.get("title") if isinstance(returns, Mapping) else None
    return title if isinstance(title, str) else None


def contract_by_reference(returns: Any, models: ContractModels) -> dict[str, Any]:
    """Return the contract for other processes: the schema, and a model they may import by name."""
    if isinstance(returns, Mapping):
        return {"id": CONTRACT, "schema": dict(returns)}
    spec: dict[str, Any] = {"id": CONTRACT, "schema": schema_of(returns)}
    if is_model(returns) and models.allows(returns.__module__) and "<" not in returns.__qualname__:
        spec["model"] = reference_of(returns)
    return spec
