"""SHOP-007: taxes."""

import pytest
from shop.money import Money
from shop.tax import tax_in, tax_on


@pytest.mark.parametrize(
    ("net", "rate", "tax"),
    [(1000, "standard", 200), (999, "standard", 200), (350, "reduced", 18), (999, "zero", 0)],
)
def test_tax_is_added_to_a_net_price(net: int, rate: str, tax: int) -> None:
    assert tax_on(Money(net), rate) == Money(tax)


@pytest.mark.parametrize(
    ("gross", "rate", "tax"),
    [(1200, "standard", 200), (1050, "reduced", 50), (999, "zero", 0)],
)
def test_a_gross_price_contains_tax(gross: int, rate: str, tax: int) -> None:
    assert tax_in(Money(gross), rate) == Money(tax)


def test_an_unknown_rate_is_refused() -> None:
    with pytest.raises(ValueError, match="no tax rate 'luxury'"):
        tax_on(Money(1000), "luxury")
