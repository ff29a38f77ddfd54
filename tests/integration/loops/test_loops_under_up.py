"""A loop under `mulligan up`, driven through the API, while every process is killed once."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
from support.cli_process import new_shell
from support.running_stack import RunningStack
from support.waiting import wait_for

ITEMS = 60
#: The items that fail at first, fail for good, and take a moment.
FLAKY, HOPELESS = range(5, ITEMS, 9), (17,)
PROFILES = """
[runners.good]
kind = "scripted"
answers = [{text = "{}", delay = 0.2, usage = {total_tokens = 10}}]

[runners.flaky]
kind = "scripted"
answers = [{text = "no", usage = {total_tokens = 10}}, {text = "{}", usage = {total_tokens = 10}}]

[runners.slow]
kind = "scripted"
answers = [{text = "{}", delay = 6, usage = {total_tokens = 10}}]

[runners.hopeless]
kind = "scripted"
answers = [{text = "no", usage = {total_tokens = 10}}]
"""


@pytest.fixture(scope="module")
def stack() -> Iterator[RunningStack]:
    environment = {
        "MULLIGAN_CONSOLE_PORT": "0",
        # Lost workers and lost hints are found in seconds instead of a minute.
        "MULLIGAN_LEASE": "4",
        "MULLIGAN_REPUBLISH_AFTER": "4",
        "MULLIGAN_MAX_CLAIMS": "20",
    }
    with new_shell(**environment) as shell:
        shell.write("mulligan.toml", PROFILES)
        running = RunningStack(shell)
        yield running
        running.process.send_signal(signal.SIGINT)
        assert shell.all_ended(seconds=60)


def spec(n: int) -> dict[str, Any]:
    runner = "hopeless" if n in HOPELESS else "flaky" if n in FLAKY else "good"
    return {
        "id": f"item-{n:02}",
        "prompt": f"Do {n}.",
        "runner": runner,
        "depends_on": [f"item-{n - 7:02}", f"item-{n - 5:02}"] if n >= 7 else [],
        "verifiers": ["json.object"],
    }


def test_a_loop_runs_to_its_end_although_every_process_is_killed_once(stack: RunningStack) -> None:
    loop = {"name": "killed", "concurrency": 4, "max_attempts": 3}
    document = {"loop": loop, "items": [spec(n) for n in range(ITEMS)]}
    created = stack.request("POST", "/api/loops", document, key="create")
    assert created["progress"] == {"passed": 0, "total": ITEMS}
    stack.request("POST", "/api/loops/killed/start", key="start")

    def progress() -> int:
        time.sleep(0.3)
        return int(stack.request("GET", "/api/loops/killed")["progress"]["passed"])

    wait_for(lambda: progress() > 3, "the first items to pass", seconds=60)
    victims = stack.children()
    assert len(victims) >= 8
    for process in victims:
        process.kill()
        time.sleep(0.5)
    extra = {
        "id": "extra",
        "prompt": "Do one more.",
        "runner": "good",
        "verifiers": ["json.object"],
    }
    stack.request("POST", "/api/loops/killed/tests", {"items": [extra]}, key="add")

    hopeless = f"item-{HOPELESS[0]:02}"
    path = f"/api/loops/killed/tests/{hopeless}"
    wait_for(lambda: stack.state(path) == "failed", "the failure", seconds=120)
    why = stack.request("GET", f"/api/loops/killed/why?test=item-{HOPELESS[0] + 5:02}")
    assert why["command"] == f"mulligan loops reset killed {hopeless}"
    stack.request("POST", f"{path}/skip", {"reason": "it cannot be done"}, key="skip")

    def status() -> str:
        time.sleep(0.3)
        return str(stack.request("GET", "/api/loops/killed")["status"])

    wait_for(lambda: status() == "completed", "the loop to be completed", seconds=180)
    ended = stack.request("GET", "/api/loops/killed")
    assert ended["counts"] == {"passed": ITEMS, "skipped": 1}
    assert ended["holders"] == []
    items = stack.request("GET", "/api/loops/killed/tests?limit=200")["tests"]
    assert {item["id"]: item["runs"] for item in items} == {
        **{f"item-{n:02}": 1 for n in range(ITEMS)},
        "extra": 1,
    }


def test_a_pause_lets_a_running_attempt_finish_and_a_stop_ends_it(stack: RunningStack) -> None:
    """Given a loop of two slow items, when it is paused and then stopped while an item runs."""
    slow = [
        {"id": name, "prompt": "Do it.", "runner": "slow", "verifiers": ["json.object"]}
        for name in ("one", "two")
    ]
    document = {"loop": {"name": "slow"}, "items": slow, "start": True}
    stack.request("POST", "/api/loops", document)

    def held(item: str) -> bool:
        time.sleep(0.3)
        holders = stack.request("GET", "/api/loops/slow")["holders"]
        return [each["item"] for each in holders] == [item]

    wait_for(lambda: held("one"), "the first attempt", seconds=60)
    stack.request("POST", "/api/loops/slow/pause")
    wait_for(lambda: stack.state("/api/loops/slow/tests/one") == "passed", "its end", seconds=60)
    assert stack.state("/api/loops/slow/tests/two") == "ready"
    stack.request("POST", "/api/loops/slow/resume")
    wait_for(lambda: held("two"), "the second attempt", seconds=60)
    job = stack.request("GET", "/api/loops/slow/tests/two")["job_id"]
    stack.request("POST", "/api/loops/slow/stop")
    assert stack.request("GET", f"/api/jobs/{job}")["state"] == "cancelled"
    assert stack.state("/api/loops/slow/tests/two") == "ready"

    def slots() -> int:
        time.sleep(0.3)
        return int(stack.request("GET", "/api/loops/slow")["resources"]["slots_in_use"])

    wait_for(lambda: slots() == 0, "the slot", seconds=60)
    stack.request("POST", "/api/loops/slow/start")
    wait_for(lambda: held("two"), "the second run", seconds=60)
    stack.request("POST", "/api/loops/slow/stop")
