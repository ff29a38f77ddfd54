"""Every kind of work on every broker and ledger that we name, through real worker processes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from chaos.invariants import check_one_retry_per_low_score
from support.backends import BACKENDS, RABBITMQ, Backend, RunningBackend, running_backend
from support.console_server import client_of, get_json, post_json
from support.fleet import Fleet
from support.jobs import GOOD, SCHEMA, WRONG_TYPE, scripted
from support.rabbitmq_server import RabbitServer, running_rabbitmq
from support.replicated_redis import ReplicatedRedis
from support.waiting import wait_for
from support.webhook_receiver import Receiver, running_receiver

from mulligan.console.http.context import open_context
from mulligan.tasks.ports.errors import LedgerRefused
from mulligan.workers.ledger import keys

#: Long enough for a fault to come between the question and the answer.
SLOW = 1.5
#: Seconds for anything to happen on a busy computer.
WAIT = 90
SLOW_VERIFIER = [
    {"id": "contract.schema", "schema": SCHEMA},
    {"id": "command.subprocess", "argv": ["true"]},
]
#: The jobs by name, with the state in which each ends and its number of attempts.
JOBS: dict[str, tuple[dict[str, Any], str, int]] = {
    "good": (scripted(GOOD), "succeeded", 1),
    "repaired": (scripted(WRONG_TYPE, GOOD), "succeeded", 2),
    "escalated": (scripted(WRONG_TYPE), "escalated", 3),
    "slow answer": (scripted({"text": GOOD, "delay": SLOW}), "succeeded", 1),
    "slow verifier": (scripted(WRONG_TYPE, GOOD, verifiers=SLOW_VERIFIER), "succeeded", 2),
    "outcome": (
        scripted(GOOD, on_done={"task": "shop.answered", "queue": "shop"}),
        "succeeded",
        1,
    ),
    "paused": (scripted(GOOD, task_type="held"), "succeeded", 1),
    "cancelled": (scripted(GOOD, task_type="held"), "cancelled", 1),
}


@pytest.fixture(scope="module")
def rabbitmq() -> Iterator[RabbitServer]:
    with running_rabbitmq() as server:
        yield server


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    with running_receiver() as found:
        yield found


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_every_kind_of_work_ends_as_it_should(
    backend: Backend, receiver: Receiver, request: pytest.FixtureRequest
) -> None:
    needs_rabbitmq = backend.broker == RABBITMQ
    rabbitmq = request.getfixturevalue("rabbitmq") if needs_rabbitmq else None
    config = f'[[webhooks]]\nurl = "{receiver.url}"\n'
    with running_backend(backend, rabbitmq, config=config) as running:
        work = Work(running)
        work.submit()
        FAULTS[backend.fault](running.fleet)
        work.act()
        work.check(backend, receiver)


@dataclass
class Work:
    """One job of each kind, and what people and other systems do with them."""

    running: RunningBackend
    ids: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.fleet = self.running.fleet
        self.api = client_of(open_context(self.fleet.services.settings))

    def submit(self) -> None:
        """Submit everything, and wait until the ledger has it and some of it has ended."""
        self.fleet.ledger.pause("task_type:held")
        ids = self.fleet.submit(*(job for job, _, _ in JOBS.values()))
        self.ids = dict(zip(JOBS, ids, strict=True))
        shop = self.running.shop
        sent = scripted(WRONG_TYPE, GOOD, task_type="sent")
        shop.send_task("mulligan.submit", queue="mulligan.submit", kwargs=sent)
        self.greeting = shop.send_task("shop.greet", args=["Ada"], queue="shop").id
        for task_type in ("sent", "greet"):  # until then, only the broker has them
            wait_for(partial(self.states, task_type), f"{task_type} in the ledger", seconds=WAIT)
        self.state_of("good", "succeeded")

    def state_of(self, name: str, state: str) -> None:
        def reached() -> bool:
            self.fleet.stack.watch()
            view = self.fleet.ledger.job(self.ids[name])
            return view is not None and view.state == state

        wait_for(reached, f"{name} to be {state}", seconds=WAIT)

    def act(self) -> None:
        """Cancel, resume, and report a subject's work."""
        self.state_of("cancelled", "waiting")
        assert self.fleet.ledger.cancel(self.ids["cancelled"]) == "cancelled"
        self.fleet.ledger.resume("task_type:held")
        report = {"subject": "mia", "task_type": "tense", "prompt": "Write.", "answer": "goed"}
        first = post_json(self.api, "/api/attempts", 201, **report, score=40)
        retry = post_json(self.api, "/api/task/next?subject=mia")
        assert retry["jobId"] == first["job_id"]
        done = post_json(self.api, "/api/attempts", 201, token=retry["token"], score=90)
        assert (done["state"], done["cycle_status"]) == (
            "succeeded",
            "pending_delayed_verification",
        )

    def check(self, backend: Backend, receiver: Receiver) -> None:
        views = self.fleet.wait_until_finished(list(self.ids.values()), seconds=WAIT)
        for view, (name, (_, state, attempts)) in zip(views, JOBS.items(), strict=True):
            ended = (view.state, len(view.attempts))
            assert ended == (state, attempts), f"{name}: {view.reason} {view.detail}"
            statuses = ["completed" if state == "succeeded" else "escalated"] * (attempts > 1)
            assert [cycle.status for cycle in view.cycles] == statuses, name
        check_one_retry_per_low_score([view for view in views if view.state != "cancelled"])
        wait_for(lambda: self.states("greet") == ["succeeded"], "the user's task", seconds=WAIT)
        wait_for(lambda: self.states("sent") == ["succeeded"], "the job by Celery", seconds=WAIT)
        if backend.fault is None:  # a result backend that refuses loses results, as Celery's do
            assert self.running.result(self.greeting, seconds=WAIT) == "hello, Ada"
            outcome = f"{self.ids['outcome']}-done"
            assert self.running.result(outcome, seconds=WAIT) == "succeeded"
        escalated = self.ids["escalated"]
        wait_for(
            lambda: any(body.get("example_job") == escalated for body in receiver.bodies),
            "the webhook",
            seconds=WAIT,
        )
        assert get_json(self.api, "/api/escalations")["groups"]
        wait_for(lambda: not self.unfinished(), "every entry to be claimed", seconds=WAIT)

    def states(self, task_type: str) -> list[str]:
        self.fleet.stack.watch()
        views = self.fleet.ledger.jobs(limit=100)
        return [view.state for view in views if view.job.task_type == task_type]

    def unfinished(self) -> list[str]:
        """Return the entries that wait or run, except the checks in ten minutes."""
        found: list[str] = []
        with self.fleet.server.client() as client:
            for prefix in self.fleet.ledger.prefixes():
                for key in (keys.outbox(prefix), f"{prefix}leases"):
                    found += client.zrange(key, 0, -1)
        checks = tuple(f"c:{job_id}" for job_id in self.ids.values())
        return [each for each in found if each.startswith(checks) or not each.startswith("c:")]


# -- faults ----------------------------------------------------------------------------------------


def no_fault(_: Fleet) -> None:
    pass


def fill(fleet: Fleet) -> None:
    """Redis is full for longer than a slow answer takes: submitting is refused with the reason."""
    with fleet.server.client() as client:
        client.config_set("maxmemory", "1mb")
        with pytest.raises(LedgerRefused, match="full"):
            fleet.submit(scripted(GOOD))
        time.sleep(SLOW)
        client.config_set("maxmemory", "0")


def demote(fleet: Fleet) -> None:
    """A replica takes over, and clients stay connected to the old primary, now read-only."""
    server = fleet.server
    assert isinstance(server, ReplicatedRedis)
    server.hand_over()
    server.switch(close=False)


FAULTS = {None: no_fault, "full": fill, "demoted": demote}
