"""SHOP-014: the command line."""

import io
import json

from shop.cli import main

ORDER = "3 x TEA-1 @ 3.50 EUR\n1 x CUP-1 @ 9.99 EUR\n"


def run(*argv: str, stdin: str = "") -> tuple[int, str]:
    out = io.StringIO()
    return main(list(argv), io.StringIO(stdin), out), out.getvalue()


def test_an_order_becomes_an_invoice() -> None:
    code, printed = run("invoice", stdin=ORDER)
    assert code == 0
    assert printed.startswith("Invoice 1\n")
    assert "Total                          19.34 EUR\n" in printed


def test_an_order_can_be_saved() -> None:
    code, printed = run("save", stdin=ORDER)
    assert code == 0
    assert json.loads(printed) == {"version": 1, "lines": [["TEA-1", 3], ["CUP-1", 1]]}


def test_a_bad_order_is_refused() -> None:
    assert run("invoice", stdin="tea, please\n") == (1, "line 1: 'tea, please' is not an order\n")


def test_more_than_there_is_cannot_be_ordered() -> None:
    code, printed = run("invoice", stdin="99 x POT-1 @ 49.50 EUR\n")
    assert (code, printed) == (1, "only 20 of POT-1 left\n")


def test_an_unknown_command_prints_the_usage() -> None:
    code, printed = run("sell")
    assert code == 2
    assert printed.startswith("usage: shop")
