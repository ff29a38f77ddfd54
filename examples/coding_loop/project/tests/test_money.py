"""SHOP-003: fractions of money."""

import pytest
from shop.money import Money


@pytest.mark.parametrize(
    ("cents", "numerator", "denominator", "expected"),
    [
        (250, 3, 1, 750),
        (100, 1, 3, 33),  # 33.3
        (25, 1, 10, 3),  # 2.5
        (-25, 1, 10, -3),  # -2.5
        (35, 1, 10, 4),  # 3.5
        (0, 7, 9, 0),
    ],
)
def test_halves_are_rounded_away_from_zero(
    cents: int, numerator: int, denominator: int, expected: int
) -> None:
    assert Money(cents).scaled(numerator, denominator) == Money(expected)


def test_the_currency_stays() -> None:
    assert Money(100, "USD").scaled(1, 2) == Money(50, "USD")


def test_no_cent_is_lost_by_a_split() -> None:
    assert Money(100).split(3) == [Money(34), Money(33), Money(33)]
    assert Money(5, "USD").split(2) == [Money(3, "USD"), Money(2, "USD")]


def test_a_split_needs_a_part() -> None:
    with pytest.raises(ValueError, match="at least one part"):
        Money(100).split(0)
