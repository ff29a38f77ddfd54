"""Split: let a model draft two smaller items for one that could not be done as a whole.

A draft carries no authority: it is checked like any item that is added to a loop, and its checks
may only be of the kinds, and run only the programs, that the item itself names.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from mulligan.policies.jobs.job import Job, PolicySpec, VerifierSpec
from mulligan.policies.loops.analysis import FailureAnalysis
from mulligan.policies.loops.commands import NotPossible, skip_item
from mulligan.policies.loops.heal_record import HealRecord
from mulligan.policies.loops.healing import parts_of, rerouted, stronger_runners
from mulligan.policies.loops.loop import ItemRecord, LoopChange, LoopSnapshot
from mulligan.policies.loops.spec import ItemSpec, ItemVerifier, item_set_problems
from mulligan.policies.problem import Problem
from mulligan.policies.repair import wording
from mulligan.policies.repair.free_repair import extract_json
from mulligan.tasks.jobs.submit import submit_jobs
from mulligan.tasks.jobs.validation_errors import problems_of
from mulligan.tasks.loops.caps import current_caps
from mulligan.tasks.loops.change import check_item, complete_item
from mulligan.tasks.loops.context import LoopContext

TASK_TYPE = "split_item"
_DRAFTS = 2
_MOST_PROBLEMS = 10
#: The fields that a draft chooses.
_DRAFTED = (("title",), ("prompt",), ("verifiers",))
#: The options by which a verifier runs a program of the draft's choice.
_PROGRAMS = ("argv", "command")
_TEXTS = {
    "title": {"type": "string", "maxLength": 200},
    "prompt": {"type": "string", "minLength": 1},
}
_CHECKS = {"type": "array", "minItems": 1, "items": {"type": "object", "required": ["id"]}}
_CONTRACT: dict[str, Any] = {
    "type": "object",
    "required": ["first", "second"],
    "properties": {
        "first": {
            "type": "object",
            "required": ["title", "prompt", "verifiers"],
            "properties": {**_TEXTS, "verifiers": _CHECKS},
        },
        "second": {"type": "object", "required": ["title", "prompt"], "properties": _TEXTS},
    },
}


def begin_split(
    context: LoopContext,
    snapshot: LoopSnapshot,
    heal: HealRecord,
    analysis: FailureAnalysis,
    problems: str = "",
) -> HealRecord:
    """Ask for a draft. Raises BadInput if nobody can be asked."""
    spec = snapshot.spec(heal.item)
    if spec is None:
        raise NotPossible(f"the loop has no item {heal.item!r}")
    if any(heal.item in parts_of(each) for each in snapshot.heals):
        raise NotPossible(f"{heal.item} is a part of another item, and small enough")
    job = _draft_job(context, snapshot, spec, heal, analysis.summary, problems)
    accepted = submit_jobs(context.intake, [job], owner=snapshot.loop.owner or None)
    return replace(heal, job_id=accepted[0].id)


def _draft_job(
    context: LoopContext,
    snapshot: LoopSnapshot,
    spec: ItemSpec,
    heal: HealRecord,
    summary: str,
    problems: str,
) -> Job:
    config, loop = snapshot.config, snapshot.loop
    stronger = next(iter(stronger_runners(config).values()), None)
    task = spec.model_dump(
        mode="json",
        include={"title", "prompt", "verifiers", "pass_criteria"},
        exclude_defaults=True,
    )
    labels = {context.tenant_label: loop.tenant} if loop.tenant else {}
    draft = 2 if problems else 1
    return Job(
        task_type=TASK_TYPE,
        name=f"split {spec.id}",
        prompt=wording.SPLIT.format(
            summary=summary,
            task=json.dumps(task, ensure_ascii=False, indent=1),
            problems=wording.SPLIT_PROBLEMS.format(problems=problems) if problems else "",
        ),
        runner=stronger or spec.runner or config.runner,
        verifiers=(
            VerifierSpec(id="json.object"),
            VerifierSpec(id="contract.schema", schema=_CONTRACT),
        ),
        policy=PolicySpec(max_attempts=3),
        budget=config.budget.item_budget(),
        labels={**labels, "loop": loop.name, "item": spec.id},
        idempotency_key=f"split/{loop.uid}/{spec.id}/{heal.number}/{draft}",
    )


def continue_split(
    context: LoopContext, snapshot: LoopSnapshot, heal: HealRecord, now: float
) -> LoopChange | None:
    """Use a draft that is finished; None while it is not."""
    job = context.ledger.job(heal.job_id)
    if job is not None and job.finished_at is None:
        return None
    best = job.best if job is not None and job.state == "succeeded" else None
    if best is None or best.output is None:
        said = (job.reason if job is not None else "") or "it is gone"
        return _refused(heal, f"no draft passed its checks ({said})", now)
    parts, problems = _read_parts(context, snapshot, heal.item, best.output.text)
    if not problems:
        return _apply(context, snapshot, heal, parts, now)
    listed = "\n".join(f"- {each}" for each in problems[:_MOST_PROBLEMS])
    if ((job is not None and job.job.idempotency_key) or "").endswith(f"/{_DRAFTS}"):
        return _refused(heal, f"the draft is no valid spec: {problems[0]}", now)
    analysis = FailureAnalysis(item=heal.item, pattern="same", summary=heal.reason)
    again = begin_split(context, snapshot, heal, analysis, problems=listed)
    return LoopChange(heals=(again,), note=f"{heal.item}: the draft had problems; another is made")


def _refused(heal: HealRecord, why: str, now: float) -> LoopChange:
    ended = heal.ended("refused", now=now, result=why)
    # What the draft says is not for everybody who reads the log.
    return LoopChange(heals=(ended,), note=f"{heal.item} is not split: no draft could be used")


def _read_parts(
    context: LoopContext, snapshot: LoopSnapshot, item: str, text: str
) -> tuple[list[ItemSpec], list[str]]:
    """Return the parts of a draft, and every problem of them as specs."""
    found, spec = extract_json(text, truncated=False).value, snapshot.spec(item)
    if spec is None or not isinstance(found, dict):
        return [], ["it is no JSON object"]
    try:
        parts = [*_parts(spec, found)]
    except ValidationError as error:
        return [], [str(each) for each in problems_of(error, ItemSpec)]
    return parts, [str(each) for each in _problems(context, snapshot, spec, parts)]


def _parts(spec: ItemSpec, found: dict[str, Any]) -> Iterator[ItemSpec]:
    base = spec.model_dump(mode="json", exclude_defaults=True)
    first, second = f"{spec.id}.1", f"{spec.id}.2"
    given = {key: found["first"][key] for key in ("title", "prompt", "verifiers")}
    # What is on the branch must stay good with each part.
    given["verifiers"] = [
        *given["verifiers"],
        *(each.model_dump(mode="json", exclude_unset=True) for each in _guards(spec)),
    ]
    # The last part says that the whole is done.
    kept = {name: value for name, value in base.items() if name not in ("pass_criteria", "emits")}
    yield ItemSpec.model_validate({**kept, **given, "id": first})
    given = {key: found["second"][key] for key in ("title", "prompt")}
    yield ItemSpec.model_validate({**base, **given, "id": second, "depends_on": [first]})


def _guards(spec: ItemSpec) -> list[ItemVerifier]:
    return [each for each in spec.verifiers if each.role == "guard"]


def _problems(
    context: LoopContext, snapshot: LoopSnapshot, spec: ItemSpec, parts: list[ItemSpec]
) -> Iterator[Problem]:
    known = {each.id for each in spec.verifiers}
    programs = [each.options.get(name) for each in spec.verifiers for name in _PROGRAMS]
    for index, each in enumerate(parts[0].verifiers):
        if each.id not in known:
            yield Problem(f"the task has no check {each.id}", ("first", "verifiers", index))
        elif any(n in each.options and each.options[n] not in programs for n in _PROGRAMS):
            message = f"{each.id} may only run a program of the task's own checks"
            yield Problem(message, ("first", "verifiers", index))
    for name, part in zip(("first", "second"), parts, strict=True):
        if snapshot.spec(part.id) is not None:
            yield Problem(f"the loop has {part.id} already", (name,))
        for problem in check_item(context, snapshot.config, part):
            if problem.path[:1] in _DRAFTED:  # the rest was accepted with the loop
                yield problem.below(name)
    yield from item_set_problems(_with_parts(snapshot, spec.id, parts))


def _with_parts(snapshot: LoopSnapshot, item: str, parts: list[ItemSpec]) -> list[ItemSpec]:
    """Return all items, with the parts after the whole, and what depended on it after the last."""
    found = []
    for spec in rerouted(snapshot.specs, item, [parts[-1].id]):
        found.append(spec)
        if spec.id == item:
            found += parts
    return found


def _apply(
    context: LoopContext,
    snapshot: LoopSnapshot,
    heal: HealRecord,
    parts: list[ItemSpec],
    now: float,
) -> LoopChange:
    """Replace an item by its parts."""
    config = snapshot.config
    complete = [complete_item(context, config, part) for part in parts]
    specs = tuple(_with_parts(snapshot, heal.item, complete))
    names = ", ".join(part.id for part in parts)
    change = skip_item(snapshot, heal.item, reason=f"split into {names}", now=now)
    return replace(
        change,
        specs=specs,
        caps=current_caps(context, config, specs),
        items={**change.items, **{part.id: ItemRecord(since=now) for part in parts}},
        split={heal.item: parts[-1].id},
        heals=(replace(heal, result=names),),
        note=f"{heal.item} was split into {names}",
    )
