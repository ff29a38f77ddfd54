"""SHOP-012: carts as text."""

import json

import pytest
from shop.cart import Cart
from shop.catalog import sample_catalog
from shop.money import Money
from shop.storage import dump_cart, load_cart


def test_a_cart_survives() -> None:
    cart = Cart(sample_catalog())
    cart.add("TEA-1", 2)
    cart.add("CUP-1")
    loaded = load_cart(dump_cart(cart), sample_catalog())
    assert loaded.lines() == cart.lines()
    assert loaded.subtotal() == Money(1699)


def test_the_text_is_json_with_a_version() -> None:
    cart = Cart(sample_catalog())
    cart.add("TEA-1", 2)
    assert json.loads(dump_cart(cart)) == {"version": 1, "lines": [["TEA-1", 2]]}


@pytest.mark.parametrize("text", ["", "[]", '{"version": 2, "lines": []}', '{"version": 1}'])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a cart"):
        load_cart(text, sample_catalog())
