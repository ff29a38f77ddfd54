"""The cycle's state machine: only legal transitions, and every status can be reached."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.policies.cycles.cycle import (
    TRANSITIONS,
    CycleStatus,
    IllegalTransition,
    SelfRepairCycle,
    cycle_id,
)
from mulligan.policies.cycles.report import immediate_loop_report

START = SelfRepairCycle(id="j:1:1", job_id="j", source_attempt=1, loop_index=1, created_at=0)


@given(st.lists(st.sampled_from(CycleStatus), max_size=8))
def test_only_legal_transitions_happen(moves: list[CycleStatus]) -> None:
    cycle = START
    for at, to in enumerate(moves):
        if to in TRANSITIONS[cycle.status]:
            cycle = cycle.move(to, at=at)
            assert cycle.status is to
        else:
            with pytest.raises(IllegalTransition):
                cycle.move(to, at=at)
    assert (cycle.ended_at is not None) is not cycle.open


def test_every_status_can_be_reached_from_the_first() -> None:
    reached, frontier = {START.status}, [START.status]
    while frontier:
        for status in TRANSITIONS[frontier.pop()] - reached:
            reached.add(status)
            frontier.append(status)
    assert reached == set(CycleStatus)


def test_a_completed_cycle_has_always_been_retried_first() -> None:
    into_completed = [s for s in CycleStatus if CycleStatus.COMPLETED in TRANSITIONS[s]]
    assert into_completed == [CycleStatus.PENDING_DELAYED_VERIFICATION]


def test_a_cycle_is_named_by_its_source_attempt_and_loop() -> None:
    assert cycle_id("p00-x", 3, 2) == "p00-x:3:2"


def test_the_report_counts_every_retried_cycle_whatever_its_status() -> None:
    done = {"immediate_attempt_id": "j-2", "metadata": {"causeLabel": "json_invalid.fence"}}
    cycles = [
        START,  # pending: no retry yet
        START.model_copy(update={**done, "immediate_at": 60.0, "status": CycleStatus.COMPLETED}),
        START.model_copy(update={**done, "immediate_at": 180.0, "status": CycleStatus.ESCALATED}),
        START.move(CycleStatus.CANCELLED, at=5),
    ]
    report = immediate_loop_report(cycles, now=0, window_days=30)
    assert report["totalCycles"] == 4
    assert report["immediateCompletedCount"] == 2
    assert report["immediateCompletionRate"] == 0.5  # 2 / 4
    assert report["medianImmediateLatencyMinutes"] == 2  # of 1 and 3 minutes
    assert report["statusCounts"] == {
        "pending_immediate_retry": 1,
        "pending_delayed_verification": 0,
        "completed": 1,
        "escalated": 1,
        "cancelled": 1,
    }
    assert report["causeLabels"] == {"unknown": 2, "json_invalid.fence": 2}
    assert report["protocolVersion"] == "self-repair-immediate-v1"
    assert report["windowDays"] == 30


def test_a_report_without_cycles_has_no_rate() -> None:
    report = immediate_loop_report([], now=0, window_days=1)
    assert report["immediateCompletionRate"] is None
    assert report["medianImmediateLatencyMinutes"] is None
