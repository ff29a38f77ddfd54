"""What a customer is about to buy."""

from __future__ import annotations

from dataclasses import dataclass

from shop.catalog import Catalog, Product
from shop.money import Money


@dataclass(frozen=True)
class CartLine:
    """A number of pieces of one product."""

    product: Product
    quantity: int

    def total(self) -> Money:
        raise NotImplementedError


class Cart:
    """Products and their numbers, in the order in which they were added."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._quantities: dict[str, int] = {}

    def add(self, sku: str, quantity: int = 1) -> None:
        raise NotImplementedError

    def remove(self, sku: str, quantity: int = 1) -> None:
        raise NotImplementedError

    def lines(self) -> list[CartLine]:
        raise NotImplementedError

    def subtotal(self) -> Money:
        raise NotImplementedError
