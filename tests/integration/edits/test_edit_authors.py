"""A plan written by a model whose edits failed: the model gets one correction with the reasons."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.ledger_scenario import SettingsMaker
from support.waiting import wait_for

from mulligan.policies.edits.edit import AutonomyMode, EditPlan
from mulligan.policies.edits.feedback import failure_of
from mulligan.policies.edits.session import EditSession
from mulligan.policies.edits.suite import Suite
from mulligan.policies.failures.failure import FailureKind
from mulligan.policies.jobs.job import Job
from mulligan.tasks.jobs.submit import submit_jobs
from mulligan.workers.edits.sessions.engine import EditEngine, build_edit_engine, take_steps
from mulligan.workers.ledger.redis_ledger import RedisLedger
from mulligan.workers.local.local_stack import LocalStack, local_stack

SCORE = """
import json
print(json.dumps({"score": {"start": 0.5, "good": 0.7}.get(open("a.txt").read().strip(), 0.1)}))
"""
SUITE = Suite.model_validate(
    {
        "deterministic": True,
        "tasks": [{"id": "all", "cluster": "main", "command": [sys.executable, "score.py"]}],
    }
)
ANSWER = '{"edits": ["…"]}'


@pytest.fixture
def stack(ledger: RedisLedger, settings: SettingsMaker) -> Iterator[LocalStack]:
    writer = {"kind": "scripted", "answers": [ANSWER]}
    with local_stack(settings(runners={"writer": writer}), ledger) as running:
        yield running


@pytest.fixture
def engine(stack: LocalStack) -> EditEngine:
    assert isinstance(stack.ledger, RedisLedger)
    return build_edit_engine(stack.services.settings, stack.ledger, stack.intake, commands=True)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    root.mkdir()
    (root / "a.txt").write_text("start\n")
    (root / "score.py").write_text(SCORE)
    return root


def author(stack: LocalStack, **changes: Any) -> str:
    """Run a job that writes a plan and return its id."""
    fields = {"task_type": "tune", "prompt": "Write a plan.", "runner": "writer", **changes}
    job = Job.model_validate({**fields, "verifiers": ["json.object"], "labels": {"team": "x"}})
    (accepted,) = submit_jobs(stack.intake, [job])

    def ended() -> bool:
        view = stack.ledger.job(accepted.id)
        return view is not None and view.state == "succeeded"

    wait_for(ended)
    return accepted.id


def begin(
    engine: EditEngine, root: Path, written_by: str, *texts: str, mode: str = "auto"
) -> EditSession:
    edits = [
        {"id": f"e{n}", "op": "write_file", "target": "a.txt", "payload": {"content": f"{text}\n"}}
        for n, text in enumerate(texts, 1)
    ]
    wrong = {"id": "e9", "op": "search_replace", "target": "a.txt",
             "payload": {"search": "nowhere", "replace": "x"}}  # fmt: skip
    edits += [wrong] if mode == "auto" else []
    plan = EditPlan.model_validate({"session": "s1", "author": written_by, "edits": edits})
    return engine.begin(plan, root, AutonomyMode(mode), suite=SUITE, inline=False)


def work_until_done(engine: EditEngine) -> EditSession:
    while take_steps(engine, "s1") != "done":
        pass
    return engine.sessions.get("s1").session


def job_of(stack: LocalStack, job_id: str | None) -> Job:
    assert job_id is not None
    view = stack.ledger.job(job_id)
    assert view is not None
    return view.job


def test_the_author_of_a_plan_gets_a_correction_with_the_failures(
    stack: LocalStack, engine: EditEngine, root: Path
) -> None:
    first = author(stack)
    begin(engine, root, first, "good", "bad")
    done = work_until_done(engine)
    assert [outcome.reason for outcome in done.outcomes] == ["kept", "regression", "apply_error"]
    job = job_of(stack, done.correction)
    assert (job.task_type, job.labels["corrects"], job.labels["team"]) == ("tune", first, "x")
    prompt = str(job.prompt)
    assert prompt.startswith("Write a plan.")
    assert ANSWER in prompt
    assert "edits[1] (e2) a.txt: rejected_by_gate (regression): main 0.700 → 0.100" in prompt
    assert "edits[2] (e9) a.txt: rejected_by_gate (apply_error)" in prompt
    assert "(e1)" not in prompt, "it was kept"
    failure = failure_of(done)
    assert failure is not None
    assert failure.kind is FailureKind.REASONING_ERROR
    # Repeating it gives the same job.
    assert engine.correct(done.moved(correction=None)).correction == done.correction
    assert len(stack.ledger.jobs()) == 2


def test_the_correction_has_the_reviewers_notes_after_the_last_review(
    stack: LocalStack, engine: EditEngine, root: Path
) -> None:
    first = author(stack)
    begin(engine, root, first, "good", "bad", mode="manual")
    assert work_until_done(engine).correction is None
    assert engine.reject("s1", "e1", by="ada", note="keep the old tone").correction is None
    done = engine.reject("s1", "e2", by="ada", note="too broad")
    prompt = str(job_of(stack, done.correction).prompt)
    assert "rejected_by_user (rejected): keep the old tone" in prompt
    assert "rejected_by_user (rejected): too broad" in prompt


def test_a_rollback_by_a_person_asks_for_no_correction(
    stack: LocalStack, engine: EditEngine, root: Path
) -> None:
    begin(engine, root, author(stack), "good", mode="manual")
    work_until_done(engine)
    done, _ = engine.roll_back("s1", None, by="ada")
    assert done.finished
    assert engine.correct(done).correction is None
    assert len(stack.ledger.jobs()) == 1


def test_a_plan_of_an_unknown_author_ends_without_a_correction(
    engine: EditEngine, root: Path
) -> None:
    begin(engine, root, "p00-unknown", "bad")
    done = work_until_done(engine)
    assert [outcome.reason for outcome in done.outcomes] == ["regression", "apply_error"]
    assert done.correction is None
