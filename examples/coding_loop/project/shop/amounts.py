"""Read amounts of money that people write."""

from __future__ import annotations

from shop.money import Money


def parse_amount(text: str) -> Money:
    """Read an amount such as ``1,234.50 EUR``."""
    raise NotImplementedError
