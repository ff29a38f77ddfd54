"""Conversions between values and the ledger's rows."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any
from urllib.parse import quote

from mulligan.policies.cycles.cycle import SelfRepairCycle
from mulligan.policies.failures.failure import VerificationResult
from mulligan.policies.failures.memory import RetryMemory
from mulligan.policies.jobs.job import (
    EXTERNAL,
    USER_TASK,
    AttemptPlan,
    Decoding,
    Job,
    Output,
)
from mulligan.policies.jobs.provider_limits import Allowance
from mulligan.policies.jobs.routing import AttemptPool
from mulligan.policies.repair.verdict import Verdict, verdict_from_dict, verdict_to_dict
from mulligan.tasks.ports.errors import OutOfCredits, TransportFault
from mulligan.tasks.ports.ledger import (
    AttemptView,
    Claim,
    CycleClaim,
    Entry,
    Escalation,
    EscalationGroup,
    Finish,
    JobView,
    Lease,
    NextAttempt,
    Publication,
    Settlement,
)
from mulligan.workers.ledger import keys
from mulligan.workers.ledger.stored.amounts import read_amounts
from mulligan.workers.ledger.stored.digests import input_digest
from mulligan.workers.ledger.stored.stored_bodies import read_tolerantly
from mulligan.workers.settings.model import Settings
from mulligan.workers.settings.profile_pools import profile_pool

_TOO_MANY_REQUESTS = 429


def tenant_of(job: Job, settings: Settings) -> str | None:
    return job.labels.get(settings.tenant_label)


def pool_of(job: Job, settings: Settings) -> AttemptPool:
    """Return the pool whose workers run a job's attempts: that of its profile."""
    if job.merges:  # its verifiers need what the workers of items have
        return "agent"
    return profile_pool(settings.runners.get(job.runner.profile or "", {}))


def lane(subject: str, tenant: str | None) -> str:
    """Return the name of the lane where a subject's work waits. Tenants share no subjects."""
    return f"{quote(tenant or '', safe='')}/{subject}"


def lane_of(job: Job, settings: Settings) -> str | None:
    return lane(job.subject, tenant_of(job, settings)) if job.subject is not None else None


def key_of(job: Job, settings: Settings, owner: str | None = None) -> str | None:
    """Return the idempotency key that a job's id is derived from.

    Tenants share no keys, and neither do producers.
    """
    key, tenant = job.idempotency_key, tenant_of(job, settings)
    if key is None or (tenant is None and owner is None):
        return key
    scope = quote(tenant or "", safe="")
    return f"{scope}/{key}" if owner is None else f"{scope}//{owner}/{key}"


def scope_of(job: Job, settings: Settings) -> str | None:
    """Return what decides a job's partition: its subject's lane or its shared memory."""
    return lane_of(job, settings) or memory_scope(job, settings)


def memory_scope(job: Job, settings: Settings) -> str | None:
    """Return the key of a shared memory; None for a job's own. Tenants share none."""
    if job.memory_scope == "job":
        return None
    scope = job.task_type if job.memory_scope == "task_type" else input_digest(job)
    tenant = tenant_of(job, settings)
    return scope if tenant is None else f"{quote(tenant, safe='')}/{scope}"


def shared_memory_key(job: Job, settings: Settings) -> str | None:
    """Return the key of a memory that jobs share; None for a job's own."""
    scope = memory_scope(job, settings)
    return keys.memory("", job.memory_scope, scope) if scope is not None else None


def settlement_request(settlement: Settlement) -> dict[str, Any]:
    """Return the settlement as the request of its script."""
    then, verdict = settlement.then, settlement.verdict
    request: dict[str, Any] = {
        "verdict": json.dumps(verdict_to_dict(verdict), separators=(",", ":")),
        "score": verdict.score,
        "success": verdict.success,
        "kind": verdict.failure.kind.value if verdict.failure else None,
        "signatures": list(settlement.signatures),
        "unasked": settlement.unasked,
        "cycle_done": settlement.cycle_done,
        "verify_after_ms": settlement.verify_after * 1000,
        "verify_on": settlement.verify_on,
        "facts": dict(settlement.facts) or None,
        "group_signature": settlement.group_signature,
    }
    if settlement.session is not None:
        note = asdict(settlement.session)
        request["session"] = {
            "note": json.dumps(note, separators=(",", ":")),
            "window_ms": settlement.session.window * 1000,
        }
    if isinstance(then, Finish):
        request["finish"] = {"state": then.state, "reason": then.reason, "detail": then.detail}
    if isinstance(then, NextAttempt):
        request["next"] = {
            "number": then.plan.number,
            "mode": then.plan.mode,
            "plan": then.plan.model_dump_json(exclude_defaults=True),
            "fallback": then.plan.decoding.fallback,
            "priority": then.priority,
            "delay_ms": then.delay * 1000,
        }
    if settlement.cycle is not None:
        request["cycle"] = {
            "id": settlement.cycle.id,
            "loop": settlement.cycle.loop_index,
            "status": settlement.cycle.status,
            "metadata": json.dumps(settlement.cycle.metadata, separators=(",", ":")),
        }
    if settlement.remedy is not None:
        request["remedy"] = {
            "coarse": settlement.remedy.coarse,
            "technique": settlement.remedy.technique,
            "worked": settlement.remedy.worked,
        }
    return request


def runner_key(job: Job, decoding: Decoding) -> str:
    """Return the name under which the ledger keeps the provider of a runner; empty for none.

    Workers resolve a runner; the ledger only needs to know which attempts have the same one.
    """
    spec = job.runner
    if spec.kind in (EXTERNAL, USER_TASK):
        return ""
    inline = json.dumps(spec.model_dump(mode="json"), sort_keys=True)
    name = spec.profile or hashlib.sha256(inline.encode()).hexdigest()[:32]
    return f"{name}#{decoding.fallback}" if decoding.fallback else name


def milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000


def fault_request(fault: TransportFault) -> dict[str, Any]:
    """Return what the ledger learns from a fault. A 429 says how much the provider takes."""
    unpaid = isinstance(fault, OutOfCredits)
    # The provider's own words may quote the prompt, which not every reader may see.
    said = f"answered {fault.status}" if fault.status else "" if unpaid else "did not answer"
    return {
        "refused": fault.status == _TOO_MANY_REQUESTS,
        "credits": unpaid,
        "text": ": ".join(part for part in (said, "out of credits" if unpaid else "") if part),
        "retry_after_ms": milliseconds(fault.retry_after),
        "maybe_served": fault.maybe_served,
    }


def spending_request(output: Output) -> dict[str, Any]:
    """Return what the ledger learns from an answer about its tokens and its provider."""
    told = output.rate_limits
    return {
        "tokens": output.usage.total_tokens,
        "token_cap": output.token_cap,
        "rates": told and {"tokens": _told(told.tokens), "requests": _told(told.requests)},
        "provider_wait_ms": milliseconds(output.provider_wait),
    }


def _told(rate: Allowance | None) -> dict[str, float | None] | None:
    if rate is None:
        return None
    return {"left": rate.remaining, "reset_ms": rate.reset * 1000, "limit": rate.limit}


def publications(text: str) -> list[Publication]:
    return [publication(line) for line in text.splitlines()]


def publication(text: str) -> Publication:
    entry, queue, priority, failures = text.rsplit("|", 3)
    return Publication(Entry.parse(entry), queue, int(priority), int(failures))


def remedies(raw: Mapping[str, str]) -> dict[str, tuple[int, int]]:
    techniques = {name.rpartition(":")[0] for name in raw}
    return {
        name: (int(raw.get(f"{name}:worked", 0)), int(raw.get(f"{name}:tried", 0)))
        for name in techniques
    }


def _seconds(raw: Mapping[str, str], name: str) -> float | None:
    text = raw.get(name)
    return float(text) / 1000 if text else None


def read_attempt(number: int, raw: Mapping[str, str]) -> AttemptView:
    plan, output, verdict = raw.get("plan"), raw.get("output"), raw.get("verdict")
    read_plan = read_tolerantly(AttemptPlan, plan) if plan else None
    read_output = read_tolerantly(Output, output) if output else None
    found, problem = read_verdict(verdict)
    problems = [read_plan and read_plan.problem, read_output and read_output.problem, problem]
    return AttemptView(
        plan=(read_plan and read_plan.value) or AttemptPlan(number=number),
        state=raw["state"],
        output=read_output.value if read_output else None,
        verdict=found,
        queued_at=_seconds(raw, "queued_at"),
        started_at=_seconds(raw, "started_at"),
        settled_at=_seconds(raw, "settled_at"),
        worker=raw.get("worker"),
        claims=int(raw.get("claims", 0)),
        faults=int(raw.get("faults", 0)),
        last_fault=raw.get("faults_last"),
        held_up=raw.get("held_up"),
        held_until=_seconds(raw, "held_until") or 0.0,
        unreadable=next((each for each in problems if each), None),
    )


def read_verdict(text: str | None) -> tuple[Verdict | None, str | None]:
    """Read a verdict as far as possible; the text says why it cannot be read."""
    if not text:
        return None, None
    try:
        return verdict_from_dict(json.loads(text)), None
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        return None, f"verdict: {type(error).__name__}"


def read_cycle(cycle_id: str, raw: Mapping[str, str]) -> SelfRepairCycle:
    return SelfRepairCycle.model_validate(
        {
            "id": cycle_id,
            "job_id": raw["job_id"],
            "source_attempt": raw["source_attempt"],
            "loop_index": raw["loop_index"],
            "status": raw["status"],
            "immediate_attempt_id": raw.get("immediate_attempt_id"),
            "created_at": _seconds(raw, "created_at"),
            "immediate_at": _seconds(raw, "immediate_at"),
            "ended_at": _seconds(raw, "ended_at"),
            "reason": raw.get("reason"),
            "score": raw.get("score") or None,
            "metadata": json.loads(raw.get("metadata", "{}")),
        }
    )


def fields(flat: Sequence[str]) -> dict[str, str]:
    """Return a script's name, value, name, value… as a dict."""
    return dict(zip(flat[::2], flat[1::2], strict=True))


def read_job(
    job_id: str,
    raw: Mapping[str, str],
    attempts: Sequence[Mapping[str, str]],
    cycles: Sequence[SelfRepairCycle],
) -> JobView:
    body = read_tolerantly(Job, raw["body"])
    views = tuple(read_attempt(n, row) for n, row in enumerate(attempts, 1) if row)
    problems = [body.problem, *(each.unreadable for each in views)]
    return JobView(
        id=job_id,
        job=body.value or Job.unreadable(task_type=raw["task_type"], name=raw.get("name")),
        state=raw["state"],
        waiting_for=raw.get("waiting_for") or None,
        waiting_behind=raw.get("waiting_behind") or None,
        reason=raw.get("reason") or None,
        detail=raw.get("detail") or None,
        created_at=_seconds(raw, "created_at") or 0.0,
        finished_at=_seconds(raw, "finished_at"),
        best_attempt=int(raw["best"]) if raw.get("best") else None,
        tokens=tokens_of(raw),
        seconds=float(raw["seconds"]),
        tenant=raw.get("tenant") or None,
        owner=raw.get("owner") or None,
        attempts=views,
        cycles=tuple(cycles),
        needs_schema=int(raw.get("schema", 1)),
        needs_release=raw.get("release"),
        unreadable=next((each for each in problems if each), None),
    )


def tokens_of(raw: Mapping[str, str]) -> int | None:
    """Return the tokens that a job has used; None until a runner reports its usage."""
    return int(raw["tokens"]) if raw.get("tokens") else None


def read_claim(answer: Sequence[Any], lease: Lease) -> Claim:
    """Read a script's answer about a claimed attempt."""
    _, body, plan, output, memory, tokens, seconds, loops, faults, results, repairs = answer[:11]
    provider = answer[11]
    counts = {signature: int(count) for signature, count in fields(memory).items()}
    return Claim(
        lease=lease,
        job=Job.model_validate_json(body),
        plan=AttemptPlan.model_validate_json(plan) if plan else AttemptPlan(),
        output=Output.model_validate_json(output) if output else None,
        results={
            int(i): VerificationResult.model_validate_json(r)
            for i, r in fields(results).items()
            if r
        },
        memory=RetryMemory(counts),
        tokens_used=int(tokens),
        seconds_used=float(seconds),
        loops=int(loops),
        faults=int(faults),
        repair_seconds=float(repairs),
        provider=provider,
        allowance=read_amounts(answer[13]),
        money_used=float(answer[14]),
    )


def read_cycle_claim(answer: Sequence[Any], lease: Lease, claim: Claim) -> CycleClaim:
    """Add what the script answers about a delayed verification: its stored output."""
    stored = answer[12]
    return CycleClaim(
        lease=lease,
        cycle_id=lease.entry.cycle_id,
        claim=claim,
        output=Output.model_validate_json(stored) if stored else None,
    )


def read_escalation(escalation_id: str, raw: Mapping[str, str]) -> Escalation:
    return Escalation(
        id=escalation_id,
        job_id=raw["job_id"],
        attempt=int(raw["attempt"]),
        cycle_id=raw.get("cycle_id") or None,
        signature=raw["signature"],
        reason=raw["reason"],
        kind=raw.get("kind") or None,
        task_type=raw["task_type"],
        detail=raw["detail"],
        tenant=raw.get("tenant") or None,
        at=_seconds(raw, "at") or 0.0,
        state=raw["state"],  # type: ignore[arg-type] # only our scripts write it
        ended_at=_seconds(raw, "ended_at"),
        ended_by=raw.get("ended_by") or None,
        note=raw.get("note") or None,
    )


def read_group(raw: Mapping[str, str], muted: Mapping[str, str]) -> EscalationGroup:
    """Return a partition's part of a group. ``muted``: by signature, until when."""
    return EscalationGroup(
        signature=raw["signature"],
        reason=raw["reason"],
        kind=raw.get("kind") or None,
        detail=raw["detail"],
        example=raw["example"],
        task_types=_counts(raw, "type:"),
        tenants=_counts(raw, "tenant:"),
        open=int(raw["open"]),
        total=int(raw["total"]),
        first_at=_seconds(raw, "first_at") or 0.0,
        last_at=_seconds(raw, "last_at") or 0.0,
        muted_until=_seconds(muted, raw["signature"]),
        alerted_at=_seconds(raw, "alerted_at"),
    )


def _counts(raw: Mapping[str, str], prefix: str) -> dict[str, int]:
    found = {
        name.removeprefix(prefix): int(count)
        for name, count in raw.items()
        if name.startswith(prefix)
    }
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


def merge_groups(one: EscalationGroup, other: EscalationGroup) -> EscalationGroup:
    """Merge two partitions' parts of one group."""
    newest = max(one, other, key=lambda group: group.last_at)
    return replace(
        newest,
        task_types=dict(Counter(one.task_types) + Counter(other.task_types)),
        tenants=dict(Counter(one.tenants) + Counter(other.tenants)),
        open=one.open + other.open,
        total=one.total + other.total,
        first_at=min(one.first_at, other.first_at),
        alerted_at=max(one.alerted_at or 0, other.alerted_at or 0) or None,
    )


def requeue_plan(
    raw: Mapping[str, str], *, prompt: str | None, decoding: Decoding | None
) -> AttemptPlan:
    """Return the plan of the attempt that follows a person's requeue, in a new context."""
    done = int(raw["attempt"])
    return AttemptPlan(number=done + 1, prompt=prompt, decoding=decoding or Decoding(), since=done)


def requeue_request(raw: Mapping[str, str], plan: AttemptPlan) -> dict[str, Any]:
    """Return the request to requeue a job, with new limits. It does not need the job's body."""
    return {
        "plan": plan.model_dump_json(exclude_defaults=True),
        "plan_number": plan.number,
        "fallback": plan.decoding.fallback,
        "deadline_ms": _deadline_ms(raw),
    }


def _deadline_ms(raw: Mapping[str, str]) -> float:
    if "deadline_ms" in raw:
        return float(raw["deadline_ms"])
    return float(raw["deadline_at"]) - float(raw["created_at"])  # a job of an earlier release


def outcome(view: JobView) -> dict[str, Any]:
    """Return the JSON that `on_done` sends when a job has ended."""
    best = view.best
    return {
        "job_id": view.id,
        "task_type": view.job.task_type,
        "state": view.state,
        "reason": view.reason,
        "detail": view.detail,
        "score": best.score if best else None,
        "answer": best.output.text if best and best.output else None,
        "attempts": len(view.attempts),
        "tokens": view.tokens,
        "labels": dict(view.job.labels),
        "idempotency_key": view.job.idempotency_key,
    }
