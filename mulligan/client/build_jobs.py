"""From what a caller says to a job: the contract of a model, defaults, every problem named."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from pydantic import BaseModel

from mulligan.client.schema_form import with_form
from mulligan.policies.jobs.job import Job
from mulligan.tasks.jobs.submit import read_job
from mulligan.tasks.ports.errors import BadInput
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
#: The contract counts twice as much as being JSON at all.
_WEIGHT = 2.0
#: How a problem begins that is about one of many jobs.
_PLACE = re.compile(r"^jobs\[(\d+)\]\.")
_NOTHING_CHECKED = (
    "verifiers: give returns=Model or verifiers=[…]: an answer that nothing checks is never"
    " called a success"
)


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
    """What all jobs of one call have in common."""

    #: The verifier spec of ``returns``, and its name.
    contract: Mapping[str, Any] | None
    title: str | None
    #: Who answers if nothing else is said.
    runner: Any


def build_jobs(asks: Sequence[tuple[Ask, Mapping[str, Any]]], asked: RequestDefaults) -> list[Job]:
    """The jobs, or BadInput with every problem of each: of many, by its place."""
    jobs: list[Job] = []
    found: list[str] = []
    for place, (ask, options) in enumerate(asks):
        try:
            jobs.append(_build(ask, options, asked))
        except BadInput as error:
            where = f"jobs[{place}]." if len(asks) > 1 else ""
            found += [f"{where}{line}" for line in error.problems]
    if found:
        raise BadInput(*found)
    return jobs


def _build(ask: Ask, options: Mapping[str, Any], asked: RequestDefaults) -> Job:
    raw, contract = _fields(ask), asked.contract
    raw.update({name: value for name, value in options.items() if value is not None})
    given = raw.get("verifiers", ())
    if not isinstance(given, list | tuple):
        raise BadInput('verifiers: must be a list, such as ["json.object"]')
    raw["verifiers"] = [*_contract_verifiers(contract), *given]
    if contract is not None and isinstance(raw.get("prompt"), str):
        # The first attempt is told too: asking blindly would waste it.
        raw["prompt"] = with_form(raw["prompt"], contract["schema"])
    raw.setdefault("task_type", asked.title or "ask")
    raw.setdefault("runner", asked.runner)
    if isinstance(raw.get("workspace"), str | PathLike):
        raw["workspace"] = {"path": str(raw["workspace"])}
    if not raw["verifiers"]:
        raise BadInput(_NOTHING_CHECKED)
    if raw["runner"] is None:
        raise BadInput(
            "runner: name a profile of the workers' mulligan.toml: runner='small', or set"
            " default_runner"
        )
    return read_job(raw)


def _fields(ask: Ask) -> dict[str, Any]:
    if isinstance(ask, str):
        return {"prompt": ask}
    if isinstance(ask, Job):
        return ask.model_dump(mode="json", exclude_defaults=True)
    if isinstance(ask, Mapping):
        return dict(ask)
    raise BadInput(f"a job is a prompt, a mapping or a Job, not a {type(ask).__name__}")


def _contract_verifiers(contract: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    if contract is None:
        return []
    spec = {**contract, "weight": _WEIGHT}
    schema = contract["schema"]
    is_object = isinstance(schema, Mapping) and schema.get("type") == "object"
    return [{"id": "json.object"}, spec] if is_object else [spec]


def check_returns(returns: Any) -> None:
    """BadInput unless it is a JSON Schema or something that an answer can be read as."""
    if isinstance(returns, Mapping):
        return
    if returns is str:
        raise BadInput("returns: text is what comes back without it: give verifiers=[…] instead")
    if isinstance(returns, BaseModel):
        raise BadInput(f"returns: give the class {type(returns).__name__}, not an instance of it")
    try:
        schema_of(returns)
    except Exception as error:  # what pydantic raises for what is no type is its own affair
        if is_model(returns):
            raise
        told = "a pydantic model, a type such as list[Person] or a dataclass, or a JSON Schema"
        raise BadInput(f"returns: must be {told}, not {returns!r}") from error


def title_of(returns: Any) -> str | None:
    """What a job for this is called, unless it is told."""
    if isinstance(returns, type):
        return returns.__name__
    title = returns.get("title") if isinstance(returns, Mapping) else None
    return title if isinstance(title, str) else None


def contract_by_reference(returns: Any, models: ContractModels) -> dict[str, Any]:
    """The contract for workers elsewhere: the schema, and a model that they may import by name."""
    if isinstance(returns, Mapping):
        return {"id": CONTRACT, "schema": dict(returns)}
    spec: dict[str, Any] = {"id": CONTRACT, "schema": schema_of(returns)}
    if is_model(returns) and models.allows(returns.__module__) and "<" not in returns.__qualname__:
        spec["model"] = reference_of(returns)
    return spec


def placed(problems: Sequence[str], start: int = 0) -> list[str]:
    """The problems of some of many jobs, by each one's place among all of them: ``[102].prompt…``.

    ``start`` is the place of the first of those that were looked at.
    """
    found = []
    for line in problems:
        match = _PLACE.match(line)
        index = start + int(match[1]) if match else start
        found.append(f"[{index}].{line[match.end() :] if match else line}")
    return found
