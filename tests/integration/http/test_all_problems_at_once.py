"""A job with problems of several layers is refused with all of them, each with its place."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from support.console_server import client_of
from support.ledger_scenario import SettingsMaker

from mulligan.console.http.context import open_context
from mulligan.console.jobfiles.job_file import check_jobs, find_jobs
from mulligan.policies.problem import Problem, spell_path
from mulligan.tasks.jobs.read_job import read_jobs
from mulligan.tasks.jobs.submit import Intake, submit_jobs
from mulligan.tasks.ports.errors import BadInput

BASE = {"task_type": "t", "prompt": "p", "runner": "small", "verifiers": ["json.object"]}
#: What each job lacks: the envelope, its combinations, the rules, and this installation.
FIVE: dict[str, Any] = {
    **BASE,
    "priority": 99,
    "subject": "mia",
    "policy": {"max_attempts": 1},
    "runner": {"profile": "small", "timeout": 1000},
    "verifiers": [{"id": "command.subprocess", "command": "slow", "timeout": 3000},
                  {"id": "command.subprocess", "command": "nope", "weigth": 2}],
    "workspace": {"profile": "nowhere"},
}  # fmt: skip
PLACES = {
    "priority",
    "subject",
    "policy.max_attempts",
    "runner.timeout",
    "verifiers[0].timeout",
    "verifiers[1].command",
    "verifiers[1].weigth",
    "workspace.profile",
}
CONFIG: dict[str, Any] = {
    "runners": {"small": {"kind": "openai", "base_url": "http://h/v1", "model": "m"}},
    "commands": {"slow": {"argv": ["true"]}},
    "hard_limit": 600,
}


@pytest.fixture
def console(settings: SettingsMaker) -> tuple[TestClient, Intake]:
    context = open_context(settings(**CONFIG))
    return client_of(context), context.services.intake


def places(problems: Any) -> set[str]:
    return {spell_path(problem.path) for problem in problems}


def through_http(api: TestClient, raw: Any) -> list[Problem]:
    body = json.dumps(raw)  # with NaN, as Python's own clients send it
    response = api.post("/api/jobs", content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 422, response.text
    found = response.json()["error"]["problems"]
    return [Problem(**{**each, "path": tuple(each["path"])}) for each in found]


def through_celery(intake: Intake, raw: Any) -> list[Problem]:
    with pytest.raises(BadInput) as refused:
        submit_jobs(intake, read_jobs([raw], intake.problems, single=True))
    return list(refused.value.problems)


def through_a_file(intake: Intake, raw: Any, path: Path) -> list[Problem]:
    path.write_text(json.dumps(raw))
    with pytest.raises(BadInput) as refused:
        check_jobs(find_jobs([str(path)], lambda: intake.problems), intake.problems)
    return list(refused.value.problems)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        pytest.param(FIVE, PLACES, id="every layer"),
        pytest.param(
            {**FIVE, "priority": 5, "subject": None},
            PLACES - {"priority", "subject"},
            id="a well-formed one",
        ),
        pytest.param(
            {**BASE, "messages": [{"role": "user", "content": "x"}], "subject": "mia",
             "memory_scope": "input"},
            {"prompt", "subject", "memory_scope"},
            id="fields that do not fit together",
        ),
        pytest.param(
            {**BASE, "labels": {"n" * 300: "x", "long": "v" * 2000},
             "verifiers": [{"id": "json.object", "name": "n" * 300}],
             "workspace": {"profile": "nowhere", "protect": ["p"] * 300}},
            {"labels", "labels.long", "verifiers[0].name", "workspace.profile",
             "workspace.protect"},
            id="too long",
        ),
    ],
)  # fmt: skip
def test_every_door_reports_every_problem(
    console: tuple[TestClient, Intake], tmp_path: Path, raw: Any, expected: set[str]
) -> None:
    api, intake = console
    assert places(through_http(api, raw)) == expected
    assert places(through_celery(intake, raw)) == expected
    assert places(through_a_file(intake, raw, tmp_path / "job.json")) == expected


def test_numbers_that_json_does_not_know_are_refused_with_their_places(
    console: tuple[TestClient, Intake],
) -> None:
    """They would be stored as null. A file is refused before, with the line."""
    raw = {
        **BASE,
        "runner": {"profile": "small", "temperature": math.nan},
        "verifiers": [{"id": "contract.schema", "schema": {"minimum": math.inf}}],
    }
    expected = ["runner.temperature", "verifiers[0].schema.minimum"]
    for problems in (through_http(console[0], raw), through_celery(console[1], raw)):
        assert [spell_path(problem.path) for problem in problems] == expected
        assert all("finite number" in problem.message for problem in problems)


def test_a_part_that_depends_on_a_malformed_one_is_not_blamed(
    console: tuple[TestClient, Intake],
) -> None:
    """Given an external job whose runner is malformed, its subject may be right."""
    raw = {**BASE, "runner": {"kind": 3}, "subject": "mia", "verifiers": ["external.score"]}
    assert places(through_celery(console[1], raw)) == {"runner.kind"}


def test_no_message_repeats_a_long_name(console: tuple[TestClient, Intake]) -> None:
    (problem,) = through_celery(console[1], {**BASE, "labels": {"n" * 300: "x"}})
    assert (
        problem.message == "the name 'nnnnnnnnnnnnnnnnnnnn…' has 300 characters; the limit is 200"
    )


def test_the_place_in_a_file_has_its_line(
    console: tuple[TestClient, Intake], tmp_path: Path
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(
        "task_type: t\nprompt: p\npriority: 99\nrunner: smal\n"
        "verifiers:\n- {id: command.subprocess, command: nope}\n"
    )
    with pytest.raises(BadInput) as refused:
        find_jobs([str(path)], lambda: console[1].problems)
    lines = [
        str(problem).partition(" ")[0].rpartition("/")[2] for problem in refused.value.problems
    ]
    assert lines == ["job.yaml:3:", "job.yaml:4:", "job.yaml:6:"]
