"""A real Flower shows the true state of jobs after a login, and no prompts."""

from __future__ import annotations

import base64
import json
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from support.fleet import Fleet, running_fleet
from support.jobs import GOOD, WRONG_TYPE, scripted
from support.waiting import wait_for

from mulligan.console.cli.local_services import Service, flower_service
from mulligan.workers.settings.model import Settings

CODE = '''
import os
import pathlib
import time

from celery import Celery

from mulligan import RepairingTask, install

app = Celery("mine", broker=os.environ["MULLIGAN_BROKER_URL"])
app.conf.worker_send_task_events = True
install(app)


@app.task(base=RepairingTask, verifiers=["json.object"])
def ask(self, prompt, *, folder, context=""):
    """Wait for a file; answer with JSON only after a correction."""
    while not (pathlib.Path(folder) / "go").exists():
        time.sleep(0.02)
    return '{"answer": "the secret answer"}' if self.repair else f"{prompt}: the secret answer"


@app.task(base=RepairingTask, mode="observe")
def crash(self, prompt):
    raise LookupError(prompt)


@app.task
def plain(text):
    return text
'''
PROMPT = "The secret prompt: who is Alice?"


@dataclass
class Flower:
    """A Flower as `mulligan up` starts it, with a fleet and a user's worker."""

    fleet: Fleet
    base: str
    login: str
    folder: Path

    def get(self, path: str) -> Any:
        """Return a page or a response of the API, or None while Flower is unreachable."""
        try:
            text = self.open(path, login=self.login)
        except OSError:
            return None
        return json.loads(text) if path.startswith(("/api", "/tasks/datatable")) else text

    def open(self, path: str, *, login: str | None = None, body: bytes | None = None) -> str:
        request = urllib.request.Request(self.base + path, data=body)  # noqa: S310 - loopback
        if login is not None:
            token = base64.b64encode(login.encode()).decode()
            request.add_header("Authorization", f"Basic {token}")
        with urllib.request.urlopen(request, timeout=5) as answer:  # noqa: S310 - loopback
            return str(answer.read().decode())

    def tasks(self) -> dict[str, Any]:
        found: dict[str, Any] = self.get("/api/tasks?limit=1000") or {}
        return found

    def states(self, *names: str, among: Sequence[str]) -> list[str] | None:
        """Return the states of these tasks if all are among the expected ones."""
        tasks = self.tasks()
        found = [str(tasks.get(name, {}).get("state")) for name in names]
        return found if set(found) <= set(among) else None

    def wait_until_ended(self, *names: str) -> dict[str, Any]:
        """Wait until Flower shows the end of these tasks and return all tasks."""

        def ended() -> dict[str, Any] | None:
            tasks = self.tasks()
            states = {tasks.get(name, {}).get("state") for name in names}
            return tasks if states <= {"SUCCESS", "FAILURE"} else None

        found: dict[str, Any] = wait_for(ended, f"Flower to show the ends of {names}")
        return found


@pytest.fixture(scope="module")
def flower(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flower]:
    folder = tmp_path_factory.mktemp("flower")
    (folder / "mine.py").write_text(CODE)
    with running_fleet(folder, environment={"PYTHONPATH": str(folder)}) as fleet:
        mine = [sys.executable, "-P", "-m", "celery", "-A", "mine", "worker", "-n", "mine@%h"]
        fleet.stack.add("mine", [*mine, "-Q", "mine", "-P", "threads", "-c", "4"])
        service: Service = flower_service(Settings(home=folder, flower_port=0))
        fleet.stack.add("flower", service.argv)
        port = next(a.partition("=")[2] for a in service.argv if a.startswith("--port="))
        login = json.loads((folder / "flower.json").read_text())
        pair = f"{login['user']}:{login['password']}"
        found = Flower(fleet, f"http://127.0.0.1:{port}", pair, folder)
        # Events are not replayed: Flower must see the workers first.
        wait_for(
            lambda: len(found.get("/api/workers?refresh=1") or {}) == 3, "Flower to see the workers"
        )
        yield found


def test_flower_shows_the_lineage_of_a_repaired_job(flower: Flower) -> None:
    slow = {"id": "command.subprocess", "argv": ["true"]}
    failing = {"id": "command.subprocess", "argv": ["false"]}
    repaired, escalated, handed, refused = flower.fleet.submit(
        scripted(WRONG_TYPE, GOOD),
        scripted(WRONG_TYPE),
        scripted(WRONG_TYPE, GOOD, verifiers=[*scripted()["verifiers"], slow]),
        scripted(GOOD, verifiers=["json.object", slow, failing]),
    )
    *_, last = flower.fleet.wait_until_finished([repaired, escalated, handed, refused])
    end = f"{refused}-{len(last.attempts)}"
    tasks = flower.wait_until_ended(f"{repaired}-2", f"{escalated}-3", f"{handed}-2", end)
    shown = {name: task["state"] for name, task in tasks.items()}
    assert [shown[f"{repaired}-{n}"] for n in (1, 2)] == ["RETRY", "SUCCESS"]
    assert [shown[f"{escalated}-{n}"] for n in (1, 2, 3)] == ["RETRY", "RETRY", "FAILURE"]
    # An attempt whose verifiers ran as separate tasks is reported by the last of them.
    assert [shown[f"{handed}-{n}"] for n in (1, 2)] == ["RETRY", "SUCCESS"]
    failures = {n for n, s in shown.items() if s == "FAILURE" and "-c" not in n}
    assert failures == {f"{escalated}-3", end}, "FAILURE is the list of escalations"
    slow_ones = wait_for(
        lambda: flower.states(f"{end}-v1", f"{end}-v2", among=("SUCCESS", "RETRY")),
        "Flower to show both verifications",
    )
    assert slow_ones == ["SUCCESS", "RETRY"], "each shows whether it passed"
    exception = flower.get(f"/api/task/info/{escalated}-3")["exception"]
    assert "repeated_failure: schema_invalid (type) $.age, seen 3 times" in exception
    for number in (2, 3):
        task = flower.get(f"/api/task/info/{escalated}-{number}")
        assert task["root_id"] == f"{escalated}-1"
        assert task["parent_id"] == f"{escalated}-{number - 1}"


def test_periodic_tasks_are_not_listed(flower: Flower) -> None:
    (job_id,) = flower.fleet.submit(scripted(GOOD))
    flower.fleet.wait_until_finished([job_id])  # with its delayed verification, after sweeps
    names = {task["name"] for task in flower.wait_until_ended(f"{job_id}-1").values()}
    assert "mulligan.attempt" in names
    assert not names & {
        f"mulligan.{each}" for each in ("sweep", "fold", "bulk", "edits", "webhooks")
    }


def test_arguments_and_results_are_readable(flower: Flower) -> None:
    (job_id,) = flower.fleet.submit(scripted(WRONG_TYPE, GOOD))
    flower.fleet.wait_until_finished([job_id])
    flower.wait_until_ended(f"{job_id}-2")
    first, second = (flower.get(f"/api/task/info/{job_id}-{n}") for n in (1, 2))
    assert first["args"] == f"('attempt 1 of {job_id}',)"
    assert second["args"] == f"('attempt 2 of {job_id}, immediate_retry',)"
    assert "extract_person attempt 1: score 50: schema_invalid" in first["exception"]
    assert "$.age → immediate_retry 2" in first["exception"]
    assert second["result"] == "'extract_person attempt 2: score 100'"
    page = flower.get(f"/task/{job_id}-1")
    assert f"attempt 1 of {job_id}" in page
    assert "schema_invalid" in page


def test_the_prompt_of_a_user_s_task_is_never_shown(flower: Flower) -> None:
    """Given a producer without mulligan, then its prompt is in no event and on no page."""
    producer = Celery("producer", broker=flower.fleet.server.url)
    kwargs = {"folder": str(flower.folder), "context": PROMPT}
    message = producer.send_task("mine.ask", args=(PROMPT,), kwargs=kwargs, queue="mine")

    worker = f"/api/workers?refresh=1&workername=mine@{socket.gethostname()}"

    def running() -> Any:
        workers = flower.get(worker) or {}
        return [t for w in workers.values() for t in w.get("active", ()) if t["id"] == message.id]

    (active,) = wait_for(running, "Flower to see the task run")
    assert active["args"] == f"(text({len(PROMPT)}),)"
    assert PROMPT not in flower.get(f"/worker/mine@{socket.gethostname()}")
    (flower.folder / "go").touch()
    crash = producer.send_task("mine.crash", args=(PROMPT,), queue="mine")
    submit = producer.send_task(
        "mulligan.submit", kwargs=scripted(GOOD, prompt=PROMPT), queue="mulligan.submit"
    )
    tasks = flower.wait_until_ended(f"{message.id}-2", crash.id, submit.id)
    first, second = tasks[message.id], tasks[f"{message.id}-2"]
    assert (first["state"], second["state"]) == ("RETRY", "SUCCESS")
    assert (second["root_id"], second["parent_id"]) == (message.id, message.id)
    assert "text(" in first["args"] == second["args"]
    assert first["kwargs"] == second["kwargs"]
    assert "mine.ask attempt 1: score" in first["exception"]
    assert tasks[crash.id]["exception"] == "LookupError"
    pages = [f"/task/{name}" for name in (message.id, f"{message.id}-2", crash.id, submit.id)]
    shown = [flower.get(page) for page in (*pages, "/tasks/datatable?draw=1&start=0&length=100")]
    everything = json.dumps([tasks, shown, flower.get("/api/workers?refresh=1")])
    assert message.id in everything
    assert "secret" not in everything


def test_long_arguments_of_other_tasks_are_not_shown(flower: Flower) -> None:
    producer = Celery("producer", broker=flower.fleet.server.url)
    short = producer.send_task("mine.plain", args=("short",), queue="mine")
    long = producer.send_task("mine.plain", args=(PROMPT * 20,), queue="mine")
    flower.wait_until_ended(short.id, long.id)
    assert "short" in flower.get(f"/task/{short.id}")
    page = flower.get(f"/task/{long.id}")
    assert "characters, not shown" in page
    assert "secret" not in page


@pytest.mark.parametrize("path", ["/", "/tasks", "/api/tasks", "/api/workers"])
@pytest.mark.parametrize("login", [None, "mulligan:wrong"])
def test_flower_needs_its_login(flower: Flower, path: str, login: str | None) -> None:
    with pytest.raises(urllib.error.HTTPError, match="401"):
        flower.open(path, login=login)


def test_flower_cannot_control_workers_or_tasks(flower: Flower) -> None:
    for path in ("/api/worker/shutdown/work@anywhere", "/api/task/revoke/any"):
        with pytest.raises(urllib.error.HTTPError, match=r"40[35]"):
            flower.open(path, login=flower.login, body=b"")
    for how in ("send-task", "apply", "async-apply"):
        with pytest.raises(urllib.error.HTTPError, match="403"):
            flower.open(f"/api/task/{how}/mulligan.submit", login=flower.login, body=b"{}")
