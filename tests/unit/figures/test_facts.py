"""Figures: how events are counted and what a window of them shows. No Redis, no clock."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.policies.figures import cost, trend
from mulligan.policies.figures import facts as figures
from mulligan.policies.figures import failure_ranking as ranking
from mulligan.policies.figures.facts import (
    BEYOND,
    OTHER,
    RETRY_BOUNDS,
    Figure,
    facts,
    fold,
    name,
    parse,
)
from mulligan.policies.figures.failure_ranking import RankingFilter, TechniqueTrial, rank
from mulligan.workers.settings.tenant_settings import ModelPrice

SETTLED: dict[str, Any] = {
    "type": "attempt", "job": "p00-a", "attempt": 1, "state": "settled", "mode": "initial",
    "task_type": "extract", "runner": "small", "model": "m1", "score": 40.0, "success": False,
    "kind": "json_invalid", "cause": "fence", "signature": "v1:s", "next": "immediate_retry",
    "prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15, "seconds": 1.5,
    "technique": None, "cures": None, "labels": {},
}  # fmt: skip


def counted(data: dict[str, Any]) -> dict[str, int]:
    return dict(facts(data).timed)


def added(*events: dict[str, Any]) -> Counter[Figure]:
    """Return the rows of one step, as a reader sees them."""
    total: Counter[Figure] = Counter()
    for data in events:
        for text, n in facts(data).timed:
            total[parse(text)] += n
    return total


def settled(**changes: Any) -> dict[str, Any]:
    return {**SETTLED, **changes}


def ended(state: str, **changes: Any) -> dict[str, Any]:
    return {"type": "job", "job": "p00-a", "state": state, "task_type": "extract", **changes}


# -- fields ----------------------------------------------------------------------------------------


@given(st.lists(st.text(max_size=30).filter(lambda text: text == text.strip()), max_size=6))
def test_any_dimension_survives_its_field_name(dims: list[str]) -> None:
    assert parse(name("use", *dims, measure="ms")) == Figure("use", tuple(dims), "ms")


def test_any_labels_survive_their_text() -> None:
    labels = {"team": "a|b", "stage": "é & 100 %"}
    assert figures.read_labels(figures.labels_text(labels)) == labels
    assert figures.labels_text([]) == ""  # as Lua writes an empty mapping


def test_a_full_bucket_keeps_dimensions_with_few_values() -> None:
    field = name("attempt", "extract", "acme", "initial", "retried", "json_invalid")
    dims = (OTHER, OTHER, "initial", "retried", "json_invalid")
    assert parse(figures.overflow(field)).dims == dims
    assert figures.overflow(name("cycle", "completed")) == name("cycle", "completed")


# -- facts -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        ({"success": True, "next": None}, "success"),
        ({"success": False, "next": "immediate_retry"}, "retried"),
        ({"success": False, "next": None}, "escalated"),
    ],
)
def test_an_attempt_is_counted_by_its_outcome(changes: dict[str, Any], outcome: str) -> None:
    field = name("attempt", "extract", None, "initial", outcome, "json_invalid")
    assert counted(settled(**changes))[field] == 1


def test_a_failure_is_counted_by_its_signature_with_an_example() -> None:
    found = facts(settled(tenant="acme"))
    dims = ("v1:s", "json_invalid", "fence", "extract", "m1", "acme")
    assert dict(found.timed)[name("failure", *dims)] == 1
    assert found.examples == [(name("example", "v1:s", "acme"), "p00-a/1")]


def test_a_success_is_never_counted_as_a_failure() -> None:
    assert not any(f.startswith("failure|") for f in counted(settled(success=True, next=None)))


@pytest.mark.parametrize(
    ("success", "measures"), [(True, {"tried", "repaired"}), (False, {"tried"})]
)
def test_a_repair_technique_counts_tries_and_successes(success: bool, measures: set[str]) -> None:
    rows = added(settled(mode="immediate_retry", cures="v1:s", technique="fix", success=success))
    assert {f.measure for f in rows if f.family == "repair"} == measures


@pytest.mark.parametrize(
    ("usage", "measures"),
    [
        ((10, 5, 15), {"prompt": 10, "completion": 5}),
        ((None, None, 15), {"rest": 15}),  # only the sum is known
        ((10, None, 15), {"rest": 15}),
        ((None, None, None), {"unknown": 1}),  # never 0 tokens
        ((0, 0, 0), {}),  # known to be 0
    ],
)
def test_usage_is_counted_as_reported(
    usage: tuple[int | None, ...], measures: dict[str, int]
) -> None:
    keys = ("prompt_tokens", "completion_tokens", "total_tokens")
    rows = added(settled(**dict(zip(keys, usage, strict=True))))
    found = {f.measure: n for f, n in rows.items() if f.family == "use"}
    assert {m: n for m, n in found.items() if m not in ("n", "ms")} == measures
    assert (found["n"], found["ms"]) == (1, 1500)


@pytest.mark.parametrize(
    ("waited", "bound"), [(0, "1"), (1, "1"), (1.2, "2"), (60_000, "60000"), (60_001, BEYOND)]
)
def test_only_mandatory_retries_are_timed(waited: float, bound: str) -> None:
    start = {"type": "attempt", "state": "running", "mode": "immediate_retry", "waited": waited}
    assert facts({**start, "tenant": "acme"}).timed == [(name("retry", bound, "acme"), 1)]
    assert facts(start).timed == [(name("retry", bound, None), 1)]
    assert (name("retry", bound), 1) in facts(start).total
    assert facts({**start, "mode": "initial"}) == figures.NOTHING


def test_a_requeued_job_is_not_accepted_twice() -> None:
    assert counted(ended("queued"))
    assert not counted(ended("queued", requeued=True))


@pytest.mark.parametrize("data", [{}, {"type": "attempt"}, {"type": "news", "state": "settled"}])
def test_unknown_events_are_ignored(data: dict[str, Any]) -> None:
    assert facts(data) == figures.NOTHING


# -- a batch ---------------------------------------------------------------------------------------


def test_events_count_at_the_time_they_happened() -> None:
    hour = 1_800_000_000 - 1_800_000_000 % 3600
    events = [
        (f"{(hour + 59) * 1000 + 999}-0", settled()),
        (f"{(hour + 60) * 1000}-0", settled()),
        (f"{(hour + 3600) * 1000}-0", settled(job="p00-b")),
    ]
    folded = fold(events, after="0-0")
    assert folded.last == events[-1][0]
    assert list(folded.minutes) == [hour, hour + 60, hour + 3600]
    assert list(folded.hours) == [hour, hour + 3600]
    field = name("attempt", "extract", None, "initial", "retried", "json_invalid")
    assert [rows[field] for rows in folded.hours.values()] == [2, 1]
    assert folded.total[name("attempt", "initial", "retried", "json_invalid")] == 3
    assert folded.examples[hour + 3600] == {name("example", "v1:s", None): "p00-b/1"}


@given(st.lists(st.integers(0, 10**6), max_size=30).map(sorted), st.integers(0, 30))
def test_two_batches_add_up_to_one(times: list[int], cut: int) -> None:
    events = [(f"{ms}-{n}", settled(job=f"j{n}")) for n, ms in enumerate(times)]
    whole = fold(events, after="0-0")
    first, second = fold(events[:cut], after="0-0"), fold(events[cut:], after="0-0")
    assert whole.total == first.total + second.total
    for start, rows in whole.minutes.items():
        assert rows == first.minutes.get(start, Counter()) + second.minutes.get(start, Counter())


# -- failures --------------------------------------------------------------------------------------


def test_the_most_frequent_failure_comes_first_with_its_trend_and_cures() -> None:
    """Given `fence` 3 times now and once before, `type` once now and twice before."""
    schema = {"signature": "v1:t", "kind": "schema_invalid", "cause": "type", "model": None}
    repaired = settled(
        mode="immediate_retry", cures="v1:s", technique="fix", success=True, next=None
    )
    now = [
        added(settled(), settled(task_type="write")),
        added(settled(), settled(**schema), repaired),
    ]
    before = [added(settled(), settled(**schema), settled(**schema))]
    fence, types = rank(now, before)
    assert (fence.signature, fence.count, fence.before, fence.trend) == ("v1:s", 3, 1, 1)
    assert fence.series == (2, 1)
    assert fence.task_types == {"extract": 2, "write": 1}
    assert fence.models == {"m1": 3}
    assert fence.techniques == {"fix": TechniqueTrial(1, 1)}
    assert (types.signature, types.count, types.before, types.trend) == ("v1:t", 1, 2, -1)
    assert (types.models, types.tried.share) == ({}, None)
    assert [each.signature for each in rank(now, before, limit=1)] == ["v1:s"]
    assert ranking.heat(now) == {"json_invalid": {"extract": 2, "write": 1},
                                 "schema_invalid": {"extract": 1}}  # fmt: skip
    assert ranking.techniques(now) == {"fix": TechniqueTrial(1, 1)}


@pytest.mark.parametrize(
    ("choice", "count"),
    [
        (RankingFilter(), 4),
        (RankingFilter(tenant="acme"), 1),
        (RankingFilter(tenant="globex"), 0),
        (RankingFilter(task_type="write"), 1),
        (RankingFilter(model="m2"), 1),
        (RankingFilter(kind="json_invalid", tenant="acme"), 1),
        (RankingFilter(kind="test_failed"), 0),
    ],
)
def test_failures_are_filtered(choice: RankingFilter, count: int) -> None:
    rows = added(settled(), settled(tenant="acme"), settled(task_type="write"), settled(model="m2"))
    assert sum(each.count for each in rank([rows], [], choice=choice)) == count


# -- costs -----------------------------------------------------------------------------------------

PRICES = {
    "small": ModelPrice(prompt=1.0, completion=2.0),
    "flat": ModelPrice(prompt=3.0, completion=3.0),
}


def test_repairs_are_separate_and_unknown_usage_is_not_free() -> None:
    """Per million: 1.0 for prompts, 2.0 for completions of `small`; `big` has no price."""
    rows = added(
        settled(),  # 10 + 5 tokens: 10 * 1 + 5 * 2 = 20 millionths
        settled(mode="immediate_retry", success=True, prompt_tokens=100, completion_tokens=50),
        settled(runner="big", model="m9", prompt_tokens=1000, completion_tokens=0),
        settled(prompt_tokens=None, completion_tokens=None, total_tokens=None),
    )
    line = cost.total([rows], prices=PRICES)
    assert line.first.tokens == 1015
    assert line.first.cost == pytest.approx(20e-6)
    assert line.first.unpriced_tokens == 1000
    assert line.first.unknown == 1
    assert line.repairs.tokens == 150
    assert line.repairs.cost == pytest.approx(200e-6)
    assert line.repairs_share == pytest.approx(150 / 1165)
    assert line.tokens_per_success == 1165
    (big,) = [each for each in cost.lines([rows], by=["runner"], prices=PRICES)
              if each.of == {"runner": "big"}]  # fmt: skip
    assert big.both.cost is None
    assert big.tokens_per_success is None  # no success


@pytest.mark.parametrize(
    ("runner", "model", "expected"),
    [
        ("small", "flat", None),  # priced by runner first; the split of the 15 is unknown
        ("other", "flat", 45e-6),  # by the model: both directions cost the same, 15 * 3
        ("other", "m1", None),
    ],
)
def test_a_sum_of_tokens_has_a_price_only_if_both_directions_cost_the_same(
    runner: str, model: str, expected: float | None
) -> None:
    data = settled(runner=runner, model=model, prompt_tokens=None, completion_tokens=None)
    found = cost.total([added(data)], prices=PRICES).both.cost
    assert found == (None if expected is None else pytest.approx(expected))


def test_costs_are_grouped_by_labels() -> None:
    rows = added(settled(labels={"team": "a"}), settled(labels={"team": "b"}), settled())
    by_team = cost.lines([rows], by=["label:team"], prices={})
    assert [(line.of["label:team"], line.both.attempts) for line in by_team] == [
        ("", 1), ("a", 1), ("b", 1)
    ]  # fmt: skip
    assert cost.lines([], by=["model"], prices={}) == []
    assert cost.total([], prices={}).both.cost == 0, "no attempts cost nothing"


UNKNOWN_USAGE: dict[str, Any] = {
    "prompt_tokens": None,
    "completion_tokens": None,
    "total_tokens": None,
}


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({}, (20e-6, None)),
        ({"runner": "big", "model": "m9"}, (None, "price")),
        (UNKNOWN_USAGE, (None, "usage")),
        ({**UNKNOWN_USAGE, "runner": "big", "model": "m9"}, (None, "usage")),
        ({"prompt_tokens": 0, "completion_tokens": 0, "runner": "big"}, (0, None)),
    ],
)
def test_an_unknown_cost_has_a_reason(
    data: dict[str, Any], expected: tuple[float | None, str | None]
) -> None:
    used = cost.total([added(settled(**data))], prices=PRICES).both
    assert (used.cost, used.why_unpriced) == (
        None if expected[0] is None else pytest.approx(expected[0]), expected[1]
    )  # fmt: skip


def test_successes_with_unknown_usage_do_not_enter_the_average() -> None:
    known, unknown = settled(success=True), settled(success=True, **UNKNOWN_USAGE)
    assert cost.total([added(known, unknown)], prices={}).tokens_per_success == 15
    assert cost.total([added(settled(), unknown)], prices={}).tokens_per_success is None


def test_the_share_of_repairs_is_unknown_if_a_side_is() -> None:
    first, repair = settled(), settled(mode="immediate_retry")
    unknown = settled(mode="immediate_retry", **UNKNOWN_USAGE)
    assert cost.total([added(first, repair)], prices={}).repairs_share == 0.5
    assert cost.total([added(first)], prices={}).repairs_share == 0
    assert cost.total([added(first, unknown)], prices={}).repairs_share is None
    assert cost.total([added(settled(**UNKNOWN_USAGE), repair)], prices={}).repairs_share is None
    assert cost.total([added(first, repair, unknown)], prices={}).repairs_share == 0.5


@pytest.mark.parametrize("by", ["", "colour", "label:", "model,model"])
def test_unknown_groups_are_refused(by: str) -> None:
    with pytest.raises(ValueError, match="group"):
        cost.group_names(by)


# -- outcomes --------------------------------------------------------------------------------------


def test_the_outcomes_of_a_step_are_counted() -> None:
    rows = added(
        ended("succeeded", first_try=True, tokens=5),
        ended("succeeded", first_try=False, tenant="acme"),
        ended("escalated"),
        ended("cancelled"),
        ended("queued"),
    )
    found = trend.outcomes(rows)
    assert (found.first_try, found.repaired, found.escalated, found.ended) == (1, 1, 1, 3)
    assert trend.outcomes(rows, tenant="acme").ended == 1
    assert trend.share(1, 0) is None


@pytest.mark.parametrize(
    ("counts", "share", "expected"),
    [
        ({}, 0.5, None),
        ({10.0: 10}, 0.5, 7.5),  # halfway between 5 and 10
        ({1.0: 1}, 0.99, 0.99),
        ({5.0: 50, 100.0: 50}, 0.99, 99.0),  # 49 of the 50 between 50 and 100
        ({float("inf"): 1}, 0.5, 60_000.0),  # the last bound
    ],
)
def test_percentiles_are_interpolated_in_a_histogram(
    counts: dict[float, int], share: float, expected: float | None
) -> None:
    found = trend.percentile(counts, share, RETRY_BOUNDS)
    assert found == (None if expected is None else pytest.approx(expected))
