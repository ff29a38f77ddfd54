"""How large a pool should be: grows at once, shrinks late, never past its limits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from celery import bootsteps
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import autoscale
from mulligan.policies.scaling import PoolLoad, ScalingDecision, ScalingPolicy, decide
from mulligan.workers.celery.autoscale import (
    QueueAutoscaler,
    QueueSample,
    QueueSampler,
    count_consumers,
)
from mulligan.workers.celery.heartbeat import StallDetector
from mulligan.workers.celery.queue_depth import QueueDepth
from mulligan.workers.ledger.stores.beats import Beat

POLICY = ScalingPolicy(least=2, most=20)
NOW = 1000.0


def load(slots: int, active: int, queued: int, **more: Any) -> PoolLoad:
    return PoolLoad(**{"slots": slots, "active": active, "queued": queued, "share": queued, **more})


@pytest.mark.parametrize(
    ("seen", "size"),
    [
        # It fits: at most 0.9 of the slots are wanted.
        (load(10, 9, 0), 10),
        (load(4, 1, 0), 4),  # too large, but for how long?
        # It does not: (active + queued) / 0.9, rounded up, at most twice as many while it is young.
        (load(10, 10, 0), 12),
        (load(4, 4, 2), 7),
        (load(4, 4, 100), 8),
        # The oldest has waited for too long: what fits, however much that is.
        (load(4, 4, 10, oldest=2.0), 16),
        (load(4, 4, 100, oldest=2.0), 20),
        # Others take their share, unless they evidently do not.
        (load(4, 4, 12, share=3), 8),
        (load(10, 10, 12, share=1), 13),
        (load(4, 4, 12, share=3, oldest=5.0), 18),
        # A repair without a free slot grows the pool now, past the doubling and past shares.
        (load(4, 4, 9, share=1, repairs=9), 13),
        (load(4, 3, 1, share=0, repairs=1), 4),  # it has a free slot
        (load(4, 4, 1, share=0, repairs=1), 5),
        # The limits.
        (load(20, 20, 500, repairs=500), 20),
        (load(0, 0, 0), 2),
        (load(1, 0, 0), 2),
        (load(25, 25, 500), 24),  # the largest size was lowered meanwhile
    ],
)
def test_sizes(seen: PoolLoad, size: int) -> None:
    assert decide(ScalingDecision(), seen, now=NOW, policy=POLICY).slots == size


def test_a_quiet_pool_gives_one_process_back_at_a_time() -> None:
    """Given 10 slots and 1 at work: after 60 s of quiet one goes, then one every 10 s."""
    state, slots, history = ScalingDecision(), 10, []
    for second in range(0, 200, 5):
        size = decide(state, load(slots, 1, 0), now=NOW + second, policy=POLICY)
        state = size.state
        if size.slots != slots:
            history.append((second, size.slots))
        slots = size.slots
    # 1 at work is at most 0.7 of 2 slots, so 3 are one too many; 2 are not.
    assert history == [(60, 9), (70, 8), (80, 7), (90, 6), (100, 5), (110, 4), (120, 3), (130, 2)]


def test_a_moment_of_work_ends_the_quiet() -> None:
    state = decide(ScalingDecision(), load(10, 1, 0), now=NOW, policy=POLICY).state
    state = decide(state, load(10, 8, 0), now=NOW + 59, policy=POLICY).state
    size = decide(state, load(10, 1, 0), now=NOW + 61, policy=POLICY)
    assert size.slots == 10
    assert decide(size.state, load(10, 1, 0), now=NOW + 121, policy=POLICY).slots == 9


@pytest.mark.parametrize("wrong", [{"least": 0}, {"least": 21}, {"low": 0.95}, {"high": 1.1}])
def test_a_policy_that_would_flutter_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="<="):
        ScalingPolicy(**{"least": 2, "most": 20, **wrong})


loads = st.builds(
    lambda slots, active, queued, repairs, oldest: load(
        slots, min(active, slots), queued, repairs=min(repairs, queued), oldest=oldest
    ),
    st.integers(2, 20), st.integers(0, 20), st.integers(0, 200), st.integers(0, 20),
    st.floats(0, 100),
)  # fmt: skip


@given(loads)
def test_never_past_the_limits_and_never_below_what_is_at_work(seen: PoolLoad) -> None:
    long_quiet = ScalingDecision(calm_since=NOW - 1000)
    for state in (ScalingDecision(), long_quiet):
        size = decide(state, seen, now=NOW, policy=POLICY)
        assert POLICY.least <= size.slots <= POLICY.most
        assert size.slots >= seen.active
        assert size.slots >= seen.slots - 1


@given(loads)
def test_what_was_given_back_is_not_wanted_again_for_the_same_load(seen: PoolLoad) -> None:
    smaller = decide(ScalingDecision(calm_since=NOW - 1000), seen, now=NOW, policy=POLICY)
    if smaller.slots < seen.slots:
        again = load(smaller.slots, seen.active, seen.queued, oldest=seen.oldest)
        assert decide(smaller.state, again, now=NOW + 1, policy=POLICY).slots == smaller.slots


@given(loads)
def test_a_waiting_repair_always_gets_a_slot_if_there_is_one_to_be_had(seen: PoolLoad) -> None:
    size = decide(ScalingDecision(), seen, now=NOW, policy=POLICY)
    assert size.slots >= min(seen.active + seen.repairs, POLICY.most)


def test_what_was_taken_and_not_started_still_waits() -> None:
    picture = QueueSample(
        at=0.0,
        waiting={
            "repair": QueueDepth(depth=3, oldest_seconds=0.5),
            "attempt": QueueDepth(depth=10, oldest_seconds=4.0),
        },
        consumers={"repair": 2, "attempt": 3},
    )
    seen = picture.load(slots=5, active=3, reserved=5)
    assert (seen.queued, seen.share) == (15, 2 + 2 + 4)  # 3/2 and 10/3, rounded up
    assert (seen.repairs, seen.oldest, seen.value) == (3, 4.0, 3.6)


class FakePool:
    """As much of a prefork pool as an autoscaler touches."""

    def __init__(self, size: int) -> None:
        self.num_processes = size
        self.maintained = 0
        self._pool = SimpleNamespace(_cache={}, _pool=[object()] * size)

    def grow(self, count: int) -> None:
        self.num_processes += count
        self._pool._pool += [object()] * count

    def shrink(self, count: int) -> None:
        """What is ended stays on the list until somebody looks."""
        self.num_processes -= count

    def maintain_pool(self) -> None:
        self.maintained += 1
        del self._pool._pool[self.num_processes :]


class Story:
    """An autoscaler between 1 and 8, and what it is shown."""

    def __init__(self, pool: Any) -> None:
        self.pool = pool
        self.worker = SimpleNamespace(
            blueprint=SimpleNamespace(state=bootsteps.RUN), max_concurrency=8
        )
        self.shown: QueueSample | None = None
        sampler = QueueSampler(lambda: QueueSample(at=0.0, waiting={}, consumers={}))
        sampler.latest = lambda now: self.shown  # type: ignore[method-assign]
        self.scaler = QueueAutoscaler(pool, 8, 1, worker=self.worker, sampler=sampler, quiet=1e-9)

    def show(self, depth: int) -> int:
        at = self.shown.at + 1 if self.shown else 1.0
        line = QueueDepth(depth=depth, oldest_seconds=9.0)
        self.shown = QueueSample(at=at, waiting={"attempt": line}, consumers={})
        self.scaler.maybe_scale()
        return int(self.pool.num_processes)


def test_each_picture_counts_once_and_no_more_is_taken_than_there_are_processes() -> None:
    story = Story(FakePool(1))
    assert story.show(3) == 4  # 3 / 0.9, rounded up
    story.scaler.maybe_scale()
    assert story.pool.num_processes == 4
    assert story.worker.max_concurrency == 4
    story.worker.blueprint.state = bootsteps.CLOSE
    assert story.show(100) == 4, "a worker that is shutting down does not grow"


def test_nothing_is_ended_while_a_task_is_handed_over_or_one_is_still_ending() -> None:
    story = Story(FakePool(4))
    story.show(0)
    story.pool._pool._cache[1] = SimpleNamespace(_accepted=False)
    assert story.show(0) == 4
    story.pool._pool._cache[1] = SimpleNamespace(_accepted=True)
    assert story.show(0) == 3
    story.pool.maintain_pool = lambda: None  # it does not go
    assert [story.show(0), story.show(0)] == [3, 3]
    del story.pool.maintain_pool
    assert story.show(0) == 2


def test_a_pool_of_threads_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    story = Story(SimpleNamespace(num_processes=2))
    assert [story.show(50), story.show(50)] == [2, 2]
    assert caplog.text.count("keeps its 2 slots") == 1


def test_consumers_are_the_workers_that_serve_a_queue() -> None:
    def beat(name: str, *queues: str) -> Beat:
        return Beat(name=name, pool=name, host="h", pid=1, slots=1, active=0, queues=queues)

    beats = [beat("repair", "repair"), beat("attempt", "repair", "attempt")]
    assert count_consumers(beats, ["repair", "attempt", "verify"]) == {
        "repair": 2,
        "attempt": 1,
        "verify": 1,
    }


@pytest.mark.parametrize(
    ("ticks", "answers", "busy", "deaf"),
    [
        (False, True, False, True),
        (True, True, False, False),  # its loop turns
        (False, False, False, False),  # cut off: it will hear again when the broker is back
        (False, True, True, False),  # at work: it is never restarted in the middle of an attempt
    ],
)
def test_who_is_deaf(*, ticks: bool, answers: bool, busy: bool, deaf: bool) -> None:
    stall_detector = StallDetector(broker_answers=lambda: answers, ticked_at=0.0)
    found = False
    for second in range(0, 300, 5):
        if ticks:
            stall_detector.tick(second)
        found = stall_detector.is_deaf(second, busy=busy)
    assert found is deaf


def test_a_worker_has_two_minutes_to_hear_its_broker_again() -> None:
    answers = False
    stall_detector = StallDetector(broker_answers=lambda: answers, ticked_at=0.0)
    assert not stall_detector.is_deaf(1000.0, busy=False)
    answers = True
    assert not stall_detector.is_deaf(1005.0, busy=False)
    assert not stall_detector.is_deaf(1120.0, busy=False)
    assert stall_detector.is_deaf(1125.0, busy=False)


def test_the_simulation_repeats_itself_and_ours_costs_less() -> None:
    assert autoscale.rows(7) == autoscale.rows(7)
    messages = autoscale.traffic(7)
    ours, celery = autoscale.ours(messages), autoscale.celery(messages)
    largest = autoscale.fixed(messages, autoscale.MOST)
    for pool in (ours, celery, largest):
        assert len(pool.waits) == len(messages), "every attempt ran once"
        assert len(pool.repair_waits) == sum(message.fails for message in messages)
    assert ours.process_seconds < 0.5 * celery.process_seconds
    assert autoscale.percentile(ours.waits, 0.95) < autoscale.percentile(largest.waits, 0.95) + 1
