"""Reading tokens while the ledger is slow or unreachable: callers share one reading."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest
from support.waiting import wait_for

from mulligan.tasks.ports.errors import LedgerUnavailable
from mulligan.workers.ledger.connection.calls import RedisCalls
from mulligan.workers.ledger.stores import tokens as token_store
from mulligan.workers.ledger.stores.tokens import Tokens


class Calls:
    """A ledger that answers when a test lets it, or cannot be reached."""

    def __init__(self) -> None:
        self.rows: dict[str, str] = {}
        self.unreachable = False
        self.readings = 0
        self.answers = threading.Event()
        self.answers.set()

    def hashes(self, names: Sequence[str]) -> list[dict[str, str]]:
        self.readings += 1
        rows = [dict(self.rows) for _ in names]
        assert self.answers.wait(60)
        if self.unreachable:
            raise LedgerUnavailable("the ledger cannot be reached")
        return rows

    def run(self, command: str, *arguments: Any) -> Any:
        if command == "HSET":
            self.rows[arguments[1]] = arguments[2]
        return None


@pytest.fixture
def calls() -> Calls:
    return Calls()


@pytest.fixture
def tokens(calls: Calls) -> Tokens:
    return Tokens(cast(RedisCalls, calls), prefix="mulligan")


def outcome(tokens: Tokens) -> str:
    try:
        return str(tokens.any())
    except LedgerUnavailable:
        return "unreachable"


@pytest.mark.parametrize(("unreachable", "expected"), [(True, "unreachable"), (False, "False")])
def test_concurrent_callers_wait_for_one_reading(
    calls: Calls, tokens: Tokens, monkeypatch: pytest.MonkeyPatch, unreachable: bool, expected: str
) -> None:
    for name in ("_FAIL_FAST", "_FRESH"):  # a late caller gets the same answer
        monkeypatch.setattr(token_store, name, 3600.0)
    calls.unreachable = unreachable
    calls.answers.clear()
    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(outcome, tokens) for _ in range(8)]
        wait_for(lambda: calls.readings == 1)
        calls.answers.set()
        assert [future.result(60) for future in futures] == [expected] * 8
    assert calls.readings == 1


def test_an_unreachable_ledger_is_not_read_again_at_once(
    calls: Calls, tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_store, "_FAIL_FAST", 3600.0)
    calls.unreachable = True
    assert [outcome(tokens), outcome(tokens)] == ["unreachable", "unreachable"]
    with pytest.raises(LedgerUnavailable):
        tokens.session("a secret")
    assert calls.readings == 1
    calls.unreachable = False
    monkeypatch.setattr(token_store, "_FAIL_FAST", -1.0)
    assert outcome(tokens) == "False"


def test_a_reading_from_before_a_change_is_not_kept(calls: Calls, tokens: Tokens) -> None:
    calls.answers.clear()
    with ThreadPoolExecutor(1) as pool:
        early = pool.submit(tokens.any)
        wait_for(lambda: calls.readings == 1)
        _, text = tokens.create(role="ops")
        calls.answers.set()
        assert early.result(60) is False
    assert tokens.find(text) is not None
