"""Offers: by how much a price is reduced."""

from __future__ import annotations

from shop.money import Money


def percent_off(amount: Money, percent: int) -> Money:
    """Return the reduction of an amount by a percentage from 0 to 100."""
    raise NotImplementedError


def bundle_off(price: Money, quantity: int, *, take: int = 3, pay: int = 2) -> Money:
    """Return the reduction if of every ``take`` pieces only ``pay`` are paid."""
    raise NotImplementedError


def best_offer(price: Money, quantity: int, percent: int) -> Money:
    """Return the larger reduction: the percentage, or three for the price of two."""
    raise NotImplementedError
