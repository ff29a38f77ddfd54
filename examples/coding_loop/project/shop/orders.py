"""Orders that customers send as text."""

from __future__ import annotations

from dataclasses import dataclass

from shop.cart import Cart
from shop.catalog import Catalog
from shop.money import Money


class BadOrder(ValueError):
    """A line that is no part of an order."""


@dataclass(frozen=True)
class OrderLine:
    """What a customer wants, and the price that was promised."""

    sku: str
    quantity: int
    price: Money


def parse_order(text: str) -> list[OrderLine]:
    """Read lines such as ``2 x TEA-1 @ 3.50 EUR``; the rest of a line after ``#`` is a comment."""
    raise NotImplementedError


def fill_cart(lines: list[OrderLine], catalog: Catalog) -> Cart:
    """Return a cart with an order, or raise BadOrder if a price has changed."""
    raise NotImplementedError
