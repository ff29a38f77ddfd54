"""SHOP-001: read amounts of money."""

from pathlib import Path

import pytest
import shop
from shop.amounts import parse_amount
from shop.money import Money

CHANGELOG = Path(__file__).parents[1] / "CHANGELOG.md"


@pytest.mark.parametrize(
    ("text", "cents", "currency"),
    [
        ("12.50 EUR", 1250, "EUR"),
        ("3 USD", 300, "USD"),
        ("1,234.05 EUR", 123405, "EUR"),
        (" -0.05 GBP ", -5, "GBP"),
    ],
)
def test_an_amount_is_read(text: str, cents: int, currency: str) -> None:
    assert parse_amount(text) == Money(cents, currency)


@pytest.mark.parametrize("text", ["", "EUR", "12.5 EUR", "12.505 EUR", "12,50 EUR", "1.00 euro"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not an amount"):
        parse_amount(text)


def test_it_is_a_name_of_the_package() -> None:
    assert "parse_amount" in shop.__all__


def test_it_is_in_the_changelog() -> None:
    assert "- Add `parse_amount`" in CHANGELOG.read_text()
