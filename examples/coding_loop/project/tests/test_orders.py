"""SHOP-009: orders."""

import pytest
from shop.catalog import sample_catalog
from shop.money import Money
from shop.orders import BadOrder, OrderLine, fill_cart, parse_order

ORDER = """\
# for the office
2 x TEA-1 @ 3.50 EUR

1 x CUP-1 @ 9.99 EUR  # the blue one
"""


def test_an_order_is_read() -> None:
    assert parse_order(ORDER) == [
        OrderLine("TEA-1", 2, Money(350)),
        OrderLine("CUP-1", 1, Money(999)),
    ]


@pytest.mark.parametrize("line", ["TEA-1", "x TEA-1 @ 3.50 EUR", "2 x TEA-1 @ cheap"])
def test_a_bad_line_is_named(line: str) -> None:
    with pytest.raises(BadOrder, match="line 2"):
        parse_order(f"1 x CUP-1 @ 9.99 EUR\n{line}\n")


def test_an_order_fills_a_cart() -> None:
    cart = fill_cart(parse_order(ORDER), sample_catalog())
    assert cart.subtotal() == Money(1699)


def test_a_price_that_has_changed_is_refused() -> None:
    with pytest.raises(BadOrder, match="TEA-1 has another price"):
        fill_cart([OrderLine("TEA-1", 1, Money(300))], sample_catalog())
