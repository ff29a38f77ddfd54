"""What works today must go on working: the guard of the items that touch it."""

import io

import pytest
import shop
from shop.catalog import sample_catalog
from shop.cli import main
from shop.money import CurrencyMismatch, Money


def test_money_is_exact() -> None:
    assert Money(10) + Money(20) == Money(30)
    assert Money(10) - Money(20) == Money(-10)


def test_currencies_do_not_mix() -> None:
    with pytest.raises(CurrencyMismatch):
        Money(10) + Money(10, "USD")


def test_the_catalogue_knows_its_products() -> None:
    assert sample_catalog().get("TEA-1").price == Money(350)
    with pytest.raises(KeyError):
        sample_catalog().get("TEA-9")


def test_the_package_has_every_name_that_it_exports() -> None:
    assert "Money" in shop.__all__
    assert [name for name in shop.__all__ if not hasattr(shop, name)] == []


def test_the_command_line_says_its_version() -> None:
    out = io.StringIO()
    assert main(["--version"], io.StringIO(), out) == 0
    assert out.getvalue() == "shop 0.1.0\n"
