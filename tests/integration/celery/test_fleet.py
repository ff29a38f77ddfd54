"""Jobs on real worker processes: repaired, escalated, verified in separate tasks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from celery import Celery
from support.fleet import Fleet, running_fleet
from support.jobs import GOOD, MISSING, WRONG_TYPE, failure_of, scripted, verdict_of
from support.waiting import wait_for

from mulligan.policies import ChangeStrategy, Escalate, Retry


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("fleet")
    with running_fleet(folder) as running:
        yield running


def test_a_good_answer_needs_one_attempt(fleet: Fleet) -> None:
    view = fleet.run(scripted(GOOD))
    assert (view.state, len(view.attempts), view.cycles) == ("succeeded", 1, ())
    assert view.attempts[0].score == 100


def test_a_fence_is_repaired_for_free_and_costs_points(fleet: Fleet) -> None:
    view = fleet.run(scripted(f"```json\n{GOOD}\n```"))
    assert (view.state, len(view.attempts)) == ("succeeded", 1)
    assert view.attempts[0].score == 95
    assert verdict_of(view.attempts[0]).coercions == ("fence",)


def test_a_low_score_is_repaired_by_the_mandatory_retry(fleet: Fleet) -> None:
    view = fleet.run(scripted(WRONG_TYPE, GOOD))
    first, second = view.attempts
    assert view.state == "succeeded"
    assert [first.plan.mode, second.plan.mode] == ["initial", "immediate_retry"]
    assert "$.age" in (second.plan.prompt or "")
    assert [cycle.status for cycle in view.cycles] == ["completed"]
    assert view.cycles[0].immediate_attempt_id == f"{view.id}-2"
    assert view.best_attempt == 2


def test_a_repeated_failure_changes_the_strategy_and_then_stops(fleet: Fleet) -> None:
    view = fleet.run(scripted(WRONG_TYPE))
    assert view.state == "escalated"
    assert view.reason == "repeated_failure"
    decisions = [type(verdict_of(attempt).decision) for attempt in view.attempts]
    # n = 0: mandatory; n = 1: another strategy; n = 2: stop
    assert decisions == [Retry, ChangeStrategy, Escalate]
    assert {cycle.status.value for cycle in view.cycles} == {"escalated"}


def test_different_failures_use_every_attempt(fleet: Fleet) -> None:
    view = fleet.run(scripted(WRONG_TYPE, MISSING, "nonsense", "{", policy={"max_attempts": 4}))
    assert (view.state, view.reason, len(view.attempts)) == ("escalated", "max_attempts", 4)
    assert [a.plan.mode for a in view.attempts] == [
        "initial",
        "immediate_retry",
        "policy_retry",
        "immediate_retry",
    ]
    assert len(view.cycles) == 2


def test_slow_verifiers_run_as_separate_tasks(fleet: Fleet) -> None:
    slow = {"id": "command.subprocess", "argv": ["true"]}
    broken = {"id": "command.subprocess", "argv": ["false"], "required": False}
    job = scripted(GOOD, verifiers=["json.object", slow, broken, slow])
    view = fleet.run(job)
    assert view.state == "succeeded"
    results = verdict_of(view.attempts[0]).results
    assert [r.status for r in results] == ["pass", "pass", "fail", "pass"]
    assert view.attempts[0].score == 75


def test_a_missing_program_is_a_tool_error(fleet: Fleet) -> None:
    gone = {"id": "command.subprocess", "argv": ["no-such-program-anywhere"]}
    view = fleet.run(scripted(GOOD, verifiers=["json.object", gone]))
    assert (view.state, view.reason) == ("escalated", "tool_error")
    assert "no-such-program-anywhere" in (view.detail or "")
    assert len(view.attempts) == 1


def test_a_transport_fault_is_retried_within_the_same_attempt(fleet: Fleet) -> None:
    fault = {"fault": {"status": 503}}
    fleet.server.client().delete("mulligan:{p00}:provider:scripted")
    view = fleet.run(scripted(fault, deadline="2s"))
    assert (view.state, view.reason, len(view.attempts)) == ("escalated", "deadline", 1)
    assert view.attempts[0].faults >= 1
    fleet.server.client().delete("mulligan:{p00}:provider:scripted")


def test_an_exhausted_budget_escalates(fleet: Fleet) -> None:
    costly = {"text": WRONG_TYPE, "usage": {"total_tokens": 900}}
    view = fleet.run(scripted(costly, GOOD, budget={"tokens": 500}))
    assert (view.state, view.reason, view.tokens) == ("escalated", "budget_tokens", 900)
    # An eligible low score leaves a cycle that was created escalated.
    assert [cycle.status for cycle in view.cycles] == ["escalated"]


def test_an_exempt_type_has_no_mandatory_retry(fleet: Fleet) -> None:
    view = fleet.run(scripted(WRONG_TYPE, GOOD, task_type="read_aloud"))
    assert [a.plan.mode for a in view.attempts] == ["initial", "policy_retry"]
    assert view.cycles == ()


def test_an_unsafe_request_is_never_retried(fleet: Fleet) -> None:
    job = scripted(GOOD, policy={"escalate_on": ["schema_invalid"]})
    job["runner"]["answers"] = [WRONG_TYPE, GOOD]
    view = fleet.run(job)
    assert (view.state, view.reason, len(view.attempts)) == ("escalated", "schema_invalid", 1)


def test_any_celery_client_can_submit_by_name(fleet: Fleet) -> None:
    """Given a plain Celery app that sends a job twice, then there is one job."""
    client = Celery(broker=fleet.server.url)
    for _ in range(2):
        client.send_task(
            "mulligan.submit",
            kwargs=scripted(WRONG_TYPE, GOOD, name="from-celery"),
            queue="mulligan.submit",
            task_id="message-1",
        )

    def arrived() -> list[str]:
        return [v.id for v in fleet.ledger.jobs(limit=1000) if v.job.name == "from-celery"]

    wait_for(arrived, "the job to be accepted")
    client.send_task(
        "mulligan.submit", kwargs=scripted(GOOD, name="later"), queue="mulligan.submit"
    )
    wait_for(
        lambda: [v for v in fleet.ledger.jobs(limit=1000) if v.job.name == "later"],
        "the next message to be served",
    )
    assert len(arrived()) == 1
    assert fleet.wait_until_finished(arrived())[0].state == "succeeded"


def test_a_paused_queue_keeps_its_work_until_it_is_resumed(fleet: Fleet) -> None:
    fleet.ledger.pause("task_type:paused_type")
    (job_id,) = fleet.submit(scripted(GOOD, task_type="paused_type"))

    def waiting() -> bool:
        view = fleet.ledger.job(job_id)
        return view is not None and view.waiting_for == "pause"

    wait_for(waiting, "the job to wait for the pause")
    fleet.ledger.resume("task_type:paused_type")
    assert fleet.wait_until_finished([job_id])[0].state == "succeeded"


def test_a_cancelled_job_does_not_run(fleet: Fleet) -> None:
    fleet.ledger.pause("task_type:cancel_me")
    (job_id,) = fleet.submit(scripted(GOOD, task_type="cancel_me"))
    assert fleet.ledger.cancel(job_id) == "cancelled"
    fleet.ledger.resume("task_type:cancel_me")
    view = fleet.wait_until_finished([job_id])[0]
    assert (view.state, view.attempts[0].output) == ("cancelled", None)


def test_an_accepted_but_unpublished_job_is_found(fleet: Fleet) -> None:
    """Given a producer that died between accepting and publishing, then the sweep publishes."""
    from support.jobs import read_job

    from mulligan.tasks.ports.ledger import Submission
    from mulligan.workers.ledger.stored.job_ids import job_id as new_id

    submission = Submission(id=new_id(partitions=1), job=read_job(scripted(GOOD)))
    fleet.ledger.accept([submission])
    assert fleet.wait_until_finished([submission.id])[0].state == "succeeded"


def test_a_workspace_travels_with_its_job(fleet: Fleet, tmp_path: Path) -> None:
    exercise = tmp_path / "exercise"
    exercise.mkdir()
    (exercise / "test_double.py").write_text(
        "from double import double\n\n\ndef test_double() -> None:\n    assert double(2) == 4\n"
    )
    wrong, right = "def double(n): return n", "def double(n): return 2 * n"
    job = scripted(
        f"```python\n{wrong}\n```",
        f"```python\n{right}\n```",
        task_type="write_function",
        workspace={"path": str(exercise), "output_file": "double.py"},
        verifiers=[{"id": "pytest.subprocess", "args": ["test_double.py"], "timeout": 30}],
    )
    view = fleet.run(job)
    assert view.state == "succeeded", view.detail
    assert failure_of(view.attempts[0]).kind == "test_failed"
    assert "test_double" in (view.attempts[1].plan.prompt or "")


def test_an_outcome_is_sent_to_the_producer_s_app(fleet: Fleet) -> None:
    client = Celery(broker=fleet.server.url)
    (job_id,) = fleet.submit(
        scripted(WRONG_TYPE, GOOD, labels={"order": "7"},
                 on_done={"task": "shop.answered", "queue": "shop"})
    )  # fmt: skip
    fleet.wait_until_finished([job_id])
    with client.connection_for_read() as connection:
        queue = connection.SimpleQueue("shop")
        message = queue.get(timeout=20)
        _, kwargs, _ = message.payload
        message.ack()
        queue.close()
    outcome = kwargs["outcome"]
    assert message.headers["task"] == "shop.answered"
    assert (outcome["job_id"], outcome["state"], outcome["score"]) == (job_id, "succeeded", 100)
    assert (outcome["answer"], outcome["labels"]) == (GOOD, {"order": "7"})
    key = "mulligan:{p00}:outbox:entries"
    wait_for(lambda: not fleet.server.client().hexists(key, f"d:{job_id}/1"), "it to be dropped")
