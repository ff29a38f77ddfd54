"""SHOP-011: the totals of a cart."""

from shop.cart import Cart
from shop.catalog import sample_catalog
from shop.checkout import Totals, checkout
from shop.money import Money


def full_cart() -> Cart:
    cart = Cart(sample_catalog())
    cart.add("TEA-1", 3)
    cart.add("CUP-1")
    return cart


def test_an_empty_cart_costs_nothing() -> None:
    nothing = Money(0)
    empty = Cart(sample_catalog())
    assert checkout(empty) == Totals(nothing, nothing, nothing, nothing)


def test_each_line_has_its_offer_and_its_tax() -> None:
    # Tea: 10.50, one of three free: 7.00, 5 % tax: 0.35. The cup: 9.99, 20 % tax: 2.00.
    assert checkout(full_cart()) == Totals(Money(2049), Money(350), Money(235), Money(1934))


def test_a_percentage_counts_where_it_is_better() -> None:
    # Tea: 7.00 as before. The cup: 9.99 less 1.00, 20 % tax: 1.80.
    assert checkout(full_cart(), percent=10) == Totals(
        Money(2049), Money(450), Money(215), Money(1814)
    )
