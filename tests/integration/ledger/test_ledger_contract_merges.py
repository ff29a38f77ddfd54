"""The merge of an attempt: the last verification, one at a time for each loop."""

from __future__ import annotations

from typing import Any

import pytest
from support.jobs import answer
from support.ledger_scenario import Scenario
from support.loops import LoopScenario, item
from support.settlements import escalates, succeeds

from mulligan.policies.failures.failure import VerificationResult, VerificationStatus
from mulligan.policies.loops.merge_batches import START_WINDOW
from mulligan.tasks.loops import plan
from mulligan.tasks.ports.ledger import (
    Claim,
    ClaimRefused,
    Entry,
    Finish,
    ItemRun,
    MergeQueue,
    Publication,
)

PASSED = VerificationResult(status=VerificationStatus.PASS, verifier_id="json.object")
MERGE = 1


@pytest.fixture
def loops(scenario: Scenario) -> LoopScenario:
    return LoopScenario(scenario)


def begin(loops: LoopScenario, name: str, *, loop: str = "alpha") -> list[Publication]:
    """Store an answer of an item, and hand its attempt over to the merge."""
    claim = loops.claim(name, name=loop)
    loops.scenario.ledger.store_output(claim.lease, answer())
    handed = hand_over(loops, claim)
    assert not isinstance(handed, ClaimRefused), handed
    return handed


def hand_over(loops: LoopScenario, claim: Claim) -> list[Publication] | ClaimRefused:
    return loops.scenario.ledger.begin_merge(claim.lease, {0: PASSED}, index=MERGE, priority=5)


def merge_entry(loops: LoopScenario, name: str, *, loop: str = "alpha") -> Entry:
    return Entry("verification", loops.item(name, loop).job_id, 1, MERGE)


def claim_merge(loops: LoopScenario, name: str, *, loop: str = "alpha") -> Claim | ClaimRefused:
    entry = merge_entry(loops, name, loop=loop)
    return loops.scenario.ledger.claim_verification(entry, worker="merger")


def finish(loops: LoopScenario, merge: Claim) -> list[Publication]:
    """Store the merge's result, and settle the attempt."""
    ledger = loops.scenario.ledger
    last = ledger.store_result(merge.lease, PASSED, elapsed=0.1)
    assert isinstance(last, Claim)
    assert last.results == {0: PASSED, MERGE: PASSED}
    return loops.settle(last, succeeds(last))


def started(loops: LoopScenario, *names: str, loop: str = "alpha") -> None:
    loops.create(*(item(name) for name in names), name=loop)
    loops.plan(loop)


def test_the_merge_is_handed_out_with_the_results_so_far(loops: LoopScenario) -> None:
    started(loops, "a")
    assert [each.entry for each in begin(loops, "a")] == [merge_entry(loops, "a")]
    assert loops.refusal("a").reason == "verifying", "nobody runs the attempt meanwhile"
    merge = claim_merge(loops, "a")
    assert isinstance(merge, Claim)
    assert merge.results == {0: PASSED}
    finish(loops, merge)
    assert loops.states() == {"a": "passed"}


def test_a_repeated_call_hands_out_the_same(loops: LoopScenario) -> None:
    started(loops, "a")
    claim = loops.claim("a")
    loops.scenario.ledger.store_output(claim.lease, answer())
    first = hand_over(loops, claim)
    assert hand_over(loops, claim) == first
    assert isinstance(claim_merge(loops, "a"), Claim)


def test_a_worker_whose_lease_is_lost_hands_out_nothing(loops: LoopScenario) -> None:
    started(loops, "a")
    claim = loops.claim("a")
    loops.scenario.ledger.store_output(claim.lease, answer())
    loops.scenario.expire_leases()
    loops.claim("a")
    assert hand_over(loops, claim) == ClaimRefused("lost")


def test_a_job_that_has_ended_is_not_merged(loops: LoopScenario) -> None:
    started(loops, "a")
    claim = loops.claim("a")
    loops.scenario.ledger.store_output(claim.lease, answer())
    loops.scenario.ledger.cancel(claim.job_id)
    assert hand_over(loops, claim) == ClaimRefused("finished")


def test_one_merge_of_a_loop_at_a_time(loops: LoopScenario) -> None:
    """Given a merge that runs, then the next one waits, and follows when it is settled."""
    started(loops, "a", "b")
    begin(loops, "a")
    first = claim_merge(loops, "a")
    assert isinstance(first, Claim)
    assert begin(loops, "b") == [], "nothing is published only to wait"
    assert claim_merge(loops, "b") == ClaimRefused("no_slot", "merge:alpha")
    released = finish(loops, first)
    assert merge_entry(loops, "b") in [each.entry for each in released]
    second = claim_merge(loops, "b")
    assert isinstance(second, Claim)
    finish(loops, second)
    assert loops.states() == {"a": "passed", "b": "passed"}


def test_loops_do_not_wait_for_each_other(loops: LoopScenario) -> None:
    started(loops, "a")
    started(loops, "a", loop="beta")
    begin(loops, "a")
    begin(loops, "a", loop="beta")
    assert isinstance(claim_merge(loops, "a"), Claim)
    assert isinstance(claim_merge(loops, "a", loop="beta"), Claim)


def test_the_place_of_a_lost_merger_is_free_again(loops: LoopScenario) -> None:
    """Given a merger that dies, then its merge or another one can be claimed after its lease."""
    started(loops, "a", "b")
    begin(loops, "a")
    lost = claim_merge(loops, "a")
    begin(loops, "b")
    assert isinstance(lost, Claim)
    loops.scenario.expire_leases()
    merges = [claim_merge(loops, name) for name in ("a", "b")]
    taken = [each for each in merges if isinstance(each, Claim)]
    assert len(taken) == 1, merges
    finish(loops, taken[0])
    loops.scenario.sweep()
    rest = [claim_merge(loops, name) for name in ("a", "b")]
    left = [each for each in rest if isinstance(each, Claim)]
    assert len(left) == 1, rest
    finish(loops, left[0])
    assert loops.states() == {"a": "passed", "b": "passed"}
    assert loops.scenario.ledger.store_result(lost.lease, PASSED, elapsed=0.1) == ClaimRefused(
        "lost"
    )


def test_a_requeued_merge_leaves_its_place_to_others(loops: LoopScenario) -> None:
    """Given a repository that is away, then the merges of others go on."""
    started(loops, "a", "b")
    begin(loops, "a")
    first = claim_merge(loops, "a")
    assert isinstance(first, Claim)
    begin(loops, "b")
    loops.scenario.ledger.requeue(first.lease, delay=10.0, detail="the repository is away")
    assert isinstance(claim_merge(loops, "b"), Claim)
    loops.scenario.advance(11)
    assert claim_merge(loops, "a") == ClaimRefused("no_slot", "merge:alpha")


def test_a_cancelled_merge_frees_its_place_when_its_worker_is_gone(loops: LoopScenario) -> None:
    started(loops, "a", "b")
    begin(loops, "a")
    first = claim_merge(loops, "a")
    assert isinstance(first, Claim)
    begin(loops, "b")
    loops.move("stop")
    loops.scenario.expire_leases()
    loops.scenario.sweep()
    loops.move("start")
    loops.plan()
    begin(loops, "b")
    assert isinstance(claim_merge(loops, "b"), Claim)


def test_a_cancelled_merge_that_was_released_leaves_its_place_to_the_next(
    loops: LoopScenario,
) -> None:
    """Given a merge whose turn has come and that nobody has claimed, when its job is cancelled."""
    started(loops, "a", "b", "c")
    for name in ("a", "b", "c"):
        begin(loops, name)
    first = claim_merge(loops, "a")
    assert isinstance(first, Claim)
    for name in ("b", "c"):
        claim_merge(loops, name)
    assert merge_entry(loops, "b") in [each.entry for each in finish(loops, first)]
    loops.scenario.ledger.cancel(loops.item("b").job_id)
    assert isinstance(claim_merge(loops, "c"), Claim)


def test_an_item_whose_work_was_done_before_is_skipped(loops: LoopScenario) -> None:
    started(loops, "a")
    loops.create(item("first"), item("next", "first"), name="beta")
    loops.plan("beta")
    claim = loops.claim("first", name="beta")
    done = Finish(state="cancelled", reason="already_done")
    loops.settle(claim, escalates(claim).__class__(**{**vars(escalates(claim)), "then": done}))
    loops.plan("beta")
    assert loops.states("beta") == {"first": "skipped", "next": "running"}


# -- batches ---------------------------------------------------------------------------------------


@pytest.fixture
def groups(loops: LoopScenario, monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin the merges of a and b, which are one group, and that of c, which is another."""

    def in_group(**fields: Any) -> ItemRun:
        name = fields["job"].labels["item"]
        return ItemRun(**{**fields, "merge_group": "a" if name in ("a", "b") else name})

    monkeypatch.setattr(plan, "ItemRun", in_group)
    started(loops, "a", "b", "c")
    for name in ("a", "b", "c"):
        begin(loops, name)


def claimed(loops: LoopScenario, name: str) -> Claim:
    merge = claim_merge(loops, name)
    assert isinstance(merge, Claim), merge
    return merge


def queue_of(loops: LoopScenario, name: str) -> MergeQueue:
    return loops.scenario.ledger.read_merges(merge_entry(loops, name))


def waiting(loops: LoopScenario, name: str) -> list[str]:
    """Return what may be merged together with a merge."""
    names = {merge_entry(loops, each): each for each in loops.states() if each != name}
    return [names[entry] for entry in queue_of(loops, name).waiting]


@pytest.mark.usefixtures("groups")
def test_one_merge_of_a_group_at_a_time(loops: LoopScenario) -> None:
    first = claimed(loops, "a")
    assert claim_merge(loops, "b") == ClaimRefused("no_slot", "merge:alpha/a")
    other = claimed(loops, "c")
    released = finish(loops, first)
    assert merge_entry(loops, "b") in [each.entry for each in released]
    finish(loops, claimed(loops, "b"))
    finish(loops, other)


@pytest.mark.usefixtures("groups")
def test_a_merger_reads_what_else_of_its_group_waits(loops: LoopScenario) -> None:
    claimed(loops, "a")
    assert queue_of(loops, "a") == MergeQueue(
        group="a", window=START_WINDOW, waiting=(merge_entry(loops, "b"),)
    )
    claimed(loops, "c")
    assert queue_of(loops, "c") == MergeQueue(group="c", window=START_WINDOW, waiting=())


def test_what_waits_longest_is_read_first(loops: LoopScenario) -> None:
    """Only what has begun its merge is read, and nothing of other loops."""
    started(loops, "a", "b", "c", "d")
    started(loops, "a", loop="beta")
    begin(loops, "a", loop="beta")
    for name in ("c", "a", "b"):
        begin(loops, name)
        loops.scenario.advance(1)
    merge = claimed(loops, "a")
    assert queue_of(loops, "a").group == ""
    assert waiting(loops, "a") == ["c", "b"]
    begin(loops, "d")
    assert waiting(loops, "a") == ["c", "b", "d"]
    loops.scenario.ledger.cancel(loops.item("c").job_id)
    assert waiting(loops, "a") == ["b", "d"]
    finish(loops, merge)
    claimed(loops, "d")
    assert waiting(loops, "d") == ["b"], "what has passed is not merged again"


def test_a_merge_that_was_given_back_may_be_merged_with_others(loops: LoopScenario) -> None:
    started(loops, "a", "b")
    begin(loops, "a")
    begin(loops, "b")
    merge = claimed(loops, "a")
    loops.scenario.ledger.requeue(merge.lease, delay=10.0, detail="the repository is away")
    claimed(loops, "b")
    assert waiting(loops, "b") == ["a"]


def test_a_merge_that_has_lost_a_worker_is_made_alone(loops: LoopScenario) -> None:
    """It may have ended its worker, or what was merged with it: nobody knows."""
    started(loops, "a", "b", "c")
    for name in ("a", "b", "c"):
        begin(loops, name)
    claimed(loops, "a")
    assert waiting(loops, "a") == ["b", "c"]
    loops.scenario.expire_leases()
    loops.scenario.sweep()
    other = claimed(loops, "b")
    assert waiting(loops, "b") == ["c"], "a is in nobody else's batch"
    finish(loops, other)
    again = claimed(loops, "a")
    assert waiting(loops, "a") == []
    loops.scenario.ledger.requeue(again.lease, delay=0.0, detail="the repository is away")
    claimed(loops, "c")
    assert waiting(loops, "c") == [], "giving it back proves nothing"


def test_the_window_is_set_unless_it_has_changed(loops: LoopScenario) -> None:
    started(loops, "a")
    begin(loops, "a")
    ledger = loops.scenario.ledger
    ledger.set_merge_window("alpha", old=START_WINDOW, new=5)
    assert queue_of(loops, "a").window == loops.loop().merge_window == 5
    ledger.set_merge_window("alpha", old=START_WINDOW, new=9)
    assert queue_of(loops, "a").window == 5
    ledger.set_merge_window("nothing", old=START_WINDOW, new=5)
    assert ledger.read_loop("nothing") is None
