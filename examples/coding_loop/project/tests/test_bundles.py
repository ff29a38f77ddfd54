"""SHOP-010: three for the price of two."""

import pytest
from shop.discounts import best_offer, bundle_off
from shop.money import Money


@pytest.mark.parametrize(("quantity", "free"), [(1, 0), (2, 0), (3, 1), (5, 1), (6, 2)])
def test_every_third_piece_is_free(quantity: int, free: int) -> None:
    assert bundle_off(Money(350), quantity) == Money(350 * free)


def test_other_bundles_are_possible() -> None:
    assert bundle_off(Money(100), 10, take=5, pay=3) == Money(400)


def test_a_bundle_takes_more_than_it_pays() -> None:
    with pytest.raises(ValueError, match="take more than you pay"):
        bundle_off(Money(100), 3, take=2, pay=2)


def test_the_better_offer_counts() -> None:
    assert best_offer(Money(300), 3, percent=10) == Money(300)
    assert best_offer(Money(300), 3, percent=50) == Money(450)
    assert best_offer(Money(300), 2, percent=0) == Money(0)
