"""admit: priority, then fair shares, then age."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.policies.loops.admission import Admission, Demand, WaitingItem, admit


def demand(
    loop: str,
    *items: str | WaitingItem,
    priority: int = 5,
    weight: float = 1.0,
    share: float = 0.0,
    room: int = 10,
) -> Demand:
    candidates = [WaitingItem(item=each) if isinstance(each, str) else each for each in items]
    return Demand(
        loop=loop, priority=priority, weight=weight, share=share, room=room, candidates=candidates
    )


def items(admission: Admission) -> list[str]:
    return [each.candidate.item for each in admission.admitted]


def turns(admission: Admission) -> str:
    return "".join(each.loop for each in admission.admitted)


@pytest.mark.parametrize(
    ("demands", "slots", "expected"),
    [
        ([], 2, ""),
        ([demand("a", "1", "2")], 0, ""),
        ([demand("a", "1", "2")], -1, ""),  # a person lowered the slots while items run
        ([demand("a", "1", "2")], 5, "aa"),  # no more than wait
        ([demand("a", "1", "2", "3", room=2)], 5, "aa"),  # its concurrency or its budget
        ([demand("a", "1", room=0), demand("b", "1")], 2, "b"),
        ([demand("a", "1", priority=5), demand("b", "1", priority=1)], 1, "b"),
        # priority before shares: b is far ahead of its share
        ([demand("a", "1", priority=5), demand("b", "1", priority=1, share=9)], 1, "b"),
        # shares before age: a has waited longer, but had more
        (
            [demand("a", WaitingItem(item="1", since=1), share=2),
             demand("b", WaitingItem(item="1", since=9), share=1)],
            1,
            "b",
        ),
        # weight 2 moves by 1/2, weight 1 by 1: a 0, b 0, a 0.5, then a 1 and b 1 by name
        ([demand("a", *"12345", weight=2), demand("b", *"12345")], 6, "abaaba"),
        # 1/4 a step: a 0, b 0, a 0.25, a 0.5, a 0.75, then a 1 and b 1 by name
        ([demand("a", *"1234567", weight=4), demand("b", *"12345")], 6, "abaaaa"),
        # one loop of priority 1 and two of 5: the first takes all that it can use
        (
            [demand("a", *"12", priority=1), demand("b", *"1234", weight=2), demand("c", *"1234")],
            5,
            "aabcb",
        ),
    ],
)  # fmt: skip
def test_who_goes_next(demands: Sequence[Demand], slots: int, expected: str) -> None:
    assert turns(admit(demands, slots)) == expected
    assert admit(demands, slots) == admit(list(reversed(demands)), slots)


def test_within_a_loop_what_began_goes_first_then_priority_then_age() -> None:
    candidates = [
        WaitingItem(item="old", since=1),
        WaitingItem(item="older", since=0),
        WaitingItem(item="urgent", priority=1, since=9),
        WaitingItem(item="begun", priority=9, since=9, job_id="p00-x"),
        WaitingItem(item="as-old", since=1),
    ]
    found = items(admit([demand("a", *candidates)], 5))
    assert found == ["begun", "urgent", "older", "as-old", "old"]


@pytest.mark.parametrize(
    ("demands", "because"),
    [
        ([demand("a", "1")], "no other loop waits"),
        ([demand("a", "1"), demand("b", "1", room=0)], "no other loop waits"),
        ([demand("a", "1", priority=1), demand("b", "1")], "priority 1 before b with 5"),
        (
            [demand("a", "1", weight=2, share=0.5), demand("b", "1", share=1)],
            "share 0.5 (weight 2) before b with 1 (weight 1)",
        ),
        (
            [demand("a", "1", share=1), demand("b", "1", share=1)],
            "share 1, the same as b: in the order of their names",
        ),
    ],
)
def test_an_admission_says_why_it_was_its_turn(demands: list[Demand], because: str) -> None:
    assert admit(demands, 1).admitted[0].because == because


def test_a_loop_that_was_idle_does_not_catch_up() -> None:
    ahead = admit([demand("a", *"123456")], 6)
    assert (ahead.shares, ahead.lines) == ({"a": 6.0}, {5: 5.0})
    both = [demand("a", *"123456", share=6.0), demand("b", *"123456")]
    # b begins at 5, where the line is: it gets one turn more than a, not six
    assert turns(admit(both, 6, ahead.lines)) == "bababa"


def test_each_priority_has_its_own_line() -> None:
    found = admit([demand("a", "1", "2", priority=1), demand("b", "1", priority=7)], 3, {7: 3.0})
    assert found.lines == {1: 1.0, 7: 3.0}
    assert found.shares == {"a": 2.0, "b": 4.0}


# -- in the long run -------------------------------------------------------------------------------


class Fleet:
    """Loops that always have something to do, and slots that become free one at a time."""

    def __init__(self, demands: Mapping[str, Demand]) -> None:
        self.demands = dict(demands)
        self.lines: dict[int, float] = {}
        self.turns: Counter[str] = Counter()

    def admit(self, slots: int, *, idle: str = "") -> None:
        asking = [each for name, each in self.demands.items() if name != idle]
        found = admit(asking, slots, self.lines)
        self.lines = dict(found.lines)
        for name, share in found.shares.items():
            self.demands[name] = replace(self.demands[name], share=share)
        self.turns.update(each.loop for each in found.admitted)


def always(name: str, *, priority: int = 5, weight: float = 1.0) -> Demand:
    candidates = [WaitingItem(item=f"i{n}") for n in range(20)]
    return Demand(loop=name, priority=priority, weight=weight, room=20, candidates=candidates)


def test_three_loops_share_two_slots_as_the_policy_says() -> None:
    """Priorities 1, 5 and 5; weights 2 and 1. The first has four items, one after the other."""
    urgent = Demand(loop="a", priority=1, room=1, candidates=[WaitingItem(item="x")])
    fleet = Fleet({"a": urgent, "b": always("b", weight=2), "c": always("c")})
    for _ in range(4):
        fleet.admit(2)
    assert fleet.turns == {"a": 4, "b": 3, "c": 1}  # one of two slots is left: b c b b
    for _ in range(30):
        fleet.admit(2, idle="a")
    assert fleet.turns - Counter({"a": 4, "b": 3, "c": 1}) == {"b": 40, "c": 20}  # 2 : 1 of 60


@given(
    weights=st.lists(st.integers(1, 8), min_size=2, max_size=5),
    slots=st.lists(st.integers(1, 4), min_size=1, max_size=60),
)
def test_turns_are_proportional_to_weights_within_one(weights: list[int], slots: list[int]) -> None:
    fleet = Fleet({f"l{n}": always(f"l{n}", weight=weight) for n, weight in enumerate(weights)})
    for free in slots:
        fleet.admit(free)
    # Shares are turns / weight. Two loops never differ by more than the longer of their steps.
    for n, weight in enumerate(weights):
        for m, other in enumerate(weights):
            ours, theirs = fleet.turns[f"l{n}"] / weight, fleet.turns[f"l{m}"] / other
            assert ours - theirs <= 1 / weight + 1e-6


@given(
    slots=st.integers(-1, 12),
    rooms=st.lists(st.tuples(st.integers(-1, 5), st.integers(0, 5), st.integers(1, 3)), max_size=5),
)
def test_no_slot_is_given_twice_or_left_free_without_need(
    slots: int, rooms: list[tuple[int, int, int]]
) -> None:
    demands = [
        demand(f"l{n}", *(f"i{k}" for k in range(waiting)), room=room, priority=priority)
        for n, (room, waiting, priority) in enumerate(rooms)
    ]
    found = admit(demands, slots)
    wanted = sum(max(0, min(room, waiting)) for room, waiting, _ in rooms)
    assert len(found.admitted) == max(0, min(slots, wanted))
    assert len({(each.loop, each.candidate.item) for each in found.admitted}) == len(found.admitted)
    per_loop = Counter(each.loop for each in found.admitted)
    assert all(per_loop[each.loop] <= max(0, each.room) for each in demands)
    turns = [each.loop for each in found.admitted]
    priorities = {each.loop: each.priority for each in demands}
    assert [priorities[loop] for loop in turns] == sorted(priorities[loop] for loop in turns)
