"""Messages that nobody should send end no worker, block none, and are on record."""

from __future__ import annotations

import json
import struct
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import amqp  # type: ignore[import-untyped] # has no types
import pytest
import redis
from support.console_server import running_console
from support.fleet import Fleet, running_fleet
from support.hostile_messages import Raw, bombs, envelope, malformed
from support.rabbitmq_server import running_rabbitmq
from support.user_tasks import user_project
from support.waiting import wait_for

from mulligan.workers.celery.broker.bounded_inflating import _DECODERS, inflate
from mulligan.workers.celery.broker.message_checks import UnreadableMessage, _check_depth
from mulligan.workers.celery.broker.queues import Pool, PoolKind
from mulligan.workers.settings.model import Settings

QUEUES = ("attempt", "mulligan.submit")
#: Bytes that the worker of these tests accepts, and that the compressed messages inflate to.
CAP = 1_000_000
INFLATED = 60_000_000


def pool(kind: PoolKind) -> Pool:
    return Pool(name="attacked", queues=QUEUES, kind=kind, slots=2)


@contextmanager
def attacked(kind: PoolKind, **options: Any) -> Iterator[Fleet]:
    """Start a worker, and check in the end that it never ended."""
    # Not tmp_path: the kernel allows 108 bytes for the path of a socket.
    with tempfile.TemporaryDirectory(prefix="mulligan-") as folder:
        options = {"message_cap": CAP, **options}
        with running_fleet(Path(folder), pools=(pool(kind),), **options) as fleet:
            process = fleet.stack.children[0].process
            assert process is not None
            yield fleet
            assert process.poll() is None, "the worker ended"


def submission(queue: str) -> dict[str, Any]:
    """Return a message that a worker reads and refuses, so that it is seen in the ledger."""
    return envelope(
        kwargs={"task_type": f"probe-{uuid.uuid4().hex}"},
        properties={"delivery_info": {"exchange": "", "routing_key": queue}},
    )


def is_handled(fleet: Fleet, message: dict[str, Any]) -> None:
    wait_for(
        lambda: any(
            each.id == message["headers"]["id"]
            for each in fleet.ledger.refused_submissions.newest(limit=1000)
        ),
        "the message after the hostile ones",
    )


def refusals(fleet: Fleet) -> list[str]:
    found = fleet.ledger.refused_submissions.newest(limit=1000)
    return [each.problems[0] for each in found if each.origin == "broker"]


def send(fleet: Fleet, messages: Sequence[Raw]) -> None:
    """Send to each queue all messages, and then one for each slot, which must be handled."""
    with redis.Redis(unix_socket_path=str(fleet.server.socket)) as client:
        for queue in QUEUES:
            for message in messages:
                client.lpush(queue, message)
        probes = [(queue, submission(queue)) for queue in QUEUES for _ in range(2)]
        for queue, probe in probes:
            client.lpush(queue, json.dumps(probe))
    for _, probe in probes:
        is_handled(fleet, probe)


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    """A worker with two threads, which must outlive every test."""
    with attacked("threads") as fleet:
        yield fleet


def test_no_malformed_message_ends_a_worker(fleet: Fleet) -> None:
    send(fleet, [message for _, message in malformed()])
    found = refusals(fleet)
    assert len(found) > 50
    assert "a message on the queue attempt cannot be read: headers is not an object" in found
    assert_calm_log(fleet)
    # Only a submission with an ETA is kept until then.
    with redis.Redis(unix_socket_path=str(fleet.server.socket)) as client:

        def held() -> list[Any]:
            left: Any = client.hgetall("unacked")
            return [json.loads(each)[0]["headers"].get("eta") for each in left.values()]

        wait_for(lambda: set(held()) <= {"9999-12-31T23:59:59"}, "the last messages")


def assert_calm_log(fleet: Fleet) -> None:
    """One line for each message, without its text."""
    log = (fleet.folder / "logs" / "attacked.log").read_text()
    assert "Traceback" not in log
    assert max(map(len, log.splitlines())) < 1000


def test_no_malformed_message_ends_a_pool_of_processes() -> None:
    """What cannot be sent to a process keeps none of them."""
    with attacked("prefork") as fleet:
        send(fleet, [message for _, message in malformed() if len(message) < CAP])
        assert_calm_log(fleet)


def test_a_compressed_message_is_inflated_up_to_the_cap(fleet: Fleet) -> None:
    send(fleet, [])
    before = peak_memory(fleet)
    send(fleet, [message for _, message in bombs(INFLATED)])
    assert peak_memory(fleet) - before < INFLATED / 2
    too_long = f"it inflates to more than {CAP:,} bytes (message_cap)"
    assert any(problem.endswith(too_long) for problem in refusals(fleet))


def peak_memory(fleet: Fleet) -> int:
    process = fleet.stack.children[0].process
    assert process is not None
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


@pytest.mark.parametrize("name", list(_DECODERS))
def test_every_method_of_compression_has_a_limit(name: str) -> None:
    from kombu import compression

    compress: Callable[..., Any] = compression.compress
    body, _ = compress(b"x" * 1000, name)
    assert inflate(_DECODERS[name], 1000, body) == b"x" * 1000
    with pytest.raises(UnreadableMessage, match="inflates to more than 999 bytes"):
        inflate(_DECODERS[name], 999, body)
    with pytest.raises(UnreadableMessage, match="not complete"):
        inflate(_DECODERS[name], 1000, body[:-5])


def test_a_value_that_is_referred_to_often_is_looked_at_once() -> None:
    """Given aliases of YAML or references of pickle that stand for 2 to the power of 60 values."""
    value: list[Any] = [1]
    for _ in range(60):
        value = [value, value]
    value.append(value)
    _check_depth(value)
    deep: list[Any] = []
    for _ in range(401):
        deep = [deep]
    with pytest.raises(UnreadableMessage, match="nested more than 400"):
        _check_depth(deep)


def test_a_body_above_the_cap_is_refused(fleet: Fleet) -> None:
    large = json.dumps([[], {"prompt": "x" * CAP}, {}])
    huge = json.dumps([[], {"prompt": "x" * 4 * CAP}, {}])
    send(fleet, [json.dumps(envelope(body=large)), json.dumps(envelope(body=huge))])
    found = " ".join(refusals(fleet))
    assert f"its body has more than {CAP:,} bytes (message_cap)" in found
    assert "characters" in found


def test_malformed_control_commands_and_records_end_no_worker(fleet: Fleet) -> None:
    """A remote control command comes by another way, and a record of an unacknowledged message is
    read when a worker died."""
    with redis.Redis(unix_socket_path=str(fleet.server.socket)) as client:
        for number, record in enumerate(("{", "7", "[1, 2]", '[{}, "", "attempt"]')):
            client.hset("unacked", f"tag-{number}", record)
            client.zadd("unacked_index", {f"tag-{number}": 1})
        for _, message in malformed():
            if len(message) < CAP:
                client.publish("/0.celery.pidbox", message)
        commands: list[Any] = [
            7, [], {}, {"method": "nothing"}, {"method": [1]}, {"method": "ping", "x": 1},
            {"method": "ping", "arguments": 7}, {"method": "ping", "destination": 7},
            {"method": "ping", "pattern": "(", "matcher": "pcre"},
            {"method": "ping", "reply_to": {"exchange": 7}},
        ]  # fmt: skip
        for command in commands:
            client.publish("/0.celery.pidbox", json.dumps(envelope(body=json.dumps(command))))
    send(fleet, [])


# -- RabbitMQ --------------------------------------------------------------------------------------


class RawHeaders(amqp.Message):  # type: ignore[misc] # amqp is untyped
    """A message whose headers are any bytes."""

    def __init__(self, body: bytes, headers: bytes) -> None:
        super().__init__(body)
        self._headers = headers

    def _serialize_properties(self) -> bytes:
        return struct.pack(">HI", 1 << 13, len(self._headers)) + self._headers


def amqp_messages() -> Iterator[Any]:
    """Yield messages that RabbitMQ accepts and delivers."""
    yield RawHeaders(b"{}", b"\x01tT" + b"\xff" * 8)  # a time after the year 9999
    arrays = b""
    for _ in range(20_000):
        arrays = b"A" + struct.pack(">I", len(arrays)) + arrays
    yield RawHeaders(b"{}", b"\x01a" + arrays)
    for _, raw in (*malformed(), *bombs(INFLATED // 10)):
        try:
            message = json.loads(raw)
            headers, body = message["headers"], message["body"].encode()
            if isinstance(headers, dict) and len(str(headers)) < 10_000:
                yield amqp.Message(
                    body, application_headers=headers, content_type="application/json",
                    content_encoding="utf-8",
                )  # fmt: skip
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            continue
    yield amqp.Message(b"\xff\xfe")
    yield amqp.Message(b"{}", content_type="application/x-python-serialize")


def test_on_rabbitmq_no_message_ends_a_worker_or_comes_back() -> None:
    """A message that ends its worker returns to its queue, and ends the next one."""
    with (
        running_rabbitmq() as server,
        attacked("threads", broker_url=server.url) as fleet,
    ):
        host = server.url.split("@")[1].split("/")[0]
        with amqp.Connection(host) as connection, connection.channel() as channel:
            for queue in QUEUES:
                channel.queue_declare(queue, durable=True, auto_delete=False)
                for message in amqp_messages():
                    channel.basic_publish(message, routing_key=queue)
                probe = submission(queue)
                body = json.dumps([[], {"task_type": "t"}, {}]).encode()
                good = amqp.Message(
                    body, application_headers=probe["headers"], content_type="application/json",
                    content_encoding="utf-8",
                )  # fmt: skip
                channel.basic_publish(good, routing_key=queue)
                is_handled(fleet, probe)
        found = " ".join(refusals(fleet))
        assert "its headers cannot be parsed (RecursionError)" in found


# -- a user's app ----------------------------------------------------------------------------------

PROJECT = """
import os
from celery import Celery
import mulligan

app = Celery("tasks", broker=os.environ["BROKER"], backend=os.environ["BROKER"])
mulligan.install(app, message_cap=1_000_000)

@app.task(base=mulligan.RepairingTask)
def double(number):
    return 2 * number

@app.task
def plain(number):
    return number
"""


def test_the_workers_of_a_users_app_are_guarded_too() -> None:
    """Their own tasks may be compressed, and an unknown task is reported as before."""
    with (
        tempfile.TemporaryDirectory(prefix="mulligan-") as folder,
        user_project(Path(folder), PROJECT, "-c", "2") as project,
    ):
        project.start_worker()
        process = project.stack.children[0].process
        assert process is not None
        with redis.Redis(unix_socket_path=str(project.server.socket)) as client:
            for _, message in (*malformed(), *bombs(INFLATED // 10)):
                if len(message) < 1_000_000:
                    client.lpush("celery", message)
        app = project.app
        assert project.send("plain", 3).get(timeout=60) == 3
        assert project.send("double", 3).get(timeout=60) == 6
        small = app.send_task("tasks.plain", args=["x" * 900_000], compression="gzip")
        assert small.get(timeout=60) == "x" * 900_000
        large = app.send_task("tasks.plain", args=["x" * 1_100_000], compression="gzip")
        with pytest.raises(Exception, match="inflates to more than"):
            large.get(timeout=60)
        with pytest.raises(Exception, match=r"tasks\.unknown"):
            project.send("unknown").get(timeout=60)
        # What Celery accepts is accepted, and whoever sends something else is told.
        options: dict[str, Any] = {
            "task_id": uuid.uuid4(),
            "time_limit": "600",
            "shadow": "x" * 2000,
        }
        assert (
            app.send_task("tasks.plain", args=[4], root_id=uuid.uuid4(), **options).get(timeout=60)
            == 4
        )
        deep: Any = 1
        for _ in range(500):
            deep = [deep]
        with pytest.raises(Exception, match="nested more than 400 levels deep"):
            project.send("plain", deep).get(timeout=60)
        assert process.poll() is None
        found = project.ledger.refused_submissions.newest(limit=1000)
        assert len([each for each in found if each.origin == "broker"]) > 30


# -- the console -----------------------------------------------------------------------------------


def test_the_console_answers_while_messages_are_refused(fleet: Fleet) -> None:
    settings = Settings(broker_url=fleet.server.url, home=fleet.folder / "console")
    with running_console(settings) as console, console.client() as http:
        slowest = 0.0
        with redis.Redis(unix_socket_path=str(fleet.server.socket)) as client:
            for _, message in malformed():
                client.lpush("attempt", message)
                began = time.monotonic()
                assert http.get("/healthz").status_code == 200
                slowest = max(slowest, time.monotonic() - began)
        send(fleet, [])
        assert slowest < 1.0
        listed = http.get("/api/submissions/refused").json()["submissions"]
        assert any(each["origin"] == "broker" for each in listed)
