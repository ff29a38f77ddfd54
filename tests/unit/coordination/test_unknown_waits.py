"""Waits for what is not there: each is named once, with the nearest name that is."""

from __future__ import annotations

import pytest
from support.loops import document, item

from mulligan.policies.coordination.unknown_waits import unknown_waits
from mulligan.policies.loops.spec import MOST_HINTS

LOOPS = {"database": ("DB-1", "other"), "empty": ()}


@pytest.mark.parametrize(
    ("depends_on", "waits_for", "message"),
    [
        ("database/DB-1", "", None),
        ("", "schema-ready", None),
        ("", "mine", None),  # an item of the same loop gives it off
        (
            "databse/DB-1",
            "",
            "waits for databse/DB-1: there is no loop 'databse' yet; did you mean 'database'?",
        ),
        (
            "database/DB-9",
            "",
            "waits for database/DB-9: that loop has no item 'DB-9' yet; did you mean 'DB-1'?",
        ),
        ("empty/x", "", "waits for empty/x: that loop has no item 'x' yet"),
        (
            "",
            "shema-ready",
            "waits for the event shema-ready, which nothing gives off yet;"
            " did you mean 'schema-ready'?",
        ),
    ],
)
def test_what_is_not_there_is_named(depends_on: str, waits_for: str, message: str | None) -> None:
    waits = {"waits_for": [waits_for]} if waits_for else {}
    items = document(
        item("a", emits=["mine"]), item("b", *filter(None, [depends_on]), **waits)
    ).items
    found = [
        (each.index, each.item, each.message)
        for each in unknown_waits(items, LOOPS, ["schema-ready"])
    ]
    assert found == ([] if message is None else [(1, "b", message)])


def test_only_a_few_names_are_compared() -> None:
    names = [f"{'x' * 60}-{n}" for n in range(1000)]
    items = document(item("a", waits_for=[f"{name}y" for name in names[:50]])).items
    found = list(unknown_waits(items, {}, names))
    assert len(found) == 50
    assert sum("did you mean" in each.message for each in found) == MOST_HINTS
