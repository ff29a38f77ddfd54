"""`mulligan run` as a real process: it starts, runs, reports and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest
import redis
from support.cli_process import Shell, new_shell
from support.jobs import GOOD, WRONG_TYPE, gated, scripted
from support.waiting import wait_for

T = TypeVar("T")
JOBS = [
    scripted({"text": WRONG_TYPE, "usage": {"total_tokens": 80}},
        {"text": GOOD, "usage": {"total_tokens": 120}}),
    scripted(f"```json\n{GOOD}\n```", task_type="fenced_json"),
    scripted(GOOD, task_type="invoice_total"),
    scripted({"text": '{"name": "Al', "finish_reason": "length"}, GOOD, task_type="long_list"),
    scripted("no", task_type="stubborn", idempotency_key="stubborn-1"),
]  # fmt: skip


@pytest.fixture(scope="module")
def shell() -> Iterator[Shell]:
    with new_shell() as shell:
        yield shell


@pytest.fixture(scope="module")
def document(shell: Shell) -> Any:
    """The output of one run of all jobs. One of them cannot be repaired: exit code 1."""
    shell.write("jobs.json", JOBS)
    document = shell.run_json("run", "jobs.json", "--wait-cycles", code=1)
    assert shell.all_ended()
    return document


def test_a_run_prints_the_jobs_the_report_and_the_figures(document: Any) -> None:
    states = {each["name"]: (each["state"], each["reason"]) for each in document["jobs"]}
    assert states == {
        "extract_person": ("succeeded", None),
        "fenced_json": ("succeeded", None),
        "invoice_total": ("succeeded", None),
        "long_list": ("succeeded", None),
        "stubborn": ("escalated", "repeated_failure"),
    }
    report = document["report"]
    assert report["protocolVersion"] == "self-repair-immediate-v1"
    assert (report["totalCycles"], report["immediateCompletionRate"]) == (3, 1.0)
    assert report["statusCounts"]["completed"] == 2
    figures = document["figures"]
    assert (figures["first_try"], figures["succeeded"], figures["lost"]) == (2, 4, 0)
    assert (figures["tokens"], figures["repair_tokens"]) == (200, 120)
    assert figures["retry_p50_ms"] > 0


def test_a_run_prints_the_attempts_of_a_repaired_job(document: Any) -> None:
    repaired = document["jobs"][0]
    first, second = repaired["attempts"]
    assert (repaired["best_attempt"], repaired["answer"]) == (2, GOOD)
    assert (first["number"], first["mode"], first["answer"]) == (1, "initial", WRONG_TYPE)
    assert first["score"] < 70
    assert first["prompt"] == "Extract the person."
    assert first["failure"]["kind"] == "schema_invalid"
    assert first["instruction"]["action"] == "fix_type"
    assert [result["status"] for result in first["results"]] == ["pass", "fail"]
    assert (second["number"], second["mode"], second["score"]) == (2, "immediate_retry", 100)
    assert second["usage"]["total_tokens"] == 120
    assert "$.age must be an integer" in second["prompt"]
    assert [cycle["status"] for cycle in repaired["cycles"]] == ["completed"]


def test_the_jobs_of_a_run_can_be_listed_and_shown_afterwards(shell: Shell, document: Any) -> None:
    listed = shell.invoke_json("jobs", "list", "--state", "escalated")
    assert [each["name"] for each in listed["jobs"]] == ["stubborn"]
    by_name = shell.run_json("jobs", "show", "extract_person")
    assert by_name == document["jobs"][0]
    story = shell.invoke("jobs", "show", "extract_person", "--diff").stdout
    assert "attempt 1  initial  score 50  schema_invalid $.age" in story
    assert "  +++ attempt 2" in story
    assert "cycle 1, after attempt 1: completed" in story
    assert "has already ended" in shell.invoke("jobs", "cancel", "stubborn", code=1).stderr
    assert shell.all_ended()


def test_a_job_is_found_by_id_prefix_key_or_name(shell: Shell, document: Any) -> None:
    stubborn = document["jobs"][4]["id"]
    for ref in (stubborn, stubborn[:20], "stubborn-1", "stubborn"):
        assert stubborn in shell.invoke("jobs", "show", ref).stdout
    error = shell.invoke("jobs", "show", "stuborn", code=2).stderr
    assert "no job 'stuborn'; did you mean 'stubborn'?" in error


def test_the_report_command_reads_the_ledger_of_a_run(shell: Shell, document: Any) -> None:
    shell.invoke("report", "immediate-loop", "--output", "report.json")
    written = json.loads((shell.folder / "report.json").read_text())
    assert written["causeLabels"] == document["report"]["causeLabels"]


def test_a_successful_run_prints_a_readable_summary(shell: Shell, document: Any) -> None:
    """Given the home of the earlier run."""
    shell.write("two.json", {"jobs": [JOBS[0], JOBS[1]]})
    shown = shell.run("run", "two.json", "--show-repair").stdout
    assert "+++ extract_person attempt 2" in shown
    assert 'schema_invalid $.age  "integer" + constrained' in shown
    assert "free repair" in shown
    assert "first try 1/2 → after repair 2/2 · retry p50" in shown
    assert "lost 0" in shown
    assert "next: mulligan jobs show extract_person --diff · mulligan up" in shown
    assert "\x1b[" not in shown
    assert shell.all_ended()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (
            scripted("x", budjet={}),
            "job.json:1: budjet: there is no such field; did you mean 'budget'?",
        ),
        (scripted("x", verifiers=["json.objet"]), "job.json:1: verifiers[0].id: unknown verifier"),
        (scripted("x", runner={"kind": "scriptd"}), "job.json:1: runner.kind: no runner 'scriptd'"),
        (
            scripted("x", policy={"max_attempts": 1}),
            "policy.max_attempts: must be 2 or more",
        ),
        (
            scripted("x", workspace={"path": "gone"}),
            "job.json:1: workspace.path: there is no directory",
        ),
    ],
)
def test_bad_input_starts_nothing(content: dict[str, Any], expected: str) -> None:
    with new_shell() as shell:
        shell.write("job.json", content)
        assert expected in shell.invoke("run", "job.json", code=2).stderr
        assert [path.name for path in shell.folder.iterdir()] == ["job.json"]


@pytest.mark.parametrize("command", [["run"], ["submit"], ["jobs", "lint"]])
def test_problems_of_every_stage_are_reported_at_once(command: list[str]) -> None:
    """Given a misspelt field, an unknown profile and an unknown option in separate jobs."""
    jobs = [
        {**scripted("x"), "budjet": {}},
        {**scripted("x"), "runner": "smal"},
        {**scripted("x"), "verifiers": [{"id": "json.object", "strict": True}]},
    ]
    with new_shell(MULLIGAN_ALLOW_INLINE="true") as shell:
        shell.write("jobs.yaml", "jobs:\n" + "".join(f"- {json.dumps(each)}\n" for each in jobs))
        shell.write("other.json", {**scripted("x"), "policy": {"max_attempts": 1}})
        shown = shell.invoke(*command, "jobs.yaml", "other.json", code=2)
        printed = (shown.stdout + shown.stderr).replace("error: ", "").replace("mulligan: ", "")
        for line in (
            "jobs.yaml:2: jobs[0].budjet: there is no such field; did you mean 'budget'?",
            "jobs.yaml:3: jobs[1].runner.profile: no profile 'smal'",
            "jobs.yaml:4: jobs[2].verifiers[0].strict: there is no such option",
            "other.json:1: policy.max_attempts: must be 2 or more",
        ):
            assert line in printed
        assert len([line for line in printed.splitlines() if ": " in line]) == 4, printed


@pytest.mark.real_models("command")
def test_ctrl_c_stops_everything_and_the_next_run_continues() -> None:
    with new_shell(MULLIGAN_LEASE="2") as shell:
        copies = shell.folder / "tmp"
        copies.mkdir()
        shell.environment["TMPDIR"] = str(copies)
        gate = shell.folder / "gate" / "open"
        shell.write("slow.json", gated(gate, idempotency_key="slow"))
        process = shell.start("run", "slow.json")
        wait_for(lambda: _running(shell), "the job to run")
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)  # impatient
        out, err = process.communicate(timeout=90)
        assert process.returncode == 130, out + err
        assert "1 unfinished job stays in the ledger" in err
        assert shell.all_ended()
        assert list(copies.glob("mulligan-*")) == []
        gate.touch()
        # The key finds the same job; it is not started again under another id.
        shell.run("run", "slow.json", "--always-zero", timeout=120)
        listed = shell.invoke_json("jobs", "list")
        assert [each["state"] for each in listed["jobs"]] == ["succeeded"]


@pytest.mark.real_models("command")
def test_a_run_restarts_its_redis_and_continues() -> None:
    with new_shell(MULLIGAN_SUBMIT_PATIENCE="0.5") as shell:
        gate = shell.folder / "gate" / "open"
        shell.write("slow.json", gated(gate))
        process = shell.start("run", "slow.json")
        wait_for(lambda: _running(shell), "the job to run")
        first = _redis_pid(shell)
        assert first is not None
        os.kill(first, signal.SIGKILL)
        wait_for(lambda: _redis_pid(shell) not in (None, first), "another Redis")
        gate.touch()
        out, err = process.communicate(timeout=180)
        assert process.returncode == 0, out + err
        assert "The embedded server is gone; restarting it." in err
        assert "lost 0" in out
        assert shell.all_ended()


def test_waiting_without_workers_is_reported(redis_url: str) -> None:
    with new_shell(MULLIGAN_BROKER_URL=redis_url, MULLIGAN_ALLOW_INLINE="true") as shell:
        shell.write("job.json", scripted(GOOD))
        process = shell.start("submit", "job.json", "--wait")
        assert process.stderr is not None
        assert "no worker answers: start `mulligan up`" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 130, out + err
        assert "1 unfinished job stays in the queue" in err


def _running(shell: Shell) -> bool:
    """Return whether a worker has claimed the job."""
    return bool(_query_redis(shell, lambda client: client.zcard("mulligan:{p00}:jobs:running")))


def _redis_pid(shell: Shell) -> int | None:
    return _query_redis(shell, lambda client: int(client.info("server")["process_id"]))


def _query_redis(shell: Shell, query: Callable[[Any], T]) -> T | None:
    """Return the result of a query to a shell's embedded Redis, or None if there is none."""
    socket = shell.folder / ".mulligan" / "redis.sock"
    try:
        with redis.Redis(unix_socket_path=str(socket)) as client:
            return query(client)
    except redis.RedisError:
        return None


def test_a_timeout_is_reported_and_leaves_nothing_behind() -> None:
    with new_shell() as shell:
        shell.write("slow.json", scripted({"text": GOOD, "delay": 60}))
        result = shell.run("run", "slow.json", "--timeout", "1", code=1)
        assert "not finished within 1 s" in result.stderr
        assert "lost 0 · unfinished 1" in result.stdout
        assert shell.all_ended()
