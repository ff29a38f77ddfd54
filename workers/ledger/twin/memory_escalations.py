"""Escalations of the in-memory ledger: what the prelude's escalate and end_escalation.lua do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mulligan.policies.jobs.job import TERMINAL, Decoding
from mulligan.tasks.ports.ledger import (
    ClaimRefused,
    Ended,
    Escalation,
    EscalationEnd,
    EscalationGroup,
)
from mulligan.workers.ledger import rows
from mulligan.workers.ledger.twin.memory_rows import attempt_name, job_name, stamp

if TYPE_CHECKING:
    from mulligan.workers.ledger.twin.memory_book import Book


def escalation_name(escalation_id: str) -> str:
    return f"escalation:{escalation_id}"


def group_name(signature: str) -> str:
    return f"group:{signature}"


def escalate(
    book: Book,
    escalation_id: str,
    job_id: str,
    attempt: str,
    reason: str,
    detail: str,
    *,
    cycle_id: str = "",
    about: tuple[str, str] | None = None,
) -> str | None:
    """Something a person must look at. ``about`` is the signature and kind of a failure."""
    name = escalation_name(escalation_id)
    if name in book.rows:
        return None
    signature, kind = about or (f"reason:{reason}", "")
    job = book.rows.get(job_name(job_id))
    task_type, tenant = job.get("task_type", ""), job.get("tenant", "")
    shown = detail.encode()[:500].decode(errors="ignore")
    record = {"job_id": job_id, "attempt": attempt, "cycle_id": cycle_id, "reason": reason,
              "signature": signature, "kind": kind, "task_type": task_type, "tenant": tenant,
              "detail": shown, "at": stamp(book.now), "state": "open"}  # fmt: skip
    book.rows.set(name, record)
    book.index("escalations")[escalation_id] = book.now
    group = group_name(signature)
    if "first_at" not in book.rows.get(group):
        book.rows.set(group, {"first_at": stamp(book.now)})
    told = {"signature": signature, "reason": reason, "kind": kind, "example": job_id}
    book.rows.set(group, {**told, "detail": shown, "last_at": stamp(book.now)})
    for count in ("open", "total", "since_alert", f"type:{task_type}"):
        book.rows.add(group, count, 1)
    if tenant:
        book.rows.add(group, f"tenant:{tenant}", 1)
    book.rows.persist(group)
    book.index("groups")[signature] = book.now
    book.index(f"{group}:open")[escalation_id] = book.now
    return signature


def end_escalation(
    book: Book,
    escalation_id: str,
    *,
    how: EscalationEnd,
    by: str,
    note: str,
    prompt: str | None,
    decoding: Decoding | None,
    retention: float,
) -> Ended | ClaimRefused:
    """A person ends an escalation."""
    name = escalation_name(escalation_id)
    record = book.rows.get(name)
    if not record:
        return ClaimRefused("gone")
    if record["state"] != "open":
        return ClaimRefused("finished", record["state"])
    job_id = record["job_id"]
    job, queued = book.rows.get(job_name(job_id)), ""
    if how == "requeued":
        if not job:
            return ClaimRefused("gone", "the job is no longer kept")
        if job["state"] not in TERMINAL:
            return ClaimRefused("held")
        queued = _requeue(book, job_id, job, prompt, decoding)
    elif how == "cancelled" and job.get("state") == "escalated":
        _cancel(book, job_id, job, note)
    ended = {"state": how, "ended_at": stamp(book.now), "ended_by": by, "note": note}
    book.rows.set(name, ended)
    book.expire(name, retention)
    book.index("escalations:ended")[escalation_id] = book.now
    _leave_group(book, escalation_id, record, retention)
    told = {"escalation": escalation_id, "state": how, "signature": record["signature"], "by": by}
    book.event("escalation", job_id, **told)
    return Ended(state=how, publication=rows.publication(queued) if queued else None)


def _leave_group(book: Book, escalation_id: str, record: dict[str, str], retention: float) -> None:
    group = group_name(record["signature"])
    book.index(f"{group}:open").pop(escalation_id, None)
    counts = [f"type:{record['task_type']}"]
    if record["tenant"]:
        counts.append(f"tenant:{record['tenant']}")
    for count in counts:
        if book.rows.add(group, count, -1) <= 0:
            book.rows.drop_field(group, count)
    if book.rows.add(group, "open", -1) <= 0:
        book.expire(group, retention)


def _requeue(
    book: Book, job_id: str, job: dict[str, str], prompt: str | None, decoding: Decoding | None
) -> str:
    """A new context: what came before is not counted. The entry to publish, if there is one."""
    request = rows.requeue_request(job, prompt=prompt, decoding=decoding)
    number = request["plan_number"]
    if job["memory"].startswith("memory:job:"):
        book.rows.drop(job["memory"])
    fields = {"attempt": number, "spent_tokens": job.get("tokens", 0),
              "spent_seconds": job["seconds"],
              "past_loops": max(int(job["loop"]), int(job.get("past_loops", 0))), "loop": 0,
              "repair_seconds": 0, "reason": "", "detail": "", "finished_at": "",
              "deadline_at": stamp(book.now + request["deadline_ms"])}  # fmt: skip
    book.rows.set(job_name(job_id), fields)
    attempt = {"mode": "initial", "plan": request["plan"], "state": "queued"}
    book.rows.set(attempt_name(job_id, number), {**attempt, "queued_at": stamp(book.now)})
    book.rows.persist(job_name(job_id))
    for n in range(1, number + 1):
        book.rows.persist(attempt_name(job_id, n))
    book.rows.persist(job["memory"])
    book.set_state(job_id, job["state"], "queued")
    entry = f"a:{job_id}/{number}"
    told = {"state": "queued", "task_type": job["task_type"], "requeued": True}
    if "tenant" in job:
        told["tenant"] = job["tenant"]
    book.event("job", job_id, **told)
    if "lane" in job:
        book.offer(job["lane"], entry, "initial", book.now)
        book.await_deadline(job_id, book.now + request["deadline_ms"])
        return ""
    book.hand_out(entry, "attempt", int(job["priority"]))
    return f"{entry}|attempt|{job['priority']}"


def _cancel(book: Book, job_id: str, job: dict[str, str], note: str) -> None:
    book.set_state(job_id, "escalated", "cancelled")
    book.rows.set(job_name(job_id), {"reason": "cancelled", "detail": note})
    told = {"state": "cancelled", "reason": "cancelled", "task_type": job["task_type"],
            "attempts": int(job["attempt"]), "tokens": rows.tokens_of(job),
            "first_try": False}  # fmt: skip
    if "tenant" in job:
        told["tenant"] = job["tenant"]
    book.event("job", job_id, **told)


def groups(book: Book, *, only_open: bool, tenant: str | None, limit: int) -> list[EscalationGroup]:
    found = [book.rows.get(group_name(signature)) for signature in book.newest("groups")]
    read = [rows.read_group(row) for row in found if row]
    wanted = [
        group
        for group in read
        if (group.open or not only_open) and (tenant is None or tenant in group.tenants)
    ]
    return wanted[:limit]


def escalations(
    book: Book, *, signature: str | None, only_open: bool, tenant: str | None, limit: int
) -> list[Escalation]:
    found = [(i, book.rows.get(escalation_name(i))) for i in book.newest("escalations")]
    read = [rows.read_escalation(i, row) for i, row in found if row]
    wanted = [
        each
        for each in read
        if (each.state == "open" or not only_open)
        and (signature is None or each.signature == signature)
        and (tenant is None or each.tenant == tenant)
    ]
    return wanted[:limit]


def trim(book: Book, *, kept_since: float, cap: int, limit: int, retention: float) -> None:
    """The oldest ended ones go first, then the oldest."""
    ended = book.index("escalations:ended")
    old = [i for i in reversed(book.newest("escalations:ended")) if ended[i] <= kept_since]
    many = len(book.index("escalations")) - cap
    if many > 0 and not old:
        old = list(reversed(book.newest("escalations:ended")))[:many]
        old = old or list(reversed(book.newest("escalations")))[:many]
    for escalation_id in old[:limit]:
        record = book.rows.get(escalation_name(escalation_id))
        if record.get("state") == "open":
            _leave_group(book, escalation_id, record, retention)
        book.rows.drop(escalation_name(escalation_id))
        book.index("escalations").pop(escalation_id, None)
        ended.pop(escalation_id, None)
    known = book.index("groups")
    for signature in [s for s, at in known.items() if at <= kept_since]:
        if group_name(signature) not in book.rows:
            del known[signature]
