"""Decisions and orders: what is kept of them, and what overruling does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mulligan.policies.coordination.decision import Decision, DecisionKind, overruling, replaced
from mulligan.policies.coordination.order import ItemOrders, Order, OrderWord


def decision(kind: DecisionKind, **fields: Any) -> Decision:
    base = Decision(kind=kind, loop="alpha", item="a", text="Why.", id="7", at=3.5)
    return replace(base, **fields)


def said(*words: OrderWord) -> ItemOrders:
    """Return what ada says about an item, one thing after the other."""
    found = ItemOrders()
    for word in words:
        found = found.with_order(Order(word=word, by="ada", at=2.0))
    return found


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
        (decision("order", word="hold"), "alpha", None, "the order hold for alpha/a ends"),
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
    orders = said("first", "ignore_locks").without_wait("event:go")
    assert ItemOrders.parse(orders.as_json()) == orders
    later = orders.as_json().replace('"by"', '"later":1,"by"')
    assert ItemOrders.parse(later) == orders
    assert ItemOrders.parse(ItemOrders().as_json()) == ItemOrders()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (("first", "ignore_locks", "ignore_waits"), ("first", "ignore_locks", "ignore_waits")),
        (("ignore_waits", "first"), ("ignore_waits", "first")),
        (("first", "ignore_locks", "hold"), ("ignore_locks", "hold")),  # a turn is one of two
        (("hold", "first"), ("first",)),
    ],
)
def test_what_is_said_about_an_item_is_independent(
    given: tuple[OrderWord, ...], expected: tuple[OrderWord, ...]
) -> None:
    assert said(*given).words == expected


def test_a_broken_wait_is_kept_apart_from_what_people_say() -> None:
    broken = said("first").without_wait("event:go")
    assert broken.words == ("first",)
    assert (broken.ignores("event:go"), broken.ignores("beta/b")) == (True, False)
    assert broken.without("first").broken == ("event:go",)
    assert not broken.with_wait("event:go").ignores("event:go")
    assert said("ignore_waits").ignores("beta/b")


@pytest.mark.parametrize(
    ("made", "before", "after"),
    [
        (decision("slot", other="beta/b"), said("ignore_waits"), said("ignore_waits", "first")),
        (decision("denied"), said("first"), said("first", "ignore_locks")),
        (decision("denied"), said("ignore_locks"), said("ignore_locks")),  # it was given already
        (decision("order", word="hold"), said("hold", "ignore_locks"), said("ignore_locks")),
        (decision("order", word="hold"), said("first"), said("first")),  # it has ended
        (
            decision("deadlock", wait="beta/b"),
            said("ignore_locks").without_wait("beta/b").without_wait("event:go"),
            said("ignore_locks", "hold").without_wait("event:go"),
        ),
        (decision("deadlock", wait="beta/b"), said("first"), said("first")),  # it has begun since
    ],
)
def test_overruling_changes_what_it_is_about(
    made: Decision, before: ItemOrders, after: ItemOrders
) -> None:
    effect = overruling(made)
    assert effect is not None
    assert effect.applied(before, by="ada", at=2.0) == after


def test_that_orders_ended_cannot_be_overruled() -> None:
    assert overruling(decision("order")) is None


def test_an_order_that_was_given_again_replaces_the_earlier_one() -> None:
    def given(number: str, word: OrderWord, item: str = "a") -> Decision:
        return replace(decision("order", word=word), id=number, item=item)

    made = [given("4", "hold"), given("3", "first"), given("2", "hold", "b"), given("1", "hold")]
    assert replaced(made) == {"1"}


@pytest.mark.parametrize("text", ["[]", '{"said":[{}]}', '{"said":1}', '{"word": 1'])
def test_what_is_damaged_is_named(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        ItemOrders.parse(text)
