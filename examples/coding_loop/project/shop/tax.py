"""Taxes on sales."""

from __future__ import annotations

from shop.money import Money

#: Percent, by the name of the rate.
RATES = {"standard": 20, "reduced": 5, "zero": 0}


def tax_on(net: Money, rate: str) -> Money:
    """Return the tax that is added to a net price."""
    raise NotImplementedError


def tax_in(gross: Money, rate: str) -> Money:
    """Return the tax that a gross price contains."""
    raise NotImplementedError
