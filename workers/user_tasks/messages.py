"""The messages of a user's task: its arguments and what follows it, as the ledger keeps them, and
its queue."""

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
#: The JSON of Celery's messages; kombu is untyped.
_dumps: Callable[[Any], str] = kombu_json.dumps
_loads: Callable[[str], Any] = kombu_json.loads
#: The suffix of a queue's repair lane, whose retries are served first.
REPAIR_SUFFIX = ".repair"
#: The headers of our own messages begin so; they are not repeated.
_OUR_HEADERS = "mulligan_"
#: Options that a retry does not repeat: it has its own id, and it has started before it expires.
_NOT_REPEATED = ("task_id", "retries", "expires", "origin")
#: What follows a task, by Celery's names.
FOLLOWING = ("chain", "chord", "link", "link_error")


def keep_arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments as JSON that `sent_arguments` restores. Raises BadInput if it cannot.

    In kombu's JSON, bytes, dates, decimals and UUIDs keep their type; tuples become lists.
    """
    named = {f"argument {i + 1}": value for i, value in enumerate(args)}
    _refuse_changes({**named, **{f"argument {name}": value for name, value in kwargs.items()}})
    return {"args": _plain(list(args)), "kwargs": _plain(dict(kwargs))}


def keep_following(request: Any) -> dict[str, Any]:
    """Return the options of a message that its retries repeat, as JSON. Raises BadInput if a
    retry cannot carry them."""
    options = request.as_execution_options()
    options |= {
        "headers": _own_headers(options["headers"]),
        "ignore_result": vars(request).get("ignore_result"),
        "priority": (request.delivery_info or {}).get("priority"),
        "replaced_task_nesting": request.replaced_task_nesting or None,
    }
    kept = {
        name: value
        for name, value in options.items()
        if name not in _NOT_REPEATED and value not in (None, [], {}, "")
    }
    _refuse_changes(kept)
    return dict(_plain(kept))


def sent_following(kept: Mapping[str, Json]) -> dict[str, Any]:
    """Restore the options that `keep_following` kept."""
    return dict(_loads(json.dumps(kept)))


def refuse_to_send(
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    following: Mapping[str, Any],
    *,
    serializer: str,
    cap: int,
) -> None:
    """Raise BadInput for a message whose retries could not be sent.

    Only pickle carries what JSON changes; what other serializers carry is known when it arrives.
    """
    if serializer == "pickle":
        keep_arguments(args, kwargs)
        _refuse_changes(following)
    try:
        sizes = {name: len(_dumps(value)) for name, value in following.items()}
        sizes["arguments"] = len(_dumps([args, kwargs]))
    except (TypeError, ValueError, RecursionError):
        return  # Celery says what it cannot serialize
    refuse_large(sizes, cap=cap)


def refuse_large(sizes: Mapping[str, int], *, cap: int) -> None:
    """Raise BadInput if a task's arguments and what follows it are too large for the ledger."""
    total = sum(sizes.values())
    if total > cap:
        largest = max(sizes, key=lambda name: sizes[name])
        raise BadInput(
            f"{largest}: a retry repeats {total:,} bytes, {sizes[largest]:,} of them here, and the"
            f" cap is {cap:,} (prompt_cap): send ids instead of contents"
        )


def _own_headers(headers: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the headers that the sender added."""
    found = (headers or {}).items()
    return {name: value for name, value in found if not name.startswith(_OUR_HEADERS)}


def _refuse_changes(values: Mapping[str, Any]) -> None:
    problems = [
        f"{name}: {problem}" for name, value in values.items() if (problem := _problem(value))
    ]
    if problems:
        raise BadInput(*problems)


def describe_arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Describe arguments that cannot be kept, for tasks that are never sent again."""
    return {
        "args": [describe(value) for value in args],
        "kwargs": {name: describe(value) for name, value in kwargs.items()},
    }


def sent_arguments(
    args: Sequence[Json], kwargs: Mapping[str, Json]
) -> tuple[list[Any], dict[str, Any]]:
    """Restore the arguments that `keep_arguments` kept."""
    sent_args, sent_kwargs = _loads(json.dumps([args, kwargs]))
    return sent_args, sent_kwargs


def _plain(value: Any) -> Any:
    return json.loads(_dumps(value))


def _problem(value: Any) -> str | None:
    """Return why a value cannot be restored; None if it can."""
    try:
        kept = _same(value, _loads(_dumps(value)))
    except (TypeError, ValueError, RecursionError) as error:
        return (
            f"a {type(value).__name__} cannot be kept for a retry ({error}): send a JSON value,"
            " such as an id"
        )
    if kept:
        return None
    return f"a {type(value).__name__} changes in JSON: send text keys and JSON values"


def _same(value: Any, back: Any) -> bool:
    match value:
        case Mapping():
            return value.keys() == back.keys() and all(_same(value[k], back[k]) for k in value)
        case list() | tuple():
            return len(value) == len(back) and all(map(_same, value, back))
        case float() if not math.isfinite(value):
            return False  # not valid in JSON
        case _:
            return bool(value == back)


def queue_of(app: Celery, info: Mapping[str, Any]) -> str:
    """Return the queue of a message, by its exchange and routing key.

    A message of a repair lane belongs to the lane's queue.
    """
    exchange, key = str(info.get("exchange") or ""), str(info.get("routing_key") or "")
    queues = app.amqp.queues
    found = [name for name, queue in queues.items() if _takes(queue, exchange, key)]
    served = [name for name in found if name in queues.consume_from] or found
    if served:
        return str(served[0]).removesuffix(REPAIR_SUFFIX)
    if not exchange or exchange == key:
        # The default exchange routes by the queue's name; Celery names an exchange like its queue.
        return (key or str(app.conf.task_default_queue)).removesuffix(REPAIR_SUFFIX)
    only = {name.removesuffix(REPAIR_SUFFIX) for name in queues.consume_from}
    default = only.pop() if len(only) == 1 else str(app.conf.task_default_queue)
    log.error(
        "No queue of this app is bound to exchange %r with key %r, so retries go to %r. Declare the"
        " queue in task_queues.",
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


def _bound(bound_to: Any, pattern: str, exchange: str, key: str) -> bool:
    if bound_to is None or bound_to.name != exchange:
        return False
    match bound_to.type:
        case "fanout" | "headers":
            return True
        case "topic":
            return _matches(pattern.split("."), key.split("."))
        case _:
            return pattern == key


def _matches(pattern: Sequence[str], words: Sequence[str]) -> bool:
    """Match an AMQP topic: ``*`` is one word, ``#`` any number of words."""
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(_matches(pattern[1:], words[i:]) for i in range(len(words) + 1))
    return bool(words) and pattern[0] in ("*", words[0]) and _matches(pattern[1:], words[1:])
