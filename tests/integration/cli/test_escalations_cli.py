"""`mulligan escalations` as a person uses it, with real workers and without any."""

from __future__ import annotations

import json
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
from support.settlements import escalates
from support.waiting import wait_for

from mulligan.tasks.escalations.end_escalations import EndAction, EscalationFilter
from mulligan.workers.celery.factory import create_app
from mulligan.workers.celery.queue_depth import depths
from mulligan.workers.ledger.redis_ledger import RedisLedger
from mulligan.workers.settings.model import Settings

ALIKE = "v1:a1b2c3"
ALICE = "Answer with the person as JSON, the age as a number."


@pytest.fixture
def shell(redis_url: str) -> Iterator[Shell]:
    with new_shell(MULLIGAN_BROKER_URL=redis_url, NO_COLOR="1") as made:
        yield made


@pytest.fixture
def scenario(ledger: RedisLedger, settings: Callable[..., Settings]) -> Scenario:
    return Scenario(ledger, settings())


def escalate(
    scenario: Scenario, count: int = 1, group_signature: str | None = ALIKE, **fields: Any
) -> list[str]:
    ids = []
    for _ in range(count):
        job_id = scenario.submit(**fields)
        claim = scenario.claim(job_id)
        scenario.settle(claim, escalates(claim, group_signature=group_signature))
        ids.append(f"{job_id}:1")
    return ids


def read(shell: Shell, *argv: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(shell.invoke("escalations", *argv, "--json").stdout)
    return found


def open_of(scenario: Scenario, signature: str = ALIKE) -> int:
    group = scenario.ledger.group(signature)
    return group.open if group else 0


def bulk_ids(ledger: RedisLedger) -> list[str]:
    return ledger.bulk_actions.running()


# -- the story, with real workers ------------------------------------------------------------------


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with running_fleet(tmp_path_factory.mktemp("f")) as made:
        yield made


def test_forty_jobs_alike_are_queued_again_with_other_words_and_succeed(fleet: Fleet) -> None:
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
        argv += ["--prompt-file", shell.write("better.txt", ALICE), "--note", "asked for a number"]
        refused = shell.invoke("escalations", *argv, code=2)
        assert "No terminal to confirm on. Pass --yes" in refused.stderr
        told = read(shell, *argv, "--yes")
        assert (told["done"], told["failed"], told["state"]) == (40, 0, "done")

        views = fleet.wait_until_finished(ids)
        assert {view.state for view in views} == {"succeeded"}
        assert all(ALICE in (view.attempts[2].plan.prompt or "") for view in views)
        detail = read(shell, "show", signature, "--limit", "100")
        assert (detail["group"]["open"], detail["group"]["total"]) == (0, 40)
        ended = {(e["state"], e["ended_by"], e["note"]) for e in detail["escalations"]}
        assert ended == {("requeued", "ann", "asked for a number")}
        again = read(shell, *argv, "--yes")
        assert (again["total"], again["done"]) == (0, 0)


def test_a_control_worker_works_off_what_is_on_record(fleet: Fleet) -> None:
    scenario = Scenario(fleet.ledger, fleet.services.settings)
    jobs = [scenario.submit(runner={"kind": "scripted", "answers": ["{}"]}) for _ in range(60)]
    for job_id in jobs:
        claim = scenario.claim(job_id)
        scenario.settle(claim, escalates(claim, group_signature=ALIKE))
    bulks = fleet.ledger.bulk_actions
    action, which = EndAction(how="requeued", by="ann"), EscalationFilter(signature=ALIKE)
    ids = [f"{job_id}:1" for job_id in jobs]
    bulk = bulks.create(action, which, ids, per_second=1000)

    def over() -> bool:
        found = bulks.get(bulk.id)
        return found is not None and (found.state, found.done) == ("done", 60)

    wait_for(over, "the control worker")
    assert {view.state for view in fleet.wait_until_finished(jobs)} == {"succeeded"}


# -- without any worker ----------------------------------------------------------------------------


def test_with_no_worker_it_does_the_work_itself_and_publishes(
    shell: Shell, scenario: Scenario, settings: Callable[..., Settings]
) -> None:
    escalate(scenario, 45)
    said = shell.invoke("escalations", "requeue", "--signature", ALIKE, "--yes", "--by", "ann")
    assert said.stdout == "45 jobs requeued by ann\n"
    assert open_of(scenario) == 0
    assert depths(create_app(settings()), ["attempt"])["attempt"] == 45
    assert "no open escalations match" in shell.invoke(
        "escalations", "requeue", "--signature", ALIKE, "--yes"
    ).stdout  # fmt: skip


def test_the_list_is_short_and_says_what_to_do_next(shell: Shell, scenario: Scenario) -> None:
    assert "no open escalations" in shell.invoke("escalations", "list").stdout
    escalate(scenario, 3)
    escalate(scenario, 1, group_signature=None, task_type="translate")
    lines = shell.invoke("escalations", "list").stdout.splitlines()
    assert [line.rpartition(", ")[0].split() for line in lines[:4:2]] == [
        ["1", "open", "reason:max_attempts", "max_attempts"],
        ["3", "open", ALIKE, "json_invalid:", "max_attempts"],
    ]
    assert [line.strip() for line in lines[1:4:2]] == [
        "translate 1 · it went wrong",
        "extract 3 · it went wrong",
    ]
    assert lines[4:] == ["for details: `mulligan escalations show SIGNATURE`"]


def test_show_tells_who_ended_what_and_which_is_open(shell: Shell, scenario: Scenario) -> None:
    ids = escalate(scenario, 2)
    shell.invoke(
        "escalations", "resolve", "--id", ids[0], "--note", "bad key", "--by", "bo", "--yes"
    )
    text = shell.invoke("escalations", "show", ALIKE).stdout
    assert "1 open of 2" in text
    line = rf"^{ids[0]}  extract  [\d.]+ m?s ago  resolved by bo, [\d.]+ m?s ago: bad key$"
    assert re.search(line, text, re.MULTILINE)
    assert f"mulligan escalations requeue --signature {ALIKE} --dry-run" in text
    assert "runbook" in text
    only = shell.invoke("escalations", "show", ALIKE, "--open").stdout
    assert ids[0] not in only


def test_filters_choose_and_a_dry_run_changes_nothing(shell: Shell, scenario: Scenario) -> None:
    escalate(scenario, 25)
    escalate(scenario, 2, task_type="translate")
    text = shell.invoke("escalations", "cancel", "--reason", "max_attempts", "--dry-run").stdout
    assert "and 7 more" in text
    assert "this would cancel 27 jobs; nothing was changed" in text
    assert open_of(scenario) == 27
    shell.invoke("escalations", "cancel", "--task-type", "translate", "--yes")
    assert open_of(scenario) == 25
    nothing = shell.invoke("escalations", "resolve", "--older-than", "1h", "--dry-run").stdout
    assert "no open escalations match" in nothing


def test_what_could_not_be_requeued_is_told_and_can_be_resolved(
    shell: Shell, scenario: Scenario, ledger: RedisLedger
) -> None:
    gone, _ = escalate(scenario, 2)
    ledger.calls.run("DEL", f"mulligan:{{p00}}:job:{gone.partition(':')[0]}")
    told = shell.invoke("escalations", "requeue", "--signature", ALIKE, "--yes", code=1)
    assert "1 job requeued" in told.stdout
    assert f"{gone}: the job is no longer kept" in told.stderr
    shell.invoke("escalations", "resolve", "--id", gone, "--yes")
    assert open_of(scenario) == 0


def test_muting_and_lifting_it(shell: Shell, scenario: Scenario) -> None:
    escalate(scenario)
    assert "muted for 2h" in shell.invoke("escalations", "mute", ALIKE, "--for", "2h").stdout
    assert "muted" in shell.invoke("escalations", "list").stdout
    assert "unmuted" in shell.invoke("escalations", "mute", ALIKE, "--off").stdout
    group = scenario.ledger.group(ALIKE)
    assert group is not None
    assert group.muted_until is None


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["requeue", "--yes"], "choose escalations with --signature"),
        (["requeue", "--id", "p00-x:1", "--yes"], "there is no escalation p00-x:1"),
        (["requeue", "--signature", "v1:x", "--older-than", "soon"], "--older-than: 'soon'"),
        (["requeue", "--signature", "v1:x", "--prompt-file", "no.txt"], "--prompt-file: no.txt"),
        (["show", "v1:nobody"], "v1:nobody: no escalation has this signature"),
        (["mute", "v1:nobody"], "v1:nobody: no escalation has this signature"),
    ],
)
def test_bad_input_is_one_line_that_says_what_to_do(
    shell: Shell, argv: list[str], said: str
) -> None:
    result = shell.invoke("escalations", *argv, code=2)
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1


# -- on a terminal ---------------------------------------------------------------------------------


def at_a_terminal(shell: Shell, typed: str, *argv: str) -> tuple[int, str]:
    """Run a command whose user types this; its exit code and what the terminal showed."""
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
        except OSError:  # Linux says so when the other end is gone
            break
        if not chunk:
            break
        shown += chunk
    os.close(leader)
    return process.wait(30), shown.decode()


def test_a_person_is_asked_and_may_say_no(shell: Shell, scenario: Scenario) -> None:
    escalate(scenario, 30)
    argv = ("escalations", "requeue", "--signature", ALIKE)
    code, shown = at_a_terminal(shell, "n\n", *argv)
    assert "requeue 30 jobs? [y/N]" in shown
    assert "and 10 more" in shown
    assert "nothing was changed" in shown
    assert (code, open_of(scenario)) == (1, 30)
    code, shown = at_a_terminal(shell, "y\n", *argv)
    assert "30 jobs requeued by" in shown
    assert (code, open_of(scenario)) == (0, 0)


def test_ctrl_c_stops_it_and_says_how_far_it_came(
    shell: Shell, scenario: Scenario, ledger: RedisLedger
) -> None:
    escalate(scenario, 5)
    argv = ("escalations", "resolve", "--signature", ALIKE, "--per-second", "0.1", "--yes")
    process = shell.start(*argv)
    wait_for(lambda: open_of(scenario) == 4, "the first one")
    assert len(bulk_ids(ledger)) == 1
    process.send_signal(2)
    _, told = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "stopped: 1 of 5 resolved; the others are unchanged" in told
    assert bulk_ids(ledger) == []
