"""The messages of a user's own task: its arguments as the ledger keeps them, and its queue."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from celery import Celery
from kombu.utils import json as kombu_json

from mulligan.policies.value import Json
from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.celery.flower_format import describe

log = logging.getLogger(__name__)
#: As Celery's messages have it; kombu has no types.
_dumps: Callable[[Any], str] = kombu_json.dumps
_loads: Callable[[str], Any] = kombu_json.loads
#: Behind a queue's name: where its retries are served first.
LANE = ".repair"


def keep_arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments as JSON that `sent_arguments` reads back as they were; BadInput if there is none.

    Kombu's own JSON: bytes, dates, decimals and UUIDs keep their type, tuples become lists.
    """
    named = [(f"argument {i + 1}", value) for i, value in enumerate(args)]
    named += [(f"argument {name}", value) for name, value in kwargs.items()]
    problems = [f"{name}: {told}" for name, value in named if (told := _problem(value))]
    if problems:
        raise BadInput(*problems)
    return {"args": _plain(list(args)), "kwargs": _plain(dict(kwargs))}


def describe_arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Stands for arguments that cannot be kept, where they are never sent again."""
    return {
        "args": [describe(value) for value in args],
        "kwargs": {name: describe(value) for name, value in kwargs.items()},
    }


def sent_arguments(
    args: Sequence[Json], kwargs: Mapping[str, Json]
) -> tuple[list[Any], dict[str, Any]]:
    """Kept arguments as the task was sent them."""
    sent_args, sent_kwargs = _loads(json.dumps([args, kwargs]))
    return sent_args, sent_kwargs


def _plain(value: Any) -> Any:
    return json.loads(_dumps(value))


def _problem(value: Any) -> str | None:
    """Why a value would not come back as it is."""
    try:
        back = _loads(_dumps(value))
    except (TypeError, ValueError, RecursionError) as error:
        return (
            f"a {type(value).__name__} cannot be kept for a retry ({error}): send what JSON can"
            " hold, such as an id"
        )
    if _same(value, back):
        return None
    return f"a {type(value).__name__} changes in JSON: send text keys and what JSON can hold"


def _same(value: Any, back: Any) -> bool:
    match value:
        case Mapping():
            return value.keys() == back.keys() and all(_same(value[k], back[k]) for k in value)
        case list() | tuple():
            return len(value) == len(back) and all(map(_same, value, back))
        case float() if not math.isfinite(value):
            return False  # JSON has no word for it
        case _:
            return bool(value == back)


def queue_of(app: Celery, info: Mapping[str, Any]) -> str:
    """The queue that a message came through, by the exchange and the key it was sent with.

    A message of a repair lane belongs to the lane's queue.
    """
    exchange, key = str(info.get("exchange") or ""), str(info.get("routing_key") or "")
    queues = app.amqp.queues
    found = [name for name, queue in queues.items() if _takes(queue, exchange, key)]
    served = [name for name in found if name in queues.consume_from] or found
    if served:
        return str(served[0]).removesuffix(LANE)
    if not exchange or exchange == key:
        # Straight into the queue of that name; or it was made by name alone, as Celery does.
        return (key or str(app.conf.task_default_queue)).removesuffix(LANE)
    only = {name.removesuffix(LANE) for name in queues.consume_from}
    default = only.pop() if len(only) == 1 else str(app.conf.task_default_queue)
    log.error(
        "no queue of this app takes exchange %r with key %r: retries go to %r; declare the queue"
        " in task_queues",
        exchange,
        key,
        default,
    )
    return default


def _takes(queue: Any, exchange: str, key: str) -> bool:
    if not exchange:
        return bool(queue.name == key)
    return any(_bound(*binding, exchange, key) for binding in _bindings(queue))


def _bindings(queue: Any) -> Iterator[tuple[Any, str]]:
    yield queue.exchange, str(queue.routing_key or "")
    for binding in queue.bindings or ():
        yield binding.exchange, str(binding.routing_key or "")


def _bound(own: Any, pattern: str, exchange: str, key: str) -> bool:
    if own is None or own.name != exchange:
        return False
    match own.type:
        case "fanout" | "headers":
            return True
        case "topic":
            return _matches(pattern.split("."), key.split("."))
        case _:
            return pattern == key


def _matches(pattern: Sequence[str], words: Sequence[str]) -> bool:
    """AMQP's topics: ``*`` is one word, ``#`` any number of them."""
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(_matches(pattern[1:], words[i:]) for i in range(len(words) + 1))
    return bool(words) and pattern[0] in ("*", words[0]) and _matches(pattern[1:], words[1:])
