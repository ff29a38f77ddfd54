"""SHOP-002: show amounts of money."""

from pathlib import Path

import pytest
import shop
from shop.display import show_amount
from shop.money import Money

CHANGELOG = Path(__file__).parents[1] / "CHANGELOG.md"


@pytest.mark.parametrize(
    ("cents", "currency", "text"),
    [
        (1250, "EUR", "12.50 EUR"),
        (5, "USD", "0.05 USD"),
        (-5, "EUR", "-0.05 EUR"),
        (123456789, "EUR", "1,234,567.89 EUR"),
    ],
)
def test_an_amount_is_shown(cents: int, currency: str, text: str) -> None:
    assert show_amount(Money(cents, currency)) == text


def test_it_is_a_name_of_the_package() -> None:
    assert "show_amount" in shop.__all__


def test_it_is_in_the_changelog() -> None:
    assert "- Add `show_amount`" in CHANGELOG.read_text()
