"""SHOP-006: reductions by a percentage."""

import pytest
from shop.discounts import percent_off
from shop.money import Money


@pytest.mark.parametrize(
    ("cents", "percent", "expected"),
    [(1000, 10, 100), (999, 0, 0), (999, 100, 999), (350, 15, 53)],  # 52.5
)
def test_a_percentage_is_rounded_to_the_cent(cents: int, percent: int, expected: int) -> None:
    assert percent_off(Money(cents), percent) == Money(expected)


@pytest.mark.parametrize("percent", [-1, 101])
def test_a_percentage_is_between_0_and_100(percent: int) -> None:
    with pytest.raises(ValueError, match="between 0 and 100"):
        percent_off(Money(1000), percent)
