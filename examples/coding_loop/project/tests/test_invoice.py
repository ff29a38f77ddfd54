"""SHOP-013: invoices."""

from shop.cart import Cart
from shop.catalog import sample_catalog
from shop.checkout import checkout
from shop.invoice import WIDTH, render_invoice

INVOICE = """\
Invoice 7

  3 x Green tea                10.50 EUR
  1 x Tea cup                   9.99 EUR
----------------------------------------
Subtotal                       20.49 EUR
Discount                       -3.50 EUR
Tax                             2.35 EUR
Total                          19.34 EUR
"""


def invoice() -> str:
    cart = Cart(sample_catalog())
    cart.add("TEA-1", 3)
    cart.add("CUP-1")
    return render_invoice(7, cart, checkout(cart))


def test_an_invoice_is_readable() -> None:
    assert invoice() == INVOICE


def test_amounts_are_aligned() -> None:
    amounts = [line for line in invoice().splitlines() if line.endswith("EUR")]
    assert {len(line) for line in amounts} == {WIDTH}


def test_an_invoice_without_a_discount_has_no_line_for_it() -> None:
    cart = Cart(sample_catalog())
    cart.add("CUP-1")
    assert "Discount" not in render_invoice(8, cart, checkout(cart))
