"""How Flower shows arguments and results."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.tasks.ports.ledger import Entry
from mulligan.workers.celery.flower_format import describe, describe_entry, format_task

TEXT = "Who is Alice?"


@pytest.mark.parametrize(
    ("value", "shape"),
    [
        ((TEXT, 3, None, True, 0.5), "(text(13), 3, None, True, 0.5)"),
        ([TEXT], "(text(13),)"),
        ((), "()"),
        ({"prompt": TEXT, "n": 3}, "{'prompt': text(13), 'n': 3}"),
        ({TEXT: 1}, "{text(13): 1}"),  # a long key
        ({"a": {"b": {"c": {"d": TEXT}}}}, "{'a': {'b': {'c': dict}}}"),
        (range(3), "range"),
        (b"1234", "bytes(4)"),
        (list(range(9)), "(0, 1, 2, 3, 4, …)"),
    ],
)
def test_a_value_is_described_by_its_shape(value: Any, shape: str) -> None:
    assert describe(value) == shape


@given(st.recursive(st.just(TEXT), lambda inner: st.lists(inner) | st.tuples(inner, inner)))
def test_a_description_never_contains_text(value: Any) -> None:
    assert "Alice" not in describe(value)


@pytest.mark.parametrize(
    ("entry", "queue", "description"),
    [
        (Entry("attempt", "p00-a", 1), "attempt", "('attempt 1 of p00-a',)"),
        (Entry("attempt", "p00-a", 2), "repair", "('attempt 2 of p00-a, immediate_retry',)"),
        (Entry("attempt", "p00-a", 2), "agent.repair", "('attempt 2 of p00-a, immediate_retry',)"),
        (Entry("verification", "p00-a", 2, 1), "verify", "('verifier 1 of attempt 2 of p00-a',)"),
        (
            Entry("cycle", "p00-a", 1, 1),
            "verify",
            "('delayed verification of attempt 1 of p00-a',)",
        ),
    ],
)
def test_a_message_is_described_by_its_entry(entry: Entry, queue: str, description: str) -> None:
    assert describe_entry(entry, queue) == description


def test_long_arguments_of_other_tasks_are_not_shown() -> None:
    task = SimpleNamespace(name="mine.task", args="('short',)", kwargs="x" * 201, result=None)
    shown = format_task(task)
    assert (shown.args, shown.result) == ("('short',)", None)
    assert shown.kwargs == "(201 characters, not shown)"


def test_reasons_of_our_own_tasks_are_not_shortened() -> None:
    reason = "score 40: " + "schema_invalid $.a, " * 20
    task = SimpleNamespace(name="mulligan.attempt", exception=reason)
    assert format_task(task).exception == reason


def test_flower_without_a_broker_ends_with_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would show the empty broker of its own memory."""
    config = Path(__file__).parents[3] / "deploy" / "flowerconfig.py"
    monkeypatch.setenv("MULLIGAN_BROKER_URL", "redis://127.0.0.1:1/0")
    assert "format_task" in runpy.run_path(str(config))
    monkeypatch.delenv("MULLIGAN_BROKER_URL")
    with pytest.raises(SystemExit, match="set MULLIGAN_BROKER_URL"):
        runpy.run_path(str(config))
