"""Decisions and orders: what is kept of them, and what overruling does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mulligan.policies.coordination.decision import Decision, DecisionKind, overruling
from mulligan.policies.coordination.order import Order, OrderWord


def decision(kind: DecisionKind, **fields: str | tuple[str, ...]) -> Decision:
    base = Decision(kind=kind, loop="alpha", item="a", text="Why.", id="7", at=3.5)
    return replace(base, **fields)  # type: ignore[arg-type]  # of the fields above


@pytest.mark.parametrize(
    ("made", "loop", "word", "text"),
    [
        # who was next otherwise
        (decision("slot", other="beta/b"), "beta", "first", "beta/b goes first"),
        (decision("denied", other="beta/b"), "alpha", "ignore_locks",
         "alpha/a need not wait for the files"),
        (decision("lapsed"), "alpha", "first", "alpha/a goes first"),
        (decision("deadlock", other="beta/b"), "alpha", "hold",
         "alpha/a waits again, and another wait is broken"),
        (decision("order"), "alpha", None, "the order for alpha/a ends"),
    ],
)  # fmt: skip
def test_overruling_gives_an_order(
    made: Decision, loop: str, word: OrderWord | None, text: str
) -> None:
    found = overruling(made)
    assert found is not None
    assert (found.loop, found.word, found.text) == (loop, word, text)
    assert overruling(replace(made, overruled_by="ada")) is None  # once


def test_nobody_was_passed_over_if_nobody_else_waited() -> None:
    assert overruling(decision("slot")) is None


def test_overruling_a_declaration_takes_the_files_back() -> None:
    found = overruling(decision("undeclared", files=("/a.py", "/b.py")))
    assert found is not None
    assert (found.files, found.word) == (("/a.py", "/b.py"), None)


def test_decisions_and_orders_are_read_as_they_were_written() -> None:
    made = decision("undeclared", files=("/a.py",), other="beta/b", tenant="one")
    assert Decision.parse(made.as_json()) == made
    assert Decision.parse(made.as_json()[:-1] + ',"later":1}') == made  # of a later release
    order = Order(word="ignore_waits", by="ada", at=2.0, waits=("event:go",))
    assert Order.parse(order.as_json()) == order
    assert order.ignores("event:go")
    assert not order.ignores("beta/b")
    assert Order(word="ignore_waits", by="ada", at=2.0).ignores("beta/b")
    assert not Order(word="first", by="ada", at=2.0).ignores("beta/b")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"word": 1'])
def test_what_is_damaged_is_named(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Order.parse(text)
