"""The products that the shop sells."""

from __future__ import annotations

from dataclasses import dataclass

from shop.money import Money


@dataclass(frozen=True)
class Product:
    """Something to buy. ``rate`` is the name of its tax rate."""

    sku: str
    name: str
    price: Money
    rate: str = "standard"


class Catalog:
    """Products by their numbers."""

    def __init__(self, *products: Product) -> None:
        self._products = {product.sku: product for product in products}

    def get(self, sku: str) -> Product:
        if sku not in self._products:
            raise KeyError(f"there is no product {sku}")
        return self._products[sku]

    def search(self, text: str) -> list[Product]:
        """Return the products whose names contain every word of a text."""
        return [product for product in self._products.values() if text in product.name]


def sample_catalog() -> Catalog:
    """Return the catalogue of the command line and of the tests."""
    return Catalog(
        Product("TEA-1", "Green tea", Money(350), "reduced"),
        Product("TEA-2", "Black tea with lemon", Money(420), "reduced"),
        Product("CUP-1", "Tea cup", Money(999)),
        Product("POT-1", "Cast iron teapot", Money(4950)),
    )
