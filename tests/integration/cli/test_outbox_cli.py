"""`mulligan outbox`, and what `doctor` says about quarantined entries."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from support.ledger_scenario import Scenario, ScenarioMaker
from typer.testing import CliRunner, Result

from mulligan.console.cli.doctor_checks import _outbox
from mulligan.console.cli.main import create_cli
from mulligan.tasks.ports.ledger import Entry

Run = Callable[..., Result]


@pytest.fixture
def scenario(new_redis_scenario: ScenarioMaker) -> Scenario:
    return new_redis_scenario(publish_tries=1)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, redis_url: str) -> Run:
    monkeypatch.setenv("MULLIGAN_BROKER_URL", redis_url)

    def call(*argv: str) -> Result:
        return CliRunner().invoke(create_cli(), ["outbox", *argv])

    return call


def quarantined(scenario: Scenario) -> str:
    entry = Entry("attempt", scenario.submit(), 1)
    scenario.ledger.fail({entry: "WRONGTYPE of a key"})
    return str(entry)


def test_an_empty_quarantine(run: Run, scenario: Scenario) -> None:
    result = run("list")
    assert (result.exit_code, result.output.strip()) == (0, "no entries are quarantined")
    assert json.loads(run("list", "--json").stdout) == {"total": 0, "entries": []}
    assert _outbox(scenario.ledger).status == "ok"


def test_entries_are_listed_with_their_error(run: Run, scenario: Scenario) -> None:
    ids = [quarantined(scenario) for _ in range(3)]
    text = run("list", "--limit", "2").output
    assert "WRONGTYPE of a key" in text
    assert "and 1 more" in text
    document = json.loads(run("list", "--json").stdout)
    assert {each["id"] for each in document["entries"]} == set(ids)
    check = _outbox(scenario.ledger)
    assert check.status == "warn"
    assert "`mulligan outbox retry --all`" in check.fix
    assert check.said.startswith("3 entries quarantined")


def test_an_entry_is_sent_again(run: Run, scenario: Scenario) -> None:
    entry = quarantined(scenario)
    result = run("retry", entry, "--by", "ada", "--json")
    assert json.loads(result.stdout) == {"entries": [entry], "not_changed": []}
    assert scenario.view(Entry.parse(entry).job_id).state == "queued"
    again = run("retry", entry)
    assert again.exit_code == 1
    assert f"not changed: {entry}" in again.output


def test_dropping_needs_a_confirmation(run: Run, scenario: Scenario) -> None:
    entry = quarantined(scenario)
    refused = run("drop", "--all")
    assert refused.exit_code != 0
    assert "this would drop 1 entry" in refused.stderr
    assert scenario.ledger.quarantine.count() == 1
    result = run("drop", "--all", "--yes")
    assert (result.exit_code, result.output.strip()) == (0, "1 entry dropped")
    assert scenario.ledger.quarantine.count() == 0
    assert scenario.view(Entry.parse(entry).job_id).state == "escalated"


@pytest.mark.parametrize("verb", ["retry", "drop"])
def test_nothing_to_change_needs_no_confirmation(run: Run, scenario: Scenario, verb: str) -> None:
    result = run(verb, "--all")
    assert (result.exit_code, result.output.strip()) == (0, "no entries are quarantined")
    assert json.loads(run(verb, "--all", "--json").stdout) == {"entries": [], "not_changed": []}
    unknown = run(verb, "a:p00-none/1")
    assert (unknown.exit_code, "not changed: a:p00-none/1" in unknown.output) == (1, True)


@pytest.mark.parametrize("argv", [["retry"], ["drop"], ["retry", "a:p00-1/1", "--all"]])
def test_ids_or_all_are_required(run: Run, scenario: Scenario, argv: list[str]) -> None:
    result = run(*argv)
    assert result.exit_code != 0
