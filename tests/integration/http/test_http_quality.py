"""Quality reports and costs over HTTP: fields, limits and tenants."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient
from support.console_server import client_of, get_json, new_token
from support.finished_jobs import run_jobs
from support.jobs import GOOD, WRONG_TYPE, answer, scripted
from support.ledger_scenario import Scenario, SettingsMaker
from support.settlements import escalates, retries_immediately, succeeds

from mulligan.console.http.context import ConsoleContext, open_context
from mulligan.policies.cycles.cycle import PROTOCOL_VERSION
from mulligan.policies.cycles.report import BUDGET_REASONS, INVALID_REASONS
from mulligan.tasks.ports.ledger import CyclePlan, Entry
from mulligan.workers.figures.fold import Fold

LOOP = "/api/quality/self-repair-immediate-loop"
DELAYED = "/api/quality/self-repair-delayed-verification"
BUDGET = "/api/quality/self-repair-budget"


@pytest.fixture
def context(settings: SettingsMaker) -> ConsoleContext:
    return open_context(
        settings(
            allow_inline=True,
            report_labels=["team"],
            prices={"scripted": {"prompt": 1.0, "completion": 2.0}},
        )
    )


@pytest.fixture
def api(context: ConsoleContext) -> TestClient:
    return client_of(context)


@pytest.fixture
def scenario(context: ConsoleContext) -> Scenario:
    """The console's ledger on real time."""
    return Scenario(context.ledger, context.settings)


# -- the immediate loop ----------------------------------------------------------------------------


def test_the_report_has_every_field_of_its_contract(api: TestClient, scenario: Scenario) -> None:
    """Given one cycle in each status that a job reaches without a delay."""
    scenario.repaired_job()
    first = scenario.claim(scenario.submit())
    scenario.settle(first, retries_immediately(first))  # pending
    cut = scenario.claim(scenario.submit())
    scenario.settle(cut, retries_immediately(cut))
    scenario.ledger.cancel(cut.job_id)
    lost = scenario.claim(scenario.submit())
    scenario.settle(lost, retries_immediately(lost))
    again = scenario.claim(lost.job_id, 2)
    scenario.settle(again, escalates(again))
    report = get_json(api, LOOP, windowDays=30, limit=5000)
    assert isinstance(report.pop("generatedAt"), str)
    latency = report.pop("medianImmediateLatencyMinutes")
    assert 0 <= latency < 1
    assert report == {
        "protocolVersion": PROTOCOL_VERSION,
        "windowDays": 30,
        "totalCycles": 4,
        "limitReached": False,
        "immediateCompletedCount": 2,
        "immediateCompletionRate": 0.5,
        "pendingImmediateRetryCount": 1,
        "pendingDelayedVerificationCount": 1,
        "completedCount": 0,
        "escalatedCount": 1,
        "cancelledCount": 1,
        "statusCounts": {
            "pending_immediate_retry": 1,
            "pending_delayed_verification": 1,
            "completed": 0,
            "escalated": 1,
            "cancelled": 1,
        },
        "causeLabels": {"json_invalid": 4},
    }


def test_rates_without_cycles_are_null(api: TestClient) -> None:
    assert get_json(api, LOOP)["immediateCompletionRate"] is None
    assert get_json(api, DELAYED)["invalidRate"] is None
    assert get_json(api, BUDGET)["exhaustionRate"] is None


@pytest.mark.parametrize("path", [LOOP, DELAYED, BUDGET])
@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"windowDays": 0}, "windowDays: must be between 1 and 365"),
        ({"windowDays": 366}, "windowDays: must be between 1 and 365"),
        ({"limit": 9}, "limit: must be between 10 and 50000"),
        ({"limit": 50_001}, "limit: must be between 10 and 50000"),
        ({"windowDays": "many"}, "windowDays: "),
    ],
)
def test_a_parameter_outside_its_limits_is_refused(
    api: TestClient, path: str, params: dict[str, Any], expected: str
) -> None:
    response = api.get(path, params=params)
    assert response.status_code == 422
    (line,) = response.json()["error"]["details"]
    assert expected in line


@pytest.mark.parametrize("params", [{"windowDays": 1, "limit": 10}, {"windowDays": 365}])
def test_the_limits_themselves_are_allowed(api: TestClient, params: dict[str, Any]) -> None:
    assert get_json(api, LOOP, **params)["windowDays"] == params["windowDays"]


def test_the_limit_is_applied_and_reported(api: TestClient, scenario: Scenario) -> None:
    for _ in range(11):
        scenario.repaired_job()
    report = get_json(api, LOOP, limit=10)
    assert (report["totalCycles"], report["limitReached"]) == (10, True)
    assert get_json(api, LOOP, limit=12)["limitReached"] is False


def test_a_tenant_sees_only_its_own_cycles(context: ConsoleContext, scenario: Scenario) -> None:
    scenario.repaired_job(labels={"tenant": "acme"})
    scenario.repaired_job()
    bound = client_of(context, new_token(context, role="producer", tenant="acme"))
    assert get_json(bound, LOOP)["totalCycles"] == 1
    assert get_json(client_of(context, new_token(context, role="ops")), LOOP)["totalCycles"] == 2


# -- delayed verification and budgets --------------------------------------------------------------


def test_delayed_verifications_are_valid_invalid_or_stale(
    context: ConsoleContext, scenario: Scenario
) -> None:
    """Given one that counted, one refused twice and one that never happened."""
    client: Any = context.ledger.calls
    names = []
    for _ in range(3):
        job_id, _ = scenario.repaired_job()
        names.append(f"mulligan:{{p00}}:cycle:{job_id}:1:1")
    valid, refused, stale = names
    client.run("HSET", valid, "status", "completed", "delayed_valid", "1")
    reasons = '{"duplicate_prompt_formulation":2}'
    client.run("HSET", refused, "delayed_invalid", reasons)
    client.run("HSET", stale, "status", "escalated", "reason", "missing_delayed_verification")
    report = get_json(client_of(context), DELAYED)
    assert (report["validCount"], report["invalidCount"], report["staleCount"]) == (1, 3, 1)
    assert report["invalidRate"] == 0.75  # 3 of 4
    assert report["invalidReasons"] == {
        **dict.fromkeys(INVALID_REASONS, 0),
        "duplicate_prompt_formulation": 2,
        "missing_delayed_verification": 1,
    }
    assert report["pendingCount"] == 1


def test_cycles_without_budget_for_a_retry_are_counted_by_reason(
    api: TestClient, scenario: Scenario
) -> None:
    scenario.repaired_job(task_type="extract")
    for reason in ("budget_tokens", "per_skill_loop_cap", "max_attempts"):
        claim = scenario.claim(scenario.submit(task_type="extract"))
        cycle = CyclePlan(
            id=f"{claim.job_id}:1:1",
            loop_index=1,
            status="escalated",
            metadata={"taskType": "extract", "causeLabel": "json_invalid"},
        )
        scenario.settle(claim, escalates(claim, reason, cycle=cycle))
    report = get_json(api, BUDGET)
    assert (report["exhaustedCount"], report["exhaustionRate"]) == (2, 0.5)  # of 4 cycles
    reasons = {**dict.fromkeys(BUDGET_REASONS, 0), "budget_tokens": 1, "per_skill_loop_cap": 1}
    assert report["exhaustionReasons"] == reasons
    assert report["taskTypes"] == {
        "extract": {
            "totalCycles": 4,
            "exhaustedCount": 2,
            "exhaustionRate": 0.5,
            "exhaustionReasons": reasons,
        }
    }


def test_a_cycle_that_was_retried_did_not_run_out_of_budget(
    api: TestClient, scenario: Scenario
) -> None:
    scenario.repaired_job()
    first = scenario.claim(scenario.submit())
    scenario.settle(first, retries_immediately(first))
    second = scenario.claim(first.job_id, 2)
    scenario.ledger.store_output(second.lease, answer())
    scenario.settle(second, escalates(second, "budget_tokens"))
    assert get_json(api, BUDGET)["exhaustedCount"] == 0


def test_a_completed_cycle_counts_as_verified(context: ConsoleContext, scenario: Scenario) -> None:
    first = scenario.claim(scenario.submit())
    scenario.settle(first, retries_immediately(first, verify_after=0))
    second = scenario.claim(first.job_id, 2)
    scenario.ledger.store_output(second.lease, answer())
    scenario.settle(second, succeeds(second, verify_after=0))
    taken = scenario.claim_recheck(Entry("cycle", first.job_id, 1, 1))
    scenario.ledger.settle_cycle(taken.lease, status="completed", score=100)
    assert get_json(client_of(context), DELAYED)["validCount"] == 1
    assert get_json(client_of(context), LOOP)["completedCount"] == 1


# -- money -----------------------------------------------------------------------------------------


def test_costs_show_repairs_separately(context: ConsoleContext, api: TestClient) -> None:
    """Given a repaired job of acme's team `a` and a job that was right at once."""
    run_jobs(
        context,
        scripted(WRONG_TYPE, GOOD, labels={"tenant": "acme", "team": "a"}),
        scripted(GOOD, task_type="other"),
    )
    Fold(context.ledger).run()
    report = get_json(api, "/api/cost", by="task_type,label:team", window="1h")
    assert report["by"] == ["task_type", "label:team"]
    lines = {line["of"]["task_type"]: line for line in report["lines"]}
    line = lines["extract_person"]
    assert line["of"]["label:team"] == "a"
    assert (line["attempts"], line["successes"]) == (2, 1)
    assert (line["first"]["attempts"], line["repairs"]["attempts"]) == (1, 1)
    # A scripted answer has no usage: its cost is unknown, not zero.
    assert (line["unknown_attempts"], line["tokens"], line["money"]) == (2, None, None)
    assert (line["tokens_per_success"], line["repairs_share"]) == (None, None)
    assert (lines["other"]["repairs"]["attempts"], lines["other"]["repairs"]["money"]) == (0, 0)
    assert report["total"]["attempts"] == 3
    assert {job["tokens"] for job in get_json(api, "/api/jobs")["jobs"]} == {None}
    bound = client_of(context, new_token(context, role="producer", tenant="acme"))
    assert get_json(bound, "/api/cost", by="tenant", window="1h")["lines"][0]["of"] == {
        "tenant": "acme"
    }
    assert get_json(bound, "/api/cost", window="1h")["total"]["attempts"] == 2


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"by": "colour"}, "group by task_type"),
        ({"by": ""}, "at least one"),
        ({"by": "label:unknown"}, "add it to report_labels"),
        ({"window": "1y"}, "window: "),
        ({"window": "400d"}, "between 1m and 365d"),
    ],
)
def test_an_invalid_cost_report_is_refused(
    api: TestClient, params: dict[str, str], expected: str
) -> None:
    response = api.get("/api/cost", params=params)
    assert response.status_code == 422
    assert expected in response.json()["error"]["details"][0]
