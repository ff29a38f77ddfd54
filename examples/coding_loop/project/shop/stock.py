"""How many pieces of each product are there."""

from __future__ import annotations

from collections import Counter


class OutOfStock(ValueError):
    """More was asked for than there is."""


class Stock:
    """Pieces in the warehouse, and those that are reserved."""

    def __init__(self, pieces: dict[str, int]) -> None:
        self._pieces = Counter(pieces)
        self._reserved: Counter[str] = Counter()

    def available(self, sku: str) -> int:
        """Return how many pieces nobody has reserved."""
        return self._pieces[sku]
