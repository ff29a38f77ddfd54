"""`why` with a ledger: each cause is made real, and its remedy lets the item go on.

Each remedy is typed into the command line, sent to the API, and compared with the tool for agents.
"""

from __future__ import annotations

import shlex
from contextlib import nullcontext
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Literal

import pytest
from support.console_server import client_of
from support.jobs import answer
from support.ledger_scenario import ScenarioMaker
from support.loops import ADA, LoopScenario, item
from support.provider_calls import fail_call, open_breaker, start_call
from support.settlements import retries_immediately
from typer.testing import CliRunner

from mulligan.console.cli import backend as cli_backend
from mulligan.console.cli.main import create_cli
from mulligan.console.http.context import open_context
from mulligan.console.http.models.why_models import why_row
from mulligan.console.mcp.tool_server import read_call
from mulligan.policies.loops.why import Reason
from mulligan.tasks.loops import change
from mulligan.tasks.loops.view import why
from mulligan.tasks.ports.ledger import Claim

Way = Literal["command", "request"]
RUNNER = {"runner": {"profile": "of-api"}}


@dataclass
class WhyScenario(LoopScenario):
    """Loops whose remedies are done in one way."""

    way: Way = "command"


@pytest.fixture(params=["command", "request"])
def loops(new_fake_scenario: ScenarioMaker, request: pytest.FixtureRequest) -> WhyScenario:
    return WhyScenario(new_fake_scenario(), slots=2, way=request.param)


def ask(loops: WhyScenario, item: str | None = None, name: str = "alpha") -> tuple[str, str]:
    reason = why(loops.context, name, item)
    return reason.cause, reason.text


def do(loops: WhyScenario, reason: Reason) -> None:
    """Do what is suggested, in the way of this test, and plan the loop."""
    assert reason.remedy is not None, reason
    assert reason.command is not None
    if loops.way == "command":
        type_command(loops, reason.command)
    else:
        send_request(loops, reason)
    loops.scenario.sweep()  # looks at what was parked
    loops.plan()


def type_command(loops: WhyScenario, command: str) -> None:
    backend = SimpleNamespace(
        services=SimpleNamespace(loops=loops.context), ledger=loops.scenario.ledger
    )
    program, *argv = shlex.split(command)
    assert program == "mulligan"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cli_backend, "locate_ledger", nullcontext)
        patch.setattr(cli_backend, "connect", lambda _settings: backend)
        result = CliRunner().invoke(create_cli(), argv)
    assert result.exit_code == 0, result.output


def send_request(loops: WhyScenario, reason: Reason) -> None:
    row = why_row(reason, texts=True).remedy
    assert row is not None
    assert row.request is not None
    # A tool of that name makes the same request.
    tool = read_call(row.action, row.arguments).request()
    assert (tool.method, tool.path) == (row.request.method, row.request.path)
    assert tool.body == row.request.body
    nowhere = {"broker_url": "memory://", "ledger_url": "redis://127.0.0.1:1"}
    context = open_context(loops.scenario.settings.model_copy(update=nowhere))
    services = replace(context.services, loops=loops.context, ledger=loops.scenario.ledger)
    client = client_of(replace(context, services=services))
    answer = client.request(row.request.method, row.request.path, json=row.request.body)
    assert answer.is_success, answer.text


def obey(loops: WhyScenario, item: str) -> None:
    do(loops, why(loops.context, "alpha", item))


# -- dependencies ----------------------------------------------------------------------------------


def test_a_failed_dependency(loops: WhyScenario) -> None:
    loops.create(item("a"), item("b", "a"), item("c", "b"))
    loops.plan()
    loops.fails("a")
    loops.scenario.advance(720)
    expected = "a failed (max_attempts, 12 min ago)"
    for _ in range(2):  # before and after the planner has seen it
        assert ask(loops, "c") == ("dependency", f"c waits: dependency {expected}")
        assert ask(loops, "a") == ("failure", expected)
        loops.plan()
    assert ask(loops) == ("failure", f"nothing can go on: {expected}")
    obey(loops, "c")
    for name in ("a", "b"):
        loops.passes(name)
        loops.plan()
    assert loops.item("c").state == "running"


def test_a_quarantined_dependency(loops: WhyScenario) -> None:
    loops.create(item("a"), item("b", "a"))
    loops.plan()
    for _ in range(loops.scenario.settings.max_claims):
        loops.claim("a")
        loops.scenario.expire_leases()
    loops.refusal("a")
    loops.scenario.advance(720)
    expected = "a is quarantined (worker_lost ×3, 12 min ago)"
    assert ask(loops, "a") == ("quarantine", expected)
    assert ask(loops, "b") == ("dependency", f"b waits: dependency {expected}")
    obey(loops, "b")
    loops.passes("a")
    loops.plan()
    assert loops.item("b").state == "running"


def test_a_dependency_that_waits_itself(loops: WhyScenario) -> None:
    loops.create(item("a"), item("b", "a"))
    loops.plan()
    assert ask(loops, "b") == ("dependency", "b waits: dependency a waits for a worker")
    loops.claim("a")
    assert ask(loops, "b") == ("dependency", "b waits: dependency a runs on worker")
    assert why(loops.context, "alpha", "b").command is None
    loops.scenario.ledger.pause("queue:agent")
    loops.scenario.expire_leases()
    expected = "b waits: dependency a waits for queue agent, which is paused"
    loops.refusal("a")
    assert ask(loops, "b") == ("dependency", expected)
    obey(loops, "b")
    loops.claim("a")


# -- the loop --------------------------------------------------------------------------------------


def test_a_loop_that_was_not_started(loops: WhyScenario) -> None:
    loops.create(item("a"), item("b", "a"))
    loops.move("stop")
    assert ask(loops) == ("not_started", "the loop was stopped")
    assert ask(loops, "a") == ("not_started", "a waits: the loop was stopped")
    obey(loops, "b")
    assert loops.item("a").state == "running"


@pytest.mark.parametrize("planned", [True, False])
def test_a_paused_loop(loops: WhyScenario, planned: bool) -> None:
    loops.create(item("a"))
    if planned:
        loops.plan()
    loops.move("pause")
    if planned:
        assert loops.refusal("a").reason == "paused"
    loops.scenario.advance(720)
    assert ask(loops) == ("pause", "the loop was paused 12 min ago")
    assert ask(loops, "a") == ("pause", "a waits: the loop was paused 12 min ago")
    obey(loops, "a")
    loops.claim("a")


def test_an_attempt_that_a_pause_lets_finish(loops: WhyScenario) -> None:
    loops.create(item("a"))
    loops.plan()
    loops.claim("a")
    loops.move("pause")
    assert ask(loops, "a") == ("runs", "a runs on worker")


# -- budgets ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("scope", "until"), [("loop", ""), ("day", " until 00:00 UTC")])
def test_a_loop_that_has_used_up_its_budget(loops: WhyScenario, scope: str, until: str) -> None:
    budget = {"attempt": {"tokens": 50}, scope: {"tokens": 60}}
    loops.create(item("a"), item("b"), concurrency=1, budget=budget)
    loops.plan()
    loops.passes("a", tokens=60)
    loops.plan()
    text = f"the {scope} budget of tokens is used up{until}"
    assert ask(loops) == ("budget", text)
    assert ask(loops, "b") == ("budget", f"b waits: {text}")
    obey(loops, "b")
    loops.plan()
    loops.claim("b")


def test_a_loop_that_a_person_paused_without_budget(loops: WhyScenario) -> None:
    budget = {"attempt": {"tokens": 50}, "loop": {"tokens": 60}}
    loops.create(item("a"), item("b"), concurrency=1, budget=budget)
    loops.plan()
    loops.passes("a", tokens=60)
    loops.plan()
    loops.move("pause")  # outlasts the budget's own pause
    assert why(loops.context, "alpha", "b").cause == "budget"
    obey(loops, "b")
    assert why(loops.context, "alpha", "b").cause == "pause"
    obey(loops, "b")
    loops.claim("b")


def test_a_budget_that_running_attempts_have_reserved(loops: WhyScenario) -> None:
    budget = {"attempt": {"tokens": 100}, "loop": {"tokens": 150}}
    loops.create(item("a"), item("b"), budget=budget)
    loops.plan()
    loops.claim("a")
    text = (
        "the loop budget of tokens has too little left: of 150, 0 are used and 100 are reserved"
        " by running attempts"
    )
    assert ask(loops, "b") == ("budget", f"b waits: {text}")
    obey(loops, "b")
    loops.claim("b")


def test_an_item_that_was_admitted_before_its_budget_was_set(loops: WhyScenario) -> None:
    loops.create(item("a"), item("b"))
    loops.plan()
    limits = {"budget": {"attempt": {"tokens": 100}, "loop": {"tokens": 150}}}
    change.configure(loops.context, "alpha", limits, ADA)
    loops.claim("a")
    assert loops.refusal("b").reason == "over_quota"
    assert why(loops.context, "alpha", "b").cause == "budget"
    obey(loops, "b")
    loops.claim("b")


def test_attempts_without_a_cap(loops: WhyScenario) -> None:
    loops.create(item("a"), item("b"), item("c"), budget={"loop": {"tokens": 1000}})
    loops.plan()
    loops.claim("a")
    text = "attempts have no cap of tokens, so that they run one at a time within the loop budget"
    assert ask(loops, "b") == ("budget", f"b waits: {text}")
    obey(loops, "b")
    loops.scenario.ledger.cancel(loops.item("a").job_id)  # it has reserved everything
    loops.scenario.expire_leases()
    change.configure(loops.context, "alpha", {"budget": {"loop": {"tokens": 10_000}}}, ADA)
    loops.plan()
    assert loops.states() == {"a": "failed", "b": "running", "c": "running"}


# -- slots -----------------------------------------------------------------------------------------


def test_a_loop_that_runs_as_many_items_as_it_may(loops: WhyScenario) -> None:
    loops.create(item("a"), item("b"), concurrency=1)
    loops.plan()
    assert ask(loops, "b") == ("slot", "b waits: 1 of 1 items of this loop run")
    obey(loops, "b")
    loops.claim("b")


def taken(loops: WhyScenario) -> None:
    """Let another loop take both slots."""
    loops.create(item("x"), item("y"), name="beta", priority=7)
    loops.plan("beta")


def test_slots_that_other_loops_have_taken(loops: WhyScenario) -> None:
    taken(loops)
    loops.create(item("a"))
    loops.plan()
    assert ask(loops) == ("slot", "2 of 2 slots of all loops are taken")
    assert ask(loops, "a") == ("slot", "a waits: 2 of 2 slots of all loops are taken")
    obey(loops, "a")
    loops.claim("a")


@pytest.mark.parametrize(
    ("priority", "text"),
    [
        (3, "gamma with priority 3 goes first"),
        (5, "gamma with the same priority shares them"),
    ],
)
def test_a_loop_that_goes_first(loops: WhyScenario, priority: int, text: str) -> None:
    taken(loops)
    loops.create(*(item(f"g{n}") for n in range(5)), name="gamma", priority=priority)
    loops.plan("gamma")
    loops.create(item("a"))
    loops.plan()
    expected = f"a waits: 2 of 2 slots of all loops are taken, and {text}"
    assert ask(loops, "a") == ("fairness", expected)
    obey(loops, "a")
    loops.passes("x", name="beta")
    loops.plan("beta")
    loops.claim("a")


def test_a_retry_that_lost_its_slot(loops: WhyScenario) -> None:
    loops.create(item("a", task_type="slow"), item("b"), item("c"))
    loops.plan()
    loops.scenario.ledger.pause("task_type:slow")
    loops.refusal("a")
    expected = ("pause", "a waits for task type slow, which is paused")
    assert ask(loops, "a") == expected
    loops.plan()  # c takes the slot
    obey(loops, "a")
    assert ask(loops, "a") == ("slot", "a waits: 2 of 2 slots of all loops are taken")
    obey(loops, "a")
    loops.claim("a")


# -- providers and queues --------------------------------------------------------------------------


def learn_provider(loops: WhyScenario) -> None:
    """Let the ledger learn which provider the runner asks."""
    ledger = loops.scenario.ledger
    known = start_call(ledger, "api")
    ledger.cancel(known.job_id)
    ledger.requeue(known.lease, delay=0, detail="cancelled")


def out_of_credits(loops: WhyScenario) -> None:
    claim = start_call(loops.scenario.ledger, "api")
    fail_call(loops.scenario.ledger, claim, status=402)
    loops.scenario.ledger.cancel(claim.job_id)


@pytest.mark.parametrize("cause", ["paused", "breaker", "credits"])
def test_a_provider_that_is_not_called(loops: WhyScenario, cause: str) -> None:
    learn_provider(loops)
    loops.create(item("a", **RUNNER))
    loops.plan()
    ledger = loops.scenario.ledger
    match cause:
        case "paused":
            ledger.pause("provider:api")
        case "breaker":
            open_breaker(ledger, "api")
        case "credits":
            out_of_credits(loops)
    loops.refusal("a")
    reason = why(loops.context, "alpha", "a")
    words = {
        "paused": "a waits for api, which is paused",
        "breaker": "a waits for api: failed 5 times in a row, next try at ",
        "credits": "a waits for api: out of credits, next try at ",
    }
    assert reason.cause == "provider"
    assert reason.text.startswith(words[cause])
    assert ask(loops) == ("provider", reason.text)
    do(loops, reason)
    loops.claim("a")


def test_a_provider_that_is_busy_needs_no_command(loops: WhyScenario) -> None:
    learn_provider(loops)
    loops.create(item("a", **RUNNER))
    loops.plan()
    calls = [start_call(loops.scenario.ledger, "api") for _ in range(8)]
    assert all(isinstance(call, Claim) for call in calls)
    loops.refusal("a")
    reason = why(loops.context, "alpha", "a")
    assert (reason.cause, reason.command) == ("provider", None)
    assert reason.text == "a waits for api: 8 calls at once are running"


def test_a_tenant_does_not_see_the_state_of_a_provider(loops: WhyScenario) -> None:
    learn_provider(loops)
    loops.create(item("a", **RUNNER))
    loops.plan()
    open_breaker(loops.scenario.ledger, "api")
    loops.refusal("a")
    assert why(loops.context, "alpha", "a", tenant="").text == "a waits for provider api"


def test_a_paused_queue(loops: WhyScenario) -> None:
    loops.create(item("a"))
    loops.plan()
    loops.scenario.ledger.pause("queue:agent")
    assert loops.refusal("a").reason == "paused"
    expected = ("pause", "a waits for queue agent, which is paused")
    assert ask(loops, "a") == ask(loops) == expected
    obey(loops, "a")
    loops.claim("a")


def test_a_repository_that_holds_up_a_merge(loops: WhyScenario) -> None:
    """Given a merge that cannot be made now, then the item waits for its repository."""
    loops.create(item("a"), item("b", "a"))
    loops.plan()
    claim, ledger = loops.claim("a"), loops.scenario.ledger
    ledger.store_output(claim.lease, answer())
    ledger.begin_merge(claim.lease, {}, index=0, priority=5)
    merge = ledger.claim_verification(
        replace(claim.lease.entry, kind="verification", index=0), worker="m"
    )
    assert isinstance(merge, Claim)
    ledger.requeue(merge.lease, delay=10, detail="the branch is checked out in /src")
    words = "waits for its repository: the branch is checked out in /src"
    assert ask(loops, "a") == ask(loops) == ("repository", f"a {words}")
    assert ask(loops, "b") == ("dependency", f"b waits: dependency a {words}")
    hidden = why(loops.context, "alpha", "a", tenant="")
    assert hidden.text == "a waits for its repository", "paths are not for tenants"
    loops.scenario.advance(20)
    assert ask(loops, "a")[0] != "repository", "it was tried again, and did not say so again"


def test_a_repository_that_holds_up_an_attempt(loops: WhyScenario) -> None:
    loops.create(item("a"))
    loops.plan()
    claim = loops.claim("a")
    loops.scenario.ledger.requeue(
        claim.lease, delay=10, detail="it cannot be reached", unasked=True
    )
    expected = ("repository", "a waits for its repository: it cannot be reached")
    assert ask(loops, "a") == ask(loops) == expected


# -- nothing holds it ------------------------------------------------------------------------------


def test_an_item_that_runs_and_ends(loops: WhyScenario) -> None:
    loops.create(item("a"))
    assert ask(loops, "a") == ("planning", "a waits: the planner has not seen the last change yet")
    loops.plan()
    assert ask(loops, "a") == ("worker", "a waits for a worker")
    claim = loops.claim("a")
    assert ask(loops) == ("runs", "1 item runs")
    loops.settle(claim, retries_immediately(claim))
    assert ask(loops, "a") == ("worker", "a waits for a worker")
    loops.claim("a", 2)
    assert ask(loops, "a") == ("runs", "a runs on worker")
    loops.move("stop")
    change.skip(loops.context, "alpha", "a", ADA, reason="not needed")
    assert ask(loops, "a") == ("done", "a was skipped (not needed)")
    loops.move("start")
    loops.plan()
    assert ask(loops) == ("done", "every item passed or was skipped")
