"""The records of a loop that comes from another ledger, read as what nobody vouches for."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pydantic import ValidationError

from mulligan.policies.coordination.order import ItemOrders
from mulligan.policies.cycles.cycle import TRANSITIONS, CycleStatus, cycle_id
from mulligan.policies.jobs.job import TERMINAL, Job
from mulligan.policies.loops.heal_record import MOST_HEALS
from mulligan.policies.loops.loop import ItemRecord
from mulligan.policies.loops.spec import MOST_FILES, MOST_ITEMS, ItemSpec, LoopConfig
from mulligan.tasks.ports.errors import BadInput
from mulligan.tasks.ports.ledger import ArrivingJob, LoopArrival
from mulligan.workers.ledger.stored.job_ids import item_job_id
from mulligan.workers.ledger.stored.moved_records import (
    ATTEMPT,
    CYCLE,
    ESCALATION,
    JOB,
    LATEST,
    LOOP,
    SPENT,
    Reader,
    check_fields,
    read_heal,
    read_note,
    read_order,
    stored_fields,
    stored_text,
)
from mulligan.workers.ledger.stored.schema import StoredSchema

#: Raised if records cannot be read by an earlier release although its schema is known.
FORMAT = 1
MOST_RUNS = 1000
MOST_ATTEMPTS = 2000
MOST_NOTES = 500
MOST_SIGNATURES = 1000
_LONGEST_SIGNATURE = 300
_LONGEST_NAME = 200
#: Orders that concern nobody but the item. The others decide before whom it goes, or whose files it
#: may change, and only operators give them.
_OWN_ORDERS = ("hold", "ignore_waits")
#: Commas and brackets of all texts, each of which may be a value: one takes a hundred bytes once
#: read.
MOST_VALUES = 5_000_000
_UID = re.compile(r"[\w-]{1,100}")
_KEYS = {"format", "schema", "release", "exported_at", "uid", "loop", "config", "spec", "items",
         "jobs", "spent", "log", "heals", "memory", "seen", "split", "orders",
         "events"}  # fmt: skip
R = TypeVar("R")


@dataclass(frozen=True)
class _Run:
    """A run of an item: what its job's id must be."""

    item: str
    number: int


def read_arrival(records: Any, schema: StoredSchema) -> LoopArrival:
    """Read the records of an export. Raises BadInput, which names the part that is wrong."""
    if not isinstance(records, dict):
        raise BadInput("the records of the loop are not an object")
    _refuse_newer(records, schema)
    if records.keys() != _KEYS:
        wrong = ", ".join(sorted(map(repr, records.keys() ^ _KEYS)))[:200]
        raise BadInput(f"the records of the loop have other parts than expected: {wrong}")
    _part("texts", lambda: _check_texts(records))
    config = _part("config", lambda: LoopConfig.model_validate(records["config"]))
    specs = _part("spec", lambda: _specs(records["spec"]))
    exported_at = _part("exported_at", lambda: _moment(records["exported_at"]))
    uid = _part("uid", lambda: _uid(records["uid"]))
    ids = [spec.id for spec in specs]
    needed = ("state", "since", "created_at")
    read: dict[str, Any] = {
        "loop": _part("loop", lambda: _fields(records["loop"], LOOP, *needed)),
        "spent": _part("spent", lambda: _fields(records["spent"], SPENT)),
        "log": _part("log", lambda: _lines(records["log"], MOST_NOTES, read_note)),
        "heals": _part("heals", lambda: _heals(records["heals"])),
        "orders": _part("orders", lambda: _orders(records["orders"], specs)),
        "events": _part("events", lambda: _events(records["events"], specs)),
    }
    items = _part("items", lambda: _items(records["items"], ids))
    _part("memory", lambda: _memories(records["memory"], ids))
    _part("seen", lambda: _seen(records["seen"], specs))
    _part("split", lambda: _split(records["split"], ids))
    runs = {
        item_job_id(uid, item, run): _Run(item, run)
        for item, record in items.items()
        for run in range(1, record.runs + 1)
    }
    jobs, read["jobs"] = _part("jobs", lambda: _jobs(records["jobs"], runs))
    _part("items", lambda: _check_runs(items, read["jobs"], runs))
    return LoopArrival(
        config=config, specs=specs, jobs=jobs, exported_at=exported_at, records={**records, **read}
    )


def _check_texts(records: Any) -> None:
    """Bound what is parsed later. The ledger has no text with half a surrogate pair."""
    values, left = 0, [records]
    while left:
        match left.pop():
            case dict() as each:
                left += (*each, *each.values())
            case list() as each:
                left += each
            case str() as each:
                each.encode()
                values += sum(map(each.count, ",[{"))
    if values > MOST_VALUES:
        raise ValueError(f"have more than {MOST_VALUES:,} values")


def _refuse_newer(records: Mapping[str, Any], schema: StoredSchema) -> None:
    found = records.get("format"), records.get("schema")
    if not all(isinstance(each, int) for each in found):
        raise BadInput("the records of the loop do not say their format and schema")
    if records["format"] > FORMAT or records["schema"] > schema.number:
        release = str(records.get("release"))[:40]
        raise BadInput(
            f"the loop was exported by version {release!r} (format {found[0]}, schema {found[1]}),"
            f" and this version reads up to format {FORMAT} and schema {schema.number}: update"
            " mulligan here"
        )


def _part(name: str, read: Callable[[], R]) -> R:
    try:
        return read()
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))[:100]
        raise BadInput(f"the archive cannot be read: {name}: {place}: {first['msg']}") from None
    except (
        ValueError,
        ArithmeticError,
        LookupError,
        TypeError,
        AttributeError,
        RecursionError,
    ) as error:
        said = (str(error).splitlines() or [type(error).__name__])[0][:300]
        raise BadInput(f"the archive cannot be read: {name}: {said}") from None


def _moment(value: Any) -> float:
    if not isinstance(value, int | float) or not 0 <= value <= LATEST:
        raise ValueError("is not a time")
    return float(value)


def _uid(value: Any) -> str:
    if not isinstance(value, str) or not _UID.fullmatch(value):
        raise ValueError("is not an identity")
    return value


def _specs(value: Any) -> tuple[ItemSpec, ...]:
    if not isinstance(value, list) or not 1 <= len(value) <= MOST_ITEMS:
        raise ValueError(f"must be a list of 1 to {MOST_ITEMS:,} items")
    return tuple(map(ItemSpec.model_validate, value))


def _list(value: Any, most: int) -> Sequence[Any]:
    if not isinstance(value, list) or len(value) > most:
        raise ValueError(f"must be a list of at most {most:,}")
    return value


def _fields(row: Any, fields: Mapping[str, Reader], *needed: str) -> dict[str, str]:
    return stored_fields(row, check_fields(row, fields, *needed))


def _lines(value: Any, most: int, read: Callable[[str], Any]) -> list[str]:
    return [stored_text(read(each), each) for each in _list(value, most)]


def _heals(value: Any) -> dict[str, str]:
    """Read what was done to heal the loop, by its numbers."""
    found = {}
    for text in _list(value, MOST_HEALS):
        heal = read_heal(text)
        if heal.outcome == "pending" and heal.job_id:
            raise ValueError(f"healing {heal.number} waits for a job that does not move")
        found[str(heal.number)] = heal.as_json()
    return found


def _orders(value: Any, specs: Sequence[ItemSpec]) -> dict[str, str]:
    """Read the orders of items, without those that concern other loops: these are given anew."""
    waits = {spec.id: spec.outer_waits for spec in specs}
    if not isinstance(value, dict) or value.keys() - waits.keys():
        raise ValueError("is not by items")
    found = dict[str, str]()
    for item, text in value.items():
        orders: ItemOrders = read_order(text)
        if len({*orders.words}) < len(orders.said) or {*orders.broken} - {*waits[item]}:
            raise ValueError(f"{item}: an order twice, or a wait that it does not have")
        if any(len(each.by) > _LONGEST_NAME for each in orders.said):
            raise ValueError(f"{item}: the name of a person is too long")
        own = tuple(each for each in orders.said if each.word in _OWN_ORDERS)
        found[item] = replace(orders, said=own).as_json()
    return {item: text for item, text in found.items() if text}


def _events(value: Any, specs: Sequence[ItemSpec]) -> list[str]:
    """Read which events people gave off. The loop waits for each of them."""
    waits = {name for spec in specs for name in spec.waits_for}
    if unknown := set(_list(value, len(waits))) - waits:
        raise ValueError(f"the loop does not wait for {min(map(repr, unknown))[:100]}")
    return sorted(value)


def _items(value: Any, ids: Sequence[str]) -> dict[str, ItemRecord]:
    if not isinstance(value, dict) or value.keys() != set(ids):
        raise ValueError("are not those of the spec")
    found = {item: ItemRecord.parse(text) for item, text in value.items()}
    for item, record in found.items():
        if not (0 <= record.runs <= MOST_RUNS and 0 <= record.since <= LATEST):
            raise ValueError(f"{item}: more than {MOST_RUNS:,} runs, or no time")
        if len(record.reason) > 200:
            raise ValueError(f"{item}: its reason is too long")
    return found


def _memories(value: Any, ids: Sequence[str]) -> None:
    if not isinstance(value, dict) or value.keys() - set(ids):
        raise ValueError("is not by items")
    for memory in value.values():
        if not isinstance(memory, dict) or len(memory) > MOST_SIGNATURES:
            raise ValueError(f"has more than {MOST_SIGNATURES:,} failures")
        if any(len(signature) > _LONGEST_SIGNATURE for signature in memory):
            raise ValueError("has a failure with a long name")
        for count in memory.values():
            if not (isinstance(count, str) and count.isdecimal() and len(count) < 10):
                raise ValueError("has a count that is no number")


def _seen(value: Any, specs: Sequence[ItemSpec]) -> None:
    """Check the files that items were seen to change as if they declared them."""
    known = {spec.id: spec for spec in specs}
    if not isinstance(value, dict) or value.keys() - known.keys():
        raise ValueError("is not by items")
    for item, files in value.items():
        spec = known[item].model_dump(exclude_unset=True)
        ItemSpec.model_validate({**spec, "touches": _list(files, MOST_FILES)})


def _split(value: Any, ids: Sequence[str]) -> None:
    if not isinstance(value, dict) or not {*value, *value.values()}.issubset(ids):
        raise ValueError("does not say which items were split into which")


def _jobs(
    value: Any, runs: Mapping[str, _Run]
) -> tuple[tuple[ArrivingJob, ...], list[dict[str, Any]]]:
    """Read the jobs, and their records as the ledger stores them."""
    found, stored = dict[str, ArrivingJob](), list[dict[str, Any]]()
    for index, row in enumerate(_list(value, MOST_ITEMS * 100)):
        job_id = row["id"]
        if job_id not in runs or job_id in found:
            raise ValueError(f"[{index}]: it is not the job of a run of an item")
        if row.keys() != {"id", "body", "job", "attempts", "cycles", "escalations"}:
            raise ValueError(f"[{index}]: it has other parts than expected")
        try:
            stored.append({**row, **_job(row)})
            body = Job.model_validate_json(row["body"])
        except ValidationError:
            raise
        except ValueError as error:
            raise ValueError(f"[{index}]: {error}") from None
        found[job_id] = ArrivingJob(id=job_id, item=runs[job_id].item, job=body)
    return tuple(found.values()), stored


def _job(row: Mapping[str, Any]) -> dict[str, Any]:
    """Read the records of a job. Nothing of it is counted that did not come along."""
    fields = check_fields(row["job"], JOB, "state", "attempt", "created_at", "deadline_at")
    attempts = _list(row["attempts"], MOST_ATTEMPTS)
    if len(attempts) != fields["attempt"] or not attempts:
        raise ValueError("its attempts are not as many as it says")
    for name in ("loop", "past_loops", "best"):
        if fields.get(name, 0) > len(attempts):
            raise ValueError(f"{name}: is more than its attempts")
    read = [check_fields(each, ATTEMPT, "mode", "state", "queued_at") for each in attempts]
    if fields["state"] not in TERMINAL and read[-1]["state"] != "queued":
        raise ValueError("it runs")
    for number, each in enumerate(read, 1):
        if "plan" in each and each["plan"].number != number:
            raise ValueError(f"the plan of attempt {number} is of another one")
    _check_escalations(row, len(attempts))
    cycles = row["cycles"]
    if len({each["source_attempt"] for each in cycles.values()}) < len(cycles):
        raise ValueError("an attempt has two cycles")
    return {
        "attempts": [*map(stored_fields, attempts, read)],
        "cycles": {
            name: _cycle(row["id"], name, each, len(attempts)) for name, each in cycles.items()
        },
    }


def _cycle(job_id: str, name: str, row: Any, attempts: int) -> dict[str, str]:
    needed = ("status", "source_attempt", "loop_index", "created_at", "metadata")
    found = check_fields(row, CYCLE, *needed)
    source, loop = found["source_attempt"], found["loop_index"]
    if max(source, loop, found.get("checks", 0)) > attempts or min(source, loop) < 1:
        raise ValueError("a cycle is of an attempt that there is not")
    if name != cycle_id(job_id, source, loop):
        raise ValueError("a cycle is not of this job")
    return stored_fields(row, found)


def _check_escalations(row: Mapping[str, Any], attempts: int) -> None:
    for each in _list(row["escalations"], attempts + len(row["cycles"])):
        number = each["attempt"]
        if type(number) is not int or not 1 <= number <= attempts:
            raise ValueError("an escalation is not of this job")
        about = {name: text for name, text in each.items() if name not in ("attempt", "id")}
        found = check_fields(about, ESCALATION, "reason", "signature", "kind", "detail")
        if found.get("cycle_id") and found["cycle_id"] not in row["cycles"]:
            raise ValueError("an escalation is of an unknown cycle")


def _check_runs(
    items: Mapping[str, ItemRecord], jobs: Sequence[Mapping[str, Any]], runs: Mapping[str, _Run]
) -> None:
    """Check that an item runs exactly if its last job has not ended."""
    going_on = {row["id"] for row in jobs if row["job"]["state"] not in TERMINAL}
    for item, record in items.items():
        if record.job_id and runs.get(record.job_id) != _Run(item, record.runs):
            raise ValueError(f"{item}: its job is not that of its last run")
        if (record.state == "running") != (record.job_id in going_on):
            raise ValueError(f"{item}: it is {record.state}, and its job says something else")
        going_on.discard(record.job_id)
    if going_on:
        raise ValueError("a job goes on although its item does not")


def open_cycles(row: Mapping[str, Any]) -> list[str]:
    """Return the cycles of a job that have not ended, the oldest first."""
    return [
        name for name, each in row["cycles"].items() if TRANSITIONS[CycleStatus(each["status"])]
    ]
