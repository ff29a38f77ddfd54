"""The size of a pool: it grows at once, shrinks late and keeps within its limits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from celery import bootsteps
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import autoscale
from benchmarks.rig import percentile
from mulligan.policies.scaling import PoolLoad, ScalingDecision, ScalingPolicy, decide
from mulligan.workers.celery.autoscale import (
    QueueAutoscaler,
    QueueSample,
    QueueSampler,
    count_consumers,
)
from mulligan.workers.celery.broker.queue_depth import QueueDepth
from mulligan.workers.celery.heartbeat import StallDetector
from mulligan.workers.ledger.stores.beats import Beat

POLICY = ScalingPolicy(least=2, most=20)
NOW = 1000.0


def load(slots: int, active: int, queued: int, **more: Any) -> PoolLoad:
    return PoolLoad(**{"slots": slots, "active": active, "queued": queued, "share": queued, **more})


@pytest.mark.parametrize(
    ("sample", "size"),
    [
        # It fits: at most 0.9 of the slots are needed.
        (load(10, 9, 0), 10),
        (load(4, 1, 0), 4),  # too large, but not for long enough yet
        # It does not fit: (active + queued) / 0.9, rounded up; at most double while waits are short
        (load(10, 10, 0), 12),
        (load(4, 4, 2), 7),
        (load(4, 4, 100), 8),
        # The oldest entry has waited too long: grow to what fits, without the doubling limit.
        (load(4, 4, 10, oldest=2.0), 16),
        (load(4, 4, 100, oldest=2.0), 20),
        # Other workers take their share, unless the oldest wait shows that they do not.
        (load(4, 4, 12, share=3), 8),
        (load(10, 10, 12, share=1), 13),
        (load(4, 4, 12, share=3, oldest=5.0), 18),
        # A repair without a free slot grows the pool at once, past the doubling and the shares.
        (load(4, 4, 9, share=1, repairs=9), 13),
        (load(4, 3, 1, share=0, repairs=1), 4),  # it has a free slot
        (load(4, 4, 1, share=0, repairs=1), 5),
        # The limits.
        (load(20, 20, 500, repairs=500), 20),
        (load(0, 0, 0), 2),
        (load(1, 0, 0), 2),
        (load(25, 25, 500), 24),  # the largest size has been lowered
    ],
)
def test_the_size_follows_the_load(sample: PoolLoad, size: int) -> None:
    assert decide(ScalingDecision(), sample, now=NOW, policy=POLICY).slots == size


def test_a_quiet_pool_shrinks_by_one_process_at_a_time() -> None:
    """Given 10 slots of which 1 is busy, one ends after 60 quiet seconds, then one every 10 s."""
    state, slots, history = ScalingDecision(), 10, []
    for second in range(0, 200, 5):
        size = decide(state, load(slots, 1, 0), now=NOW + second, policy=POLICY)
        state = size.state
        if size.slots != slots:
            history.append((second, size.slots))
        slots = size.slots
    # 1 busy slot is at most 0.7 of 2 slots, so 3 are one too many and 2 are not.
    assert history == [(60, 9), (70, 8), (80, 7), (90, 6), (100, 5), (110, 4), (120, 3), (130, 2)]


def test_a_moment_of_work_restarts_the_quiet_period() -> None:
    state = decide(ScalingDecision(), load(10, 1, 0), now=NOW, policy=POLICY).state
    state = decide(state, load(10, 8, 0), now=NOW + 59, policy=POLICY).state
    size = decide(state, load(10, 1, 0), now=NOW + 61, policy=POLICY)
    assert size.slots == 10
    assert decide(size.state, load(10, 1, 0), now=NOW + 121, policy=POLICY).slots == 9


@pytest.mark.parametrize("wrong", [{"least": 0}, {"least": 21}, {"low": 0.95}, {"high": 1.1}])
def test_a_policy_that_would_oscillate_is_refused(wrong: dict[str, Any]) -> None:
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
def test_the_size_keeps_its_limits_and_the_busy_slots(sample: PoolLoad) -> None:
    long_quiet = ScalingDecision(calm_since=NOW - 1000)
    for state in (ScalingDecision(), long_quiet):
        size = decide(state, sample, now=NOW, policy=POLICY)
        assert POLICY.least <= size.slots <= POLICY.most
        assert size.slots >= sample.active
        assert size.slots >= sample.slots - 1


@given(loads)
def test_a_pool_that_shrank_does_not_grow_again_at_the_same_load(sample: PoolLoad) -> None:
    smaller = decide(ScalingDecision(calm_since=NOW - 1000), sample, now=NOW, policy=POLICY)
    if smaller.slots < sample.slots:
        same = load(smaller.slots, sample.active, sample.queued, oldest=sample.oldest)
        assert decide(smaller.state, same, now=NOW + 1, policy=POLICY).slots == smaller.slots


@given(loads)
def test_a_waiting_repair_gets_a_slot_within_the_limit(sample: PoolLoad) -> None:
    size = decide(ScalingDecision(), sample, now=NOW, policy=POLICY)
    assert size.slots >= min(sample.active + sample.repairs, POLICY.most)


def test_reserved_tasks_that_have_not_started_count_as_queued() -> None:
    queues = QueueSample(
        at=0.0,
        waiting={
            "repair": QueueDepth(depth=3, oldest_seconds=0.5),
            "attempt": QueueDepth(depth=10, oldest_seconds=4.0),
        },
        consumers={"repair": 2, "attempt": 3},
    )
    sample = queues.load(slots=5, active=3, reserved=5)
    assert (sample.queued, sample.share) == (15, 2 + 2 + 4)  # 3/2 and 10/3, rounded up
    assert (sample.repairs, sample.oldest, sample.value) == (3, 4.0, 3.6)


def test_retries_of_agents_count_as_repairs() -> None:
    depth = QueueDepth(depth=3, oldest_seconds=0.5)
    queues = QueueSample(at=0.0, waiting={"agent.repair": depth, "agent": depth}, consumers={})
    assert queues.load(slots=1, active=0, reserved=0).repairs == 3


class FakePool:
    """The part of a prefork pool that an autoscaler uses."""

    def __init__(self, size: int) -> None:
        self.num_processes = size
        self.maintained = 0
        self._pool = SimpleNamespace(_cache={}, _pool=[object()] * size)

    def grow(self, count: int) -> None:
        self.num_processes += count
        self._pool._pool += [object()] * count

    def shrink(self, count: int) -> None:
        """Keep ended processes on the list until the next maintenance."""
        self.num_processes -= count

    def maintain_pool(self) -> None:
        self.maintained += 1
        del self._pool._pool[self.num_processes :]


class AutoscalerCase:
    """An autoscaler between 1 and 8 processes that gets its samples from a test."""

    def __init__(self, pool: Any) -> None:
        self.pool = pool
        self.worker = SimpleNamespace(
            blueprint=SimpleNamespace(state=bootsteps.RUN), max_concurrency=8
        )
        self.latest: QueueSample | None = None
        sampler = QueueSampler(lambda: QueueSample(at=0.0, waiting={}, consumers={}))
        sampler.latest = lambda now: self.latest  # type: ignore[method-assign]
        self.scaler = QueueAutoscaler(pool, 8, 1, worker=self.worker, sampler=sampler, quiet=1e-9)

    def sample(self, depth: int) -> int:
        at = self.latest.at + 1 if self.latest else 1.0
        queue = QueueDepth(depth=depth, oldest_seconds=9.0)
        self.latest = QueueSample(at=at, waiting={"attempt": queue}, consumers={})
        self.scaler.maybe_scale()
        return int(self.pool.num_processes)


def test_each_sample_counts_once_and_limits_what_the_worker_reserves() -> None:
    autoscaler = AutoscalerCase(FakePool(1))
    assert autoscaler.sample(3) == 4  # 3 / 0.9, rounded up
    autoscaler.scaler.maybe_scale()
    assert autoscaler.pool.num_processes == 4
    assert autoscaler.worker.max_concurrency == 4
    autoscaler.worker.blueprint.state = bootsteps.CLOSE
    assert autoscaler.sample(100) == 4, "a worker that is shutting down does not grow"


def test_no_process_ends_during_a_handover_or_while_another_is_ending() -> None:
    autoscaler = AutoscalerCase(FakePool(4))
    autoscaler.sample(0)
    autoscaler.pool._pool._cache[1] = SimpleNamespace(_accepted=False)
    assert autoscaler.sample(0) == 4
    autoscaler.pool._pool._cache[1] = SimpleNamespace(_accepted=True)
    assert autoscaler.sample(0) == 3
    autoscaler.pool.maintain_pool = lambda: None  # the process does not end
    assert [autoscaler.sample(0), autoscaler.sample(0)] == [3, 3]
    del autoscaler.pool.maintain_pool
    assert autoscaler.sample(0) == 2


def test_a_thread_pool_is_not_resized(caplog: pytest.LogCaptureFixture) -> None:
    autoscaler = AutoscalerCase(SimpleNamespace(num_processes=2))
    assert [autoscaler.sample(50), autoscaler.sample(50)] == [2, 2]
    assert caplog.text.count("keeps its 2 slots") == 1


def test_consumers_of_a_queue_are_the_workers_that_serve_it() -> None:
    def beat(name: str, *queues: str) -> Beat:
        return Beat(name=name, pool=name, host="h", pid=1, slots=1, active=0, queues=queues)

    beats = [beat("repair", "repair"), beat("attempt", "repair", "attempt")]
    assert count_consumers(beats, ["repair", "attempt", "verify"]) == {
        "repair": 2,
        "attempt": 1,
        "verify": 1,
    }


@pytest.mark.parametrize(
    ("ticks", "answers", "busy", "stalled"),
    [
        (False, True, False, True),
        (True, True, False, False),  # its event loop runs
        (False, False, False, False),  # cut off: it reconnects when the broker is back
        (False, True, True, False),  # busy: it is never restarted during an attempt
    ],
)
def test_a_worker_is_stalled_if_it_is_idle_and_only_its_loop_stopped(
    *, ticks: bool, answers: bool, busy: bool, stalled: bool
) -> None:
    stall_detector = StallDetector(broker_answers=lambda: answers, ticked_at=0.0)
    found = False
    for second in range(0, 300, 5):
        if ticks:
            stall_detector.tick(second)
        found = stall_detector.is_stalled(second, busy=busy)
    assert found is stalled


def test_a_worker_has_two_minutes_to_reconnect_to_its_broker() -> None:
    answers = False
    stall_detector = StallDetector(broker_answers=lambda: answers, ticked_at=0.0)
    assert not stall_detector.is_stalled(1000.0, busy=False)
    answers = True
    assert not stall_detector.is_stalled(1005.0, busy=False)
    assert not stall_detector.is_stalled(1120.0, busy=False)
    assert stall_detector.is_stalled(1125.0, busy=False)


@pytest.mark.parametrize(
    ("silent", "answers", "busy", "reason"),
    [
        (29.0, False, False, ""),
        (30.0, True, False, "it hears nothing although its broker answers"),
        (30.0, True, True, ""),  # a solo worker hears nothing while it works
        (30.0, False, True, "its broker cannot be reached"),
    ],
)
def test_a_worker_that_may_hear_nothing_is_not_ready(
    *, silent: float, answers: bool, busy: bool, reason: str
) -> None:
    stall_detector = StallDetector(broker_answers=lambda: answers, ticked_at=0.0)
    assert stall_detector.deafness(silent, busy=busy) == reason


def test_the_simulation_is_deterministic_and_our_policy_costs_less() -> None:
    assert autoscale.rows(7) == autoscale.rows(7)
    messages = autoscale.traffic(7)
    ours, celery = autoscale.ours(messages), autoscale.celery(messages)
    largest = autoscale.fixed(messages, autoscale.MOST)
    for pool in (ours, celery, largest):
        assert len(pool.waits) == len(messages), "every attempt ran once"
        assert len(pool.repair_waits) == sum(message.fails for message in messages)
    assert ours.process_seconds < 0.5 * celery.process_seconds
    assert percentile(ours.waits, 0.95) < percentile(largest.waits, 0.95) + 1
