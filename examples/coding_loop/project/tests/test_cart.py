"""SHOP-008: carts."""

import pytest
from shop.cart import Cart
from shop.catalog import sample_catalog
from shop.money import Money


@pytest.fixture
def cart() -> Cart:
    return Cart(sample_catalog())


def quantities(cart: Cart) -> dict[str, int]:
    return {line.product.sku: line.quantity for line in cart.lines()}


def test_products_are_added_up(cart: Cart) -> None:
    cart.add("TEA-1", 2)
    cart.add("CUP-1")
    cart.add("TEA-1")
    assert quantities(cart) == {"TEA-1": 3, "CUP-1": 1}


def test_an_unknown_product_is_refused(cart: Cart) -> None:
    with pytest.raises(KeyError):
        cart.add("TEA-9")


def test_a_quantity_is_positive(cart: Cart) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        cart.add("TEA-1", 0)


def test_products_are_removed(cart: Cart) -> None:
    cart.add("TEA-1", 2)
    cart.add("CUP-1")
    cart.remove("TEA-1")
    cart.remove("CUP-1", 5)
    assert quantities(cart) == {"TEA-1": 1}


def test_the_subtotal_is_the_sum_of_the_lines(cart: Cart) -> None:
    assert cart.subtotal() == Money(0)
    cart.add("TEA-1", 2)
    cart.add("CUP-1")
    assert [line.total() for line in cart.lines()] == [Money(700), Money(999)]
    assert cart.subtotal() == Money(1699)
