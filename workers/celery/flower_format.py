"""Arguments and results in Flower: enough to follow a job, never a prompt.

Flower applies `format_task` only to its pages, not to its API, so secrets are replaced before they
get into an event: see `redacted_request` and `publisher`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mulligan.tasks.ports.ledger import Entry
from mulligan.workers.celery.broker.queues import AGENT_REPAIR_QUEUE, NO_BROKER, REPAIR_QUEUE
from mulligan.workers.settings.model import load_settings

#: A task's `Request`, as text, so that a producer need not import a worker.
REDACTED = "mulligan.workers.celery.redacted_request:RedactedRequest"
#: Longer texts are not shown, not even their beginning, which is as secret as the rest.
_SHORT = 200
#: Maximum items and depth of a structure to show.
_ITEMS = 5
_DEPTH = 3
_FIELDS = ("args", "kwargs", "result", "exception", "traceback")


def format_task(task: Any) -> Any:
    """Remove long texts from a task of any app. For flowerconfig.py."""
    if str(task.name).startswith("mulligan."):
        return task  # already redacted, and its reasons may be long
    for name in _FIELDS:
        text = getattr(task, name, None)
        if isinstance(text, str):
            setattr(task, name, shorten(text))
    return task


def require_broker() -> None:
    """End a Flower that has no broker: it would show an empty one in its own memory.

    For flowerconfig.py of `-A mulligan.workers.app`.
    """
    if load_settings().broker_url is None:
        raise SystemExit(f"Flower cannot start. {NO_BROKER}")


def shorten(text: str) -> str:
    return text if len(text) <= _SHORT else f"({len(text):,} characters, not shown)"


def describe_entry(entry: Entry, queue: str) -> str:
    """Describe the argument of a hint for people."""
    attempt = f"attempt {entry.attempt} of {entry.job_id}"
    match entry.kind:
        case "verification":
            return f"('verifier {entry.index} of {attempt}',)"
        case "cycle":
            return f"('delayed verification of {attempt}',)"
        case "loop":
            return f"('the loop {entry.loop}',)"
        case _:
            retries = queue in (REPAIR_QUEUE, AGENT_REPAIR_QUEUE)
            mode = ", immediate_retry" if retries else ""
            return f"('{attempt}{mode}',)"


def describe(value: Any, depth: int = _DEPTH) -> str:
    """Describe the shape of a value: numbers as they are, texts by their length."""
    match value:
        case None | bool() | int() | float():
            return repr(value)
        case str():
            return f"text({len(value)})"
        case bytes():
            return f"bytes({len(value)})"
        case Mapping() if depth:
            pairs = [f"{_key(key)}: {describe(inner, depth - 1)}" for key, inner in value.items()]
            return "{" + _first(pairs) + "}"
        case list() | tuple() if depth:
            inner = [describe(item, depth - 1) for item in value[: _ITEMS + 1]]
            return f"({_first(inner)},)" if len(value) == 1 else f"({_first(inner)})"
        case _:
            return type(value).__name__


def _key(key: Any) -> str:
    """Show names of arguments and fields, but not other texts that serve as keys."""
    named = isinstance(key, str) and key.isidentifier() and len(key) <= 40
    return repr(key) if named else describe(key, 0)


def _first(parts: list[str]) -> str:
    return ", ".join(parts[:_ITEMS] + ["…"] * (len(parts) > _ITEMS))
