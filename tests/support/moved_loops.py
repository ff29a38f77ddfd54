"""Loops that move from one installation to another in one process."""

from __future__ import annotations

import io
import json
import re
from typing import Any

from mulligan.tasks.loops.context import LoopContext
from mulligan.tasks.loops.transfer import Destination, leave
from mulligan.tasks.ports.ledger import Requester
from mulligan.workers.ledger import keys
from mulligan.workers.ledger.redis_ledger import RedisLedger
from mulligan.workers.loops.loop_archive import load_loop, save_loop

EVE = Requester(by="eve")
BLOB_CAP = 1_000_000
#: Of each kind of record, what does not move: it follows from the loop and the item, is about a
#: worker or a provider of the old place, or is only used in the step that writes it.
STAYS = {
    "loop": {"version", "dirty", "planned", "planned_at", "share", "digest", "uid", "config",
             "spec", "priority", "weight", "concurrency", "tenant", "owner", "held", "written_by",
             "released", "incidents", "rollback", "delivering",
             "admitted_at", "space", "scored", "outer", "declared", "emits"},
    "job": {"body", "digest", "task_type", "name", "memory", "deadline_ms", "priority", "pool",
            "of_loop", "item", "tenant", "owner", "waiting_for", "waiting_behind", "parked_at",
            "open_cycles", "schema", "release", "merge_group"},
    "attempt": {"runner", "provider", "in_flight", "token", "hard_at", "pending", "settled_by",
                "handed_by", "released", "requeued_by", "allowance", "progress", "left_to_newer:",
                "merge_begun_at"},
    "cycle": {"job_id", "tenant", "row", "token", "claims", "shared", "settled_by", "hard_at"},
    "escalation": {"job_id", "attempt", "task_type", "tenant", "at", "state"},
}  # fmt: skip
#: Made in the new place as in the old one, so that they are the same all the same; the others are
#: about what has happened in one of them.
_MADE = {"uid", "config", "spec", "priority", "weight", "concurrency", "tenant", "owner", "held",
         "space", "outer", "body", "task_type", "name", "memory", "pool", "of_loop", "item",
         "merge_group", "runner", "job_id", "attempt", "state", "open_cycles",
         "schema"}  # fmt: skip
OTHER = {kind: fields - _MADE for kind, fields in STAYS.items()}
#: Times from which something counts: they move with the loop.
MOMENTS = {"updated_at", "deadline_at", "not_before", "held_until", "due_at", "first_due_at",
           "since", "exported_at"}  # fmt: skip
_KINDS = {
    "loop": r"loop:[\w-]+",
    "job": r"job:[\w-]+",
    "attempt": r"job:[\w-]+:\d+",
    "cycle": r"cycle:.*",
    "escalation": r"escalation:.*",
}
#: What is about all loops or all jobs, or made anew: hints, figures, the stream, the groups.
_FLEET = re.compile(
    r"(loops|loops:(?!events|signals|waiters).*|events|escalations:ended|partitions|figures.*|outbox.*|folded"
    r"|group.*|escalations|watermarks|leases|parked.*|stale|remedy.*|limits|swept_at|late_sweeps"
    r"|loop:[\w-]+:(emitted|reserved)|incarnation:.*|providers|gates|jobs|cycles)"
)


def exported(context: LoopContext, name: str, *, keep: bool = True) -> bytes:
    """Return the archive of a loop. ``keep``: it may go on here."""
    into = io.BytesIO()
    export = save_loop(context, name, into)
    if not keep:
        leave(context, export, "elsewhere", EVE)
    return into.getvalue()


def imported(context: LoopContext, archive: bytes, **destination: Any) -> str:
    """Import a loop; return `written` or `seen`."""
    _, written = load_loop(
        context, io.BytesIO(archive), Destination(**destination), EVE, blob_cap=BLOB_CAP
    )
    return written.status


def whole_state(ledger: RedisLedger, prefix: str) -> dict[str, Any]:
    """Return all that a ledger has of its only loop, without what need not be the same elsewhere.

    That are times from which something counts, and what `OTHER` and `_FLEET` name.
    """
    run, first = ledger.calls.run, keys.partition_prefix(prefix, "p00")
    found: dict[str, Any] = {}
    for key in sorted(run("KEYS", f"{first}*")):
        name = key.removeprefix(first)
        if _FLEET.fullmatch(name):
            continue
        match run("TYPE", key):
            case "hash":
                found[name] = _plain(name, ledger.calls.hashes([key])[0])
            case "list":
                notes = [json.loads(each) for each in run("LRANGE", key, 0, -1)]
                found[name] = [each for each in notes if each["note"] != "imported"]
            case "zset":
                members = run("ZRANGE", key, 0, -1)
                found[name] = sorted(members) if name.startswith("jobs:") else members
            case "set":
                found[name] = sorted(run("SMEMBERS", key))
            case _:
                found[name] = _json(run("GET", key))
    under_way = {*run("ZRANGE", keys.outbox(first), 0, -1), *run("HKEYS", f"{first}parked_behind")}
    found["entries"] = sorted(each for each in under_way if not each.startswith("l:"))
    ended = {name for name, value in found.items() if _has_ended(name, value)}
    return {name: value for name, value in found.items() if value and name not in ended}


def _has_ended(name: str, value: Any) -> bool:
    """Whether it is an escalation that people have dealt with: it stays where that was."""
    return name.startswith("escalation:") and value["state"] != "open"


def _plain(name: str, row: dict[str, str]) -> dict[str, Any]:
    kind = next((k for k, pattern in _KINDS.items() if re.fullmatch(pattern, name)), "")
    left_out = OTHER.get(kind, set()) | MOMENTS
    if name.endswith(":items"):
        return {item: re.sub(r"^(\w+\|)\d+\|", r"\1|", text) for item, text in row.items()}
    if name == "loops:events":
        return dict.fromkeys(row)
    return {
        field: _json(text)
        for field, text in row.items()
        if text != "" and field not in left_out and not _of_worker(field)
    }


def _of_worker(field: str) -> bool:
    """Whether it is about a worker that verified an answer in the old place."""
    return bool(re.fullmatch(r"v(token|claims|hard|shared|faults|faults_last):\d+", field))


def _json(text: str) -> Any:
    return json.loads(text) if text.startswith(("{", "[")) else text
