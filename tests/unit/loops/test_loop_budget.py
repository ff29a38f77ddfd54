"""Budgets of loops: amounts, caps of attempts, and how many more items fit."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from mulligan.policies.loops.budget import (
    BudgetState,
    LoopBudget,
    Spending,
    attempt_caps,
    breaches,
    parse_amount,
)


def budget(**scopes: Any) -> LoopBudget:
    return LoopBudget.model_validate(scopes)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        (5000, 5000),
        ("5000", 5000),
        ("200k", 200_000),
        ("200K", 200_000),
        ("1.5k", 1500),
        (" 5 M ", 5_000_000),
        ("0.001M", 1000),
    ],
)
def test_amounts(text: Any, tokens: int) -> None:
    assert Spending(tokens=text).tokens == tokens


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lots", "'lots' is not an amount: use 5000, 200k or 5M"),
        ("-5", "'-5' is not an amount"),
        ("5m", "'5m' is not an amount"),  # m is a minute elsewhere
        ("1e6", "'1e6' is not an amount"),
        ("", "'' is not an amount"),
        ("1.5", "valid integer"),
        (0, "greater than or equal to 1"),
        (True, "is not an amount"),
        (float("inf"), "finite"),
        ("9" * 400, "finite"),
    ],
)
def test_what_is_not_an_amount_is_refused(text: Any, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Spending(tokens=text)


@pytest.mark.parametrize(
    "values",
    [{"money": 0}, {"money": True}, {"money": float("inf")}, {"seconds": 0}, {"seconds": "soon"}],
)
def test_other_limits_are_positive(values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Spending.model_validate(values)


def test_what_is_not_text_is_left_to_the_field() -> None:
    assert parse_amount(1.5) == 1.5
    assert parse_amount(None) is None


def test_the_limits_that_attempts_share() -> None:
    found = budget(
        attempt={"tokens": 1}, item={"tokens": 2}, loop={"money": 20}, day={"tokens": "5M"}
    )
    assert found.shared() == {("loop", "money"): 20.0, ("day", "tokens"): 5e6}


@pytest.mark.parametrize(
    ("scopes", "price", "caps"),
    [
        ({}, None, {}),
        ({"loop": {"tokens": 100}}, None, {}),  # no cap: an attempt reserves all that is left
        ({"attempt": {"tokens": 100}}, None, {"tokens": 100}),
        ({"item": {"tokens": 100}}, None, {"tokens": 100}),
        ({"attempt": {"tokens": 100}, "item": {"tokens": 500}}, None, {"tokens": 100}),
        ({"attempt": {"tokens": 500}, "item": {"tokens": 100}}, None, {"tokens": 100}),
        ({"attempt": {"seconds": 60}, "item": {"tokens": 9}}, None, {"tokens": 9, "seconds": 60}),
        ({"attempt": {"tokens": 100}}, 0.5, {"tokens": 100, "money": 50}),  # 100 × 0.5
        ({"attempt": {"tokens": 100, "money": 9}}, 0.5, {"tokens": 100, "money": 9}),
        ({"attempt": {"tokens": 100, "money": 99}}, 0.5, {"tokens": 100, "money": 50}),
        ({"attempt": {"money": 9}}, 0.5, {"money": 9}),  # its tokens are not limited
    ],
)
def test_the_most_that_one_attempt_may_use(
    scopes: dict[str, Any], price: float | None, caps: dict[str, float]
) -> None:
    assert attempt_caps(budget(**scopes), price=price) == caps


def state(
    limit: float = 100,
    used: float = 0,
    reserved: float = 0,
    cap: float | None = 30,
    reservations: int = 0,
) -> BudgetState:
    return BudgetState(
        limits={("loop", "tokens"): limit},
        used={("loop", "tokens"): used},
        reserved={"tokens": reserved},
        reservations=reservations,
        caps={} if cap is None else {"tokens": cap},
    )


@pytest.mark.parametrize(
    ("found", "live", "room"),
    [
        (BudgetState(), 3, None),  # no limit
        (state(), 0, 3),  # 100 // 30
        (state(), 2, 1),  # two of the three are admitted and not claimed
        (state(), 5, 0),
        (state(reserved=60, reservations=2), 2, 1),  # 40 // 30, both live ones are claimed
        (state(reserved=30, reservations=1), 2, 1),  # 70 // 30 = 2, one of them not claimed yet
        (state(used=80), 0, 1),  # 20 are too few for a cap, but alone it takes what is left
        (state(used=80, reserved=10, reservations=1), 1, 0),
        (state(used=100), 0, 0),
        (state(used=130), 0, 0),  # overshot by a metering interval
        (state(cap=None), 0, 1),  # without a cap, one at a time
        (state(cap=None), 1, 0),
        (state(cap=None, used=100), 0, 0),
    ],
)
def test_how_many_more_items_fit(found: BudgetState, live: int, room: int | None) -> None:
    assert found.room(live) == room


def test_the_tightest_limit_counts() -> None:
    found = BudgetState(
        limits={("loop", "tokens"): 1000, ("day", "seconds"): 90},
        caps={"tokens": 100, "seconds": 30},
    )
    assert found.room(0) == 3  # 1000 // 100 = 10, 90 // 30 = 3


@given(
    limit=st.integers(1, 1000),
    used=st.integers(0, 1200),
    cap=st.integers(1, 200),
    live=st.integers(0, 20),
)
def test_what_is_admitted_at_once_fits(limit: int, used: int, cap: int, live: int) -> None:
    room = state(limit, used, cap=cap).room(live)
    assert room is not None
    assert room >= 0
    # All of them fit with their caps, except one that is alone and takes what is left.
    assert room <= 1 - live or used + (live + room) * cap <= limit or room == 0


@pytest.mark.parametrize(
    ("loop", "day", "expected"),
    [
        (99, 49, []),
        (100, 49, [("loop", "tokens")]),
        (0, 50, [("day", "tokens")]),
        (200, 50, [("loop", "tokens"), ("day", "tokens")]),
    ],
)
def test_which_limits_are_used_up(loop: float, day: float, expected: list[Any]) -> None:
    limits = budget(loop={"tokens": 100}, day={"tokens": 50})
    assert breaches(limits, {("loop", "tokens"): loop, ("day", "tokens"): day}) == expected


def test_nothing_used_breaks_no_limit() -> None:
    assert breaches(budget(loop={"tokens": 1}), {}) == []
