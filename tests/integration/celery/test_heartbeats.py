"""Heartbeats of workers, waiting messages and the load that autoscalers read."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
import redis
from support.console_server import client_of, new_token
from support.fleet import CONTROL, WORK, Fleet, running_fleet, wait_for_exit
from support.jobs import GOOD, scripted
from support.ledger_scenario import SettingsMaker
from support.waiting import wait_for

from mulligan.console.http.context import ConsoleContext, open_context
from mulligan.tasks.jobs.publish import Publisher
from mulligan.tasks.ports.ledger import Entry, Publication
from mulligan.workers.celery.broker.celery_broker import CeleryBroker
from mulligan.workers.celery.broker.queue_depth import waiting
from mulligan.workers.celery.factory import create_app
from mulligan.workers.celery.heartbeat import Heartbeat
from mulligan.workers.ledger.redis_ledger import RedisLedger
from mulligan.workers.ledger.stores.beats import Beat
from mulligan.workers.liveness_file import LivenessFile

KEY = "mulligan:{fleet}:workers"


def beat(name: str = "attempt@here", **changes: object) -> Beat:
    fields = {"pool": name.partition("@")[0], "host": "here", "pid": 7, "slots": 4, "active": 1}
    return Beat.model_validate({"name": name, **fields, **changes})


def send_beat(ledger: RedisLedger, sent: Beat, *, child: bool = False) -> Heartbeat:
    heartbeat = Heartbeat(ledger.beats, lambda: sent, child=child)
    heartbeat.beat()
    return heartbeat


def test_a_beat_is_read_back_and_a_process_adds_its_round_trips(ledger: RedisLedger) -> None:
    send_beat(ledger, beat(round_trips=10))
    send_beat(ledger, beat(round_trips=5, slots=0, active=0), child=True)
    send_beat(ledger, beat("verify@here"))
    found = ledger.beats.live(now=ledger.now())
    assert [(one.name, one.slots, one.round_trips) for one in found] == [
        ("attempt@here", 4, 15),
        ("verify@here", 4, 0),
    ]
    assert ledger.now() - found[0].at < 5


def test_a_silent_worker_is_neither_counted_nor_kept(
    ledger: RedisLedger, redis_client: redis.Redis
) -> None:
    send_beat(ledger, beat())
    redis_client.hset(KEY, "old@there", beat("old@there", at=ledger.now() - 31).model_dump_json())
    redis_client.hset(KEY, "odd@there", json.dumps({"of": "another version"}))
    found = ledger.beats.live(now=ledger.now())
    assert [one.name for one in found] == ["attempt@here"]
    assert redis_client.hkeys(KEY) == ["attempt@here"]


def test_a_worker_that_stops_removes_its_beat(
    ledger: RedisLedger, redis_client: redis.Redis
) -> None:
    heartbeat = send_beat(ledger, beat())
    heartbeat.leave()
    assert redis_client.hkeys(KEY) == []


# -- waiting messages ------------------------------------------------------------------------------


def test_waiting_messages_are_counted_by_priority_and_age(
    ledger: RedisLedger, settings: SettingsMaker, redis_client: redis.Redis
) -> None:
    app = create_app(settings())
    nothing = waiting(app, ["attempt", "repair"])["repair"]
    assert (nothing.depth, nothing.oldest_seconds) == (0, None)
    publish = Publisher(ledger=ledger, broker=CeleryBroker(app, ledger)).publish
    for number, priority in ((1, 0), (2, 5), (3, 5)):
        publish([Publication(Entry("attempt", f"p00-x{number}", 1), "attempt", priority)])
    redis_client.lpush("attempt", "no message at all")
    found = waiting(app, ["attempt"])["attempt"]
    assert found.depth == 4
    assert found.by_priority == {0: 2, 3: 2, 6: 0, 9: 0}
    assert found.oldest_seconds is not None
    assert 0 <= found.oldest_seconds < 60
    # The next message is the first that was published.
    raw = json.loads(str(redis_client.lindex("attempt\x06\x163", -1)))
    assert raw["headers"]["id"] == "p00-x2-1"
    assert time.time() - raw["headers"]["mulligan_at"] < 60


# -- autoscaling -----------------------------------------------------------------------------------


@pytest.fixture
def context(settings: SettingsMaker) -> Iterator[ConsoleContext]:
    opened = open_context(settings(attempt_slots=10, repair_slots=3))
    yield opened
    opened.close()


def test_without_a_worker_the_load_uses_the_configured_slots(context: ConsoleContext) -> None:
    publish = context.services.publish
    publish([Publication(Entry("attempt", f"p00-x{n}", 1), "attempt", 5) for n in range(20)])
    publish([Publication(Entry("attempt", "p00-y", 2), "repair", 0)])
    load = client_of(context).get("/api/scale/attempt").json()
    assert load.pop("oldest_seconds") >= 0
    assert load == {
        "pool": "attempt",
        "active": 0,
        "queued": 21,
        "slots": 10,
        "workers": 0,
        "value": 2.1,
    }
    repair = client_of(context).get("/api/scale/repair").json()
    assert (repair["queued"], repair["slots"]) == (1, 3)


def test_the_load_of_a_pool_covers_all_its_workers(context: ConsoleContext) -> None:
    for name, slots, active in (("attempt@a", 8, 8), ("attempt@b", 8, 4), ("verify@a", 2, 2)):
        send_beat(context.ledger, beat(name, slots=slots, active=active))
    load = client_of(context).get("/api/scale/attempt").json()
    assert load == {
        "pool": "attempt",
        "active": 12,
        "queued": 0,
        "slots": 16,
        "workers": 2,
        "oldest_seconds": None,
        "value": 0.75,
    }


def test_an_unknown_pool_is_refused_with_the_known_ones(context: ConsoleContext) -> None:
    send_beat(context.ledger, beat("own@here", queues=("own",)))
    refused = client_of(context).get("/api/scale/unknown")
    assert refused.status_code == 404
    message = refused.json()["error"]["message"]
    names = "agent, agent-repair, attempt, control, edit, own, repair, verify"
    assert message.endswith(f"the pools are {names}")
    assert client_of(context).get("/api/scale/own").json()["workers"] == 1


def test_only_ops_may_read_the_load(context: ConsoleContext) -> None:
    ops, producer = new_token(context, role="ops"), new_token(context, role="producer")
    assert client_of(context, ops).get("/api/scale/attempt").status_code == 200
    assert client_of(context, producer).get("/api/scale/attempt").status_code == 403
    assert client_of(context).get("/api/scale/attempt").status_code == 401


# -- real workers ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    forked = replace(WORK, name="forked", kind="prefork", slots=2)
    folder = tmp_path_factory.mktemp("alive")
    with running_fleet(folder, pools=(CONTROL, WORK, forked)) as found:
        yield found


def live_beats(running: Fleet) -> dict[str, Beat]:
    beats = running.ledger.beats.live(now=running.ledger.now())
    return {one.pool: one for one in beats}


def test_every_kind_of_worker_sends_beats(fleet: Fleet) -> None:
    wait_for(lambda: live_beats(fleet).keys() == {"control", "work", "forked"}, "three workers")
    found = live_beats(fleet)
    assert {name: one.slots for name, one in found.items()} == {
        "control": 1,
        "work": 4,
        "forked": 2,
    }
    assert found["work"].queues == WORK.queues
    pids = {c.name: c.process.pid for c in fleet.stack.children if c.process}
    assert {name: one.pid for name, one in found.items()} == pids
    for one in found.values():
        wait_for(
            LivenessFile(home=fleet.folder, name=one.name).path.exists,
            f"the liveness file of {one.name}",
        )


def test_running_attempts_are_counted(fleet: Fleet) -> None:
    wait_for(lambda: len(live_beats(fleet)) == 3, "three workers")
    ids = fleet.submit(*[scripted({"text": GOOD, "delay": 7}) for _ in range(2)])
    wait_for(lambda: sum(p.active for p in live_beats(fleet).values()) >= 2, "both to be seen")
    fleet.wait_until_finished(ids)
    wait_for(lambda: sum(p.active for p in live_beats(fleet).values()) <= 1, "both to be done")


def test_a_real_worker_that_stops_is_gone_at_once(fleet: Fleet) -> None:
    wait_for(lambda: "work" in live_beats(fleet), "the worker")
    name = live_beats(fleet)["work"].name
    leaving = next(c for c in fleet.stack.children if c.name == "work")
    assert leaving.process is not None
    leaving.process.terminate()
    assert wait_for_exit(leaving) == 0
    assert "work" not in live_beats(fleet)
    assert not LivenessFile(home=fleet.folder, name=name).path.exists()
