"""A job's story, built once for the page, the terminal and the client."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from support.jobs import answer, make_job

from mulligan.client.job_story import tell
from mulligan.console.cli.output.job_story import print_story
from mulligan.console.page.job_story_page import attempt_sections
from mulligan.policies.failures.failure import Finding, VerificationResult, VerificationStatus
from mulligan.policies.failures.memory import RetryMemory
from mulligan.policies.jobs.job import AttemptPlan, Decoding
from mulligan.policies.repair.verdict import Verdict, judge
from mulligan.policies.value import Json
from mulligan.tasks.jobs.job_story import (
    check_stories,
    diff_lines,
    failed_with,
    repaired_by,
    score_path,
    tell_story,
)
from mulligan.tasks.ports.ledger import AttemptView, JobView

SECRET = "Alice's own words"
JOB = make_job(prompt="Extract the person.", verifiers=["json.object"])
FIRST = AttemptPlan(number=1, mode="initial")
SECOND = AttemptPlan(
    number=2,
    mode="immediate_retry",
    prompt="Extract the person.\nage must be an integer.",
    technique="fix_type+constrained",
    decoding=Decoding(constrained=True),
)
WRONG = VerificationResult(
    status=VerificationStatus.FAIL,
    verifier_id="json.object",
    summary="2 errors",
    errors=(
        Finding(message=f"{SECRET}: not an integer", code="type", path="$.age", expected="integer"),
        Finding(message="name is missing", code="required", path="$.name"),
    ),
    score=40,
)


def attempt(plan: AttemptPlan, text: str, verdict: Verdict | None) -> AttemptView:
    return AttemptView(
        plan=plan,
        state="settled" if verdict else "running",
        output=answer(text),
        verdict=verdict,
        queued_at=1.0,
        started_at=2.0,
        settled_at=5.0 if verdict else None,
        worker="host",
        claims=1,
        faults=0,
        last_fault=None,
    )


@pytest.fixture
def view() -> JobView:
    """A job whose second attempt repairs the first."""
    failed = judge(JOB, FIRST, [WRONG], RetryMemory())
    return JobView(
        id="p00-a",
        job=JOB,
        state="succeeded",
        waiting_for=None,
        reason=None,
        detail=None,
        created_at=1.0,
        finished_at=9.0,
        best_attempt=2,
        tokens=20,
        seconds=3.0,
        attempts=(
            attempt(FIRST, SECRET, failed),
            attempt(SECOND, "{}", Verdict(score=100.0, success=True)),
        ),
    )


def test_each_attempt_shows_prompt_answer_errors_changes_and_decision(view: JobView) -> None:
    first, second = tell_story(view).attempts
    assert (first.prompt, first.answer, first.outcome) == (JOB.task_text, SECRET, "score 40")
    assert [error.path for error in first.checks[0].errors] == ["$.age", "$.name"]
    assert first.failure.endswith("$.age")
    assert first.decision.startswith("immediate retry: ")
    assert first.instruction
    assert list(first.prompt_diff()) == []
    assert second.technique == '"integer" + constrained'
    assert second.decoding == "constrained"
    assert "+age must be an integer." in list(second.prompt_diff())
    assert (second.success, second.failure, second.decision) == (True, "", "")


def test_long_prompts_are_compared_in_one_hunk() -> None:
    """Matching their lines would take a minute."""
    before, after = ([f"{n * step % 9_973}" for n in range(60_000)] for step in (7, 11))
    started = time.monotonic()
    lines = list(diff_lines("\n".join(before), "\n".join(after), names=("a", "b")))
    assert time.monotonic() - started < 20
    assert lines[:4] == ["--- a", "+++ b", "@@ -2,59999 +2,59999 @@", "-7"]
    assert len(lines) == 3 + 2 * 59_999
    assert list(diff_lines("x\n" * 9999, "x\n" * 9999, names=("a", "b"))) == []


def test_a_running_attempt_has_a_state_and_no_score(view: JobView) -> None:
    running = replace(view, attempts=(attempt(FIRST, "", None),), best_attempt=None)
    (only,) = tell_story(running).attempts
    assert (only.success, only.outcome) == (None, "running")


def test_a_reader_without_texts_sees_neither_prompt_nor_answer(view: JobView) -> None:
    story = tell_story(view, texts=False)
    assert SECRET not in repr(story)
    assert "Extract" not in repr(story)
    assert story.attempts[0].failure_signature
    assert story.attempts[0].checks[0].errors[0].text == "type"


def test_every_renderer_shows_the_same_story(
    view: JobView, capsys: pytest.CaptureFixture[str]
) -> None:
    print_story(view, diff=True, attempt=None)
    terminal = capsys.readouterr().out
    assert "+age must be an integer." in terminal
    story = tell_story(view)
    first, second = attempt_sections(view, story)
    assert (first.tone, second.tone) == ("bad", "good")
    assert second.diff[-1].text == "+age must be an integer."
    for text in (terminal, tell(view)):
        for expected in (
            "attempt 1  initial  score 40",
            story.attempts[0].failure,
            story.attempts[0].decision,
            "$.name: name is missing",
            'changed: "integer" + constrained',
        ):
            assert expected in text


def test_a_table_shows_scores_failure_and_repair(view: JobView) -> None:
    assert score_path(view) == " 40 → 100"
    assert failed_with(view) == tell_story(view).attempts[0].failure
    assert repaired_by(view) == '"integer" + constrained'
    assert repaired_by(replace(view, state="escalated", reason="max_attempts")) == (
        "ESCALATED max_attempts"
    )


@pytest.mark.parametrize(
    ("state", "shown"),
    [("escalated", "escalated"), ("cancelled", "cancelled"), ("queued", "running")],
)
def test_no_attempt_of_an_ended_job_is_shown_as_running(
    view: JobView, state: str, shown: str
) -> None:
    """Given a job that ended because its workers were lost, or by hand."""
    ended = replace(view, state=state, attempts=(attempt(FIRST, "", None),))
    assert [each.state for each in tell_story(ended).attempts] == [shown]


def test_the_warnings_of_a_verifier_are_shown_and_those_of_free_repairs_once(
    view: JobView, capsys: pytest.CaptureFixture[str]
) -> None:
    result = WRONG.model_copy(
        update={
            "warnings": ("coerced: fence", "\x1b[2Ja.py was restored"),
            "evidence": {"coercions": ["fence"]},
        }
    )
    warned = attempt(FIRST, "x", judge(JOB, FIRST, [result], RetryMemory()))
    view = replace(view, attempts=(warned,))
    print_story(view, diff=False, attempt=None)
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    for text in (printed, tell(view)):
        assert "warning: " in text
        assert "a.py was restored" in text
        assert text.count("fence") == text.count("free repairs: fence") == 1
    assert tell_story(view, texts=False).attempts[0].checks[0].warnings == ()


def test_many_warnings_are_cut(view: JobView) -> None:
    result = WRONG.model_copy(update={"warnings": tuple(f"{n} was restored" for n in range(30))})
    warned = attempt(FIRST, "x", judge(JOB, FIRST, [result], RetryMemory()))
    [check] = tell_story(replace(view, attempts=(warned,))).attempts[0].checks
    assert check.warnings[-1] == "… 20 more"


@pytest.mark.parametrize(
    ("evidence", "not_confined"),
    [
        ({}, False),
        ({"isolation": "(hidden)"}, False),
        ({"isolation": ["bubblewrap", "seccomp"]}, False),
        ({"isolation": ["landlock 6", "seccomp"]}, False),
        ({"isolation": ["no_new_privs", "rlimits"]}, True),
        ({"isolation": []}, True),
    ],
)
def test_a_verdict_without_isolation_is_not_confined(
    evidence: dict[str, Json], not_confined: bool
) -> None:
    [check] = check_stories([WRONG.model_copy(update={"evidence": evidence})], texts=False)
    assert check.not_confined is not_confined
    assert check.reservations == (["not confined"] if not_confined else [])
