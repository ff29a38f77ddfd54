"""`mulligan up` and the commands that use it: one stack, which the last test stops."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from threading import Thread
from typing import Any

import psutil
import pytest
from support.cli_process import Shell, new_shell
from support.jobs import GOOD, WRONG_TYPE, scripted
from support.waiting import wait_for

from mulligan.workers.celery.broker.queues import POOLS
from mulligan.workers.local.embedded_redis import EmbeddedRedis
from mulligan.workers.local.server_binary import find_server


class Up:
    """A running `mulligan up` and its output."""

    def __init__(self, shell: Shell) -> None:
        self.shell = shell
        self.lines: list[str] = []
        self.process = shell.start("up")
        Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.lines.extend(iter(self.process.stdout.readline, ""))

    @property
    def text(self) -> str:
        return "".join(self.lines)

    def wait_for_output(self, expected: str, *, seconds: float = 90) -> None:
        wait_for(lambda: expected in self.text, f"{expected!r} in {self.text!r}", seconds=seconds)

    def descendants(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def commands(self) -> list[list[str]]:
        """Return the command of every process that was started, directly or indirectly."""
        found = []
        for process in self.shell.processes():
            with suppress(psutil.Error):
                found.append(process.cmdline())
        return sorted(found)


@pytest.fixture(scope="module")
def up() -> Iterator[Up]:
    environment = {
        "MULLIGAN_ALLOW_INLINE": "true",
        "MULLIGAN_FLOWER_PORT": "0",
        "MULLIGAN_CONSOLE_PORT": "0",
        "MULLIGAN_EMBEDDED_HUNG_AFTER": "15",
    }
    with new_shell(**environment) as shell:
        up = Up(shell)
        up.wait_for_output("ready; Ctrl-C stops everything")
        yield up


def test_submit_waits_for_the_jobs(up: Up) -> None:
    up.shell.write("two.json", [scripted(WRONG_TYPE, GOOD), scripted(GOOD, task_type="plain")])
    shown = up.shell.invoke("submit", "two.json", "--wait").stdout
    assert "first try 1/2 → after repair 2/2" in shown
    up.shell.write("bad.json", scripted("no", task_type="stubborn"))
    document = up.shell.invoke_json("submit", "bad.json", "--wait", code=1)
    assert document["jobs"][0]["reason"] == "repeated_failure"


def test_submit_prints_ids_and_a_key_is_one_job(up: Up) -> None:
    up.shell.write("key.json", scripted(GOOD, idempotency_key="only-once"))
    first = up.shell.invoke_json("submit", "key.json")["jobs"][0]
    again = up.shell.invoke_json("submit", "key.json")["jobs"][0]
    assert (first["id"], first["status"]) == (again["id"], "accepted")
    assert again["status"] == "seen"
    up.shell.write("other.json", scripted("other", idempotency_key="only-once"))
    error = up.shell.invoke("submit", "other.json", code=2).stderr
    assert "other.json:1: idempotency_key: 'only-once' was used for another job" in error
    assert first["id"] in up.shell.invoke("jobs", "show", "only-once").stdout


def test_run_uses_the_running_workers(up: Up) -> None:
    up.shell.write("bad.json", scripted("no", task_type="stubborn"))
    before = {process.pid for process in up.shell.processes()}
    up.shell.invoke("run", "bad.json", code=1)
    up.shell.invoke("run", "bad.json", "--always-zero")
    assert {process.pid for process in up.shell.processes()} == before


def test_a_pause_holds_jobs_back(up: Up) -> None:
    up.shell.invoke("queue", "pause", "task_type:held")
    up.shell.write("held.json", scripted(GOOD, task_type="held"))
    up.shell.invoke("submit", "held.json")
    wait_for(lambda: _state(up.shell, "held") == "waiting", "the job to be paused")
    listed = up.shell.invoke_json("queue", "list")
    assert listed["paused"] == ["task_type:held"]
    assert set(listed["queues"]) >= {"repair", "attempt", "verify"}
    up.shell.invoke("queue", "resume", "task_type:held")
    wait_for(lambda: _state(up.shell, "held") == "succeeded", "the job to go on")


def _state(shell: Shell, name: str) -> Any:
    return shell.invoke_json("jobs", "show", name)["state"]


def test_a_waiting_job_is_cancelled(up: Up) -> None:
    up.shell.invoke("queue", "pause", "task_type:unwanted")
    up.shell.write("unwanted.json", scripted(GOOD, task_type="unwanted"))
    up.shell.invoke("submit", "unwanted.json")
    assert ") cancelled" in up.shell.invoke("jobs", "cancel", "unwanted").stdout
    assert _state(up.shell, "unwanted") == "cancelled"
    up.shell.invoke("queue", "resume", "task_type:unwanted")


def test_watch_follows_a_job_to_its_end(up: Up) -> None:
    up.shell.write("slow.json", scripted({"text": GOOD, "delay": 6}, task_type="slow"))
    up.shell.invoke("submit", "slow.json")
    lines = up.shell.invoke("jobs", "watch", "slow", "--json").stdout.splitlines()
    last = json.loads(lines[-1])
    assert (last["type"], last["state"]) == ("job", "succeeded")


def test_inline_runners_are_refused_where_they_are_not_allowed(up: Up) -> None:
    up.shell.write("job.json", scripted(GOOD))
    error = up.shell.run("submit", "job.json", code=2, MULLIGAN_ALLOW_INLINE="false").stderr
    assert "job.json:1: runner.kind: a job may not define its runner here" in error


def test_a_second_up_is_refused(up: Up) -> None:
    assert "already up" in up.shell.invoke("up", code=2).stderr


def test_doctor_finds_no_problem(up: Up) -> None:
    document = up.shell.invoke_json("doctor")
    found = {check["name"]: check["status"] for check in document["checks"]}
    assert {"ledger", "persistence", "eviction", "sweep", "workers", "queues"} <= found.keys()
    assert set(found.values()) == {"ok"}


# -- Flower ----------------------------------------------------------------------------------------


def _status(url: str, login: str | None = None) -> int:
    request = urllib.request.Request(url)  # noqa: S310 - a URL of this test
    if login is not None:
        pair = base64.b64encode(login.encode()).decode()
        request.add_header("Authorization", f"Basic {pair}")
    try:
        with urllib.request.urlopen(request, timeout=20) as response:  # noqa: S310
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


def _url(up: Up, service: str) -> str:
    found = re.search(rf"^{service} +(http://127\.0\.0\.1:\d+)", up.text, re.MULTILINE)
    assert found is not None
    return found[1]


def test_flower_answers_only_with_its_login(up: Up) -> None:
    flower = _url(up, "flower")
    file = up.shell.folder / ".mulligan" / "flower.json"
    login = json.loads(file.read_text())
    assert file.stat().st_mode & 0o077 == 0
    assert _status(f"{flower}/api/tasks") == 401
    assert _status(f"{flower}/api/tasks", "mulligan:guess") == 401
    assert _status(f"{flower}/api/tasks", f"{login['user']}:{login['password']}") == 200
    for process in up.shell.processes():
        assert login["password"] not in " ".join(process.cmdline())


def test_the_console_answers_and_shows_the_jobs(up: Up) -> None:
    console = _url(up, "console")
    assert _status(f"{console}/healthz") == 200
    assert _status(f"{console}/readyz") == 200
    assert _status(f"{console}/api/jobs") == 200
    assert _status(f"{console}/") == 200
    assert _status(f"{console}/metrics") == 200


def test_every_process_can_be_probed(up: Up) -> None:
    for name in ("up", *(pool.name for pool in POOLS)):
        up.shell.invoke("probe", name)
        up.shell.invoke("probe", name, "--ready")
    assert "no process nobody" in up.shell.invoke("probe", "nobody", code=1).stdout


def test_the_page_links_to_the_flower_that_is_running(up: Up) -> None:
    with urllib.request.urlopen(_url(up, "console"), timeout=20) as response:  # noqa: S310
        assert f'<a href="{_url(up, "flower")}"' in response.read().decode()


# -- restart and shutdown --------------------------------------------------------------------------


def test_whatever_is_killed_is_restarted(up: Up) -> None:
    """Given all processes of `up`, when each is killed, then the same ones run again, no more."""
    before = up.commands()
    for process in up.descendants():
        process.kill()
    for name in (*(pool.name for pool in POOLS), "console", "flower"):
        up.wait_for_output(f"{name} was killed by signal 9; restarting it in")
        up.wait_for_output(f"{name} restarted")
    up.shell.write("after.json", scripted(GOOD, task_type="after"))
    wait_for(lambda: up.commands() == before, f"{before}, not {up.commands()}")
    up.shell.invoke("submit", "after.json", "--wait", "--timeout", "60")


def _embedded(up: Up) -> int:
    """Return the process of the embedded server."""
    pid = EmbeddedRedis(up.shell.folder / ".mulligan").state().pid
    assert pid is not None
    return pid


def _submit_slow(up: Up, name: str) -> None:
    answers = ({"text": "no", "delay": 1}, {"text": GOOD, "delay": 1})
    up.shell.write(f"{name}.json", [scripted(*answers, task_type=name) for _ in range(6)])
    up.shell.invoke("submit", f"{name}.json")


def _all_succeeded(up: Up, name: str) -> bool:
    jobs = up.shell.invoke_json("jobs", "list", "--limit", "200")["jobs"]
    states = [job["state"] for job in jobs if job["task_type"] == name]
    return states == ["succeeded"] * 6


def _is_ready(up: Up) -> bool:
    try:
        with urllib.request.urlopen(f"{_url(up, 'console')}/readyz", timeout=1) as response:  # noqa: S310
            return bool(response.status == 200)
    except OSError:  # refused (503) or no answer
        return False


def _healthy(up: Up) -> list[dict[str, str]] | None:
    """Return the doctor's checks if all is well. In a new process: this one's connection broke."""
    process = up.shell.start("doctor", "--json")
    document = json.loads(process.communicate(timeout=60)[0])
    return document["checks"] if document["ok"] else None


def test_a_server_that_is_stopped_for_a_while_is_reported_and_goes_on(up: Up) -> None:
    _submit_slow(up, "during_a_stop")
    pid = _embedded(up)
    os.kill(pid, signal.SIGSTOP)
    try:
        found = up.shell.invoke_json("doctor", code=1)["checks"]
        assert not _is_ready(up)
        up.wait_for_output(f"The embedded server (process {pid}) has not answered for")
    finally:
        os.kill(pid, signal.SIGCONT)
    said = [check["said"] for check in found if check["status"] == "fail"]
    assert said == [f"process {pid} runs and does not answer"]
    up.wait_for_output("The embedded server answers again.")
    wait_for(lambda: _all_succeeded(up, "during_a_stop"), "the jobs")
    wait_for(lambda: _is_ready(up), "the console")
    assert _embedded(up) == pid


def test_a_server_that_hangs_is_replaced_and_the_jobs_go_on(up: Up) -> None:
    _submit_slow(up, "during_a_hang")
    pid = _embedded(up)
    os.kill(pid, signal.SIGSTOP)
    up.wait_for_output("s: ending it.")
    up.wait_for_output("The embedded server runs again.")
    wait_for(lambda: _all_succeeded(up, "during_a_hang"), "the jobs")
    assert _embedded(up) != pid
    checks = wait_for(lambda: _healthy(up), "the doctor")
    assert {"name": "redis server", "status": "ok", "said": str(find_server()), "fix": ""} in checks


def test_sigterm_stops_everything(up: Up) -> None:
    """The last test: it stops the stack that the others share."""
    up.process.send_signal(signal.SIGTERM)
    try:
        code = up.process.wait(timeout=40)
    except subprocess.TimeoutExpired:
        pytest.fail(f"it did not stop: {up.text}")
    assert code == 0
    assert up.shell.all_ended()
    up.wait_for_output("stopped; the jobs are in the ledger", seconds=5)
