"""Figures from events: what one event counts for, and the sums over a batch of events.

A figure is a field of a hash and a whole number. The field is ``family|dimension|…|measure``:

======== ======================================================= ==============================
family   dimensions                                              measures
======== ======================================================= ==============================
attempt  task_type, tenant, mode, outcome, kind                  n
use      task_type, runner, model, tenant, labels, repair        n, ok, unknown, unknown_ok,
                                                                 prompt, completion, rest, ms
failure  signature, kind, cause, task_type, model, tenant        n
repair   signature, technique, tenant                            tried, repaired
job      task_type, tenant, state, first_try                     n, tokens
retry    upper bound in ms, tenant                               n
score    upper bound                                             n, sum (in hundredths)
cycle    status                                                  n
tokens   runner, direction, repair                               n
missed                                                           n
======== ======================================================= ==============================

``attempt``, ``use``, ``failure``, ``repair``, ``job`` and ``retry`` are kept by time; ``attempt``
and ``job`` (without task type and tenant), ``retry`` (without tenant, with a sum), ``score``,
``cycle``, ``tokens`` and ``missed`` are kept as totals.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlencode

#: Replaces the dimensions that a full bucket has no room for.
OTHER = "(other)"
#: Maximum characters of one dimension.
_LONGEST = 120
MINUTE, HOUR = 60, 3600
#: Upper bounds of the retry's waiting time, in ms; beyond the last there is ``inf``.
RETRY_BOUNDS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 30_000, 60_000)
SCORE_BOUNDS = (10, 20, 30, 40, 50, 60, 70, 80, 90, 100)
BEYOND = "inf"

#: The dimensions that a full bucket still keeps: those with few possible values.
_KEPT: Mapping[str, tuple[int, ...]] = {
    "attempt": (2, 3, 4),
    "use": (5,),
    "failure": (1,),
    "repair": (),
    "job": (2, 3),
    "retry": (0,),
    "tokens": (1, 2),
}

Row = tuple[str, int]
Data = Mapping[str, Any]


class Figure(NamedTuple):
    """A parsed field."""

    family: str
    dims: tuple[str, ...]
    measure: str


class Facts(NamedTuple):
    """What one event counts for: by time, in the totals, and as an example of a failure."""

    timed: Sequence[Row] = ()
    total: Sequence[Row] = ()
    examples: Sequence[tuple[str, str]] = ()


NOTHING = Facts()


@dataclass(frozen=True)
class Folded:
    """The sums over a batch of events."""

    #: The id of the last event.
    last: str
    #: Start of the bucket in seconds → field → amount.
    minutes: dict[int, Counter[str]] = field(default_factory=dict)
    hours: dict[int, Counter[str]] = field(default_factory=dict)
    total: Counter[str] = field(default_factory=Counter)
    #: Start of the hour → field → the newest `<job>/<attempt>`.
    examples: dict[int, dict[str, str]] = field(default_factory=dict)


# -- fields ----------------------------------------------------------------------------------------


def name(family: str, *dims: object, measure: str = "n") -> str:
    """Return the field of a figure. A dimension that is None is empty."""
    return "|".join([family, *map(_escaped, dims), measure])


def _escaped(dim: object) -> str:
    text = "" if dim is None else str(dim)[:_LONGEST]
    return text.replace("%", "%25").replace("|", "%7C") if "%" in text or "|" in text else text


def parse(text: str) -> Figure:
    family, *dims, measure = text.split("|")
    if "%" in text:
        dims = [dim.replace("%7C", "|").replace("%25", "%") for dim in dims]
    return Figure(family, tuple(dims), measure)


def overflow(text: str) -> str:
    """Return the field that a figure is counted under when its bucket is full."""
    family, *dims, measure = text.split("|")
    kept = _KEPT.get(family)
    if kept is None:
        return text
    rest = [dim if place in kept else OTHER for place, dim in enumerate(dims)]
    return "|".join([family, *rest, measure])


def labels_text(labels: object) -> str:
    """Return ``a=1&b=2``; empty if it is not a mapping: Lua writes an empty one as a list."""
    return urlencode(sorted(labels.items())) if isinstance(labels, Mapping) else ""


def read_labels(text: str) -> dict[str, str]:
    return dict(parse_qsl(text, keep_blank_values=True))


# -- facts -----------------------------------------------------------------------------------------


def facts(data: Data) -> Facts:
    """Return what one event counts for. An event of an unknown type counts for nothing."""
    match data.get("type"), data.get("state"):
        case "attempt", "settled":
            return _settled(data)
        case "attempt", "running":
            return _started(data)
        case "job", "queued":
            return _accepted(data)
        case "job", "succeeded" | "escalated" | "cancelled":
            return _ended(data)
        case "cycle", _:
            return Facts(total=[(name("cycle", data.get("status")), 1)])
    return NOTHING


def outcome(data: Data) -> str:
    """Return the outcome of an attempt: ``success``, ``retried`` or ``escalated``."""
    if data.get("success"):
        return "success"
    return "retried" if data.get("next") else "escalated"


def _settled(data: Data) -> Facts:
    task_type, tenant, kind = data.get("task_type"), data.get("tenant"), data.get("kind")
    mode, what = data.get("mode"), outcome(data)
    timed = [(name("attempt", task_type, tenant, mode, what, kind), 1), *_use(data)]
    total = [(name("attempt", mode, what, kind), 1), *_tokens(data), *_score(data.get("score"))]
    examples = []
    signature = data.get("signature")
    if signature and not data.get("success"):
        dims = (signature, kind, data.get("cause"), task_type, data.get("model"), tenant)
        timed.append((name("failure", *dims), 1))
        where = f"{data.get('job')}/{data.get('attempt')}"
        examples.append((name("example", signature, tenant), where))
    if cures := data.get("cures"):
        of = (cures, data.get("technique"), tenant)
        timed.append((name("repair", *of, measure="tried"), 1))
        if data.get("success"):
            timed.append((name("repair", *of, measure="repaired"), 1))
    return Facts(timed, total, examples)


def _repair(data: Data) -> str:
    return "no" if data.get("mode") == "initial" else "yes"


def _use(data: Data) -> list[Row]:
    """Count usage. Tokens of unknown direction are ``rest``; without usage, it is ``unknown``."""
    prompt, completion = data.get("prompt_tokens"), data.get("completion_tokens")
    whole = data.get("total_tokens")
    amounts: dict[str, Any] = {"n": 1, "ok": 1 if data.get("success") else 0}
    if prompt is not None and completion is not None:
        amounts |= {"prompt": prompt, "completion": completion}
    elif whole is not None:
        amounts["rest"] = whole
    else:
        amounts |= {"unknown": 1, "unknown_ok": amounts["ok"]}
    amounts["ms"] = round(float(data.get("seconds") or 0) * 1000)
    dims = (data.get("task_type"), data.get("runner"), data.get("model"), data.get("tenant"),
            labels_text(data.get("labels")), _repair(data))  # fmt: skip
    return [(name("use", *dims, measure=what), int(n)) for what, n in amounts.items() if n]


def _tokens(data: Data) -> list[Row]:
    used = {"prompt": data.get("prompt_tokens"), "completion": data.get("completion_tokens")}
    return [
        (name("tokens", data.get("runner"), direction, _repair(data)), int(n))
        for direction, n in used.items()
        if n
    ]


def _score(score: float | None) -> list[Row]:
    if score is None:
        return []
    return [
        (name("score", bound(SCORE_BOUNDS, score)), 1),
        (name("score", measure="sum"), round(score * 100)),
    ]


def _started(data: Data) -> Facts:
    """Count how long a mandatory retry waited. Other starts count for nothing."""
    waited = data.get("waited")
    if data.get("mode") != "immediate_retry" or waited is None:
        return NOTHING
    under = bound(RETRY_BOUNDS, waited)
    return Facts(
        timed=[(name("retry", under, data.get("tenant")), 1)],
        total=[(name("retry", under), 1), (name("retry", measure="sum"), round(waited))],
    )


def _accepted(data: Data) -> Facts:
    if data.get("requeued"):
        return NOTHING
    dims = (data.get("task_type"), data.get("tenant"), "accepted", "")
    return Facts(timed=[(name("job", *dims), 1)], total=[(name("job", "accepted"), 1)])


def _ended(data: Data) -> Facts:
    state = data["state"]
    dims = (data.get("task_type"), data.get("tenant"), state, "1" if data.get("first_try") else "0")
    timed = [(name("job", *dims), 1)]
    if tokens := data.get("tokens"):
        timed.append((name("job", *dims, measure="tokens"), int(tokens)))
    total = [(name("job", state), 1)]
    if state == "escalated":
        total.append((name("escalated", data.get("reason")), 1))
    return Facts(timed=timed, total=total)


def bound(bounds: Sequence[int], value: float) -> str:
    """Return the upper bound for a value, as it is written in a field."""
    place = bisect_left(bounds, value)
    return str(bounds[place]) if place < len(bounds) else BEYOND


# -- a batch ---------------------------------------------------------------------------------------


def second_of(event_id: str) -> int:
    """Return the time of an event, whose id begins with milliseconds."""
    return int(event_id.partition("-")[0]) // 1000


def fold(events: Iterable[tuple[str, Data]], *, after: str) -> Folded:
    """Add up events (id, data) in the order of their ids. ``after`` is the id before the first."""
    minutes: dict[int, Counter[str]] = {}
    hours: dict[int, Counter[str]] = {}
    total: Counter[str] = Counter()
    examples: dict[int, dict[str, str]] = {}
    last = after
    for event_id, data in events:
        last = event_id
        counted = facts(data)
        for row, amount in counted.total:
            total[row] += amount
        if not counted.timed:
            continue
        at = second_of(event_id)
        minute, hour = at - at % MINUTE, at - at % HOUR
        in_minute = minutes.setdefault(minute, Counter())
        in_hour = hours.setdefault(hour, Counter())
        for row, amount in counted.timed:
            in_minute[row] += amount
            in_hour[row] += amount
        if counted.examples:
            examples.setdefault(hour, {}).update(counted.examples)
    return Folded(last, minutes, hours, total, examples)
