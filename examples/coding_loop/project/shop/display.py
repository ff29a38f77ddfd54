"""Show amounts of money to people."""

from __future__ import annotations

from shop.money import Money


def show_amount(amount: Money) -> str:
    """Return an amount as ``1,234.50 EUR``."""
    raise NotImplementedError
