"""A user's tasks: inline, called directly, killed, and in a worker's repair lane."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import Ignore
from support.cli_process import invoke
from support.user_tasks import job_of, user_project

from mulligan import Repair, RepairingTask, install
from mulligan.tasks.ports.errors import BadInput
from mulligan.tasks.ports.ledger import Entry
from mulligan.workers.celery.broker.celery_broker import ENTRY_HEADER
from mulligan.workers.celery.broker.queue_depth import depths
from mulligan.workers.celery.state_task import Escalated
from mulligan.workers.ledger.redis_ledger import RedisLedger
from mulligan.workers.ledger.stored import job_ids


@pytest.fixture
def app(redis_url: str) -> Celery:
    app = Celery("mine", broker=redis_url, backend="cache+memory://", set_as_current=False)
    install(app)
    return app


# -- inline ----------------------------------------------------------------------------------------


def please(self: Any, drink: str) -> str:
    if self.repair is None:
        raise Repair("say please", score=40)
    return f"please, {drink}"


def hopeless(self: Any) -> str:
    prompt: str = self.correct("Ask.")
    return prompt


def test_apply_runs_all_attempts_inline(app: Celery, ledger: RedisLedger) -> None:
    task = app.task(base=RepairingTask, shared=False)(please)
    result = task.apply(args=("tea",))
    assert (result.state, result.get()) == ("SUCCESS", "please, tea")
    view = job_of(ledger, result.id)
    assert [a.plan.mode for a in view.attempts] == ["initial", "immediate_retry"]
    assert view.state == "succeeded"
    # The retry runs inline and is not published.
    assert depths(app, ["celery.repair"]) == {"celery.repair": 0}


def test_always_eager_runs_all_attempts_inline(app: Celery, ledger: RedisLedger) -> None:
    app.conf.update(task_always_eager=True)
    prompts = []

    def never(self: Any) -> str:
        prompts.append(self.correct("Ask."))
        return "never JSON"

    task = app.task(base=RepairingTask, shared=False, verifiers=["json.object"])(never)
    result = task.delay()
    with pytest.raises(Escalated, match="repeated_failure"):
        result.get()
    view = job_of(ledger, result.id)
    assert (view.state, len(view.attempts)) == ("escalated", 3)
    assert prompts[0] == "Ask."
    assert all(prompt.startswith("Ask.\n\n") for prompt in prompts[1:])


def test_a_direct_call_is_a_plain_call(app: Celery, ledger: RedisLedger) -> None:
    task = app.task(base=RepairingTask, shared=False, verifiers=["json.object"])(hopeless)
    assert task() == "Ask."
    assert ledger.jobs() == []


def test_a_direct_call_needs_no_install() -> None:
    bare = Celery("bare", set_as_current=False)
    task = bare.task(base=RepairingTask, shared=False)(hopeless)
    assert task() == "Ask."


def test_a_task_without_install_says_what_to_call() -> None:
    bare = Celery("bare", broker="memory://", set_as_current=False)
    task = bare.task(base=RepairingTask, shared=False)(hopeless)
    with pytest.raises(BadInput, match=r"call mulligan.install\(app\)"):
        task.apply(throw=True)


def test_a_message_repeated_after_the_end_returns_the_same_result(app: Celery) -> None:
    """Its first worker may have died between the ledger and the result backend."""
    calls = []

    def count() -> dict[str, int]:
        calls.append(1)
        return {"calls": len(calls)}

    task = app.task(base=RepairingTask, shared=False)(count)
    assert task.apply(task_id="one").get() == {"calls": 1}
    assert task.apply(task_id="one").get() == {"calls": 1}


def test_an_ignored_task_is_not_run_again(app: Celery, ledger: RedisLedger) -> None:
    def ignoring() -> None:
        raise Ignore

    task = app.task(base=RepairingTask, shared=False)(ignoring)
    result = task.apply()
    assert result.state == "IGNORED"
    assert job_of(ledger, result.id).state == "cancelled"


def test_the_delayed_verification_uses_the_task_s_verifiers(
    app: Celery, ledger: RedisLedger
) -> None:
    """A plain function is not in the registry: it comes from the task."""

    def polite(text: str) -> bool:
        return text.startswith("please")

    def ask(self: Any) -> str:
        return "tea" if self.repair is None else "please, tea"

    task = app.task(base=RepairingTask, shared=False, verifiers=[polite])(ask)
    result = task.apply()
    view = job_of(ledger, result.id)
    entry = Entry("cycle", view.id, 1, 1)
    key = f"mulligan:{{p00}}:cycle:{entry.cycle_id}"
    ledger.calls.run("HSET", key, "due_at", f"{ledger.now() * 1000:.3f}")
    task.push_request(called_directly=False, id="a-recheck", **{ENTRY_HEADER: str(entry)})
    try:
        assert task() == "delayed verification scored 100"
    finally:
        task.pop_request()
    assert job_of(ledger, result.id).cycles[0].status == "completed"


def test_the_observe_report_shows_what_enforcing_would_have_changed(
    app: Celery, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MULLIGAN_BROKER_URL", redis_url)
    options: dict[str, Any] = {"base": RepairingTask, "shared": False, "mode": "observe"}
    bad = app.task(**options, name="bad", verifiers=["json.object"])(hopeless)
    good = app.task(**options, name="good")(hopeless)
    observed = bad.apply()
    assert observed.get() == "Ask."
    good.apply()
    good.apply()
    output = invoke("report", "observe").output
    assert "Observed tasks of the last 7 days: 3" in output
    assert "would have passed at once: 2 (67%)" in output
    (bad_row,) = [line.split() for line in output.splitlines() if line.startswith("  bad ")]
    assert bad_row == ["bad", "0", "1", "0", "0"]
    assert job_ids.user_task_job_id(observed.id, partitions=1) in output
    assert "Enforcing would have rerun 1 of 3" in output
    assert "Not known: whether a retry would have worked" in output


# -- with a worker ---------------------------------------------------------------------------------

CODE = '''
import os
import signal
import time
from pathlib import Path

from celery import Celery

from mulligan import Repair, RepairingTask, install

app = Celery("mine", broker=os.environ["BROKER"], backend=os.environ["BROKER"])
app.conf.worker_prefetch_multiplier = 1
app.conf.task_default_queue = "mine"
install(app, sweep_interval=0.2, lease=1, outbox_grace=0.5, republish_after=2)
here = Path(__file__).parent


@app.task(base=RepairingTask)
def fragile(self, number):
    """Kills its process in the middle of the first run."""
    with (here / f"ran-{number}").open("a") as log:
        log.write("x")
    if len((here / f"ran-{number}").read_text()) == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if self.repair is None:
        raise Repair("once more", score=10)
    return number * 2


@app.task(base=RepairingTask)
def noted(self, name):
    with (here / "order").open("a") as log:
        log.write(f"{name}{'' if self.repair is None else ' again'}\\n")
    time.sleep(0.2)
    if name == "first" and self.repair is None:
        raise Repair("once more", score=10)
'''


@pytest.fixture
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Not tmp_path: the kernel allows 108 bytes for the path of a socket."""
    return tmp_path_factory.mktemp("m")


@pytest.mark.chaos
@pytest.mark.parametrize("pool", [("-P", "prefork", "-c", "2"), ("-P", "threads", "-c", "2")])
def test_a_worker_killed_during_an_attempt_loses_nothing(
    short: Path, pool: tuple[str, ...]
) -> None:
    with user_project(short, CODE, "-Q", "mine", *pool) as project:
        project.start_worker()
        # One after the other: a message lost in the broker's client before its task has claimed
        # anything comes back after the visibility timeout, not through the ledger.
        for number in (1, 2):
            message = project.send("fragile", number, queue="mine").id
            view = project.wait_until_ended(message)
            assert view.state == "succeeded"
            assert [a.plan.mode for a in view.attempts] == ["initial", "immediate_retry"]
            assert view.attempts[0].claims == 2
            assert len(view.cycles) == 1
            assert project.app.AsyncResult(message).get(timeout=30) == number * 2


def test_a_worker_of_a_queue_serves_its_repair_lane_first(short: Path) -> None:
    with user_project(short, CODE, "-Q", "mine", "-P", "threads", "-c", "1") as project:
        names = ["first", *(f"later {number}" for number in range(8))]
        sent = [project.send("noted", name, queue="mine").id for name in names]
        project.start_worker()
        for message in sent:
            project.wait_until_ended(message)
        order = (short / "order").read_text().splitlines()
    # The retry was sent while eight were waiting; only messages already fetched come before it.
    assert set(order) == {*names, "first again"}
    assert order.index("first again") <= 3
