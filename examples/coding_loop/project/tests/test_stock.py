"""SHOP-005: reserve stock."""

import pytest
from shop.catalog import sample_catalog
from shop.money import Money
from shop.stock import OutOfStock, Stock


def test_reserved_pieces_are_not_available() -> None:
    stock = Stock({"TEA-1": 5})
    stock.reserve("TEA-1", 3)
    assert stock.available("TEA-1") == 2


def test_more_than_there_is_cannot_be_reserved() -> None:
    stock = Stock({"TEA-1": 5})
    stock.reserve("TEA-1", 3)
    with pytest.raises(OutOfStock, match="2 of TEA-1 left"):
        stock.reserve("TEA-1", 3)
    assert stock.available("TEA-1") == 2


def test_a_released_piece_is_available_again() -> None:
    stock = Stock({"TEA-1": 5})
    stock.reserve("TEA-1", 3)
    stock.release("TEA-1", 2)
    assert stock.available("TEA-1") == 4


def test_more_than_is_reserved_cannot_be_released() -> None:
    with pytest.raises(ValueError, match="not reserved"):
        Stock({"TEA-1": 5}).release("TEA-1", 1)


def test_the_stock_has_a_value() -> None:
    assert Stock({"TEA-1": 2, "CUP-1": 1}).value(sample_catalog()) == Money(1699)
