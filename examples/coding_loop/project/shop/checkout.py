"""What a cart costs."""

from __future__ import annotations

from dataclasses import dataclass

from shop.cart import Cart
from shop.money import Money


@dataclass(frozen=True)
class Totals:
    """The sums of an invoice."""

    subtotal: Money
    discount: Money
    tax: Money
    total: Money


def checkout(cart: Cart, *, percent: int = 0) -> Totals:
    """Return the totals of a cart: each line with its best offer and its tax."""
    raise NotImplementedError
