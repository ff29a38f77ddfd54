"""Alerts as receivers get them: once per signature and window, signed, never lost."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis
from support.cli_process import Shell
from support.fleet import Fleet, running_fleet
from support.jobs import GOOD, WRONG_TYPE, answer, scripted
from support.ledger_scenario import Scenario, ScenarioMaker
from support.loops import ADA, LoopScenario, item
from support.provider_calls import ask, fail_call, open_breaker, start_call
from support.settlements import escalates, succeeds
from support.waiting import wait_for
from support.webhook_receiver import Receiver, running_receiver

from mulligan.policies.escalations.alerts import verify_signature
from mulligan.policies.loops.heal_record import HealRecord
from mulligan.policies.loops.loop import LoopChange
from mulligan.policies.loops.spec import HealAction
from mulligan.tasks.loops.change import delete, skip
from mulligan.tasks.loops.monitor import check_all, run_monitor
from mulligan.tasks.loops.view import why
from mulligan.tasks.ports.ledger import Claim, JobView, LoopWrite, Written
from mulligan.workers.alerts import deliveries
from mulligan.workers.alerts.webhooks import Webhooks
from mulligan.workers.ledger.redis_ledger import RedisLedger
from mulligan.workers.settings.live_settings import LiveSettings

SECRET = "a secret of ours"
WINDOW = 900.0
PARTITION = "mulligan:{p00}:"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with running_receiver() as found:
        yield found


@dataclass
class Alerts:
    """A scenario whose alerts are sent by ticks."""

    scenario: Scenario
    ledger: RedisLedger

    def webhooks(self) -> Webhooks:
        """Return the webhooks of another control worker."""
        live = LiveSettings(self.scenario.settings)
        return Webhooks(self.ledger, live, randomness=lambda: 0.5)

    def tick(self) -> int:
        """Look once, send everything and return the number of new deliveries."""
        webhooks = self.webhooks()
        created = webhooks.tick()
        webhooks.drain()
        return created

    def escalate(self, times: int = 1, *, reason: str = "max_attempts", **job: Any) -> str:
        """Escalate jobs with the same reason and return the last one's id."""
        job_id = ""
        for _ in range(times):
            job_id = self.scenario.submit(prompt="The secret prompt.", **job)
            claim = self.scenario.claim(job_id)
            self.scenario.settle(claim, escalates(claim, reason))
        return job_id

    def succeed(self, *, tokens: int | None = 10) -> str:
        job_id = self.scenario.submit(labels={"team": "red"})
        claim = self.scenario.claim(job_id)
        self.ledger.store_output(claim.lease, answer("the secret answer", tokens=tokens))
        self.scenario.settle(claim, succeeds(claim))
        return job_id


AlertsMaker = Callable[..., Alerts]


@pytest.fixture
def new_alerts(
    new_redis_scenario: ScenarioMaker, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> AlertsMaker:
    """``new_alerts({"events": …})`` creates a scenario whose alerts go to the receiver."""
    monkeypatch.setenv("HOOK_SECRET", SECRET)

    def make(*hooks: dict[str, Any], **settings: Any) -> Alerts:
        webhooks = [{"url": receiver.url, "secret_env": "HOOK_SECRET", **hook} for hook in hooks]
        scenario = new_redis_scenario(
            webhooks=webhooks, alert_window=WINDOW, webhook_tries=3, **settings
        )
        assert isinstance(scenario.ledger, RedisLedger)
        return Alerts(scenario, scenario.ledger)

    return make


# -- escalations -----------------------------------------------------------------------------------


def test_an_escalation_is_sent_signed_and_without_prompt_or_detail(
    new_alerts: AlertsMaker, receiver: Receiver
) -> None:
    alerts = new_alerts({}, runbook_url="https://wiki.example/ops")
    job_id = alerts.escalate()
    assert alerts.tick() == 1
    (request,) = receiver.requests
    body, headers = request["body"], request["headers"]
    assert verify_signature(SECRET, headers["X-Mulligan-Signature"], request["raw"], time.time())
    assert not verify_signature("other", headers["X-Mulligan-Signature"], request["raw"], 0)
    assert headers["X-Mulligan-Delivery"] == body["id"]
    assert headers["Content-Type"] == "application/json"
    assert (body["event"], body["count"], body["open"]) == ("escalated", 1, 1)
    assert (body["reason"], body["example_job"]) == ("max_attempts", job_id)
    assert body["task_types"] == {"extract": 1}
    assert body["runbook_url"] == "https://wiki.example/ops#escalated"
    assert body["console_url"].startswith("http://127.0.0.1:8700/escalations?signature=")
    assert b"secret prompt" not in request["raw"]
    assert b"it went wrong" not in request["raw"]
    assert alerts.webhooks().deliveries.all() == [], "a completed delivery is deleted"


def test_four_thousand_similar_escalations_are_two_alerts(
    new_alerts: AlertsMaker, receiver: Receiver
) -> None:
    """One alert at once, and one at the end of the window with the count of the rest."""
    alerts = new_alerts({})
    alerts.escalate()
    assert alerts.tick() == 1
    alerts.escalate(3999)
    assert alerts.tick() == 0
    alerts.scenario.advance(WINDOW + 1)
    assert alerts.tick() == 1
    alerts.scenario.advance(WINDOW + 1)
    assert alerts.tick() == 0
    assert [body["count"] for body in receiver.bodies] == [1, 3999]
    assert receiver.bodies[1]["total"] == 4000


def test_different_escalations_are_separate_alerts(
    new_alerts: AlertsMaker, receiver: Receiver
) -> None:
    alerts = new_alerts({})
    alerts.escalate(2, reason="deadline")
    alerts.escalate(3, reason="worker_lost")
    assert alerts.tick() == len({body["signature"] for body in receiver.bodies}) == 2
    assert sorted(body["count"] for body in receiver.bodies) == [2, 3]


def test_a_muted_group_is_alerted_after_the_mute_is_lifted(
    new_alerts: AlertsMaker, receiver: Receiver
) -> None:
    alerts = new_alerts({})
    alerts.escalate()
    alerts.tick()
    signature = receiver.bodies[0]["signature"]
    now = alerts.ledger.now()
    alerts.ledger.mute(signature, until=now + 10 * WINDOW)
    alerts.escalate(5)
    alerts.scenario.advance(2 * WINDOW)
    assert alerts.tick() == 0
    alerts.ledger.mute(signature, until=None)
    alerts.scenario.advance(61)
    assert alerts.tick() == 1
    assert receiver.bodies[-1]["count"] == 5


def test_a_mute_covers_partitions_where_the_group_is_new(
    new_alerts: AlertsMaker, receiver: Receiver
) -> None:
    alerts = new_alerts({}, partitions=3)
    first = alerts.escalate()
    alerts.tick()
    signature = receiver.bodies[0]["signature"]
    alerts.ledger.mute(signature, until=alerts.ledger.now() + 10 * WINDOW)
    others = {alerts.escalate() for _ in range(20)}
    assert {job_id[:3] for job_id in others} > {first[:3]}
    alerts.scenario.advance(2 * WINDOW)
    assert alerts.tick() == 0
    alerts.scenario.advance(9 * WINDOW)
    assert alerts.tick() > 0
    assert alerts.ledger.group(signature).muted_until is None  # type: ignore[union-attr]


def test_repeating_a_pass_after_a_lost_reply_overwrites_no_alert(
    new_alerts: AlertsMaker, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a job that finished after the first call, then both alerts are sent."""
    alerts = new_alerts({"events": ["job_finished"]})
    deliveries, hooks = alerts.webhooks().deliveries, alerts.scenario.settings.webhooks
    for _ in range(2):
        alerts.succeed()
        with monkeypatch.context() as patched:
            patched.setattr("secrets.token_hex", lambda _bytes: "f00d")
            deliveries.write_due(hooks, window=WINDOW)
    assert deliveries.counts()["pending"] == 2
    assert len({each.id for each in deliveries.all()}) == 2


def test_taking_again_after_a_lost_reply_takes_the_same_delivery(
    new_alerts: AlertsMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    alerts = new_alerts({"events": ["job_finished"]})
    deliveries = alerts.webhooks().deliveries
    for _ in range(2):
        alerts.succeed()
    deliveries.write_due(alerts.scenario.settings.webhooks, window=WINDOW)
    monkeypatch.setattr("secrets.token_hex", lambda _bytes: "f00d")
    first, second = (deliveries.take(PARTITION, tries=3, skip=()) for _ in range(2))
    assert first == second
    assert first is not None
    assert first.tries == 1


@pytest.mark.parametrize("reason", ["budget_tokens", "per_skill_loop_cap"])
@pytest.mark.parametrize(
    ("events", "expected"),
    [
        (["escalated"], ["escalated"]),
        (["budget_exhausted"], ["budget_exhausted"]),
        (["escalated", "budget_exhausted"], ["budget_exhausted"]),  # one alert, not two
        (["breaker_opened"], []),
    ],
)
def test_an_exhausted_budget_is_one_alert_of_either_event(
    new_alerts: AlertsMaker,
    receiver: Receiver,
    reason: str,
    events: list[str],
    expected: list[str],
) -> None:
    alerts = new_alerts({"events": events})
    alerts.escalate(reason=reason)
    alerts.tick()
    assert [body["event"] for body in receiver.bodies] == expected


def test_a_new_webhook_gets_no_earlier_alerts(new_alerts: AlertsMaker, receiver: Receiver) -> None:
    """Given no webhook, when one is added later, then it gets only new alerts."""
    silent, alerts = new_alerts(), new_alerts({})
    silent.escalate(7)
    assert silent.tick() == 0
    alerts.escalate()
    assert alerts.tick() == 1
    assert receiver.bodies[0]["count"] == 1


# -- breakers and jobs -----------------------------------------------------------------------------


def test_a_breaker_is_alerted_once_per_window(new_alerts: AlertsMaker, receiver: Receiver) -> None:
    alerts = new_alerts({})
    ledger = alerts.scenario.ledger
    open_breaker(ledger, "openai-eu")
    assert alerts.tick() == 1
    for _ in range(3):  # probes that fail
        alerts.scenario.advance(20)
        fail_call(ledger, start_call(ledger, "openai-eu"))
    assert alerts.tick() == 0
    alerts.scenario.advance(WINDOW + 1)
    assert alerts.tick() == 1
    sent = [(b["event"], b["provider"], b["count"]) for b in receiver.bodies]
    assert sent == [("breaker_opened", "openai-eu", 1), ("breaker_opened", "openai-eu", 3)]


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        (["escalated", "breaker_opened", "out_of_credits"], "out_of_credits"),
        (["breaker_opened"], "breaker_opened"),  # who asked for broken providers hears of it, too
    ],
)
def test_a_provider_without_credits_is_alerted_once_per_window(
    new_alerts: AlertsMaker, receiver: Receiver, events: list[str], expected: str
) -> None:
    alerts = new_alerts({"events": events})
    ledger = alerts.scenario.ledger
    fail_call(ledger, start_call(ledger, "openai-eu"), status=402)
    assert alerts.tick() == 1
    alerts.scenario.advance(61)
    for publication in alerts.scenario.sweep():  # the probe, refused as well
        claim = ask(ledger, publication.entry.job_id, "openai-eu")
        assert isinstance(claim, Claim)
        fail_call(ledger, claim, status=402)
    assert alerts.tick() == 0
    (body,) = receiver.bodies
    assert (body["event"], body["provider"], body["reason"]) == (expected, "openai-eu", "credits")
    assert body["text"] == "openai-eu is out of credits: its jobs wait"


def test_a_provider_that_has_credits_again_is_not_alerted_at_the_end_of_the_window(
    new_alerts: AlertsMaker, receiver: Receiver
) -> None:
    alerts = new_alerts({"events": ["out_of_credits"]})
    ledger = alerts.scenario.ledger
    fail_call(ledger, start_call(ledger, "openai-eu"), status=402)
    assert alerts.tick() == 1
    for status in (402, None):
        alerts.scenario.advance(200)
        for publication in alerts.scenario.sweep():
            claim = ask(ledger, publication.entry.job_id, "openai-eu")
            assert isinstance(claim, Claim)
            if status is None:
                ledger.store_output(claim.lease, answer())
            else:
                fail_call(ledger, claim, status=status)
    alerts.scenario.advance(3600)
    assert alerts.tick() == 0
    assert len(receiver.bodies) == 1


def test_every_finished_job_is_sent_once_without_its_answer(
    new_alerts: AlertsMaker, receiver: Receiver
) -> None:
    alerts = new_alerts({"events": ["job_finished"]})
    ids = [alerts.succeed() for _ in range(3)]
    assert alerts.tick() == 3
    assert alerts.tick() == 0
    assert sorted(body["job_id"] for body in receiver.bodies) == sorted(ids)
    body = receiver.bodies[0]
    assert (body["state"], body["score"], body["labels"]) == ("succeeded", 100, {"team": "red"})
    assert body["console_url"] == f"http://127.0.0.1:8700/jobs/{body['job_id']}"
    assert all(b"secret answer" not in request["raw"] for request in receiver.requests)


def test_a_damaged_event_stops_no_alerts(new_alerts: AlertsMaker, receiver: Receiver) -> None:
    alerts = new_alerts({"events": ["job_finished"]})
    for damaged in ("{", "[]", "1"):
        calls = alerts.scenario.ledger.calls
        calls.run("XADD", "mulligan:{p00}:events", "*", "data", damaged)
    job_id = alerts.succeed()
    assert alerts.tick() == 1
    assert [body["job_id"] for body in receiver.bodies] == [job_id]


def test_unknown_usage_is_sent_as_null(new_alerts: AlertsMaker, receiver: Receiver) -> None:
    alerts = new_alerts({"events": ["job_finished"]})
    used = {alerts.succeed(tokens=tokens): tokens for tokens in (None, 0, 7)}
    alerts.tick()
    assert {body["job_id"]: body["tokens"] for body in receiver.bodies} == used


def test_jobs_of_every_partition_are_sent(new_alerts: AlertsMaker, receiver: Receiver) -> None:
    alerts = new_alerts({"events": ["job_finished"]}, partitions=3)
    ids = [alerts.succeed() for _ in range(9)]
    assert alerts.tick() == 9
    assert {body["job_id"] for body in receiver.bodies} == set(ids)
    assert {body["id"][:3] for body in receiver.bodies} == {job_id[:3] for job_id in ids}


# -- receivers that fail ---------------------------------------------------------------------------


def test_a_failed_delivery_is_repeated_later(new_alerts: AlertsMaker, receiver: Receiver) -> None:
    receiver.statuses = [500, 302]
    alerts = new_alerts({})
    alerts.escalate()
    for _ in range(3):
        alerts.tick()
        alerts.tick()  # too early: nothing is sent
        alerts.scenario.advance(60)
    assert len(receiver.requests) == 3
    assert {request["path"] for request in receiver.requests} == {"/hook/token-in-the-path"}
    assert len({request["raw"] for request in receiver.requests}) == 1, "identical bodies"
    assert alerts.webhooks().deliveries.counts() == {"pending": 0, "dead": 0}


def test_after_the_last_try_a_delivery_is_dead_until_it_is_retried(
    new_alerts: AlertsMaker, receiver: Receiver
) -> None:
    receiver.statuses = [503] * 3  # webhook_tries
    alerts = new_alerts({})
    alerts.escalate()
    for _ in range(5):
        alerts.tick()
        alerts.scenario.advance(3600)
    assert len(receiver.requests) == 3
    store = alerts.webhooks().deliveries
    (dead,) = store.all()
    assert (dead.state, dead.tries, dead.error) == ("dead", 3, "the receiver answered with 503")
    assert "token-in-the-path" not in json.dumps(dead.as_dict())
    assert store.counts() == {"pending": 0, "dead": 1}
    assert store.retry() == [dead.id]
    alerts.tick()
    assert len(receiver.requests) == 4
    assert store.all() == []


def test_a_dead_delivery_can_be_dropped_and_expires(
    new_alerts: AlertsMaker, receiver: Receiver
) -> None:
    receiver.statuses = [500] * 100
    alerts = new_alerts({}, retention=10**7)
    store = alerts.webhooks().deliveries
    for reason in ("deadline", "worker_lost"):
        alerts.escalate(reason=reason)
        for _ in range(4):
            alerts.tick()
            alerts.scenario.advance(3600)
    first, second = store.all()
    assert store.drop(first.id) == [first.id]
    assert store.drop(first.id) == []
    assert store.all() == [second]
    alerts.scenario.advance(8 * 86400)
    assert store.all() == []
    receiver.statuses.clear()
    alerts.escalate(reason="tool_error")
    alerts.tick()
    assert store.counts() == {"pending": 0, "dead": 0}


def test_an_unreachable_receiver_does_not_fill_the_ledger(
    new_alerts: AlertsMaker, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given caps of two waiting and one dead delivery, then the rest is deleted."""
    monkeypatch.setattr(deliveries, "CAP", 2)
    monkeypatch.setattr(deliveries, "DEAD_CAP", 1)
    alerts = new_alerts({"events": ["job_finished"]})
    for _ in range(5):
        alerts.succeed()
    store = alerts.webhooks().deliveries
    store.write_due(alerts.scenario.settings.webhooks, window=WINDOW)
    assert store.counts() == {"pending": 2, "dead": 3}
    assert {d.error for d in store.all() if d.state == "dead"} == {"too many deliveries wait"}
    alerts.tick()
    assert len(receiver.requests) == 2
    assert store.counts() == {"pending": 0, "dead": 1}


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (
            {"secret_env": "NOT_SET"},
            "the variable NOT_SET, which secret_env names, is not set",
        ),
        ({"url": "http://127.0.0.1:1/token-in-the-path"}, "127.0.0.1 could not be reached"),
    ],
)
def test_the_last_error_says_what_to_fix(
    new_alerts: AlertsMaker, receiver: Receiver, change: dict[str, str], error: str
) -> None:
    alerts = new_alerts(change)
    alerts.escalate()
    alerts.tick()
    (waiting,) = alerts.webhooks().deliveries.all()
    assert error in waiting.error
    assert "token-in-the-path" not in waiting.error
    assert (waiting.state, waiting.tries) == ("pending", 1)
    assert receiver.requests == []


def test_a_webhook_without_a_secret_is_not_signed(
    new_alerts: AlertsMaker, receiver: Receiver
) -> None:
    alerts = new_alerts({"secret_env": None})
    alerts.escalate()
    alerts.tick()
    assert "X-Mulligan-Signature" not in receiver.requests[0]["headers"]


def test_a_receiver_that_hangs_does_not_delay_others(
    new_alerts: AlertsMaker, receiver: Receiver
) -> None:
    """Given a receiver that does not answer, then the other gets every alert."""
    slow = receiver.url.replace("/hook", "/slow")
    alerts = new_alerts({"url": slow}, {})
    for reason in ("deadline", "worker_lost", "tool_error", "repeated_failure", "not_verified"):
        alerts.escalate(reason=reason)
    webhooks = alerts.webhooks()
    assert webhooks.tick() == 10
    wait_for(lambda: sum("hook" in request["path"] for request in receiver.requests) == 5)
    assert sum("slow" in request["path"] for request in receiver.requests) <= 2
    receiver.hold.set()
    webhooks.drain()


# -- crashes ---------------------------------------------------------------------------------------


def test_a_kill_between_writing_and_sending_loses_nothing(
    new_alerts: AlertsMaker, receiver: Receiver
) -> None:
    alerts = new_alerts({})
    alerts.escalate()
    settings = alerts.scenario.settings
    assert alerts.webhooks().deliveries.write_due(settings.webhooks, window=WINDOW).written == 1
    assert alerts.tick() == 0  # another control worker sends what is stored
    assert [body["count"] for body in receiver.bodies] == [1]


def test_a_delivery_is_repeated_after_its_sender_was_killed(
    new_alerts: AlertsMaker, receiver: Receiver
) -> None:
    alerts = new_alerts({})
    alerts.escalate()
    store = alerts.webhooks().deliveries
    found = store.write_due(alerts.scenario.settings.webhooks, window=WINDOW)
    lost = store.take(found.due[0], tries=3, skip=())
    assert lost is not None
    alerts.tick()
    assert receiver.requests == [], "it is leased"
    alerts.scenario.advance(61)
    alerts.tick()
    assert [body["id"] for body in receiver.bodies] == [lost.id]
    late = store.finish(lost, error="too late", final=True, delay=0, tries=3)
    assert late == "lost", "a sender whose lease is gone cannot write"


def test_a_delivery_that_kills_every_sender_is_dead(new_alerts: AlertsMaker) -> None:
    alerts = new_alerts({})
    alerts.escalate()
    store = alerts.webhooks().deliveries
    due = store.write_due(alerts.scenario.settings.webhooks, window=WINDOW).due[0]
    for _ in range(3):
        assert store.take(due, tries=3, skip=()) is not None
        alerts.scenario.advance(61)
    assert store.take(due, tries=3, skip=()) is None
    assert [(d.state, d.error) for d in store.all()] == [
        ("dead", "its senders died while sending it")
    ]


def test_two_control_workers_send_once(new_alerts: AlertsMaker, receiver: Receiver) -> None:
    alerts = new_alerts({"events": ["escalated", "job_finished"]})
    for _ in range(20):
        alerts.succeed()
    alerts.escalate()
    workers = [alerts.webhooks() for _ in range(4)]
    threads = [threading.Thread(target=webhooks.tick) for webhooks in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for webhooks in workers:
        webhooks.drain()
    ids = [body["id"] for body in receiver.bodies]
    assert len(ids) == len(set(ids)) == 22  # 21 finished jobs and one group


# -- the command line ------------------------------------------------------------------------------


def test_the_command_line_lists_tests_retries_and_drops(
    redis_url: str, redis_client: redis.Redis, receiver: Receiver, tmp_path: Path
) -> None:
    del redis_client  # emptied
    (tmp_path / "mulligan.toml").write_text(
        f'[[webhooks]]\nurl = "{receiver.url}"\nsecret_env = "HOOK_SECRET"\n'
    )
    shell = Shell(tmp_path, {"MULLIGAN_BROKER_URL": redis_url, "HOOK_SECRET": SECRET})
    assert "no deliveries are waiting" in shell.invoke("webhooks", "list").output
    output = shell.invoke("webhooks", "test").output
    assert "127.0.0.1#" in output
    assert "token-in-the-path" not in output
    assert receiver.bodies[0]["event"] == "test"
    receiver.statuses = [500]
    failed = shell.invoke_json("webhooks", "test", code=1)
    assert failed["tests"][0]["error"] == "the receiver answered with 500"
    listed = shell.invoke_json("webhooks", "list")
    assert listed["deliveries"] == []
    assert [hook["events"] for hook in listed["webhooks"]] == [
        [
            "breaker_opened",
            "budget_exhausted",
            "escalated",
            "loop_budget",
            "loop_escalated",
            "loop_health",
            "out_of_credits",
        ]
    ]
    nothing = shell.invoke("webhooks", "retry", "fleet-none-1", code=2)
    assert "no dead delivery fleet-none-1" in nothing.output
    assert "pass the ID" in shell.invoke("webhooks", "drop", code=2).output
    assert "0 deliveries" in shell.invoke("webhooks", "retry", "--all").output


# -- loops -----------------------------------------------------------------------------------------


def test_every_change_of_a_loop_is_sent(new_alerts: AlertsMaker, receiver: Receiver) -> None:
    """Given a webhook that wants changes and ends: an end is one alert, not two."""
    alerts = new_alerts({"events": ["loop_changed", "loop_completed"]})
    loops = LoopScenario(alerts.scenario)
    loops.create(item("one"))
    loops.move("pause")
    loops.move("resume")
    loops.plan()
    loops.passes("one")
    loops.plan()
    loops.move("stop")
    delete(loops.context, "alpha", ADA)
    assert alerts.tick() == len(receiver.bodies) == 7
    sent = sorted(receiver.bodies, key=lambda body: body["version"])
    assert len({body["version"] for body in sent}) == 7
    assert sorted(body["changed_at"] for body in sent) == [body["changed_at"] for body in sent]
    assert [body["state"] for body in sent] == [
        "created", "running", "paused", "running", "completed", "stopped", "deleted",
    ]  # fmt: skip
    assert sent[4]["event"] == "loop_completed"
    assert sent[2]["text"] == "loop alpha is paused"
    assert sent[2]["by"] == "ada"
    assert sent[2]["console_url"] == "http://127.0.0.1:8700/loops/alpha"
    assert alerts.tick() == 0


def test_a_budget_warns_at_half_at_four_fifths_and_at_its_end(
    new_alerts: AlertsMaker, receiver: Receiver
) -> None:
    """Given a webhook without a list of events."""
    alerts = new_alerts({})
    loops = LoopScenario(alerts.scenario)
    loops.create(item("a"), item("b"), item("c"), budget={"loop": {"tokens": 100}}, concurrency=1)
    for name, tokens in (("a", 60), ("b", 25), ("c", 20)):
        loops.plan()
        loops.passes(name, tokens=tokens)
        assert alerts.tick() == 1
    assert [(body["event"], body["percent"]) for body in receiver.bodies] == [
        ("loop_budget", 50), ("loop_budget", 80), ("loop_budget", 100),
    ]  # fmt: skip
    text = "loop alpha has used 80 % of its loop budget of tokens (85 of 100)"
    assert receiver.bodies[1]["text"] == text


def test_a_loop_that_needs_somebody_is_alerted_step_by_step(
    new_alerts: AlertsMaker, receiver: Receiver
) -> None:
    """Given a webhook without a list of events, and a loop that is blocked for hours."""
    alerts = new_alerts({})
    loops = LoopScenario(alerts.scenario)
    loops.create(item("a"), item("b", "a"))
    loops.plan()
    loops.fails("a")
    loops.plan()
    alerts.tick()
    receiver.requests.clear()
    for _ in range(60):
        run_monitor(loops.context)
        alerts.tick()
        alerts.scenario.advance(600)
    sent = [(body["event"], body["step"], body["severity"]) for body in receiver.bodies]
    assert sent == [
        ("loop_health", "notify", 2),
        ("loop_health", "alert", 3),
        ("loop_escalated", "escalate", 4),
        ("loop_escalated", "escalate", 5),
        ("loop_escalated", "escalate", 6),
    ]
    assert receiver.bodies[2]["text"] == "loop alpha: needs somebody: blocked: a failed"
    assert receiver.bodies[2]["runbook_url"].endswith("/runbook#loop_escalated")
    assert (receiver.bodies[0]["signal"], "item" in receiver.bodies[0]) == ("blocked", False)
    skip(loops.context, "alpha", "a", ADA)
    loops.plan()
    run_monitor(loops.context)
    assert alerts.tick() == 1
    assert (receiver.bodies[-1]["event"], receiver.bodies[-1]["step"]) == ("loop_health", "ended")


def test_a_healing_is_sent_to_who_asks_for_it(new_alerts: AlertsMaker, receiver: Receiver) -> None:
    alerts = new_alerts({"events": ["loop_healed", "loop_escalated"]})
    ledger, loops = alerts.scenario.ledger, LoopScenario(alerts.scenario)
    loops.create(item("a"))
    steps: list[tuple[HealAction, str]] = [
        ("change_strategy", ""), ("escalate", "strong"), ("escalate", "a person"),
    ]  # fmt: skip
    for number, (action, parameter) in enumerate(steps, 1):
        done = HealRecord(
            number=number,
            at=1.0,
            item="a",
            action=action,
            parameter=parameter,
            reason="3 failures: 'a quotation'",
            pattern="3 failures",
        )
        write = LoopWrite(reading=loops.read(), change=LoopChange(heals=[done]), caller=ADA)
        assert isinstance(ledger.write_loop(write), Written)
        assert alerts.tick() == 1
    assert [(body["event"], body["action"]) for body in receiver.bodies] == [
        ("loop_healed", "change_strategy"), ("loop_healed", "escalate"),
        ("loop_escalated", "escalate"),
    ]  # fmt: skip
    assert receiver.bodies[0]["text"] == "loop alpha/a: change strategy, pending (3 failures)"
    assert "quotation" not in str(receiver.bodies)


@pytest.mark.parametrize(("status", "event"), [(503, "breaker_opened"), (402, "out_of_credits")])
def test_a_provider_that_fails_the_agents_of_a_loop_is_alerted_and_the_loop_waits(
    new_alerts: AlertsMaker, receiver: Receiver, status: int, event: str
) -> None:
    """Given items whose provider fails: they wait without an attempt that counts."""
    alerts = new_alerts({})
    ledger, loops = alerts.scenario.ledger, LoopScenario(alerts.scenario)
    names = [f"i{n}" for n in range(5)]
    loops.create(*(item(each, runner={"profile": "agent"}) for each in names))
    loops.plan()
    asked = [ask(ledger, loops.item(each).job_id, "api") for each in names]
    for claim in asked if status == 503 else asked[:1]:
        assert isinstance(claim, Claim)
        fail_call(ledger, claim, status=status)
    assert alerts.tick() == 1
    assert (receiver.bodies[0]["event"], receiver.bodies[0]["provider"]) == (event, "api")
    assert set(loops.states().values()) == {"running"}
    assert loops.loop().state == "running"
    (check,) = (each.check for each in check_all(loops.context))
    assert check.status == "healthy", "waiting for a provider is no sign of trouble"
    loops.refusal(names[0])
    assert why(loops.context, "alpha", names[0]).cause == "provider"
    assert alerts.scenario.attempt(loops.item(names[0]).job_id).verdict is None


def test_a_webhook_for_jobs_hears_nothing_of_loops(
    new_alerts: AlertsMaker, receiver: Receiver
) -> None:
    alerts = new_alerts({"events": ["job_finished", "loop_completed"]})
    LoopScenario(alerts.scenario).create(item("one"))
    assert alerts.tick() == 0
    alerts.succeed()
    assert alerts.tick() == 1
    assert receiver.bodies[0]["event"] == "job_finished"


# -- real workers ----------------------------------------------------------------------------------


@dataclass
class AlertedFleet:
    """Real workers whose configuration names a receiver."""

    fleet: Fleet
    receiver: Receiver
    config: Path


@pytest.fixture(scope="module")
def alerted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AlertedFleet]:
    folder = tmp_path_factory.mktemp("alerts")
    config = folder / "mulligan.toml"
    with running_receiver() as receiver:
        config.write_text(f'[[webhooks]]\nurl = "{receiver.url}"\nsecret_env = "HOOK_SECRET"\n')
        environment = {"MULLIGAN_CONFIG": str(config), "HOOK_SECRET": SECRET}
        with running_fleet(folder, environment=environment) as fleet:
            yield AlertedFleet(fleet, receiver, config)


def test_the_control_worker_sends_an_alert_for_an_escalated_job(alerted: AlertedFleet) -> None:
    view = alerted.fleet.run(scripted(WRONG_TYPE))
    assert view.state == "escalated"
    (request,) = wait_for(lambda: alerted.receiver.requests, "the webhook")
    body, signature = request["body"], request["headers"]["X-Mulligan-Signature"]
    assert (body["event"], body["example_job"]) == ("escalated", view.id)
    assert verify_signature(SECRET, signature, request["raw"], time.time())


def test_an_exemption_takes_effect_without_a_restart(alerted: AlertedFleet) -> None:
    """Given running workers, when a task type becomes exempt, then it gets no mandatory retry."""
    (before,) = alerted.fleet.run(scripted(WRONG_TYPE, GOOD)).cycles
    assert before.status == "completed"
    alerted.config.write_text('exempt_task_types = ["extract_person"]\n')

    def exempt() -> bool:
        return not alerted.fleet.run(scripted(WRONG_TYPE, GOOD)).cycles

    wait_for(exempt, "the exemption to count", seconds=30)


def test_a_paused_provider_is_not_called_until_it_is_resumed(alerted: AlertedFleet) -> None:
    shell = Shell(alerted.fleet.folder, {"MULLIGAN_BROKER_URL": alerted.fleet.server.url})
    output = shell.invoke("queue", "pause", "provider:scripted").output
    assert "mulligan queue resume provider:scripted" in output

    def submit_paused() -> str | None:
        """Submit a job and return its id if it was paused: a worker notices within a second."""
        (job_id,) = alerted.fleet.submit(scripted(GOOD))

        def paused_or_done() -> JobView | None:
            view = alerted.fleet.ledger.job(job_id)
            return view if view and (view.waiting_for == "pause" or view.finished_at) else None

        view = wait_for(paused_or_done, "the attempt to end or to wait")
        return job_id if view.waiting_for == "pause" else None

    job_id = wait_for(submit_paused, "an attempt to wait for the pause")
    shell.invoke("queue", "resume", "provider:scripted")
    view = alerted.fleet.wait_until_finished([job_id])[0]
    assert (view.state, len(view.attempts), view.attempts[0].faults) == ("succeeded", 1, 0)


def test_a_backlog_of_one_webhook_starves_no_other(
    new_alerts: AlertsMaker, receiver: Receiver
) -> None:
    """Given 1,200 waiting deliveries of a receiver that hangs, then the alert of another webhook is
    taken at once; deliveries that an earlier release wrote are found, too."""
    alerts = new_alerts(
        {"url": "http://slow.example/hook", "events": ["job_finished"]}, {"events": ["escalated"]}
    )
    store = alerts.webhooks().deliveries
    for _ in range(1200):
        alerts.ledger.cancel(alerts.scenario.submit())
    settings = alerts.scenario.settings
    while store.write_due(settings.webhooks, window=WINDOW).more:
        pass
    alerts.escalate()
    while store.write_due(settings.webhooks, window=WINDOW).more:
        pass
    slow = next(each.hook for each in store.all(limit=2000) if "slow" in each.hook)
    prefix = f"{settings.key_prefix}:{{p00}}:"
    taken = store.take(prefix, tries=8, skip=[slow])
    assert taken is not None
    assert taken.alert.event == "escalated"
    assert store.take(prefix, tries=8, skip=[slow]) is None
    old = store.take(prefix, tries=8, skip=[])
    assert old is not None
    alerts.ledger.calls.run("ZREM", f"{prefix}deliveries:due:{slow}", old.id)
    alerts.ledger.calls.run("ZADD", f"{prefix}deliveries", 1, old.id)
    again = store.take(prefix, tries=8, skip=[])
    assert again is not None
    assert again.id == old.id


def test_two_hanging_receivers_leave_senders_for_a_third(
    new_alerts: AlertsMaker, receiver: Receiver
) -> None:
    slow = receiver.url.replace("/hook", "/slow")
    alerts = new_alerts({"url": f"{slow}/1"}, {"url": f"{slow}/2"}, {})
    webhooks = alerts.webhooks()
    for number in range(3):
        alerts.escalate(reason=f"reason{number}")
    webhooks.tick()
    wait_for(
        lambda: sum("slow" not in request["path"] for request in receiver.requests) == 3,
        "the third receiver to get its alerts",
    )
    receiver.hold.set()
    webhooks.drain()
