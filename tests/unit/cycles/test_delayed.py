"""Delayed verification: which formulations differ enough to count."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.jobs import make_job, read_job
from support.ledger_scenario import ScenarioMaker, intake_of

from mulligan.policies.cycles.delayed import (
    SAME_FORMULATION,
    invalid_reason,
    reformulated,
    reformulation_problem,
    similarity,
    suggested,
)
from mulligan.policies.jobs.job import Job
from mulligan.tasks.jobs.submit import submit_jobs
from mulligan.tasks.ports.errors import BadInput

words = st.lists(st.from_regex(r"[a-zäöü]{1,12}", fullmatch=True), min_size=1, max_size=200)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("", "", 1.0),
        ("?!", "...", 1.0),  # no words in either
        ("a word", "", 0.0),
        ("Name the capital.", "name  THE capital!", 1.0),  # case, spaces and signs are ignored
        ("one two", "two one", 1.0),  # and so is the order
        ("one two", "one one two", 1.0),  # and how often
        ("one two three", "one two four", 0.5),  # 2 of 4
        ("one", "two", 0.0),
        ("STRASSE", "straße", 1.0),  # folded, not only lowered
        ("a b c d e f g", "a b c d e f g h", 7 / 8),
    ],
)
def test_similarity_is_the_share_of_common_words(one: str, other: str, expected: float) -> None:
    assert similarity(one, other) == pytest.approx(expected)


@given(words, words)
def test_similarity_is_symmetric_and_between_0_and_1(a: list[str], b: list[str]) -> None:
    one, other = " ".join(a), " ".join(b)
    assert similarity(one, other) == similarity(other, one)
    assert 0.0 <= similarity(one, other) <= 1.0
    assert similarity(one, one) == 1.0


SOURCE = " ".join(f"w{n}" for n in range(100))
JUST_DIFFERENT = " ".join(f"w{n}" for n in range(87))  # 87 of 100 words
JUST_TOO_SIMILAR = " ".join(f"w{n}" for n in range(88))


@pytest.mark.parametrize(
    ("family", "prompt", "other_family", "expected"),
    [
        (None, "Say it.", False, "missing_task_family_context"),
        ("", "Say it.", False, "missing_task_family_context"),
        (None, None, True, "missing_task_family_context"),
        ("past_tense", None, False, "missing_prompt_context"),
        ("past_tense", "", False, "missing_prompt_context"),
        ("past_tense", " \n", False, "missing_prompt_context"),
        ("past_tense", "Say it.", True, "duplicate_task_family"),
        ("plurals", "Say it.", True, None),
        ("past_tense", "Say it.", False, None),
        ("past_tense", SOURCE, False, "duplicate_prompt_formulation"),
        ("past_tense", SOURCE.upper(), False, "duplicate_prompt_formulation"),
        ("past_tense", JUST_TOO_SIMILAR, False, "duplicate_prompt_formulation"),
        ("past_tense", JUST_DIFFERENT, False, None),
        ("plurals", SOURCE, True, "duplicate_prompt_formulation"),
    ],
)
def test_why_a_delayed_verification_does_not_count(
    family: str | None, prompt: str | None, other_family: bool, expected: str | None
) -> None:
    found = invalid_reason(
        source_family="past_tense",
        source_prompt=SOURCE,
        family=family,
        prompt=prompt,
        other_family=other_family,
    )
    assert found == expected


# -- reformulating a task --------------------------------------------------------------------------


def reformulating(task: str, **delayed: Any) -> Job:
    return make_job(prompt=task, delayed_verification={"mode": "reformulate", **delayed})


@given(words)
def test_an_ordinary_task_can_always_be_reformulated(task: list[str]) -> None:
    job = reformulating(" ".join(task))
    assert job.task_text in reformulated(job)
    assert similarity(job.task_text, reformulated(job)) < SAME_FORMULATION
    assert reformulation_problem(job) is None


@pytest.mark.parametrize("task", ["{0} {task} {", "%s %(task)s", 'say """ ', "\\n{{}}"])
def test_a_task_is_quoted_unchanged(task: str) -> None:
    assert task in reformulated(reformulating(task))


@pytest.mark.parametrize(("words", "valid"), [(5, True), (600, False)])
def test_only_a_formulation_that_would_count_is_suggested(words: int, valid: bool) -> None:
    job = reformulating(" ".join(f"word{n}" for n in range(words)))
    suggestion = suggested(job)
    assert (suggestion is not None) is valid
    reason = invalid_reason(
        source_family="a", source_prompt=job.task_text, family="a", prompt=reformulated(job)
    )
    assert reason == (None if valid else "duplicate_prompt_formulation")


def test_the_producers_formulation_comes_first() -> None:
    job = reformulating("Name the capital of France.", prompt="Paris is the capital of what?")
    assert reformulated(job) == "Paris is the capital of what?"


LONG = " ".join(f"word{n}" for n in range(2000))


@pytest.mark.parametrize(
    ("task", "delayed", "line"),
    [
        (LONG, {}, "delayed_verification: the task is too long to reformulate"),
        (
            "Name it now.",
            {"prompt": "name it NOW!"},
            "delayed_verification.prompt: repeats the task",
        ),
        (LONG, {"prompt": "In short: which is the longest?"}, None),
        ("Name it now.", {}, None),
    ],
)
def test_a_reformulation_that_could_never_count_is_refused(
    new_fake_scenario: ScenarioMaker, task: str, delayed: dict[str, Any], line: str | None
) -> None:
    scenario = new_fake_scenario()
    job = reformulating(task, **delayed)
    if line is None:
        assert intake_of(scenario).problems(job) == []
        return
    with pytest.raises(BadInput) as caught:
        submit_jobs(intake_of(scenario), [job])
    (problem,) = caught.value.problems
    assert str(problem).startswith(line)
    assert scenario.ledger.jobs() == []


def test_a_recheck_needs_no_reformulation() -> None:
    assert reformulation_problem(make_job(prompt=LONG)) is None


def test_external_work_needs_no_reformulation() -> None:
    job = make_job(
        prompt=LONG,
        subject="mia",
        runner={"kind": "external"},
        verifiers=["external.score"],
        delayed_verification={"mode": "reformulate"},
    )
    assert reformulation_problem(job) is None


RAW: dict[str, Any] = {"task_type": "t", "prompt": "p", "runner": "r", "verifiers": ["json.object"]}
EXTERNAL = {"runner": {"kind": "external"}, "subject": "mia", "verifiers": ["external.score"]}


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"delayed_verification": {"prompt": "x"}}, "prompt and other_family are for mode"),
        ({"delayed_verification": {"other_family": True}}, "prompt and other_family are for mode"),
        ({"delayed_verification": {"mode": "later"}}, "delayed_verification.mode"),
        ({"subject": "mia"}, "a subject and the runner {kind: external} belong together"),
        ({"runner": {"kind": "external"}}, "a subject and the runner {kind: external} belong"),
        (
            {**EXTERNAL, "memory_scope": "task_type"},
            "memory_scope: must be job for external work",
        ),
    ],
)
def test_contradictory_fields_are_refused(fields: dict[str, Any], line: str) -> None:
    with pytest.raises(BadInput) as caught:
        read_job({**RAW, **fields})
    assert line in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"verifiers": ["external.score"]}, "verifiers: external.score is only for external work"),
        (
            {**EXTERNAL, "verifiers": ["external.score", "json.object"],
             "delayed_verification": {"mode": "reformulate"}},
            "verifiers: external.score is only for external work",
        ),
        (EXTERNAL, "delayed_verification.mode: nothing here can check the answer again"),
    ],
)  # fmt: skip
def test_an_external_score_has_conditions(
    new_fake_scenario: ScenarioMaker, fields: dict[str, Any], line: str
) -> None:
    found = list(map(str, intake_of(new_fake_scenario()).problems(read_job({**RAW, **fields}))))
    assert found[0].startswith(line)
