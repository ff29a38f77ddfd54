"""Which items are due after merges, and up to which commit that has been looked at."""

from __future__ import annotations

from typing import Any

import pytest
from support.loops import item

from mulligan.policies.loops.checkpoints import Checkpoint
from mulligan.policies.loops.loop import ItemRecord, LoopRecord, LoopSnapshot
from mulligan.policies.loops.spec import LoopDocument
from mulligan.policies.regressions.record import Regression, RegressionLog, RegressionRules
from mulligan.tasks.loops.regression_checks import DueItems, due_items


def merge(name: str, commit: str, **fields: Any) -> Checkpoint:
    job = f"job-{name}"
    return Checkpoint(commit=commit, parent=None, at=0, kind="merge", subject="", item=name,
                      job_id=job, name=f"{job}/1", **fields)  # fmt: skip


def due(*merges: Checkpoint, log: RegressionLog | None = None, **states: str) -> DueItems:
    """Return what is due on a branch, the oldest commit first, on which each merge changes a."""
    names = sorted(states)
    loop = {"name": "alpha", "runner": {"kind": "scripted", "answers": ["x"]}}
    items = [item(name, touches=["a"]) for name in names]
    document = LoopDocument.model_validate({"loop": loop, "items": items})
    records = {name: ItemRecord.parse(f"{states[name]}|0|1|job-{name}|") for name in names}
    record = LoopRecord(name="alpha", config=document.loop, regressions=log or RegressionLog())
    snapshot = LoopSnapshot(loop=record, specs=document.items, items=records)
    changed = frozenset({"a"})
    return due_items(snapshot, RegressionRules(), merges[::-1],
                     lambda old, new: changed if old != new else frozenset(), 1.0)  # fmt: skip


def test_what_has_not_passed_yet_is_due_as_soon_as_it_has() -> None:
    """Given a merge whose item has not passed yet, then what came after it is looked at again."""
    line = [merge("a", "c1"), merge("b", "c2"), merge("c", "c3")]
    first = due(*line, a="passed", b="running", c="passed")
    assert (first.items, first.until) == (("a",), "c1")
    looked = RegressionLog(commit=first.until).with_good("c3", "a")
    second = due(*line, a="passed", b="passed", c="passed", log=looked)
    assert (second.items, second.until) == (("b",), "c3")


def test_what_is_being_repaired_is_due_when_that_has_ended() -> None:
    line = [merge("a", "c1"), merge("b", "c2"), merge("c", "c3")]
    opened = Regression(number=1, item="a", runs=1, at=0, good="c1", bad="c2", seen="c2",
                        status="reopened", repairs="b")  # fmt: skip
    log = RegressionLog(commit="c2").with_found(opened)
    states = {"a": "passed", "b": "passed", "c": "passed"}
    first = due(*line, log=log, **states)
    assert (first.items, first.until) == ((), "c2"), "b repairs it"
    ended = log.with_found(opened.ended("gone", now=1.0))
    assert due(*line, log=ended, **states).items == ("a", "b")


@pytest.mark.parametrize(("fields", "expected"), [({}, ()), ({"beside": "x"}, ("b",))])
def test_a_merge_beside_other_groups_is_due(
    fields: dict[str, str], expected: tuple[str, ...]
) -> None:
    line = [merge("a", "c1"), merge("b", "c2", **fields)]
    looked = RegressionLog(commit="c2")
    assert due(*line, a="passed", b="passed", log=looked).items == expected
    assert due(*line, a="passed", b="passed", log=looked.with_good("c2", "b")).items == ()


def test_a_batch_was_verified_at_its_end() -> None:
    line = [merge("a", "c1", batch="c0"), merge("b", "c2", batch="c0"), merge("c", "c3")]
    assert due(*line, a="passed", b="passed", c="passed").items == ("a", "b")
    assert due(*line[:2], a="passed", b="passed").items == ()


def test_an_order_for_an_item_moves_nothing_for_the_others() -> None:
    line = [merge("a", "c1"), merge("b", "c2")]
    log = RegressionLog(commit="c1").with_good("c2", "a").with_asked("b")
    found = due(*line, a="passed", b="passed", log=log)
    assert (found.reason, found.items, found.until) == ("asked", ("b",), "c1")
