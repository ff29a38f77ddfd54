"""`mulligan escalations` with real workers and without any."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.cli_process import Shell, new_shell
from support.fleet import Fleet, running_fleet
from support.jobs import GOOD, WRONG_TYPE, scripted
from support.ledger_scenario import Scenario
from support.waiting import wait_for

from mulligan.tasks.escalations.end_escalations import EndAction, EscalationFilter
from mulligan.workers.celery.broker.queue_depth import depths
from mulligan.workers.celery.factory import create_app
from mulligan.workers.ledger.redis_ledger import RedisLedger
from mulligan.workers.settings.model import Settings

SIGNATURE = "v1:a1b2c3"
BETTER_PROMPT = "Answer with the person as JSON, the age as a number."


@pytest.fixture
def shell(redis_url: str) -> Iterator[Shell]:
    with new_shell(MULLIGAN_BROKER_URL=redis_url, NO_COLOR="1") as shell:
        yield shell


@pytest.fixture
def scenario(ledger: RedisLedger, settings: Callable[..., Settings]) -> Scenario:
    return Scenario(ledger, settings())


def escalate(
    scenario: Scenario, count: int = 1, group_signature: str | None = SIGNATURE, **fields: Any
) -> list[str]:
    fields["group_signature"] = group_signature
    return [f"{scenario.escalated_job(**fields)}:1" for _ in range(count)]


def read(shell: Shell, *argv: str) -> dict[str, Any]:
    found: dict[str, Any] = shell.invoke_json("escalations", *argv)
    return found


def open_count(scenario: Scenario, signature: str = SIGNATURE) -> int:
    group = scenario.ledger.group(signature)
    return group.open if group else 0


# -- with real workers -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with running_fleet(tmp_path_factory.mktemp("f")) as fleet:
        yield fleet


def test_forty_similar_jobs_are_requeued_with_a_better_prompt_and_succeed(fleet: Fleet) -> None:
    with new_shell(MULLIGAN_BROKER_URL=fleet.server.url, NO_COLOR="1") as shell:
        wrong_twice = scripted(WRONG_TYPE, WRONG_TYPE, GOOD, policy={"max_attempts": 2})
        ids = fleet.submit(*([wrong_twice] * 40))
        assert {view.state for view in fleet.wait_until_finished(ids)} == {"escalated"}

        (row,) = read(shell, "list")["groups"]
        assert (row["open"], row["total"]) == (40, 40)
        signature = row["signature"]
        dry = read(shell, "requeue", "--signature", signature, "--dry-run")
        assert (dry["total"], dry["task_types"]) == (40, {"extract_person": 40})
        assert read(shell, "list")["groups"][0]["open"] == 40

        argv = ["requeue", "--signature", signature, "--by", "ann"]
        prompt_file = shell.write("better.txt", BETTER_PROMPT)
        argv += ["--prompt-file", prompt_file, "--note", "new prompt"]
        refused = shell.invoke("escalations", *argv, code=2)
        assert "No terminal to confirm on. Pass --yes" in refused.stderr
        result = read(shell, *argv, "--yes")
        assert (result["done"], result["failed"], result["state"]) == (40, 0, "done")

        views = fleet.wait_until_finished(ids)
        assert {view.state for view in views} == {"succeeded"}
        assert all(BETTER_PROMPT in (view.attempts[2].plan.prompt or "") for view in views)
        detail = read(shell, "show", signature, "--limit", "100")
        assert (detail["group"]["open"], detail["group"]["total"]) == (0, 40)
        ended = {(e["state"], e["ended_by"], e["note"]) for e in detail["escalations"]}
        assert ended == {("requeued", "ann", "new prompt")}
        again = read(shell, *argv, "--yes")
        assert (again["total"], again["done"]) == (0, 0)


def test_a_control_worker_carries_out_a_recorded_bulk_action(fleet: Fleet) -> None:
    scenario = Scenario(fleet.ledger, fleet.services.settings)
    ids = escalate(scenario, 60)
    bulks = fleet.ledger.bulk_actions
    action, which = EndAction(how="requeued", by="ann"), EscalationFilter(signature=SIGNATURE)
    bulk = bulks.create(action, which, ids, per_second=1000)

    def over() -> bool:
        found = bulks.get(bulk.id)
        return found is not None and (found.state, found.done) == ("done", 60)

    wait_for(over, "the control worker")
    jobs = [escalation_id.partition(":")[0] for escalation_id in ids]
    assert {view.state for view in fleet.wait_until_finished(jobs)} == {"succeeded"}


# -- without workers -------------------------------------------------------------------------------


def test_without_workers_the_command_requeues_and_publishes_by_itself(
    shell: Shell, scenario: Scenario, settings: Callable[..., Settings]
) -> None:
    escalate(scenario, 45)
    result = shell.invoke(
        "escalations", "requeue", "--signature", SIGNATURE, "--yes", "--by", "ann"
    )
    assert result.stdout == "45 jobs requeued by ann\n"
    assert open_count(scenario) == 0
    assert depths(create_app(settings()), ["attempt"])["attempt"] == 45
    assert "no open escalations match" in shell.invoke(
        "escalations", "requeue", "--signature", SIGNATURE, "--yes"
    ).stdout  # fmt: skip


def test_the_list_has_two_lines_per_group_and_the_next_command(
    shell: Shell, scenario: Scenario
) -> None:
    assert "no open escalations" in shell.invoke("escalations", "list").stdout
    escalate(scenario, 3)
    escalate(scenario, 1, group_signature=None, task_type="translate")
    lines = shell.invoke("escalations", "list").stdout.splitlines()
    assert [line.rpartition(", ")[0].split() for line in lines[:4:2]] == [
        ["1", "open", "reason:max_attempts", "max_attempts"],
        ["3", "open", SIGNATURE, "json_invalid:", "max_attempts"],
    ]
    assert [line.strip() for line in lines[1:4:2]] == [
        "translate 1 · it went wrong",
        "extract 3 · it went wrong",
    ]
    assert lines[4:] == ["for details: `mulligan escalations show SIGNATURE`"]


def test_show_lists_who_ended_which_escalations(shell: Shell, scenario: Scenario) -> None:
    ids = escalate(scenario, 2)
    shell.invoke(
        "escalations", "resolve", "--id", ids[0], "--note", "bad key", "--by", "bo", "--yes"
    )
    text = shell.invoke("escalations", "show", SIGNATURE).stdout
    assert "1 open of 2" in text
    line = rf"^{ids[0]}  extract  [\d.]+ m?s ago  resolved by bo, [\d.]+ m?s ago: bad key$"
    assert re.search(line, text, re.MULTILINE)
    assert f"mulligan escalations requeue --signature {SIGNATURE} --dry-run" in text
    assert "runbook" in text
    only = shell.invoke("escalations", "show", SIGNATURE, "--open").stdout
    assert ids[0] not in only


def test_filters_apply_and_a_dry_run_changes_nothing(shell: Shell, scenario: Scenario) -> None:
    escalate(scenario, 25)
    escalate(scenario, 2, task_type="translate")
    text = shell.invoke("escalations", "cancel", "--reason", "max_attempts", "--dry-run").stdout
    assert "and 7 more" in text
    assert "this would cancel 27 jobs; nothing was changed" in text
    assert open_count(scenario) == 27
    shell.invoke("escalations", "cancel", "--task-type", "translate", "--yes")
    assert open_count(scenario) == 25
    nothing = shell.invoke("escalations", "resolve", "--older-than", "1h", "--dry-run").stdout
    assert "no open escalations match" in nothing


def test_an_expired_job_is_reported_and_can_be_resolved(
    shell: Shell, scenario: Scenario, ledger: RedisLedger
) -> None:
    gone, _ = escalate(scenario, 2)
    ledger.calls.run("DEL", f"mulligan:{{p00}}:job:{gone.partition(':')[0]}")
    result = shell.invoke("escalations", "requeue", "--signature", SIGNATURE, "--yes", code=1)
    assert "1 job requeued" in result.stdout
    assert f"{gone}: the job is no longer kept" in result.stderr
    shell.invoke("escalations", "resolve", "--id", gone, "--yes")
    assert open_count(scenario) == 0


def test_a_group_is_muted_and_unmuted(shell: Shell, scenario: Scenario) -> None:
    escalate(scenario)
    assert "muted for 2h" in shell.invoke("escalations", "mute", SIGNATURE, "--for", "2h").stdout
    assert "muted" in shell.invoke("escalations", "list").stdout
    assert "unmuted" in shell.invoke("escalations", "mute", SIGNATURE, "--off").stdout
    group = scenario.ledger.group(SIGNATURE)
    assert group is not None
    assert group.muted_until is None


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["requeue", "--yes"], "choose escalations with --signature"),
        (["requeue", "--id", "p00-x:1", "--yes"], "there is no escalation 'p00-x:1'"),
        (["requeue", "--signature", "v1:x", "--older-than", "soon"], "--older-than: 'soon'"),
        (["requeue", "--signature", "v1:x", "--prompt-file", "no.txt"], "--prompt-file: no.txt"),
        (["show", "v1:unknown"], "v1:unknown: no escalation has this signature"),
        (["mute", "v1:unknown"], "v1:unknown: no escalation has this signature"),
    ],
)
def test_bad_input_is_explained_in_one_line(shell: Shell, argv: list[str], expected: str) -> None:
    result = shell.invoke("escalations", *argv, code=2)
    assert expected in result.stderr
    assert len(result.stderr.splitlines()) == 1


# -- on a terminal ---------------------------------------------------------------------------------


def run_on_terminal(shell: Shell, typed: str, *argv: str) -> tuple[int, str]:
    """Run a command, type this and return the exit code and the terminal's output."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "mulligan.console", *argv],
        cwd=shell.folder,
        env={**os.environ, **shell.environment, "TERM": "xterm", "COLUMNS": "200"},
        stdin=follower,
        stdout=follower,
        stderr=follower,
    )
    os.close(follower)
    os.write(leader, typed.encode())
    shown = b""
    while True:
        try:
            chunk = os.read(leader, 4096)
        except OSError:  # Linux raises it when the other end is closed
            break
        if not chunk:
            break
        shown += chunk
    os.close(leader)
    return process.wait(30), shown.decode()


def test_a_terminal_asks_for_confirmation(shell: Shell, scenario: Scenario) -> None:
    escalate(scenario, 30)
    argv = ("escalations", "requeue", "--signature", SIGNATURE)
    code, shown = run_on_terminal(shell, "n\n", *argv)
    assert "requeue 30 jobs? [y/N]" in shown
    assert "and 10 more" in shown
    assert "nothing was changed" in shown
    assert (code, open_count(scenario)) == (1, 30)
    code, shown = run_on_terminal(shell, "y\n", *argv)
    assert "30 jobs requeued by" in shown
    assert (code, open_count(scenario)) == (0, 0)


def test_ctrl_c_stops_it_and_reports_the_progress(
    shell: Shell, scenario: Scenario, ledger: RedisLedger
) -> None:
    escalate(scenario, 5)
    argv = ("escalations", "resolve", "--signature", SIGNATURE, "--per-second", "0.1", "--yes")
    process = shell.start(*argv)
    wait_for(lambda: open_count(scenario) == 4, "the first one")
    assert len(ledger.bulk_actions.running()) == 1
    process.send_signal(2)
    _, error = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "stopped: 1 of 5 resolved; the others are unchanged" in error
    assert ledger.bulk_actions.running() == []
