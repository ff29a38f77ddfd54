"""The records of a loop that moves to another ledger: which there are, and how each is read.

An archive is no authority: every field is read by its kind, and what is not listed does not move.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, get_args

from pydantic import BaseModel

from mulligan.policies.cycles.cycle import CycleStatus
from mulligan.policies.failures.failure import VerificationResult
from mulligan.policies.jobs.job import AttemptPlan, JobState, Mode, Output
from mulligan.policies.loops.budget import RESOURCES, SHARED_SCOPES
from mulligan.policies.regressions.record import RegressionLog
from mulligan.policies.repair.verdict import verdict_from_dict

#: Every key of a loop below ``loop:<name>`` (see keys.py), and what becomes of it. A test compares
#: the names with keys.py.
PARTS: Mapping[str, str] = {
    "": "moves: see LOOP",
    "items": "moves",
    "spec": "moves",
    "spent": "moves: see SPENT",
    "log": "moves",
    "heals": "moves",
    "seen": "moves",
    "split": "moves",
    "files": "made from the items",
    "emitted": "made anew: what has passed gives off its events in the new place",
    "orders": "stay: they are about what others do in the old place",
    "ready": "made from the items",
    "urgent": "made anew: what waits for it is in the old place",
    "begun": "made from the items",
    "limits": "made from the configuration and the prices of the new place",
    "reserved": "empty: nothing runs when a loop is exported",
    "key": "stays: callers of the new place have other keys",
}

_LONGEST_TEXT = 100_000
_NUMBER = re.compile(r"-?\d{1,15}(\.\d{1,20})?(e[+-]?\d{1,3})?")

Reader = Callable[[str], Any]


def _text(value: str) -> str:
    if len(value) > _LONGEST_TEXT:
        raise ValueError(f"{len(value):,} characters are too many")
    return value


def _count(value: str) -> int:
    if not value.isdecimal() or not value.isascii() or len(value) > 12:
        raise ValueError(f"{value[:20]!r} is not a number")
    return int(value)


def number(value: str) -> float:
    """Read a number. Raises ValueError."""
    if not _NUMBER.fullmatch(value) or not math.isfinite(float(value)):
        raise ValueError(f"{value[:20]!r} is not a number")
    return float(value)


#: Seconds, in the year 2096: a time after that cannot be shown once it has moved.
LATEST = 4e9


def _time(value: str) -> float:
    """Read a time in milliseconds. An empty one is not known."""
    found = number(value) if value else 0.0
    if not 0 <= found <= LATEST * 1000:
        raise ValueError(f"{value!r} is not a time")
    return found


def _known_time(value: str) -> float:
    if not value:
        raise ValueError("a time is missing")
    return _time(value)


def _moment(value: str) -> float:
    """Read a time that is ahead, or from which something counts: it moves with the loop."""
    return _known_time(value)


def _one_of(*names: str) -> Reader:
    def read(value: str) -> str:
        if value not in names:
            raise ValueError(f"{value[:40]!r} is not one of {', '.join(names)}")
        return value

    return read


def _body(model: type[BaseModel]) -> Reader:
    return model.model_validate_json


def _object(value: str) -> dict[str, Any]:
    found = json.loads(value)
    if not isinstance(found, dict):
        raise ValueError("is not an object")  # noqa: TRY004
    return found


def _verdict(value: str) -> Any:
    try:
        return verdict_from_dict(_object(value))
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"is not a verdict ({type(error).__name__})") from None


def _indices(value: str) -> list[int]:
    return [_count(each) for each in value.split()]


def _regressions(value: str) -> RegressionLog:
    found = RegressionLog.model_validate_json(value)
    if found.check is not None or any(each.job_id for each in found.found):
        raise ValueError("a check is under way")
    return found


def without_checks(text: str) -> str:
    """Return what a loop remembers of regressions. A check under way is made again elsewhere."""
    log = RegressionLog.from_text(text)
    found = tuple(each.changed(job_id="", probe="") for each in log.found)
    items = (*log.check.items, *log.check.rest) if log.check else ()
    return log.with_asked(*items).model_copy(update={"check": None, "found": found}).to_text()


LOOP: Mapping[str, Reader] = {
    "state": _one_of("created", "waiting", "paused", "blocked", "completed", "stopped"),
    "since": _moment,
    "reason": _text,
    "paused_by": _one_of("", "person", "budget", "monitor"),
    "created_at": _time,
    "started_at": _time,
    "finished_at": _time,
    "delivered": _text,
    "delivery_problem": _text,
    "regressions": _regressions,
}
SPENT: Mapping[str, Reader] = {
    **{f"{scope}:{what}": number for scope in SHARED_SCOPES for what in RESOURCES},
    **{f"unknown:{what}": _count for what in RESOURCES},
    "day": _count,
}  # fmt: skip
#: Of a job. What is not listed follows from the loop's configuration and the item.
JOB: Mapping[str, Reader] = {
    "state": _one_of(*get_args(JobState)),
    **dict.fromkeys(("attempt", "loop", "past_loops", "best", "best_success"), _count),
    **dict.fromkeys(("tokens", "spent_tokens"), _count),
    **dict.fromkeys(
        ("best_score", "seconds", "repair_seconds", "money", "spent_seconds", "spent_money",
         "charged:tokens", "charged:money", "charged:seconds"), number
    ),
    "created_at": _known_time,
    **dict.fromkeys(("updated_at", "finished_at", "begun_at"), _time),
    "deadline_at": _moment,
    "reason": _text,
    "detail": _text,
    "verify_on": _one_of("verify", "attempt", "agent"),
}  # fmt: skip
ATTEMPT: Mapping[str, Reader] = {
    "mode": _one_of(*get_args(Mode)),
    "state": _one_of("queued", "running", "verifying", "settled"),
    "plan": _body(AttemptPlan),
    "output": _body(Output),
    "verdict": _verdict,
    **dict.fromkeys(("queued_at", "started_at", "claimed_at", "settled_at", "output_at"), _time),
    **dict.fromkeys(("not_before", "held_until"), _moment),
    **dict.fromkeys(("claims", "faults", "merge"), _count),
    **dict.fromkeys(("worker", "faults_last", "held_up", "metered"), _text),
    "output_by": _text,
    "shared": _one_of("", "1"),
    "verifications": _indices,
}
#: Which warning of a limit was given.
_WARNING = re.compile(r"warned:(loop|day):(tokens|money|seconds)(:\d{1,10})?")
_RESULT = re.compile(r"result:\d{1,4}")
CYCLE: Mapping[str, Reader] = {
    "status": _one_of(*(each.value for each in CycleStatus)),
    "source_attempt": _count,
    "loop_index": _count,
    "metadata": _object,
    **dict.fromkeys(("created_at", "immediate_at", "ended_at"), _time),
    **dict.fromkeys(("due_at", "first_due_at"), _moment),
    **dict.fromkeys(("immediate_attempt_id", "reason"), _text),
    "score": lambda value: number(value) if value else None,
    "delayed_valid": _one_of("", "1"),
    "delayed_invalid": json.loads,
    "output": _body(Output),
    "checks": _count,
}
ESCALATION: Mapping[str, Reader] = dict.fromkeys(
    ("reason", "signature", "kind", "detail", "cycle_id"), _text
)


def moving(row: Mapping[str, str], fields: Mapping[str, Reader]) -> dict[str, str]:
    """Return the fields of a record that move."""
    return {name: value for name, value in row.items() if _reader(fields, name) is not None}


def check_fields(row: Any, fields: Mapping[str, Reader], *needed: str) -> dict[str, Any]:
    """Read every field of a record of an archive. Raises ValueError, which names the field."""
    if not isinstance(row, dict):
        raise ValueError("is not an object")  # noqa: TRY004 - all that is wrong is one error
    found = {}
    for name, value in row.items():
        reader = _reader(fields, name)
        if reader is None or not isinstance(value, str):
            raise ValueError(f"{name[:40]!r} is not a field of it")
        try:
            found[name] = reader(value)
        except ValueError as error:
            raise ValueError(f"{name}: {str(error).splitlines()[0]}") from None
    if missing := [name for name in needed if name not in row]:
        raise ValueError(f"{', '.join(missing)}: missing")
    return found


def shifted(row: Mapping[str, str], fields: Mapping[str, Reader], delay: float) -> dict[str, str]:
    """Return a record whose moments are so many seconds later."""
    return {
        name: f"{float(value) + delay * 1000:.3f}"
        if value and _reader(fields, name) is _moment
        else value
        for name, value in row.items()
    }


def _reader(fields: Mapping[str, Reader], name: str) -> Reader | None:
    if fields is ATTEMPT and _RESULT.fullmatch(name):
        return _body(VerificationResult)
    if fields is SPENT and _WARNING.fullmatch(name):
        return _count
    return fields.get(name)
