"""admit: overdue loops, what urgent loops wait for, and locks on files."""

from __future__ import annotations

from typing import Any

import pytest

from mulligan.policies.coordination.locks import FileLock
from mulligan.policies.loops.admission import Admission, Demand, WaitingItem, admit

#: Seconds after which a loop of priority 1 is overdue.
AGEING = 600.0
NOW = 10_000.0


def waits(
    name: str, minutes: float = 0, *, files: tuple[str, ...] = (), **more: Any
) -> WaitingItem:
    return WaitingItem(item=name, since=NOW - 60 * minutes, files=files, **more)


def demand(loop: str, *items: WaitingItem, priority: int = 5, ago: float = 1e9) -> Demand:
    """``ago``: minutes since the loop got a slot last."""
    return Demand(
        loop=loop,
        priority=priority,
        room=10,
        candidates=items,
        space="repo",
        admitted_at=max(0.0, NOW - 60 * ago),
    )


def names(admission: Admission) -> list[str]:
    return [each.name for each in admission.admitted]


def decide(*demands: Demand, slots: int = 1, locks: tuple[FileLock, ...] = ()) -> Admission:
    return admit(demands, slots, locks=locks, now=NOW, ageing=AGEING)


@pytest.mark.parametrize(
    ("demands", "first"),
    [
        # 5 × 10 min: not yet, and just now
        ([demand("a", waits("x", 49)), demand("b", waits("x"), priority=1)], "b/x"),
        ([demand("a", waits("x", 50)), demand("b", waits("x"), priority=1)], "a/x"),
        # an urgent one is overdue after 10 min: since 5 min, the other one since 1 min
        ([demand("a", waits("x", 51)), demand("b", waits("x", 15), priority=1)], "b/x"),
        # its item has waited for long, but the loop got a slot 20 min ago
        ([demand("a", waits("x", 90), ago=20), demand("b", waits("x"), priority=1)], "b/x"),
        # an urgent loop waits for it
        ([demand("a", waits("x", urgency=1), priority=9), demand("b", waits("x"), priority=2)],
         "a/x"),
        # a person lets it go first
        ([demand("a", waits("x", orders=("first",)), priority=9),
          demand("b", waits("x", 999), priority=1)], "a/x"),
    ],
)  # fmt: skip
def test_who_goes_first(demands: list[Demand], first: str) -> None:
    assert names(decide(*demands)) == [first]
    assert names(decide(*reversed(demands))) == [first]


def test_an_overdue_loop_gets_one_slot_and_waits_anew() -> None:
    slow = demand("slow", waits("1", 60), waits("2", 60))
    urgent = demand("urgent", waits("1"), waits("2"), priority=1)
    assert names(decide(slow, urgent, slots=3)) == ["slow/1", "urgent/1", "urgent/2"]


def test_nothing_is_overdue_without_ageing() -> None:
    demands = [demand("a", waits("x", 999)), demand("b", waits("x"), priority=1)]
    assert names(admit(demands, 1, now=NOW)) == ["b/x"]


def test_an_item_whose_files_are_locked_lets_others_pass() -> None:
    lock = FileLock(job_id="j", loop="c", item="z", space="repo", files=("src/**",))
    found = decide(
        demand("a", waits("x", files=("src/a.py",)), waits("y", files=("docs/a.md",))),
        slots=5,
        locks=(lock,),
    )
    assert names(found) == ["a/y"]
    (denied,) = found.denied
    assert (denied.name, denied.holder, denied.files) == ("a/x", "c/z", "src/a.py")


def test_files_are_granted_all_or_none() -> None:
    """x needs both files: it takes neither while one is locked, and y gets the other one."""
    lock = FileLock(job_id="j", loop="c", item="z", space="repo", files=("one.py",))
    x, y = waits("x", 5, files=("one.py", "two.py")), waits("y", files=("two.py",))
    assert names(decide(demand("a", x, y), slots=5, locks=(lock,))) == ["a/y"]


def test_nobody_takes_files_that_another_item_has_waited_for_too_long() -> None:
    """Otherwise small items that follow each other starve one that needs several files."""
    lock = FileLock(job_id="j", loop="c", item="z", space="repo", files=("one.py",))
    x, y = waits("x", 51, files=("one.py", "two.py")), waits("y", files=("two.py",))
    found = decide(demand("a", x), demand("b", y, priority=1), slots=5, locks=(lock,))
    assert names(found) == []
    assert [(each.name, each.holder, each.reserved) for each in found.denied] == [
        ("a/x", "c/z", False),
        ("b/y", "a/x", True),
    ]
    assert names(decide(demand("a", x), demand("b", y, priority=1), slots=5)) == ["a/x"]


def test_files_of_another_repository_are_other_files() -> None:
    lock = FileLock(job_id="j", loop="c", item="z", space="other", files=("one.py",))
    assert names(decide(demand("a", waits("x", files=("one.py",))), locks=(lock,))) == ["a/x"]


def test_a_person_may_let_an_item_ignore_locks() -> None:
    lock = FileLock(job_id="j", loop="c", item="z", space="repo", files=("one.py",))
    x = waits("x", files=("one.py",), orders=("ignore_locks",))
    assert names(decide(demand("a", x), locks=(lock,))) == ["a/x"]


def test_an_item_that_goes_on_has_its_own_files() -> None:
    lock = FileLock(job_id="j", loop="a", item="x", space="repo", files=("one.py",))
    x = waits("x", files=("one.py",), job_id="j")
    assert names(decide(demand("a", x), locks=(lock,))) == ["a/x"]


def test_an_item_that_has_its_files_goes_before_those_that_wait_for_them() -> None:
    """Given one that gave its slot back for a provider, and an overdue one that wants its file."""
    mine = FileLock(
        job_id="j", loop="b", item="y", space="repo", files=("one.py",), expires=NOW + 600
    )
    x, y = waits("x", 90, files=("one.py",)), waits("y", files=("one.py",), job_id="j")
    found = decide(demand("a", x), demand("b", y), slots=2, locks=(mine,))
    assert names(found) == ["b/y"]
    assert [(each.name, each.holder) for each in found.denied] == [("a/x", "b/y")]
    lapsed = decide(demand("a", x), demand("b", y), slots=2)
    assert names(lapsed) == ["a/x"]
