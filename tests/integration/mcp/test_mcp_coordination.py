"""An agent sees why items wait for each other, and steers them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from support.console_server import RunningConsole, new_token, running_console
from support.ledger_scenario import Scenario, SettingsMaker
from support.loops import LoopScenario, item
from support.mcp_agent import Agent, connected_agent

from mulligan.client.http_requests import ConsoleConnection
from mulligan.console.mcp.bounded_answer import ANSWER_LENGTH
from mulligan.console.mcp.tool_server import create_server


@pytest.fixture
def console(settings: SettingsMaker) -> Iterator[RunningConsole]:
    with running_console(settings(allow_inline=True)) as running:
        yield running


@pytest.fixture
def loops(console: RunningConsole) -> LoopScenario:
    return LoopScenario(Scenario(console.context.ledger, console.context.settings), slots=100)


@pytest.fixture
def agent(console: RunningConsole) -> Iterator[Agent]:
    token = new_token(console.context, role="ops", name="ada")
    with (
        closing(ConsoleConnection(console.url, token, patience=5.0)) as connection,
        connected_agent(create_server(connection)) as found,
    ):
        yield found


def test_an_agent_overrules_a_denial_and_does_what_why_says(
    agent: Agent, loops: LoopScenario
) -> None:
    loops.create(item("a", touches=["x.py"]), item("b", touches=["x.py"]))
    loops.create(item("c", waits_for=["ready"]), name="beta")
    for name in ("alpha", "beta"):
        loops.plan(name)
    shown = agent.call("coordination", loop="alpha")
    denied = shown["decisions"][0]
    assert (denied["kind"], denied["test"]) == ("denied", "b")
    assert denied["overruling"]["text"] == "alpha/b need not wait for the files"
    agent.call("order_item", loop="alpha", item="b", order="hold")
    remedy = agent.call("why", loop="alpha", item="b")["remedy"]
    assert remedy["action"] == "order_item"
    assert agent.call("order_item", **remedy["arguments"])["orders"] == []
    done = agent.call("overrule_decision", number=denied["number"])
    assert done["done"] == denied["overruling"]
    assert loops.admitted("alpha") == ["b"]
    assert "ada has done it" in agent.refusal("overrule_decision", number=denied["number"])
    assert agent.call("emit_event", event="ready")["emitted"] is True
    assert loops.admitted("beta") == ["c"]
    assert "event" in agent.refusal("emit_event", event="two words")


def test_answers_have_a_bound(agent: Agent, loops: LoopScenario) -> None:
    files = [f"{'d' * 200}/{n:02}.py" for n in range(20)]
    loops.create(
        *(item(f"i{n:02}", touches=[f"{n:02}/{each}" for each in files]) for n in range(60)),
        concurrency=60,
    )
    loops.plan()
    assert len(agent.text("coordination", limit=100)) <= ANSWER_LENGTH + 100
    few = agent.call("coordination", limit=2)
    assert (len(few["decisions"]), len(few["locks"]), few["totals"]["locks"]) == (2, 2, 60)
