"""The plan of the next attempt: the corrected prompt and the changed decoding."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mulligan.policies.jobs.job import AttemptPlan, Decoding, Job, Output
from mulligan.policies.repair.instruction import RepairInstruction, corrections_of
from mulligan.policies.repair.prompt import build_corrected_prompt
from mulligan.policies.repair.recipes import RULED_OUT
from mulligan.policies.repair.retry import MERGE_CONFLICT, ChangeStrategy, Retry, passes
from mulligan.policies.repair.verdict import Verdict
from mulligan.policies.value import Json

#: Tries without success after which a technique is not the first one any more.
_HOPELESS = 3
#: The default temperature of most servers.
_USUAL_TEMPERATURE = 0.7


def contract_of(job: Job) -> Mapping[str, Any] | None:
    """Return the JSON Schema of the answer, if the job has one."""
    for spec in job.verifiers:
        if spec.id == "contract.schema":
            schema = spec.options.get("schema")
            return schema if isinstance(schema, dict) else None
    return None


def wants_json(job: Job) -> bool:
    """Whether decoding can be constrained: to the contract or, without one, to any object."""
    return contract_of(job) is not None or any(s.id == "json.object" for s in job.verifiers)


def plan_next(
    job: Job,
    plan: AttemptPlan,
    verdict: Verdict,
    decision: Retry,
    *,
    output: Output | None,
    asked_with: Decoding,
    worked_before: Sequence[str] = (),
    cycle_id: str | None = None,
    constrains: Callable[[Decoding, Mapping[str, Json]], bool] = lambda *_: False,
) -> AttemptPlan:
    """Plan the attempt after a failure. ``asked_with`` is the failed attempt's decoding.

    ``constrains`` says whether the runner constrains such an attempt to the job's contract.
    """
    instruction = verdict.instruction
    if instruction is None or verdict.failure is None:
        raise ValueError("only a classified failure can be corrected")
    fresh = isinstance(decision, ChangeStrategy)
    decoding, contract = _decoding(job, instruction, asked_with, fresh=fresh), contract_of(job)
    # A constrained attempt that failed like this was not constrained, whatever its runner says.
    ignored = (
        asked_with.constrained
        and instruction.action in RULED_OUT
        and corrections_of(verdict.failure)[0].ruled_out
    )
    constrained = contract is not None and not ignored and constrains(decoding, contract)
    kept, kept_score = _best_work(plan, verdict, output, fresh=fresh)
    in_directory = _works_in_directory(job)
    goes_on = kept is not None and in_directory
    prompt = build_corrected_prompt(
        task_text=job.task_text,
        contract=contract,
        last_answer=output.text if output is not None else None,
        results=verdict.results,
        instruction=instruction,
        failure=verdict.failure,
        worked_before=worked_before,
        coercions=verdict.coercions,
        becomes_file=job.workspace is not None and job.workspace.output_file is not None,
        truncated=output is not None and output.truncated,
        constrained=constrained,
        fresh=fresh and not goes_on,
        in_directory=in_directory,
        goes_on=goes_on,
        ended=output.ended if output is not None else None,
        stuck=_stuck(verdict, output),
        tried=plan.technique or "" if job.merges else None,
    )
    return AttemptPlan(
        number=plan.number + 1,
        mode=decision.mode,
        prompt=prompt,
        decoding=decoding,
        technique=_technique(instruction, decoding, asked_with, fresh=fresh),
        cures=verdict.failure.coarse_signature,
        cycle_id=cycle_id,
        since=plan.since,
        kept=kept,
        kept_score=kept_score,
        conflicts=plan.conflicts + (verdict.failure.cause == MERGE_CONFLICT),
    )


def _stuck(verdict: Verdict, output: Output | None) -> str | None:
    """Return what a stuck agent repeated, whether or not it left an answer."""
    if output is not None:
        return output.stuck
    said = verdict.failure.evidence.get("stuck") if verdict.failure is not None else None
    return said if isinstance(said, str) else None


def _works_in_directory(job: Job) -> bool:
    """Whether attempts change files themselves, so that a text is not their answer."""
    space = job.workspace
    return job.merges and space is not None and not (space.edits or space.output_file)


def _best_work(
    plan: AttemptPlan, verdict: Verdict, output: Output | None, *, fresh: bool
) -> tuple[str | None, float]:
    """Return the commit that the next attempt goes on with, and its score.

    A changed strategy begins with the current state of the branch, unless the work is good but for
    something that must be corrected. A conflict goes away at the branch.
    """
    score, kept = verdict.score or 0.0, (plan.kept, plan.kept_score)
    changed = output is not None and output.commit != output.base
    if output is not None and changed and score >= plan.kept_score:
        kept = output.commit, score
    conflicts = verdict.failure is not None and verdict.failure.cause == MERGE_CONFLICT
    return (None, -1.0) if fresh and (conflicts or not passes(kept[1])) else kept


def _decoding(
    job: Job, instruction: RepairInstruction, asked_with: Decoding, *, fresh: bool
) -> Decoding:
    temperature = asked_with.temperature
    if instruction.temperature_factor != 1.0:
        base = _USUAL_TEMPERATURE if temperature is None else temperature
        temperature = round(base * instruction.temperature_factor, 3)
    cap = asked_with.max_tokens
    if cap is not None:
        cap = math.ceil(cap * instruction.token_cap_factor)
    constrain = (instruction.constrained or fresh) and wants_json(job)
    return Decoding(
        constrained=asked_with.constrained or constrain,
        temperature=temperature,
        max_tokens=cap,
        fallback=asked_with.fallback + (1 if fresh else 0),
    )


def _technique(
    instruction: RepairInstruction, decoding: Decoding, asked_with: Decoding, *, fresh: bool
) -> str:
    """Return the name under which the fleet records whether this worked; never a job's text."""
    parts = [instruction.action]
    if decoding.constrained and not asked_with.constrained:
        parts.append("constrained")
    if decoding.max_tokens != asked_with.max_tokens:
        parts.append("token_cap")
    if fresh:
        parts.append("fresh_context")
    return "+".join(parts)


def preferred(
    job: Job,
    verdict: Verdict,
    decision: Retry,
    asked_with: Decoding,
    remedies: Mapping[str, tuple[int, int]],
) -> Retry:
    """Return the decision, or a changed strategy if the fleet knows that the plain one is hopeless.

    ``remedies``: by technique, how often it worked and was tried against this failure anywhere.
    """
    if isinstance(decision, ChangeStrategy) or verdict.instruction is None:
        return decision
    plain, fresh = (
        _technique(
            verdict.instruction,
            _decoding(job, verdict.instruction, asked_with, fresh=changed),
            asked_with,
            fresh=changed,
        )
        for changed in (False, True)
    )
    if not _is_hopeless(remedies, plain) or _is_hopeless(remedies, fresh):
        return decision
    tried = remedies[plain][1]
    reason = f"{decision.reason}; {plain} never repaired this in {tried} tries"
    return ChangeStrategy(reason=reason, mode=decision.mode)


def _is_hopeless(remedies: Mapping[str, tuple[int, int]], technique: str) -> bool:
    worked, tried = remedies.get(technique, (0, 0))
    return not worked and tried >= _HOPELESS


def best_techniques(remedies: Mapping[str, tuple[int, int]], *, most: int = 2) -> list[str]:
    """Return the techniques that repaired this failure at least half of the time, best first."""
    rated = [
        (worked / tried, worked, name)
        for name, (worked, tried) in remedies.items()
        if worked and tried and worked / tried >= 0.5
    ]
    return [name for _, _, name in sorted(rated, reverse=True)[:most]]
