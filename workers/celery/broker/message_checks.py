"""What a message must be before Celery reads it: anything else would end or block a worker.

Celery trusts what it finds on a queue. Most exceptions of its parser and its headers leave the
event loop, and so the process.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from celery.utils.time import maybe_iso8601, maybe_make_aware
from kombu.exceptions import ContentDisallowed

#: Characters of an id or of a task's name. Celery's ids have 36.
_LONGEST_NAME = 10_000
#: Characters of a time. An ISO time has about 32.
_LONGEST_TIME = 100
#: Levels of lists and objects in a message. Pickle, and much else, recurses.
_DEEPEST = 400
_NESTING = (Mapping, list, tuple)
#: What a broken message raises when it is parsed. Others are faults of the broker or of ours.
MALFORMED = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)


class UnreadableMessage(Exception):
    """A message that no worker can read. Its text says why, and quotes nothing of it."""


def check_envelope(raw: Any) -> None:
    """Check the envelope that kombu's virtual transports put around a message.

    Raises UnreadableMessage.
    """
    envelope = _mapping(raw, "the message")
    _mapping(envelope.get("headers"), "headers")
    properties = _mapping(envelope.get("properties"), "properties")
    delivery = _mapping(properties.get("delivery_info"), "delivery_info")
    _text(properties.get("delivery_tag"), "delivery_tag")
    for name in ("exchange", "routing_key"):
        _text(delivery.get(name), name, empty=True)
    _text(envelope.get("body"), "the body", longest=None)
    for name in ("content-type", "content-encoding"):
        _text(envelope.get(name), name)


def check_task_message(message: Any) -> None:
    """Check a message before Celery's consumer handles it. Raises UnreadableMessage."""
    headers = _mapping(message.headers, "headers")
    body = _decoded(message)
    _check_depth([headers, body])
    if "task" not in headers:
        # Celery's first protocol: the body is everything.
        if "task" not in _mapping(body, "a body without the header task"):
            raise UnreadableMessage("it names no task")
        _check_fields(body)
    else:
        _check_fields(headers)
    if isinstance(body, Mapping):
        _check_arguments(body.get("args", ()), body.get("kwargs", {}))
        _check_following(body)
    elif isinstance(body, list | tuple) and len(body) == 3:
        _check_arguments(body[0], body[1])
        _check_following(_mapping(body[2] or {}, "the options of the body"))
    else:
        raise UnreadableMessage("the body is not a list of args, kwargs and options")


def _check_fields(fields: Mapping[str, Any]) -> None:
    """Check the fields that Celery uses before a task runs."""
    _text(fields.get("task"), "task")
    _id(fields.get("id"), "id")
    for name in ("root_id", "parent_id", "shadow", "group"):
        if fields.get(name) is not None:
            _id(fields[name], name, empty=True)
    for name in ("argsrepr", "kwargsrepr"):
        if fields.get(name) is not None:
            _text(fields[name], name, empty=True, longest=None)
    for name in ("eta", "expires"):
        if fields.get(name) is not None:
            _time(fields[name], name)
    if not _is_number(fields.get("retries") or 0):
        raise UnreadableMessage("retries is not a number")
    limits = fields.get("timelimit") or (None, None)
    if not _is_pair(limits) or not all(each is None or _is_number(each) for each in limits):
        raise UnreadableMessage("timelimit is not a pair of numbers")
    stamps = fields.get("stamped_headers") or ()
    if not isinstance(stamps, list | tuple) or not all(isinstance(each, str) for each in stamps):
        raise UnreadableMessage("stamped_headers is not a list of texts")


def _check_arguments(args: Any, kwargs: Any) -> None:
    if not isinstance(args, list | tuple):
        raise UnreadableMessage("args is not a list")
    if any(not isinstance(name, str) for name in _mapping(kwargs, "kwargs")):
        raise UnreadableMessage("kwargs has a name that is not a text")


def _check_following(options: Mapping[str, Any]) -> None:
    for name in ("callbacks", "errbacks", "chain"):
        following = options.get(name)
        if not isinstance(following, list | tuple | None):
            raise UnreadableMessage(f"{name} is not a list")
        for each in following or ():
            _mapping(each, f"an entry of {name}")
    if options.get("chord") is not None:
        _mapping(options["chord"], "chord")


def _decoded(message: Any) -> Any:
    try:
        return message.payload  # kept: Celery does not decode it again
    except ContentDisallowed as error:
        raise UnreadableMessage("its content type is not accepted") from error
    except Exception as error:  # each serializer has its own
        raise UnreadableMessage(f"the body cannot be decoded ({type(error).__name__})") from error


def _check_depth(value: Any) -> None:
    """Refuse what is nested deeper than a pool of processes can be sent.

    A value that is referred to often, as in YAML and pickle, is looked at once.
    """
    level, seen = [value], set[int]()
    for _ in range(_DEEPEST):
        inner = (each.values() if isinstance(each, Mapping) else each for each in level)
        found = {
            id(each): each for values in inner for each in values if isinstance(each, _NESTING)
        }
        level = [each for key, each in found.items() if key not in seen]
        seen |= found.keys()
        if not level:
            return
    raise UnreadableMessage(f"it is nested more than {_DEEPEST} levels deep")


def _mapping(value: Any, name: str) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise UnreadableMessage(f"{name} is not an object")
    return value


def _id(value: Any, name: str, *, empty: bool = False) -> None:
    if not isinstance(value, UUID):  # kombu's JSON restores them
        _text(value, name, empty=empty)


def _text(
    value: Any, name: str, *, empty: bool = False, longest: int | None = _LONGEST_NAME
) -> None:
    if not isinstance(value, str) or not (value or empty):
        raise UnreadableMessage(f"{name} is not a text")
    if longest is not None and len(value) > longest:
        raise UnreadableMessage(f"{name} has {len(value):,} characters")


def _time(value: Any, name: str) -> None:
    if not isinstance(value, datetime):
        _text(value, name, longest=_LONGEST_TIME)
    try:
        maybe_make_aware(maybe_iso8601(value)).astimezone().timestamp()
    except (*MALFORMED, OSError) as error:  # of times that no clock has
        raise UnreadableMessage(f"{name} is not a time") from error


def _is_pair(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) == 2


def _is_number(value: Any) -> bool:
    """Whether Celery can count with it: a number, also as a text."""
    try:
        return not isinstance(value, bool) and 0 <= float(value) < math.inf
    except (TypeError, ValueError, OverflowError):
        return False
