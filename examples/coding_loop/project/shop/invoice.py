"""Invoices as people read them."""

from __future__ import annotations

from shop.cart import Cart
from shop.checkout import Totals

WIDTH = 40


def render_invoice(number: int, cart: Cart, totals: Totals) -> str:
    """Return an invoice: a title, a line for each product, and the totals."""
    raise NotImplementedError
