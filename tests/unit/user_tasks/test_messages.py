"""The arguments of a user's task in its retry, and the queue of its message."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import reduce
from typing import Any

import pytest
from celery import Celery
from kombu import entity

from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.user_tasks.messages import (
    describe_arguments,
    keep_arguments,
    queue_of,
    sent_arguments,
)

#: Kombu has no types.
Exchange: Any = entity.Exchange
Queue: Any = entity.Queue
binding: Any = entity.binding


def nested(depth: int) -> dict[str, Any]:
    return reduce(lambda inner, _: {"a": inner}, range(depth), {})


# -- arguments -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        "text",
        3,
        None,
        {"a": [1, {"b": 2.5}]},
        b"\xff\x00",
        b"text",
        Decimal("1.10"),
        uuid.UUID(int=7),
        date(2026, 1, 2),
        datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    ],
    ids=lambda value: type(value).__name__,
)
def test_arguments_survive_the_ledger(value: Any) -> None:
    kept = keep_arguments((value, [value]), {"named": {"in": value}})
    stored = json.loads(json.dumps(kept, allow_nan=False))
    args, kwargs = sent_arguments(**stored)
    assert (args, kwargs) == ([value, [value]], {"named": {"in": value}})
    assert type(args[0]) is type(value)


def test_a_tuple_becomes_a_list() -> None:
    assert sent_arguments(**keep_arguments(((1, 2),), {})) == ([[1, 2]], {})


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (object(), "argument 2: a object cannot be kept for a retry"),
        ({1, 2}, "argument 2: a set cannot be kept for a retry"),
        ({1: "a"}, "argument 2: a dict changes in JSON"),
        ({"in": [float("nan")]}, "argument 2: a dict changes in JSON"),
        (
            nested(700),
            "argument 2: a dict cannot be kept",
        ),
        (
            nested(5000),
            "argument 2: a dict cannot be kept",
        ),
    ],
    ids=["object", "set", "keys", "nan", "deep", "very deep"],
)
def test_an_argument_that_json_would_change_is_refused(value: Any, message: str) -> None:
    with pytest.raises(BadInput, match=f"^{message}"):
        keep_arguments(("text", value), {})
    with pytest.raises(BadInput, match=r"^argument named: "):
        keep_arguments((), {"named": value})


def test_arguments_are_described_by_their_shape() -> None:
    described = describe_arguments((object(), "a secret"), {"named": 3})
    assert described == {"args": ["object", "text(8)"], "kwargs": {"named": "3"}}


# -- queues ----------------------------------------------------------------------------------------

FEED = Exchange("feed", type="topic")
DIRECT = Exchange("direct", type="direct")


@pytest.fixture
def app() -> Celery:
    app = Celery("mine", broker="memory://", set_as_current=False)
    app.conf.task_queues = [
        Queue("feed_tasks", FEED, routing_key="feed.#"),
        Queue("one_word", FEED, routing_key="word.*"),
        Queue("straight", DIRECT, routing_key="a-key"),
        Queue("everybody", Exchange("told", type="fanout")),
        Queue("bound", bindings=[binding(DIRECT, routing_key="other-key")]),
    ]
    return app


@pytest.mark.parametrize(
    ("exchange", "key", "queue"),
    [
        ("feed", "feed.import", "feed_tasks"),
        ("feed", "feed", "feed_tasks"),
        ("feed", "feed.import.again", "feed_tasks"),
        ("feed", "word.one", "one_word"),
        ("direct", "a-key", "straight"),
        ("direct", "other-key", "bound"),
        ("told", "whatever", "everybody"),
        ("", "feed_tasks", "feed_tasks"),
        ("", "feed_tasks.repair", "feed_tasks"),
        ("", "made.by.name", "made.by.name"),
        ("by-name", "by-name", "by-name"),
        (None, None, "celery"),
    ],
)
def test_the_queue_of_a_message_is_found(app: Celery, exchange: Any, key: Any, queue: str) -> None:
    assert queue_of(app, {"exchange": exchange, "routing_key": key}) == queue


@pytest.mark.parametrize(
    ("selected", "queue"), [(["straight"], "straight"), (["straight", "bound"], "celery")]
)
def test_a_message_without_a_queue_is_logged(
    app: Celery, caplog: pytest.LogCaptureFixture, selected: list[str], queue: str
) -> None:
    app.amqp.queues.select(selected)
    assert queue_of(app, {"exchange": "feed", "routing_key": "word.one.two"}) == queue
    assert "exchange 'feed' with key 'word.one.two'" in caplog.text
    assert "Declare the queue" in caplog.text


def test_of_several_queues_the_one_served_here_is_chosen(app: Celery) -> None:
    app.amqp.queues.add(Queue("all_words", FEED, routing_key="#"))
    app.amqp.queues.select(["all_words"])
    assert queue_of(app, {"exchange": "feed", "routing_key": "feed.import"}) == "all_words"
