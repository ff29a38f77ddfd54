"""A small shop: money, a catalogue, carts, offers, tax and invoices."""

from shop.money import Money

__all__ = [
    "Money",
]
