"""The long steps of the in-memory ledger: settle.lua, requeue.lua and sweep.lua."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mulligan.policies.failures.failure import VerificationResult
from mulligan.policies.failures.memory import RetryMemory
from mulligan.policies.jobs.job import TERMINAL, AttemptPlan, Job, Output
from mulligan.tasks.ports.ledger import (
    Claim,
    ClaimRefused,
    Entry,
    Finish,
    Lease,
    NextAttempt,
    Publication,
    Settlement,
)
from mulligan.workers.ledger.twin import memory_escalations
from mulligan.workers.ledger.twin.memory_book import Book
from mulligan.workers.ledger.twin.memory_rows import (
    attempt_name,
    cycle_name,
    job_name,
    priority_of,
    queue_of,
    remedy_name,
    stamp,
)
from mulligan.workers.settings.model import Settings

#: Remedies are kept for 90 days.
_REMEDY = 90 * 86400.0


def claim_of(book: Book, lease: Lease, entry: Entry) -> Claim:
    """What a worker needs to run, verify or settle an attempt."""
    job = book.rows.get(job_name(entry.job_id))
    attempt = book.rows.get(attempt_name(entry.job_id, entry.attempt))
    counts = {key: int(count) for key, count in book.rows.get(job["memory"]).items()}
    places = attempt.get("verifications", "").split()
    results = {int(i): attempt[f"result:{i}"] for i in places if f"result:{i}" in attempt}
    plan, output = attempt.get("plan"), attempt.get("output")
    return Claim(
        lease=lease,
        job=Job.model_validate_json(job["body"]),
        plan=AttemptPlan.model_validate_json(plan) if plan else AttemptPlan(),
        output=Output.model_validate_json(output) if output else None,
        results={i: VerificationResult.model_validate_json(r) for i, r in results.items()},
        memory=RetryMemory(counts),
        tokens_used=int(job.get("tokens", 0)) - int(job.get("spent_tokens", 0)),
        seconds_used=round(float(job["seconds"]) - float(job.get("spent_seconds", 0)), 6),
        loops=int(job["loop"]),
        faults=int(attempt.get("faults", 0)),
        repair_seconds=float(job.get("repair_seconds", 0)),
    )


def settle_attempt(
    book: Book, lease: Lease, settlement: Settlement, request: Mapping[str, Any]
) -> list[Publication] | ClaimRefused:
    """The verdict and all that follows from it. ``request`` is the settlement serialised."""
    entry = lease.entry
    name = attempt_name(entry.job_id, entry.attempt)
    attempt = book.rows.get(name)
    if attempt.get("state") == "settled":
        ours = attempt["settled_by"] == lease.token
        return _publications(book, entry, settlement) if ours else ClaimRefused("lost")
    if attempt.get("token") != lease.token:
        return ClaimRefused("lost")
    job = book.rows.get(job_name(entry.job_id))
    fields = {"state": "settled", "settled_by": lease.token, "token": ""}
    book.rows.set(name, {**fields, "verdict": request["verdict"], "settled_at": stamp(book.now)})
    tenant = book.drop_lease(str(entry))
    freed = [] if _goes_on(job, settlement) else _let_go(book, tenant)
    _count(book, entry, job, settlement)
    _tell(book, entry, job, settlement)
    if settlement.session is not None:
        notes, window = book.sessions.setdefault(job["lane"], {}), settlement.session.window * 1000
        notes[request["session"]["note"]] = book.now
        for note in [n for n, at in notes.items() if at <= book.now - window]:
            del notes[note]
    if job["state"] in TERMINAL:
        book.retain(entry.job_id)
    else:
        _follow(book, entry, job, settlement, request)
    return _publications(book, entry, settlement) + freed


def _tell(book: Book, entry: Entry, job: Mapping[str, str], settlement: Settlement) -> None:
    event = dict(settlement.facts)
    event |= {"score": settlement.score, "success": settlement.success, "kind": settlement.kind}
    if isinstance(settlement.then, NextAttempt):
        event["next"] = settlement.then.plan.mode
    if "tenant" in job:
        event["tenant"] = job["tenant"]
    book.event("attempt", entry.job_id, attempt=entry.attempt, state="settled", **event)


def _goes_on(job: Mapping[str, str], settlement: Settlement) -> bool:
    """Whether a retry follows at once: it takes the slot itself."""
    then = settlement.then
    at_once = isinstance(then, NextAttempt) and then.delay <= 0
    return at_once and "lane" not in job and job["state"] not in TERMINAL


def _let_go(book: Book, tenant: str | None) -> list[Publication]:
    """One of those that waited for a tenant's slot goes at once."""
    if tenant is None or book.allowance(tenant) == 0:
        return []
    text = book.unpark(f"quota:{tenant}")
    if text is None:
        return []
    row = book.outbox[text]
    book.hand_out(text, row.queue, row.priority)
    return [Publication(Entry.parse(text), row.queue, row.priority)]


def _publications(book: Book, entry: Entry, settlement: Settlement) -> list[Publication]:
    """The next attempt, to be published now: none if the job ended meanwhile."""
    then = settlement.then
    if not isinstance(then, NextAttempt) or then.delay > 0:
        return []
    coming = Entry("attempt", entry.job_id, then.plan.number)
    return [Publication(coming, then.queue, then.priority)] if str(coming) in book.outbox else []


def _count(book: Book, entry: Entry, job: Mapping[str, str], settlement: Settlement) -> None:
    """Best attempt = (success, score, earliest); the memory; what the fleet learns."""
    score = -1.0 if settlement.score is None else settlement.score
    rank = (settlement.success, score)
    if "best" not in job or rank > (job["best_success"] == "1", float(job["best_score"])):
        fields = {"best": entry.attempt, "best_score": score}
        success = {"best_success": int(settlement.success)}
        book.rows.set(job_name(entry.job_id), {**fields, **success})
    for signature in settlement.signatures:
        book.remember(job["memory"], signature)
    remedy = settlement.remedy
    if remedy is not None:
        name = remedy_name(entry.job_id, remedy.coarse)
        book.rows.add(name, f"{remedy.technique}:tried", 1)
        if remedy.worked:
            book.rows.add(name, f"{remedy.technique}:worked", 1)
        book.expire(name, _REMEDY)


def _follow(
    book: Book,
    entry: Entry,
    job: Mapping[str, str],
    settlement: Settlement,
    request: Mapping[str, Any],
) -> None:
    """The cycles, and the job's next attempt or its end."""
    then, state, lane = settlement.then, job["state"], job.get("lane")
    if settlement.cycle_done is not None:
        _await_verification(book, entry, settlement, lane or "")
    if settlement.cycle is not None:
        book.open_cycle(
            entry,
            settlement.cycle.id,
            settlement.cycle.loop_index,
            status=settlement.cycle.status,
            metadata=request["cycle"]["metadata"],
            reason=then.reason if isinstance(then, Finish) else "",
        )
    if isinstance(then, Finish):
        about = (settlement.about, settlement.kind or "") if settlement.about else None
        book.finish(
            entry.job_id, state, then.state, reason=then.reason, detail=then.detail, about=about
        )
        return
    delay = then.delay * 1000
    coming = Entry("attempt", entry.job_id, then.plan.number)
    fields = {"mode": then.plan.mode, "plan": request["next"]["plan"], "state": "queued"}
    times = {"queued_at": stamp(book.now), "not_before": stamp(book.now + delay)}
    book.rows.set(attempt_name(entry.job_id, then.plan.number), {**fields, **times})
    book.rows.set(job_name(entry.job_id), {"attempt": then.plan.number})
    waits = delay > 0
    book.set_state(entry.job_id, state, "waiting" if waits else "queued", "delay" if waits else "")
    if lane is not None:
        book.offer(lane, str(coming), then.plan.mode, book.now + delay)
    elif waits:
        book.enqueue(str(coming), then.queue, then.priority, book.now + delay)
    else:
        book.hand_out(str(coming), then.queue, then.priority)


def _await_verification(book: Book, entry: Entry, settlement: Settlement, lane: str) -> None:
    """The mandatory retry has been processed, whatever its score."""
    cycle_id = settlement.cycle_done or ""
    name = cycle_name(cycle_id)
    if book.rows.get(name).get("status") != "pending_immediate_retry":
        return
    due = book.now + settlement.verify_after * 1000
    status = "pending_delayed_verification"
    immediate = {"immediate_at": stamp(book.now)}
    immediate["immediate_attempt_id"] = f"{entry.job_id}-{entry.attempt}"
    book.rows.set(name, {"status": status, **immediate, "due_at": stamp(due)})
    book.rows.set(job_name(entry.job_id), {"verify_on": settlement.verify_on})
    book.await_verification(cycle_id, settlement.verify_on, lane, due)
    book.event("cycle", entry.job_id, cycle=cycle_id, status=status)


def requeue_entry(
    book: Book,
    lease: Lease,
    *,
    delay: float,
    detail: str,
    waiting_for: str,
    counter: str | None,
    limit: int | None,
    reason: str,
) -> ClaimRefused | None:
    """Give an entry back; the claim is not held against it."""
    entry, job_id, cycle = lease.entry, lease.entry.job_id, lease.entry.kind == "cycle"
    name = cycle_name(entry.cycle_id) if cycle else attempt_name(job_id, entry.attempt)
    v, i = ("v", f":{entry.index}") if entry.kind == "verification" else ("", "")
    if book.rows.get(name).get(f"{v}token{i}") != lease.token:
        return ClaimRefused("lost")
    book.rows.set(name, {f"{v}token{i}": ""})
    book.drop_lease(str(entry))
    book.rows.add(name, f"{v}claims{i}", -1)
    job = book.rows.get(job_name(job_id))
    if not cycle and job["state"] in TERMINAL:
        return ClaimRefused("finished")
    if counter is not None:
        book.rows.set(name, {f"{counter}_last{i}": detail})
        count = book.rows.add(name, f"{counter}{i}", 1)
        if limit is not None and count >= limit:
            _give_up(book, entry, job, reason, detail)
            return ClaimRefused("escalated", reason)
    at = book.now + delay * 1000
    if not cycle and at > float(job["deadline_at"]):
        _give_up(book, entry, job, "deadline", detail)
        return ClaimRefused("escalated", "deadline")
    mode = book.rows.get(name).get("mode", "")
    priority = 5 if cycle else priority_of(mode, int(job["priority"]))
    if entry.kind == "attempt":
        book.rows.set(name, {"state": "queued"})
        waits = delay > 0
        book.set_state(
            job_id, job["state"], "waiting" if waits else "queued", waiting_for if waits else ""
        )
        told = {"state": "waiting", "waiting_for": waiting_for, "detail": detail}
        book.event("attempt", job_id, attempt=entry.attempt, **told)
    if cycle:
        row = book.rows.get(name)
        book.rows.set(name, {"first_due_at": row.get("first_due_at", row["due_at"])})
    book.rows.set(name, {"due_at" if cycle else f"{v}not_before{i}": stamp(at)})
    _put_back(book, entry, mode, priority, at)
    return None


def _put_back(book: Book, entry: Entry, mode: str, priority: int, at: float) -> None:
    """Where an entry waits: on its queue, or in a lane if nobody has answered it yet."""
    job = book.rows.get(job_name(entry.job_id))
    lane = job.get("lane")
    if entry.kind == "cycle":
        on = job.get("verify_on", "verify")
        book.await_verification(entry.cycle_id, on, lane or "", at)
        return
    answered = "output" in book.rows.get(attempt_name(entry.job_id, entry.attempt))
    if entry.kind == "attempt" and lane is not None and not answered:
        book.offer(lane, str(entry), mode, at)
        return
    queue = queue_of(mode) if entry.kind == "attempt" else "verify"
    book.enqueue(str(entry), queue, priority, at)


def _give_up(book: Book, entry: Entry, job: Mapping[str, str], reason: str, detail: str) -> None:
    if entry.kind == "cycle":
        book.close_cycle(entry.job_id, entry.cycle_id, "escalated", reason)
    else:
        book.finish(entry.job_id, job["state"], "escalated", reason=reason, detail=detail)


def sweep_book(book: Book, settings: Settings, empty: frozenset[str]) -> list[Publication]:
    """Everything that must be published now."""
    expired = sorted((at, text) for text, at in book.leases.items() if at <= book.now)
    for _, text in expired[: settings.sweep_limit]:
        book.drop_lease(text)
        _bring_back(book, Entry.parse(text))
    _unpark(book, settings.sweep_limit)
    _end_stale(book, settings.sweep_limit, settings.republish_after)
    found = _publish(book, settings, empty)
    _trim(book, settings)
    return found


def _bring_back(book: Book, entry: Entry) -> None:
    """An expired lease: its worker is not to write any more, and somebody else may try."""
    if entry.kind == "cycle":
        book.rows.set(cycle_name(entry.cycle_id), {"token": ""})
        _put_back(book, entry, "", 5, book.now)
        return
    job = book.rows.get(job_name(entry.job_id))
    if not job:
        return
    name, slow = attempt_name(entry.job_id, entry.attempt), entry.kind == "verification"
    book.rows.set(name, {f"vtoken:{entry.index}" if slow else "token": ""})
    mode = book.rows.get(name)["mode"]
    priority = priority_of(mode, int(job["priority"]))
    if job["state"] not in TERMINAL:
        if not slow:
            book.rows.set(name, {"state": "queued"})
            book.set_state(entry.job_id, job["state"], "queued")
        _put_back(book, entry, mode, priority, book.now)
    book.event("attempt", entry.job_id, attempt=entry.attempt, state="lease_expired")


def _unpark(book: Book, limit: int) -> None:
    """What a lifted pause, or a quota with room, lets go."""
    for pause in [pause for pause in book.parked if pause not in book.paused]:
        free = limit
        if pause.startswith("quota:"):
            allowed = book.allowance(pause.removeprefix("quota:"))
            free = limit if allowed is None else min(limit, allowed)
        for _ in range(free):
            text = book.unpark(pause)
            if text is None:
                break
            row = book.outbox[text]
            book.enqueue(text, row.queue, row.priority, book.now)


def _end_stale(book: Book, limit: int, again: float) -> None:
    """What nobody came to do in a lane: an attempt, or a delayed verification."""
    stale = sorted((at, late) for late, at in book.stale.items() if at <= book.now)
    for _, cycle_id in stale[:limit]:
        book.stale.pop(cycle_id, None)  # one may have ended with its job, just now
        if cycle_id.startswith("j:"):
            _end_overdue(book, cycle_id.removeprefix("j:"), again)
            continue
        row = book.rows.get(cycle_name(cycle_id))
        if row.get("status") == "pending_delayed_verification":
            reason = "missing_delayed_verification"
            book.close_cycle(row["job_id"], cycle_id, "escalated", reason)


def _end_overdue(book: Book, job_id: str, again: float) -> None:
    """One that is in hand may still come back."""
    job = book.rows.get(job_name(job_id))
    if not job or job["state"] in TERMINAL:
        return
    if job["state"] == "running":
        book.await_deadline(job_id, book.now + again * 1000)
        return
    book.drop_entry(f"a:{job_id}/{job['attempt']}")
    detail = "the job's deadline passed"
    book.finish(job_id, job["state"], "escalated", reason="deadline", detail=detail)


def _publish(book: Book, settings: Settings, empty: frozenset[str]) -> list[Publication]:
    """Entries never published, and those overtaken by later ones of their queue."""
    republish = settings.republish_after * 1000
    now = sorted(
        (row.out, row.at, text)
        for text, row in book.outbox.items()
        if row.at is not None and row.at <= book.now
    )
    due = [text for out, _, text in now if not out][: settings.sweep_limit]
    due += [text for out, _, text in now if out][: settings.sweep_limit]
    found = []
    for text in due:
        row = book.outbox[text]
        overtaken = book.overtaken_by(row) >= row.published + republish
        if row.published > 0 and row.queue not in empty and not overtaken:
            row.at, row.out = book.now + republish, True
            continue
        if row.published > 0:
            row.tries += 1
        else:
            row.published = 0
        row.at, row.out = book.now + settings.outbox_grace * 1000, False
        found.append(Publication(Entry.parse(text), row.queue, row.priority))
    return found


def _trim(book: Book, settings: Settings) -> None:
    """Indexes do not outlive what they point to."""
    old = book.now - settings.retention * 1000
    for state in TERMINAL:
        index = book.index(f"jobs:{state}")
        for job_id in [i for i, at in index.items() if at <= old]:
            if job_name(job_id) not in book.rows:
                for name in (f"jobs:{state}", "jobs"):
                    book.index(name).pop(job_id, None)
    cycles = book.index("cycles")
    ancient = book.now - settings.cycle_retention * 1000
    for cycle_id in [i for i, at in cycles.items() if at <= ancient]:
        del cycles[cycle_id]
    over = max(0, len(cycles) - settings.cycles_cap)
    for cycle_id in list(reversed(book.newest("cycles")))[: min(over, settings.sweep_limit)]:
        del cycles[cycle_id]
        if "ended_at" in book.rows.get(cycle_name(cycle_id)):
            book.rows.drop(cycle_name(cycle_id))
    memory_escalations.trim(
        book,
        kept_since=ancient,
        cap=settings.escalations_cap,
        limit=settings.sweep_limit,
        retention=settings.cycle_retention,
    )
