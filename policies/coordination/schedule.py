"""The order of the items that are ready, and what is recorded about who got a slot and who not."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from itertools import islice
from typing import TypedDict

from mulligan.policies.coordination.critical_path import Weight
from mulligan.policies.coordination.decision import Decision
from mulligan.policies.coordination.locks import Denial
from mulligan.policies.loops.admission import LEAST_URGENT, Admission, Denied, WaitingItem
from mulligan.policies.loops.loop import LoopSnapshot


def ready_items(
    snapshot: LoopSnapshot, weights: Mapping[str, Weight], ageing: float
) -> list[WaitingItem]:
    """Return the items that wait for a slot, as a loop that was planned asks for them.

    Each item on the longest chain after one counts as `ageing` seconds that it has waited longer.
    """
    ready = [
        (place, spec, snapshot.record(spec.id))
        for place, spec in enumerate(snapshot.specs)
        if spec.id in snapshot.items and snapshot.record(spec.id).state == "ready"
    ]
    return [
        WaitingItem(
            item=spec.id,
            priority=spec.priority,
            # A millisecond later than the one before: equal ones go in the order of the specs.
            since=record.since + place / 1000,
            head_start=weights[spec.id].chain * ageing,
            urgency=weights[spec.id].urgency,
            files=snapshot.files(spec),
            orders=snapshot.orders_of(spec.id).words,
        )
        for place, spec, record in ready
    ]


def urgent_items(snapshot: LoopSnapshot, weights: Mapping[str, Weight]) -> dict[str, int]:
    """Return the items that other loops wait for and that wait for a slot, or may later."""
    return {
        item: weight.urgency
        for item, weight in weights.items()
        if weight.urgency < LEAST_URGENT and snapshot.record(item).state in ("ready", "running")
    }


def scored(spec: str, urgent: Mapping[str, int]) -> str:
    """Return what the order of items depends on, besides since when they wait.

    ``spec``: the address of all items. If it has changed, those that are ready are sorted again.
    """
    text = " ".join((spec, *(f"{item}={urgency}" for item, urgency in urgent.items())))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


#: Items of which one plan says that they wait for files.
_MOST_NEWS = 500


class Described(TypedDict):
    """What a write says about an admission."""

    decisions: list[Decision]
    denied: dict[str, str]


def describe_admission(admission: Admission, known: Mapping[str, str]) -> Described:
    """Return the decisions of an admission. ``known``: who was denied files before, and why.

    A denial is recorded once for each wait, however often somebody else has the files.
    """
    changed = (each for each in admission.denied if known.get(each.name) != _why(each))
    news = {each.name: each for each in islice(changed, _MOST_NEWS)}
    slots = [
        Decision(
            kind="slot",
            loop=each.loop,
            item=each.candidate.item,
            text=f"it got a slot: {each.reason}",
            other=each.over,
        )
        for each in admission.admitted
    ]
    denials = [
        Decision(
            kind="denied",
            loop=each.loop,
            item=each.candidate.item,
            text=f"it waits for {each.files}: {{other}} {_has(each)}",
            other=each.holder,
        )
        for each in news.values()
        if each.name not in known
    ]
    return Described(
        decisions=[*slots, *denials], denied={name: _why(each) for name, each in news.items()}
    )


def _has(denied: Denied) -> str:
    return "waits for it longer" if denied.reserved else "changes it"


def _why(denied: Denied) -> str:
    return str(Denial(holder=denied.holder, files=denied.files, reserved=denied.reserved))
