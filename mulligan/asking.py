"""From what a caller says to a job: the contract of a model, defaults, every problem named."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from mulligan.form import with_form
from mulligan.policies.job import Job
from mulligan.tasks.ports import BadInput
from mulligan.tasks.submit import read_job
from mulligan.workers.contract_models import CONTRACT, Models, reference_of, schema_of

if TYPE_CHECKING:
    from pydantic import BaseModel

    from mulligan.policies.job import (
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


def build_job(
    ask: Ask,
    options: Mapping[str, Any],
    *,
    contract: Mapping[str, Any] | None,
    title: str | None,
    runner: Any,
) -> Job:
    """The job, or BadInput with every problem.

    ``contract`` is the verifier spec of ``returns``, ``title`` its name; ``runner`` is who answers
    if nothing else is said.
    """
    raw = _fields(ask)
    raw.update({name: value for name, value in options.items() if value is not None})
    raw["verifiers"] = [*_contract_verifiers(contract), *raw.get("verifiers", ())]
    if contract is not None and isinstance(raw.get("prompt"), str):
        # The first attempt is told too: asking blindly would waste it.
        raw["prompt"] = with_form(raw["prompt"], contract["schema"])
    raw.setdefault("task_type", title or "ask")
    raw.setdefault("runner", runner)
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


def title_of(returns: type[BaseModel] | Mapping[str, Any] | None) -> str | None:
    """What a job for this is called, unless it is told."""
    if isinstance(returns, type):
        return returns.__name__
    title = returns.get("title") if returns is not None else None
    return title if isinstance(title, str) else None


def contract_by_reference(
    returns: type[BaseModel] | Mapping[str, Any], models: Models
) -> dict[str, Any]:
    """The contract for workers elsewhere: the schema, and a model that they may import by name."""
    if not isinstance(returns, type):
        return {"id": CONTRACT, "schema": dict(returns)}
    spec: dict[str, Any] = {"id": CONTRACT, "schema": schema_of(returns)}
    if models.allows(returns.__module__) and "<" not in returns.__qualname__:
        spec["model"] = reference_of(returns)
    return spec


def placed(problems: Sequence[str], start: int) -> list[str]:
    """The problems of some of many jobs, by each one's place among all of them: ``[102].prompt…``.

    ``start`` is the place of the first of those that were looked at.
    """
    found = []
    for line in problems:
        match = _PLACE.match(line)
        index = start + int(match[1]) if match else start
        found.append(f"[{index}].{line[match.end() :] if match else line}")
    return found
