"""SHOP-004: search the catalogue."""

import pytest
from shop.catalog import sample_catalog


def found(text: str) -> list[str]:
    return [product.sku for product in sample_catalog().search(text)]


def test_case_does_not_matter() -> None:
    assert found("GREEN") == ["TEA-1"]


def test_products_are_sorted_by_name() -> None:
    assert found("tea") == ["TEA-2", "POT-1", "TEA-1", "CUP-1"]


def test_every_word_must_be_found() -> None:
    assert found("tea lemon") == ["TEA-2"]
    assert found("lemon iron") == []


def test_a_search_needs_a_word() -> None:
    with pytest.raises(ValueError, match="nothing to search for"):
        found("  ")
