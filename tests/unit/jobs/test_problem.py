"""Problems as values, and the error that contains them."""

from __future__ import annotations

from typing import Any

import pytest

from mulligan.policies.jobs.job import Job, OnDone
from mulligan.policies.problem import FieldError, Problem, spell_path
from mulligan.tasks.jobs.read_job import inspect_job, read_jobs
from mulligan.tasks.ports.errors import BadInput, refuse
from mulligan.workers.admission.intake import outcome_problem
from mulligan.workers.settings.model import Settings

JOB = {
    "task_type": "t",
    "prompt": "p",
    "runner": {"kind": "scripted", "answers": ["a"]},
    "verifiers": ["json.object"],
}


@pytest.mark.parametrize(
    ("problem", "text"),
    [
        (Problem("all of it is wrong"), "all of it is wrong"),
        (Problem.at("workspace.path", "is gone"), "workspace.path: is gone"),
        (Problem("is odd", ("verifiers", 1, "id")), "verifiers[1].id: is odd"),
        (Problem("is odd", ("labels", "a.b")), "labels.a.b: is odd"),
        (Problem.at("prompt", "is required").of_job(2), "jobs[2].prompt: is required"),
        (Problem("is no mapping", index=0), "jobs[0]: is no mapping"),
        (Problem.at("id", "is odd").below("verifiers", 0), "verifiers[0].id: is odd"),
    ],
)
def test_a_problem_is_shown_with_its_path(problem: Problem, text: str) -> None:
    assert str(problem) == text
    assert str(BadInput(problem)) == text


def test_placing_a_problem_keeps_its_code_and_message() -> None:
    problem = Problem.at("id", "no verifier 'x'", "unknown_name").below("verifiers", 3).of_job(7)
    assert problem == Problem("no verifier 'x'", ("verifiers", 3, "id"), "unknown_name", 7)
    assert problem.of_job(None).index is None
    assert problem.field == "verifiers[3].id"
    assert spell_path(()) == ""


def test_bad_input_takes_a_message_or_problems() -> None:
    assert BadInput("there is no job x").problems == (Problem("there is no job x"),)
    raised = BadInput.at("score", "is required", "missing")
    assert raised.problems == (Problem("is required", ("score",), "missing"),)
    assert raised.has("missing")
    assert not raised.has("key_in_use")
    assert str(BadInput("one", Problem.at("b", "two"))) == "one\nb: two"


def test_refuse_raises_only_if_there_are_problems() -> None:
    refuse([])
    with pytest.raises(BadInput, match=r"^a: is odd\nb: is odd$"):
        refuse(Problem.at(name, "is odd") for name in ("a", "b"))


def test_a_model_validator_names_its_field() -> None:
    assert str(FieldError("task", "is ours")) == "task: is ours"
    _, problems = inspect_job({**JOB, "on_done": {"task": "mulligan.attempt"}}, lambda _: [])
    assert [problem.path for problem in problems] == [("on_done", "task")]


@pytest.mark.parametrize(
    "queue",
    [
        "_kombu.binding.attempt",
        "unacked",
        "unacked_index",
        "unacked_mutex",
        "attempt",
        "repair",
        "edit.host",
        "mulligan.submit",
    ],
)
def test_an_outcome_is_not_sent_to_a_queue_of_mulligan_or_kombu(queue: str) -> None:
    on_done = {"task": "shop.answered", "queue": queue}
    _, problems = inspect_job({**JOB, "on_done": on_done}, lambda _: [])
    assert [problem.path for problem in problems] == [("on_done", "queue")]


@pytest.mark.parametrize(
    ("settings", "allowed"),
    [
        ({}, False),
        ({"on_done": ["shop.answered@shop"]}, True),
        ({"on_done": ["shop.*@shop"]}, True),
        ({"on_done": ["shop.answered@other"]}, False),
        ({"allow_inline": True}, True),
    ],
)
def test_an_outcome_goes_only_where_the_configuration_allows(
    settings: dict[str, Any], allowed: bool
) -> None:
    target = OnDone(task="shop.answered", queue="shop")
    problem = outcome_problem(target, Settings(**settings))
    assert (problem is None) == allowed
    assert allowed or "on_done of mulligan.toml" in str(problem)


@pytest.mark.parametrize(
    ("change", "path", "code"),
    [
        ({"runner": None}, ("runner",), "wrong_type"),
        ({"promt": "x"}, ("promt",), "unknown_field"),
        ({"policy": {"max_atempts": 1}}, ("policy", "max_atempts"), "unknown_field"),
        ({"verifiers": []}, ("verifiers",), "too_short"),
        ({"idempotency_key": "k" * 501}, ("idempotency_key",), "too_long"),
        ({"priority": 10}, ("priority",), "invalid"),
    ],
)
def test_an_error_of_pydantic_has_a_path_and_a_code(
    change: dict[str, object], path: tuple[str, ...], code: str
) -> None:
    job, (problem,) = inspect_job({**JOB, **change}, lambda _: [])
    assert job is None
    assert (problem.path, problem.code) == (path, code)


def admission(job: Job) -> list[Problem]:
    """Check a job as if only the profile `small` existed and verifiers had no options."""
    found = []
    if job.runner.profile not in (None, "small"):
        found.append(Problem.at("runner.profile", "no such profile", "unknown_name"))
    for index, spec in enumerate(job.verifiers):
        if spec.options:
            found.append(Problem("no such option", ("verifiers", index), "unknown_field"))
    return found


def test_problems_of_every_stage_are_found_at_once() -> None:
    raws = [
        {**JOB, "promt": "x"},
        {**JOB, "runner": "smal"},
        {**JOB, "verifiers": ["json.object", {"id": "json.object", "strict": True}]},
        JOB,
        "text",
    ]
    with pytest.raises(BadInput) as caught:
        read_jobs(raws, admission)
    assert [(each.index, each.path, each.code) for each in caught.value.problems] == [
        (0, ("promt",), "unknown_field"),
        (1, ("runner", "profile"), "unknown_name"),
        (2, ("verifiers", 1), "unknown_field"),
        (4, (), "wrong_type"),
    ]


def test_the_well_formed_parts_of_a_malformed_job_are_checked_too() -> None:
    raw = {**JOB, "priority": 99, "runner": "smal", "verifiers": [7, {"id": "v", "strict": True}]}
    _, problems = inspect_job(raw, admission)
    assert {(each.path, each.code) for each in problems} == {
        (("priority",), "invalid"),
        (("verifiers", 0), "wrong_type"),
        (("runner", "profile"), "unknown_name"),
        (("verifiers", 1), "unknown_field"),
    }


def test_a_substitute_for_a_malformed_part_causes_no_problem() -> None:
    def strict(job: Job) -> list[Problem]:
        return [Problem.at("runner.kind", "is not allowed")] if job.runner.kind else []

    _, (problem,) = inspect_job({**JOB, "runner": {"kind": 7}}, strict)
    assert problem.path == ("runner", "kind")
    assert problem.code == "wrong_type"


def test_external_work_is_checked_with_its_subject() -> None:
    """A runner and a subject are only well-formed together."""
    checked: list[Job] = []

    def check(job: Job) -> list[Problem]:
        checked.append(job)
        return []

    external = {**JOB, "runner": {"kind": "external"}, "subject": "ann", "priority": 99}
    _, problems = inspect_job(external, check)
    assert [each.path for each in problems] == [("priority",)]
    assert (checked[0].runner.kind, checked[0].subject) == ("external", "ann")


def test_the_checks_of_well_formed_jobs_run_when_they_are_stored() -> None:
    (job,) = read_jobs([JOB], lambda _: [Problem("never called")])
    assert job.task_type == "t"


def test_the_problems_of_a_single_job_have_no_index() -> None:
    with pytest.raises(BadInput) as caught:
        read_jobs([{**JOB, "priority": 99}], lambda _: [], single=True)
    assert [each.index for each in caught.value.problems] == [None]


@pytest.mark.parametrize("value", ["\ud800", object(), b"\xff"])
def test_a_value_that_json_cannot_hold_is_a_problem_of_its_field(value: object) -> None:
    raw = {**JOB, "runner": {"kind": "scripted", "answers": [value]}}
    other = Problem("is odd", ("verifiers", 0))
    job, problems = inspect_job(raw, lambda _: [other])
    assert job is None
    assert [problem.path for problem in problems] == [("runner",), ("verifiers", 0)]
    assert "JSON cannot hold" in problems[0].message


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"task_type": "\ud800"}, ("task_type",)),
        ({"prompt": "a\ud800"}, ("prompt",)),
        ({"system": "\udc00 b"}, ("system",)),
        ({"prompt": None, "messages": [{"role": "user", "content": "\ud800"}]},
         ("messages", 0, "content")),
        ({"labels": {"a": "\ud800"}}, ("labels", "a")),
        ({"labels": {"\ud800": "a"}}, ("labels", "\ufffd\ufffd\ufffd")),
        ({"idempotency_key": "\ud800"}, ("idempotency_key",)),
        ({"\ud800": 1}, ("\ufffd",)),
        ({"verifiers": [{"id": "json.object", "name": "\ud800"}]}, ("verifiers", 0, "name")),
        ({"workspace": {"path": "\ud800"}}, ("workspace", "path")),
        ({"workspace": {"path": "a", "output_file": "\ud800"}}, ("workspace", "output_file")),
        ({"workspace": {"path": "a", "protect": ["\ud800"]}}, ("workspace", "protect", 0)),
        ({"on_done": {"task": "\ud800"}}, ("on_done", "task")),
    ],
)  # fmt: skip
def test_half_a_surrogate_pair_is_a_problem_of_its_field(fields: Any, path: tuple[Any]) -> None:
    job, problems = inspect_job({**JOB, **fields}, lambda _: [])
    assert job is None
    assert [problem.path for problem in problems] == [path]
    assert problems[0].message == "contains half a surrogate pair, which cannot be stored"
