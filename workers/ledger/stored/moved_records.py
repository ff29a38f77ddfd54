"""The records of a loop that moves to another ledger: which there are, and how each is read.

An archive is no authority: every field is read by its kind, and what is not listed does not move.
A text that is parsed later is written as it was read here, and can be read again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Annotated, Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from mulligan.policies.coordination.order import ItemOrders
from mulligan.policies.cycles.cycle import CycleStatus
from mulligan.policies.failures.failure import VerificationResult
from mulligan.policies.jobs.job import AttemptPlan, JobState, Mode, Output, joined_surrogates
from mulligan.policies.loops.budget import RESOURCES, SHARED_SCOPES
from mulligan.policies.loops.heal_record import HealRecord
from mulligan.policies.loops.merge_batches import MOST_WINDOW
from mulligan.policies.regressions.record import RegressionLog
from mulligan.policies.repair.verdict import Verdict, verdict_from_dict, verdict_to_dict
from mulligan.policies.value import Value
from mulligan.tasks.ports.ledger import LoopNote

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
    "orders": "moves",
    "ready": "made from the items",
    "urgent": "made anew: what waits for it is in the old place",
    "begun": "made from the items",
    "limits": "made from the configuration and the prices of the new place",
    "reserved": "empty: nothing runs when a loop is exported",
    "key": "stays: callers of the new place have other keys",
}

_LONGEST_TEXT = 100_000
#: Characters of a text that is parsed: of a body, of a record, and of a line that a page shows with
#: many others.
_LONGEST_BODY = 20_000_000
_LONGEST_RECORD = 100_000
_LONGEST_LINE = 20_000
#: Of one text: commas and brackets, each of which may be a value.
_MOST_VALUES = 1_000_000
#: Fields of one record: `spent` has one a day for each limit of a day.
_MOST_FIELDS = 10_000
_MOST_CHECKS = 100
_NUMBER = re.compile(r"-?\d{1,15}(\.\d{1,20})?(e[+-]?\d{1,3})?")
#: More than anything that is counted, such as tokens.
_MOST_NUMBER = 1e12
#: Seconds, in the year 2096: a time after that cannot be shown once it has moved.
LATEST = 4e9
#: What answers and programs say: any JSON.
_FREE = frozenset({"evidence", "expected", "actual", "example"})

T = TypeVar("T")
Reader = Callable[[str], Any]


def _text_to(longest: int) -> Reader:
    def read(value: str) -> str:
        if len(value) > longest:
            raise ValueError(f"{len(value):,} characters are too many")
        return value

    return read


_text, _line = _text_to(_LONGEST_TEXT), _text_to(_LONGEST_LINE)


def _number(least: float, most: float) -> Reader:
    def read(value: str) -> float:
        if not _NUMBER.fullmatch(value) or not least <= float(value) <= most:
            raise ValueError(f"{value[:20]!r} is not a number from {least:g} to {most:g}")
        return float(value)

    return read


def _count_to(most: int) -> Reader:
    def read(value: str) -> int:
        if not (value.isascii() and value.isdecimal() and len(value) < 16 and int(value) <= most):
            raise ValueError(f"{value[:20]!r} is not a number up to {most:,}")
        return int(value)

    return read


_amount, _count = _number(0, _MOST_NUMBER), _count_to(10**9)
_known_time = _number(0, LATEST * 1000)


def _time(value: str) -> float:
    """Read a time in milliseconds. An empty one is not known."""
    return float(_known_time(value)) if value else 0.0


def _moment(value: str) -> float:
    """Read a time that is ahead, or from which something counts: it moves with the loop."""
    return float(_known_time(value))


def _amounts(value: str) -> None:
    """Check `tokens|money|seconds`, of which any may be unknown: see amounts.py."""
    parts = value.split("|")
    if value and len(parts) != 3:
        raise ValueError("is not what an attempt used")
    for each in filter(None, parts):
        _amount(each)


def _one_of(*names: str) -> Reader:
    def read(value: str) -> str:
        if value not in names:
            raise ValueError(f"{value[:40]!r} is not one of {', '.join(names)}")
        return value

    return read


def _plain_json(text: str, longest: int) -> str:
    """Return JSON that every reader understands: no number without end, no half of a pair."""
    if len(text) > longest or sum(map(text.count, ",[{")) > _MOST_VALUES:
        raise ValueError(f"{len(text):,} characters are too many")
    found = json.loads(text, parse_constant=str)
    return joined_surrogates(json.dumps(found, ensure_ascii=False, allow_nan=False))


def _numbers(value: Any) -> Iterator[float]:
    match value:
        case dict():
            for name, each in value.items():
                yield from () if name in _FREE else _numbers(each)
        case list():
            for each in value:
                yield from _numbers(each)
        case int() | float():
            yield value


def parsed(
    read: Callable[[str], T], *, longest: int = _LONGEST_BODY, most: float = _MOST_NUMBER
) -> Callable[[str], T]:
    """Return a reader of JSON. What it returns is what is read again once it is stored."""

    def read_it(text: str) -> T:
        stored = stored_text(read(_plain_json(text, longest)), text)
        if any(not -1 <= each <= most for each in _numbers(json.loads(stored))):
            raise ValueError(f"has a number that is not from -1 to {most:g}")
        return read(stored)

    return read_it


def stored_text(value: Any, text: str) -> str:
    """Return what was read as the ledger stores it; ``text``: what it was read from."""
    match value:
        case HealRecord() | ItemOrders():
            return value.as_json()
        case LoopNote():
            return _compact(asdict(value))
        case RegressionLog():
            return value.to_text()
        case BaseModel():
            return value.model_dump_json(exclude_defaults=True)
        case Verdict():
            return _compact(verdict_to_dict(value))
        case dict():
            return _compact(value)
    return text


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _body(model: type[BaseModel]) -> Reader:
    return parsed(model.model_validate_json)


_VERDICT = TypeAdapter[Any](
    tuple[
        Annotated[float, Field(ge=0, le=100)] | None,
        tuple[str, ...],
        tuple[str, ...],
        dict[str, str],
    ]
)


def _verdict(value: str) -> Verdict:
    found = json.loads(value)
    if not isinstance(found, dict):
        raise ValueError("is not an object")  # noqa: TRY004 - all that is wrong is one error
    try:
        read = verdict_from_dict(found)
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"is not a verdict ({type(error).__name__})") from None
    decision = asdict(read.decision) if read.decision else {}
    _VERDICT.validate_python((read.score, read.coercions, read.signatures, decision), strict=True)
    return read


class _CycleMetadata(Value):
    """What a cycle is about. Pages read all of it."""

    model_config = ConfigDict(frozen=True, extra="ignore", str_max_length=_LONGEST_LINE)

    taskType: str = ""
    prompt: str = ""
    targetNodes: tuple[str, ...] = Field(default=(), max_length=100)
    causeLabel: str = ""

    @classmethod
    def read(cls, text: str) -> dict[str, Any]:
        return cls.model_validate_json(text).model_dump(mode="json")


_Reason = Annotated[str, Field(max_length=200)]
_INVALID = TypeAdapter(Annotated[dict[_Reason, Annotated[int, Field(ge=0)]], Field(max_length=100)])


def _indices(value: str) -> list[int]:
    found = value.split()
    if len(found) > _MOST_CHECKS:
        raise ValueError(f"names more than {_MOST_CHECKS} checks")
    return [_count_to(_MOST_CHECKS)(each) for each in found]


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


read_note = parsed(TypeAdapter(LoopNote).validate_json, longest=_LONGEST_LINE, most=LATEST)
read_heal = parsed(TypeAdapter(HealRecord).validate_json, longest=_LONGEST_RECORD, most=LATEST)
read_order = parsed(TypeAdapter(ItemOrders).validate_json, longest=_LONGEST_RECORD, most=LATEST)

LOOP: Mapping[str, Reader] = {
    "state": _one_of("created", "waiting", "paused", "blocked", "completed", "stopped"),
    "since": _moment,
    "reason": _text,
    "paused_by": _one_of("", "person", "budget", "monitor"),
    "created_at": _known_time,
    "started_at": _time,
    "finished_at": _time,
    "delivered": _text,
    "delivery_problem": _text,
    "merge_window": _count_to(MOST_WINDOW),
    "regressions": parsed(_regressions, longest=_LONGEST_RECORD * 50, most=LATEST),
}
SPENT: Mapping[str, Reader] = {
    **{f"{scope}:{what}": _amount for scope in SHARED_SCOPES for what in RESOURCES},
    **{f"unknown:{what}": _count for what in RESOURCES},
    "day": _count,
}  # fmt: skip
#: Of a job. What is not listed follows from the loop's configuration and the item.
JOB: Mapping[str, Reader] = {
    "state": _one_of(*get_args(JobState)),
    **dict.fromkeys(("attempt", "loop", "past_loops", "best"), _count),
    "best_success": _count_to(1),
    "best_score": _number(-1, 100),
    **dict.fromkeys(("tokens", "spent_tokens"), _count_to(int(_MOST_NUMBER))),
    **dict.fromkeys(
        ("seconds", "repair_seconds", "money", "spent_seconds", "spent_money",
         "charged:tokens", "charged:money", "charged:seconds"), _amount
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
    "verdict": parsed(_verdict),
    **dict.fromkeys(("queued_at", "started_at", "claimed_at", "settled_at", "output_at"), _time),
    **dict.fromkeys(("not_before", "held_until"), _moment),
    **dict.fromkeys(("claims", "faults"), _count),
    "merge": _count_to(_MOST_CHECKS),
    **dict.fromkeys(("worker", "faults_last", "held_up", "output_by"), _text),
    "metered": _amounts,
    "shared": _one_of("", "1"),
    "verifications": _indices,
}
#: Which warning of a limit was given.
_WARNING = re.compile(r"warned:(loop|day):(tokens|money|seconds)(:\d{1,10})?")
_RESULT = re.compile(r"result:\d{1,2}")
CYCLE: Mapping[str, Reader] = {
    "status": _one_of(*(each.value for each in CycleStatus)),
    "source_attempt": _count,
    "loop_index": _count,
    "metadata": parsed(_CycleMetadata.read),
    "created_at": _known_time,
    **dict.fromkeys(("immediate_at", "ended_at"), _time),
    **dict.fromkeys(("due_at", "first_due_at"), _moment),
    **dict.fromkeys(("immediate_attempt_id", "reason"), _line),
    "score": lambda value: _number(0, 100)(value) if value else None,
    "delayed_valid": _one_of("", "1"),
    "delayed_invalid": parsed(_INVALID.validate_json),
    "output": _body(Output),
    "checks": _count,
}
ESCALATION: Mapping[str, Reader] = dict.fromkeys(
    ("reason", "signature", "kind", "detail", "cycle_id"), _line
)


def moving(row: Mapping[str, str], fields: Mapping[str, Reader]) -> dict[str, str]:
    """Return the fields of a record that move."""
    return {name: value for name, value in row.items() if _reader(fields, name) is not None}


def check_fields(row: Any, fields: Mapping[str, Reader], *needed: str) -> dict[str, Any]:
    """Read every field of a record of an archive. Raises ValueError, which names the field."""
    if not isinstance(row, dict):
        raise ValueError("is not an object")  # noqa: TRY004 - all that is wrong is one error
    if len(row) > _MOST_FIELDS:
        raise ValueError(f"has more than {_MOST_FIELDS:,} fields")
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


def stored_fields(row: Mapping[str, str], found: Mapping[str, Any]) -> dict[str, str]:
    """Return a record that was read as the ledger stores it."""
    return {name: stored_text(value, row[name]) for name, value in found.items()}


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
