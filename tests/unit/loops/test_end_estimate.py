"""When a loop may end: the range, its basis, and when there is too little data for one."""

from __future__ import annotations

from dataclasses import replace
from heapq import heapreplace
from random import Random

import pytest
from support.loop_snapshots import Specs, snapshot

from mulligan.policies.loops.end_estimate import EndEstimate, estimate_end, longest_chain, pace
from mulligan.policies.loops.loop import ItemRecord, LoopSnapshot, LoopState

#: 2027-01-15 08:00:00 UTC.
NOW = 1_800_000_000.0
STATES: dict[str, ItemRecord] = {
    "failed": ItemRecord(state="failed", runs=1),
    "blocked": ItemRecord(state="blocked"),
}


def loop_of(
    *passed: float,
    left: int = 10,
    chain: bool = False,
    state: LoopState = "running",
    since: float = 0.0,
    others: tuple[str, ...] = (),
) -> LoopSnapshot:
    """Return a loop that began 1000 s ago, whose items passed so many seconds ago.

    ``chain``: what is left depends on each other. ``others``: states of further items.
    """
    names = [f"p{n}" for n in range(len(passed))]
    rest = [f"r{n}" for n in range(left)]
    after = dict(zip(rest[1:], rest, strict=False)) if chain else {}
    items: Specs = {
        **dict.fromkeys(names, ()),
        **{name: (after[name],) if name in after else () for name in rest},
        **dict.fromkeys(others, ()),
    }
    ends = [ItemRecord(state="passed", since=NOW - ago, runs=1) for ago in passed]
    states = {**dict(zip(names, ends, strict=True)), **{each: STATES[each] for each in others}}
    found = snapshot(items, states, state=state, concurrency=1)
    began = NOW - 1000
    return replace(found, loop=replace(found.loop, started_at=began, since=NOW - 1000 + since))


def minutes(found: EndEstimate) -> tuple[float, float]:
    assert found.earliest is not None
    assert found.latest is not None
    return (found.earliest - NOW) / 60, (found.latest - NOW) / 60


EVERY_100_S = tuple(range(900, -1, -100))


def test_a_steady_pace_goes_on() -> None:
    """Given an item every 100 s, ten more need about 1000 s, which the range includes."""
    found = estimate_end(loop_of(*EVERY_100_S), (), NOW)
    earliest, latest = minutes(found)
    assert 0 < earliest < 1000 / 60 < latest < 2 * 1000 / 60
    assert found.items == 10
    assert found.text == "at the pace of the last 10 items: between 08:13 and 08:20 UTC"


def test_more_data_and_steadier_items_give_a_narrower_range() -> None:
    def width(*passed: float) -> float:
        earliest, latest = minutes(estimate_end(loop_of(*passed), (), NOW))
        return latest / earliest

    steady, few, uneven = EVERY_100_S, (200, 100, 0), (900, 890, 880, 400, 390, 380, 370, 20, 10, 0)
    assert width(*steady) < width(*few)
    assert width(*steady) < width(*uneven)


def test_a_loop_in_which_nothing_passes_any_more_ends_later_and_later() -> None:
    ends = [minutes(estimate_end(loop_of(990, 980, 970), (), NOW + later))[1] for later in (0, 900)]
    assert ends[1] - ends[0] > 900 / 60


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (loop_of(), "too little data: none of 10 items passed in this loop, an estimate needs 3"),
        (
            loop_of(20, 10),
            "too little data: 2 of 12 items passed in this loop, an estimate needs 3",
        ),
        (loop_of(left=10, state="created"), "; it was not started"),
        (loop_of(30, 20, 10, left=0, state="completed", since=1000), "it ended at 08:00 UTC"),
        (
            loop_of(30, 20, 10, left=0, others=("failed", "blocked"), state="blocked"),
            "no item is left to run: 2 items are blocked or failed",
        ),
    ],
)
def test_without_an_estimate_the_text_says_why(found: LoopSnapshot, text: str) -> None:
    estimate = estimate_end(found, (), NOW)
    assert estimate.text.endswith(text)
    assert (estimate.earliest is None) == (found.loop.state != "completed")


def test_what_cannot_go_on_is_not_included() -> None:
    found = estimate_end(loop_of(*EVERY_100_S, others=("failed", "blocked")), (), NOW)
    assert (found.items, found.not_included) == (10, 2)
    assert found.text.endswith("; 2 items are blocked or failed and not included")
    alone = estimate_end(loop_of(*EVERY_100_S), (), NOW)
    assert (found.earliest, found.latest) == (alone.earliest, alone.latest)


def test_a_paused_loop_has_a_duration_and_no_end() -> None:
    """The time of the pause does not count: it says nothing about the pace."""
    paused = loop_of(*EVERY_100_S, state="paused", since=1000)
    now, later = (estimate_end(paused, (), NOW + waited) for waited in (0, 86400))
    assert now == later
    assert now.earliest is None
    assert now.text.endswith("items: it needs 13 min to 21 min more; it is paused")


def test_time_before_a_loop_was_resumed_does_not_count() -> None:
    """Given a pause from 900 to 200 s ago, the intervals are as if it had not been."""
    intervals, idle = pace(loop_of(950, 900, 150, 100, since=800), NOW)
    assert intervals == [50, 50, 50, 50]
    assert idle == 100


def test_the_window_is_wide_enough_for_what_runs_at_once() -> None:
    found = loop_of(*range(500, 0, -10))
    assert len(pace(found, NOW)[0]) == 10
    wide = found.config.model_copy(update={"concurrency": 12})
    assert len(pace(replace(found, loop=replace(found.loop, config=wide)), NOW)[0]) == 24


def test_a_chain_takes_as_long_as_its_items_one_after_the_other() -> None:
    """Given an item every 100 s so far, five in a row of 10 min each need 50 min."""
    beside = minutes(estimate_end(loop_of(*EVERY_100_S, left=5), [600.0] * 10, NOW))
    chained = estimate_end(loop_of(*EVERY_100_S, left=5, chain=True), [600.0] * 10, NOW)
    assert beside[1] < 30
    assert minutes(chained)[0] < 50 < minutes(chained)[1]
    assert chained.text.startswith("the longest chain has 5 items, at about 10 min each: between")


def simulated(rng: Random, total: int, at_once: int, cut: int) -> tuple[LoopSnapshot, list[float]]:
    """Return a loop after so many of its items, and when each of its items ended.

    Items take 4 min on average; one in six takes more than twice as long.
    """
    free = [0.0] * at_once
    seconds = [rng.lognormvariate(5.2, 0.8) for _ in range(total)]
    ends = [heapreplace(free, free[0] + each) + each for each in seconds]
    done = sorted(range(total), key=ends.__getitem__)[:cut]
    records = {f"i{n}": ItemRecord(state="passed", since=ends[n], runs=1) for n in done}
    found = snapshot({f"i{n}": () for n in range(total)}, records, concurrency=at_once)
    took = [seconds[n] for n in done]
    return replace(found, loop=replace(found.loop, started_at=0.0)), [max(ends), *took]


@pytest.mark.parametrize(("total", "at_once", "cut"), [(30, 1, 10), (60, 4, 20), (60, 4, 50)])
def test_eight_of_ten_loops_end_within_the_range(total: int, at_once: int, cut: int) -> None:
    rng, within = Random(1), 0
    for _ in range(200):
        loop, (end, *seconds) = simulated(rng, total, at_once, cut)
        now = max(record.since for record in loop.items.values())
        found = estimate_end(loop, seconds, now)
        assert found.earliest is not None
        assert found.latest is not None
        within += found.earliest <= end <= found.latest
    assert 140 <= within <= 180  # of 200: a range that always holds would say nothing


def test_an_end_on_another_day_has_its_date() -> None:
    found = estimate_end(loop_of(*EVERY_100_S, left=3000), (), NOW)
    assert "between 01-18 " in found.text


def test_a_caveat_ends_the_text() -> None:
    text = estimate_end(loop_of(*EVERY_100_S), (), NOW, caveat="money may be short").text
    assert text.endswith("; money may be short")


def test_the_longest_chain_has_only_chosen_items() -> None:
    items = {"a": (), "b": ("a",), "c": ("b",), "x": (), "y": ("x", "b"), "z": ("y",), "w": ("z",)}
    found = snapshot(items)
    assert longest_chain(found, set(items)) == ["a", "b", "y", "z", "w"]
    assert longest_chain(found, {"a", "b", "c", "z"}) == ["a", "b", "c"]
    assert longest_chain(found, ()) == []
