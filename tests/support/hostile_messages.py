"""Messages that nobody should send: what a worker finds on its queues when somebody does."""

from __future__ import annotations

import base64
import bz2
import json
import lzma
import uuid
import zlib
from collections.abc import Callable, Iterator
from typing import Any

#: What 597 KB of it inflate to, with the usual compression.
BOMB = 600_000_000
Raw = str | bytes


def envelope(
    task: Any = "mulligan.submit",
    kwargs: Any = None,
    *,
    body: Any = None,
    headers: dict[str, Any] | None = None,
    properties: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return a message as kombu stores it in a list of Redis, with changes."""
    given = json.dumps([[], kwargs or {}, {}]) if body is None else body
    raw = given if isinstance(given, bytes) else str(given).encode()
    message_id = str(uuid.uuid4())
    return {
        "body": base64.b64encode(raw).decode(),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": {"lang": "py", "task": task, "id": message_id, "root_id": message_id,
                    "argsrepr": "()", "kwargsrepr": "{}", **(headers or {})},
        "properties": {
            "correlation_id": message_id,
            "delivery_mode": 2,
            "delivery_info": {"exchange": "", "routing_key": "attempt"},
            "priority": 0,
            "body_encoding": "base64",
            "delivery_tag": str(uuid.uuid4()),
            **(properties or {}),
        },
    }  # fmt: skip


def _without(*path: str) -> Raw:
    message = envelope()
    found = message
    for key in path[:-1]:
        found = found[key]
    del found[path[-1]]
    return json.dumps(message)


def _compressed(name: str, compress: Callable[[bytes], bytes], size: int) -> Raw:
    body = compress(b"[[], {}, {}" + b" " * size + b"]")
    return json.dumps(envelope(body=body, headers={"compression": name}))


def _nested(depth: int) -> str:
    return "[" * depth + "]" * depth


def malformed() -> Iterator[tuple[str, Raw]]:
    """Yield each kind of message that cannot be read, with its name."""
    yield "not json", "this is not a message"
    yield "not utf-8", b"\xff\xfe\x00{"
    yield "empty", ""
    yield "a number", "7"
    yield "a list", "[1, 2]"
    yield "null", "null"
    yield "nested json", _nested(100_000)
    yield "a number of 5000 digits", "1" * 5000
    yield "a lone surrogate", '{"body": "\\ud800", "properties": {"delivery_tag": "\\ud800"}}'
    yield "an unknown type", '{"__type__": "nothing", "__value__": 1}'
    yield "a type that is a list", '{"__type__": [1], "__value__": 1}'
    yield "a wrong uuid", '{"__type__": "uuid", "__value__": 1}'
    yield "an empty object", "{}"
    for path in (("properties",), ("headers",), ("body",), ("properties", "delivery_tag"),
                 ("properties", "delivery_info"), ("headers", "id"), ("headers", "task"),
                 ("content-type",), ("content-encoding",)):  # fmt: skip
        yield f"without {'.'.join(path)}", _without(*path)
    for key in ("properties", "headers", "body", "content-type", "content-encoding"):
        for wrong in (7, [1], "x", {"a": 1}, None):
            yield f"{key} is {wrong!r}", json.dumps({**envelope(), key: wrong})
    for name in ("delivery_tag", "delivery_info", "body_encoding", "priority"):
        for wrong in (7, [1], "x", {"a": 1}):
            yield f"properties.{name} is {wrong!r}", json.dumps(envelope(properties={name: wrong}))
    yield "body is no base64", json.dumps({**envelope(), "body": "=#=!"})
    for content in ("application/x-python-serialize", "application/x-yaml", "text/plain", "x/y",
                    "application/data"):  # fmt: skip
        yield f"content-type {content}", json.dumps({**envelope(), "content-type": content})
    for encoding in ("rot13", "binary", "no-such-encoding", "\x00\x01"):
        yield (
            f"content-encoding {encoding!r}",
            json.dumps({**envelope(), "content-encoding": encoding}),
        )
    for body in ("", "7", "null", "[]", "[[]]", "[[], {}]", "[1, 2, 3]", '[{}, [], "x"]',
                 '[[], {}, {"callbacks": 7, "chain": "x", "chord": [1]}]', '{"task": "x"}',
                 '{"task": "mulligan.submit"}', '{"task": "mulligan.submit", "args": 7}',
                 f"[[{_nested(900)}], {{}}, {{}}]", _nested(50_000)):  # fmt: skip
        yield f"body {body[:40]!r}", json.dumps(envelope(body=body))
    headers: dict[str, list[Any]] = {
        "id": [None, 7, [1], {"a": 1}, "x" * 1_000_000],
        "task": [None, 7, [1], {"a": 1}, "unknown.task", "x" * 1_000_000],
        "shadow": [7, [1]],
        "root_id": [[1]],
        "parent_id": [{}],
        "group": [[1]],
        "retries": ["x", [1], -1],
        "eta": ["garbage", 7, [1], "9999-12-31T23:59:59", "0001-01-01T00:00:00+14:00",
                "x" * 10_000_000],
        "expires": ["garbage", 7, [1], "9999-12-31T23:59:59", "0001-01-01T00:00:00+14:00"],
        "timelimit": ["x", 7, [1], ["a", "b"], [1, 2, 3], {"a": 1}, [-1, -1]],
        "argsrepr": [7, [1], "x" * 50_000_000],
        "kwargsrepr": [{}],
        "stamped_headers": [7, "x", [[1]]],
        "ignore_result": ["x"],
        "replaced_task_nesting": ["x"],
        "compression": ["gzip", "nothing", 7, [1], {"a": 1}],
        "redelivered": ["x"],
    }  # fmt: skip
    for name, values in headers.items():
        for wrong in values:
            yield (
                f"headers.{name} is {str(wrong)[:30]!r}",
                json.dumps(envelope(headers={name: wrong})),
            )


def bombs(size: int = BOMB) -> Iterator[tuple[str, Raw]]:
    """Yield compressed messages that inflate to ``size`` bytes."""
    yield "gzip", _compressed("application/x-gzip", zlib.compress, size)
    yield "zlib", _compressed("zlib", zlib.compress, size)
    yield "bz2", _compressed("bzip2", bz2.compress, size)
    yield "lzma", _compressed("xz", lambda data: lzma.compress(data, preset=0), size)
