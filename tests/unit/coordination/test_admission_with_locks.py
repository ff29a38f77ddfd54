"""admit with files: nobody shares them, nobody waits for ever, and nobody waits for nothing."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.policies.coordination.locks import FileLock, find_conflict
from mulligan.policies.loops.admission import (
    Demand,
    WaitingItem,
    admit,
    demand_of,
)
from mulligan.policies.path_patterns import shared_file

_FILES = ("a", "/b", "src/**", "src/a", "docs/")
_files = st.lists(st.sampled_from(_FILES), max_size=3, unique=True).map(tuple)


@st.composite
def _demands(draw: st.DrawFn) -> list[Demand]:
    return [
        Demand(
            loop=f"loop{n}",
            priority=draw(st.integers(1, 9)),
            room=draw(st.integers(0, 4)),
            share=draw(st.integers(0, 3)),
            admitted_at=draw(st.integers(0, 50)),
            space=draw(st.sampled_from(["one", "one", "two"])),
            candidates=[
                WaitingItem(item=f"i{i}", since=draw(st.integers(0, 50)), files=draw(_files))
                for i in range(draw(st.integers(0, 4)))
            ],
        )
        for n in range(draw(st.integers(1, 4)))
    ]


def _lock(loop: str, item: str, space: str, files: Sequence[str]) -> FileLock:
    return FileLock(job_id=f"{loop}-{item}", loop=loop, item=item, space=space, files=tuple(files))


_locks = st.lists(
    st.builds(_lock, st.just("other"), st.sampled_from("xyz"), st.just("one"), _files),
    max_size=2,
    unique_by=lambda each: each.item,
)


@given(_demands(), _locks, st.integers(0, 6), st.sampled_from([0.0, 2.0, 600.0]))
def test_nobody_gets_files_that_another_one_has(
    demands: list[Demand], locks: list[FileLock], slots: int, ageing: float
) -> None:
    admission = admit(demands, slots, locks=locks, now=60.0, ageing=ageing)
    granted = [
        lock for each in admission.admitted if (lock := admission.lock_of(each, each.name, now=60))
    ]
    for one, two in combinations([*granted, *locks], 2):
        if one in granted and one.space == two.space:
            assert shared_file(one.files, two.files) is None
    assert len(admission.admitted) <= slots


@given(_demands(), _locks, st.integers(0, 6), st.randoms())
def test_the_order_of_the_loops_changes_nothing(
    demands: list[Demand], locks: list[FileLock], slots: int, chance: random.Random
) -> None:
    other = [
        replace(each, candidates=chance.sample(list(each.candidates), len(each.candidates)))
        for each in chance.sample(demands, len(demands))
    ]
    first, second = (
        admit(each, slots, locks=locks, now=60.0, ageing=3.0) for each in (demands, other)
    )
    assert first.admitted == second.admitted
    assert set(first.denied) == set(second.denied)


@given(_demands(), _locks, st.integers(1, 6))
def test_who_is_denied_would_share_files_with_its_holder(
    demands: list[Demand], locks: list[FileLock], slots: int
) -> None:
    admission = admit(demands, slots, locks=locks, now=60.0, ageing=3.0)
    names = {each.name: each.files for each in locks}
    for demand in demands:
        names |= {f"{demand.loop}/{each.item}": each.files for each in demand.candidates}
    for each in admission.denied:
        assert shared_file(each.candidate.files, names[each.holder]) is not None
        granted = {other.name for other in admission.admitted} | {lock.name for lock in locks}
        assert each.reserved or each.holder in granted


@given(_demands(), _locks)
def test_with_slots_for_all_only_who_is_denied_waits(
    demands: list[Demand], locks: list[FileLock]
) -> None:
    admission = admit(demands, 100, locks=locks, now=60.0, ageing=3.0)
    done = Counter(each.loop for each in admission.admitted)
    done.update(each.loop for each in admission.denied)
    for demand in demands:
        got = sum(each.loop == demand.loop for each in admission.admitted)
        assert got == demand.room or done[demand.loop] == len(demand.candidates)


def _ready(count: int, files: Sequence[str]) -> list[WaitingItem]:
    return [WaitingItem(item=f"i{n}", since=n, files=tuple(files)) for n in range(count)]


@pytest.mark.parametrize("locked", [1, 2, 10, 20])
def test_items_whose_files_are_locked_do_not_hold_up_the_others_of_their_loop(locked: int) -> None:
    """One of a loop runs at once, and two may have begun: those are not the first two only."""
    ready = [*_ready(locked, ["src/**"]), WaitingItem(item="free", since=99.0)]
    demand = demand_of(
        "alpha", priority=5, weight=1, share=0, concurrency=1, live=(), begun=0, affordable=None,
        waiting=(), ready=ready, space="one",
    )  # fmt: skip
    admission = admit([demand], 5, locks=[_lock("other", "x", "one", ["src/a"])])
    assert [each.candidate.item for each in admission.admitted] == ["free"]
    assert len(admission.denied) == locked


def test_no_more_items_begin_than_may_have_begun() -> None:
    begun = WaitingItem(item="begun", job_id="p00-x")
    demand = demand_of(
        "alpha", priority=5, weight=1, share=0, concurrency=4, live=(), begun=7, affordable=None,
        waiting=[begun], ready=_ready(5, ()),
    )  # fmt: skip
    assert [each.candidate.item for each in admit([demand], 9).admitted] == ["begun", "i0"]


@pytest.mark.parametrize("begun", [True, False])
def test_what_a_person_holds_gets_no_slot(begun: bool) -> None:
    """Given an item that has begun and gave its slot back, then it is held as any other."""
    held = WaitingItem(item="held", orders=("hold",), job_id="p00-x" if begun else "")
    waiting, ready = ([held], []) if begun else ([], [held])
    demand = demand_of(
        "alpha", priority=5, weight=1, share=0, concurrency=4, live=(), begun=len(waiting),
        affordable=None, waiting=waiting, ready=[*ready, *_ready(1, ())],
    )  # fmt: skip
    assert [each.candidate.item for each in admit([demand], 9).admitted] == ["i0"]


# -- a long time -----------------------------------------------------------------------------------

_AGEING = 10.0


@pytest.mark.parametrize("seed", range(4))
def test_nobody_waits_beyond_the_bound(seed: int) -> None:
    """A loop whose items could run waits for priority times ageing, then for each other loop once.

    Loops always have more items; each takes 1 to 20 seconds and has files that others want.
    """
    chance, now, number = random.Random(seed), 0.0, 0
    loops = {f"loop{n}": chance.choice([1, 2, 5, 9]) for n in range(5)}
    ready = {loop: list[WaitingItem]() for loop in loops}
    admitted_at = dict.fromkeys(loops, 0.0)
    running: dict[FileLock, float] = {}
    shares: dict[str, float] = {}
    lines: dict[int, float] = {}
    passed_by = {loop: Counter[str]() for loop in loops}
    granted = Counter[str]()
    for _ in range(1500):
        for items in ready.values():
            while len(items) < 3:
                number += 1
                files = tuple(chance.sample(_FILES, chance.choice([0, 1, 1, 2])))
                items.append(WaitingItem(item=f"i{number}", since=now, files=files))
        demands = [
            Demand(
                loop=loop, priority=priority, share=shares.get(loop, 0.0), room=2, space="one",
                candidates=ready[loop], admitted_at=admitted_at[loop],
            )
            for loop, priority in loops.items()
        ]  # fmt: skip
        locks = [each for each in running if each.files]
        admission = admit(demands, 2 - len(running), lines, locks=locks, now=now, ageing=_AGEING)
        shares |= admission.shares
        lines = dict(admission.lines)
        for each in admission.admitted:
            _check_turn(each.loop, ready, loops, admitted_at, locks, passed_by, now)
            ready[each.loop].remove(each.candidate)
            admitted_at[each.loop], passed_by[each.loop] = now, Counter()
            granted[each.loop] += 1
            lock = _lock(each.loop, each.candidate.item, "one", each.candidate.files)
            running[lock] = now + chance.uniform(1, 20)
            locks = [*locks, lock]
        now = min(running.values(), default=now + 1)
        running = {each: end for each, end in running.items() if end > now}
    assert granted.keys() == loops.keys()


def _check_turn(
    taken: str,
    ready: dict[str, list[WaitingItem]],
    loops: dict[str, int],
    admitted_at: dict[str, float],
    locks: Sequence[FileLock],
    passed_by: dict[str, Counter[str]],
    now: float,
) -> None:
    """Check that a loop which could run and is overdue is passed by each other one once."""
    for loop, items in ready.items():
        could_run = [
            each
            for each in items
            if find_conflict("one", each.files, locks) is None
            and max(each.since, admitted_at[loop]) + loops[loop] * _AGEING <= now
            and not _older(ready, loops, each, now)
        ]
        if loop != taken and could_run:
            passed_by[loop][taken] += 1
            assert passed_by[loop][taken] <= 1, f"{taken} goes twice before {loop} at {now}"


def _older(
    ready: dict[str, list[WaitingItem]], loops: dict[str, int], item: WaitingItem, now: float
) -> bool:
    """Whether another one that is overdue waits longer for the same files."""
    return any(
        each.since < item.since
        and now - each.since >= loops[loop] * _AGEING
        and shared_file(each.files, item.files)
        for loop, items in ready.items()
        for each in items
    )
