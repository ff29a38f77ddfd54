"""`mulligan loops coordination`, `overrule`, `order` and `emit`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from support.cli_process import Shell, new_shell
from support.ledger_scenario import Scenario, SettingsMaker
from support.loops import ADA, LoopScenario, item

from mulligan.console.http.context import ConsoleContext, open_context
from mulligan.tasks.coordination import orders


@pytest.fixture
def context(settings: SettingsMaker) -> ConsoleContext:
    return open_context(settings(allow_inline=True))


@pytest.fixture
def loops(context: ConsoleContext) -> LoopScenario:
    return LoopScenario(Scenario(context.ledger, context.settings))


@pytest.fixture
def shell(redis_url: str) -> Iterator[Shell]:
    with new_shell(MULLIGAN_BROKER_URL=redis_url, COLUMNS="200") as found:
        yield found


def say(shell: Shell, *argv: str, code: int = 0) -> str:
    result = shell.invoke("loops", *argv, code=code)
    return f"{result.stdout}{result.stderr}".strip()


def emitted(shell: Shell, *argv: str) -> Any:
    return json.loads(say(shell, *argv, "--json"))


@pytest.fixture
def shared(loops: LoopScenario) -> LoopScenario:
    """Two items that share a file, and a loop that waits for an event."""
    loops.create(item("a", touches=["x.py"]), item("b", touches=["x.py"], emits=["built"]))
    loops.plan()
    loops.create(item("c", "alpha/b", waits_for=["ready"]), name="beta")
    loops.plan("beta")
    return loops


def test_what_loops_have_to_do_with_each_other_is_printed(
    shell: Shell, shared: LoopScenario
) -> None:
    text = say(shell, "coordination")
    for line in (
        "alpha/a has x.py for",
        "alpha/b waits for x.py: alpha/a has it",
        "beta/c waits for alpha/b (ready), the event ready, for",
        "alpha/b: it waits for x.py: alpha/a changes it",
        "mulligan loops overrule 2: alpha/b need not wait for the files",
    ):
        assert line in text
    orders.give_order(shared.context, "beta", "c", "hold", ADA)
    assert "beta/c gets no slot until the order ends: by ada, " in say(shell, "coordination")
    assert "; to end it: mulligan loops order beta c none" in say(shell, "coordination")
    assert "alpha/a has x.py" not in say(shell, "coordination", "beta")
    assert emitted(shell, "coordination", "--limit", "1")["totals"]["denied"] == 1
    assert "no loop 'gamma'" in say(shell, "coordination", "gamma", code=2)


def test_a_loop_that_a_person_holds_is_not_running(shell: Shell, loops: LoopScenario) -> None:
    loops.create(item("a"))
    orders.give_order(loops.context, "alpha", "a", "hold", ADA)
    loops.plan()
    assert "a is held by ada" in say(shell, "list")
    assert say(shell, "health").strip() == "alpha is idle: waiting, a is held by ada"
    assert "a waits because ada holds it" in say(shell, "health", "alpha")


def test_nothing_to_coordinate_prints_so(shell: Shell, loops: LoopScenario) -> None:
    loops.create(item("a"), name="alpha")
    assert say(shell, "coordination") == "loops have nothing to do with each other"


def test_an_item_shows_its_files_events_and_order(shell: Shell, shared: LoopScenario) -> None:
    assert say(shell, "order", "alpha", "b", "hold", "--by", "eve") == (
        "b gets no slot until the order ends"
    )
    text = say(shell, "item", "alpha", "b")
    for line in ("emits     built", "touches   x.py", "alpha/a has them", "orders    hold by eve"):
        assert line in text
    assert "waits for ready" in say(shell, "item", "beta", "c")
    assert say(shell, "show", "beta").startswith("beta waiting c waits for alpha/b")
    assert say(shell, "order", "alpha", "b", "none") == "b follows the usual rules again"
    assert emitted(shell, "item", "alpha", "b")["orders"] == []


def test_a_decision_is_overruled_after_it_was_said_what_that_does(
    shell: Shell, shared: LoopScenario
) -> None:
    refused = say(shell, "overrule", "2", code=2)
    assert "overrule decision 2, so that alpha/b need not wait for the files" in refused
    assert "Pass --yes" in refused
    assert shared.read().snapshot.orders == {}
    done = say(shell, "overrule", "2", "--yes", "--by", "eve")
    assert done == "decision 2 is overruled: alpha/b need not wait for the files"
    assert shared.admitted() == ["b"]
    assert "overruled by eve" in say(shell, "coordination")
    assert "eve has done it" in say(shell, "overrule", "2", "--yes", code=2)
    assert "no decision '99'" in say(shell, "overrule", "99", "--yes", code=2)


def test_an_event_is_given_off(shell: Shell, shared: LoopScenario) -> None:
    assert say(shell, "emit", "ready") == "ready was given off: 1 item waited for it"
    assert say(shell, "emit", "ready") == "ready had been given off before"
    assert say(shell, "emit", "ready", "--withdraw") == "ready was withdrawn"
    assert say(shell, "emit", "ready", "--withdraw") == "ready was not given off"
    assert say(shell, "emit", "redy") == "redy was given off: no item waits for it"
    assert say(shell, "emit", "ready").startswith("ready was given off")
    assert emitted(shell, "emit", "other", "--tenant", "one")["emitted"] is True
    assert "ready, " in say(shell, "coordination")
    assert "other of one, " in say(shell, "coordination")
    assert "is not the name of an event" in say(shell, "emit", "two words", code=2)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("order", "alpha", "nope", "hold"), "no item 'nope'"),
        (("order", "nope", "a", "hold"), "no loop 'nope'"),
        (("order", "alpha", "b", "later"), "later"),
        (("overrule", "two"), "two"),
    ],
)
def test_what_is_wrong_is_said(
    shell: Shell, shared: LoopScenario, argv: tuple[str, ...], message: str
) -> None:
    assert message in say(shell, *argv, code=2)
