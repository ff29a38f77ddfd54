"""admit compares files at a bounded cost, and nobody waits for ever because of it."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from mulligan.policies.coordination.file_index import ComparedFiles, FileIndex
from mulligan.policies.coordination.locks import FileLock
from mulligan.policies.loops.admission import (
    MOST_COMPARED,
    Admission,
    Demand,
    WaitingItem,
    admit,
)
from mulligan.policies.loops.spec import MOST_FILE_PATTERNS, MOST_FILES
from mulligan.policies.path_patterns import shared_file

NOW, AGEING = 100_000.0, 600.0


def lock(item: str, files: Sequence[str], loop: str = "other") -> FileLock:
    return FileLock(job_id=f"{loop}-{item}", loop=loop, item=item, space="s", files=tuple(files))


def waits(item: str, files: Sequence[str], minutes: float = 0) -> WaitingItem:
    return WaitingItem(item=item, files=tuple(files), since=NOW - 60 * minutes)


def demand(loop: str, *items: WaitingItem, priority: int = 5) -> Demand:
    return Demand(loop=loop, priority=priority, room=500, space="s", candidates=items)


def worst(name: str) -> list[str]:
    """Return as many patterns as an item may have, which nothing but comparing tells apart."""
    wildcards = [f"**/*a*/{name}{n}*" for n in range(MOST_FILE_PATTERNS)]
    return [*wildcards, *(f"src/a/{name}/{n}" for n in range(MOST_FILES - MOST_FILE_PATTERNS))]


def plans_until(
    name: str, demands: Sequence[Demand], slots: int, locks: Sequence[FileLock]
) -> tuple[int, Admission]:
    """Admit again and again, as planners do; return after how many times an item is admitted."""
    compared, most = ComparedFiles(), 500
    for plans in range(1, most):
        found = admit(demands, slots, locks=locks, now=NOW, ageing=AGEING, compared=compared)
        if name in {each.name for each in found.admitted}:
            return plans, found
        assert found.is_cut
    raise AssertionError(f"{name} was not admitted in {most} plans")


def test_nobody_waits_for_what_the_items_of_other_loops_cost() -> None:
    """Given 40 items of an urgent loop with the worst patterns, all overdue and none of them free.

    Another loop may compare 50,000 pairs, and needs 30 for each that runs or waits for longer.
    """
    running = [lock(f"r{n}", [*worst(f"r{n}-")[1:], "z/*"]) for n in range(10)]
    greedy = demand(
        "greedy",
        *(waits(f"g{n}", [*worst(f"g{n}-")[1:], "z/*"], 900) for n in range(40)),
        priority=1,
    )
    victim = demand("victim", waits("v", ["/victim.py", "src/v.py"]))
    plans, found = plans_until("victim/v", [greedy, victim], 5, running)
    assert plans == 1
    assert {each.holder for each in found.denied} == {"other/r0"}


def test_an_item_with_the_worst_patterns_is_admitted_after_some_plans() -> None:
    """Given items with 200 patterns that run, and another such one whose files are free.

    For each of them it takes 30 x 200 + 30 x 170 pairs and 60 steps: 11,160 of the 100,000 in a
    plan, which the loops that want files share.
    """
    running = [lock(f"r{n}", worst(f"r{n}-")) for n in range(10)]
    free = demand("free", waits("x", worst("x-")))
    assert plans_until("free/x", [free], 1, running)[0] == 2
    others = [demand(f"l{n}", waits("y", worst(f"y{n}-"))) for n in range(4)]
    assert plans_until("free/x", [*others, free], 9, running[:4])[0] <= 5


def test_who_could_not_be_compared_has_no_reason_to_wait() -> None:
    running = [lock(f"r{n}", worst(f"r{n}-")) for n in range(20)]
    found = admit([demand("free", waits("x", worst("x-")))], 5, locks=running, now=NOW)
    assert (found.admitted, found.denied, found.is_cut) == ((), (), True)


def test_items_of_a_loop_that_are_free_get_all_slots() -> None:
    """20 run, 120 wait for a file of one of them, and 160 need what nobody has."""

    def files(name: str, *more: str) -> list[str]:
        folders = ("src", "tests", "docs", "lib", "api", "ui", "etc")
        return [*(f"{name}/{each}*/**" for each in folders), *more]

    running = [
        lock(f"r{n}", files(f"r{n}", "shared/*" if n == 19 else f"x/{n}")) for n in range(20)
    ]
    alpha = demand(
        "alpha",
        *(waits(f"w{n}", files(f"w{n}", "shared/*"), 1) for n in range(120)),
        *(waits(f"f{n}", files(f"f{n}")) for n in range(160)),
    )
    found = admit([alpha], 180, locks=running, now=NOW, ageing=AGEING)
    assert {each.candidate.item[0] for each in found.admitted} == {"f"}
    assert (len(found.admitted), found.is_cut) == (160, False)
    assert {each.holder for each in found.denied} == {"other/r19"}


def test_items_that_share_nothing_get_all_slots_however_they_are_written() -> None:
    """Given 60 slots: 60 x 59 / 2 pairs of items, each with 8 x 8 pairs and 8 steps."""
    items = [waits(f"i{n}", [f"**/part{n}/{each}.py" for each in "abcdefgh"]) for n in range(100)]
    compared = ComparedFiles()
    for _ in range(60 * 59 // 2 * 72 // MOST_COMPARED + 1):
        found = admit([demand("alpha", *items)], 60, now=NOW, compared=compared)
    assert len(found.admitted) == 60


_pattern = st.text("ab/*?", min_size=1, max_size=8)
_patterns = st.lists(_pattern, min_size=1, max_size=4)


@given(st.lists(_patterns, max_size=4), _patterns)
def test_the_index_finds_whoever_shares_a_file(held: list[list[str]], files: list[str]) -> None:
    index = FileIndex(ComparedFiles())
    for number, each in enumerate(held):
        index.add(lock(f"h{number}", each))
    for first in range(len(held) + 1):
        found, _ = index.find(lock("own", files), first=first, most=1000)
        sharing = [f"other/h{n}" for n in range(first) if shared_file(files, held[n])]
        name = found if isinstance(found, str) else found.lock.name
        assert name in (sharing or ["free"])


@given(_patterns, _patterns, st.integers(1, 3))
def test_comparing_in_parts_finds_the_same(one: list[str], two: list[str], most: int) -> None:
    index, found = FileIndex(ComparedFiles()), "unknown"
    index.add(lock("held", two))
    for _ in range(20):
        result, _ = index.find(lock("own", one), first=1, most=most)
        found = result if isinstance(result, str) else "shared"
        if found != "unknown":
            break
    assert found == ("shared" if shared_file(one, two) else "free")
