"""Refused submissions: what was wrong with them, for the ones who operate the fleet.

A Celery message has no caller who reads its refusal, so a log would be its only trace. Problems
name fields and never quote a prompt.

Messages that cannot be read at all have a record of their own: a flood of them does not push out
the refusals of others.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from mulligan.policies.figures.format import counted
from mulligan.policies.jobs.job import joined_surrogates
from mulligan.policies.problem import Problem
from mulligan.tasks.ports.ledger import LedgerClock
from mulligan.workers.ledger import keys
from mulligan.workers.ledger.connection.calls import RedisCalls

#: broker: a message on a queue that no worker could read.
Origin = Literal["celery", "http", "broker"]

#: Records kept, the newest, and those of messages that cannot be read.
CAP = 1000
MESSAGES_CAP = 200
#: Problems kept of one submission, and characters of each.
_PROBLEMS = 20
_LONGEST = 300
#: Characters of an id or a task type, which are as long as their sender made them.
_NAME = 200
#: Seconds in which a refusal needs attention.
RECENT = 3600.0


@dataclass(frozen=True, kw_only=True)
class RefusedSubmission:
    """One submission of which nothing was stored, and every reason."""

    #: The id of the Celery message, or a random one.
    id: str
    origin: Origin
    #: Who sent it, as far as known: the name of the token.
    by: str | None = None
    tenant: str | None = None
    task_type: str | None = None
    problems: tuple[str, ...]
    #: How a message begins that cannot be read.
    begins: str | None = None
    at: float

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class RefusedSubmissions:
    """The record of refused submissions, capped."""

    def __init__(self, calls: RedisCalls, *, prefix: str, clock: LedgerClock, kept: float) -> None:
        """``kept``: seconds after which a record is deleted."""
        self._calls = calls
        self._key = keys.refused_submissions(keys.fleet_prefix(prefix))
        self._messages = keys.refused_messages(keys.fleet_prefix(prefix))
        self._keys = (self._key, self._messages)
        self._clock = clock
        self._kept = kept

    def note(
        self,
        problems: Sequence[Problem],
        *,
        id: str,
        origin: Origin,
        raw: Any,
        by: str | None = None,
        tenant: str | None = None,
    ) -> None:
        """Record a refusal. A redelivery, with the same id and problems, counts once."""
        task_type = raw.get("task_type") if isinstance(raw, dict) else None
        said = [_cut(str(problem)) for problem in problems[:_PROBLEMS]]
        if len(problems) > _PROBLEMS:
            said.append(f"and {len(problems) - _PROBLEMS:,} more")
        fields = {
            "id": _cut(id, _NAME),
            "origin": origin,
            "by": by,
            "tenant": tenant,
            "task_type": _cut(task_type, _NAME) if isinstance(task_type, str) else None,
            "problems": said,
        }
        self._add(self._key, fields, cap=CAP)

    def note_message(self, *, queue: str, reason: str, size: int, begins: str) -> None:
        """Record a message that no worker could read."""
        where = f"a message on the queue {_cut(queue, _NAME)} cannot be read"
        fields = {
            "id": "",
            "origin": "broker",
            "problems": [_cut(f"{where}: {reason}"), f"its size is {size:,} bytes"],
            "begins": _cut(begins),
        }
        self._add(self._messages, fields, cap=MESSAGES_CAP)

    def _add(self, key: str, fields: dict[str, Any], *, cap: int) -> None:
        now = self._clock.now()
        self._calls.run("ZADD", key, now, json.dumps(fields))
        self._calls.run("ZREMRANGEBYSCORE", key, "-inf", now - self._kept)
        self._calls.run("ZREMRANGEBYRANK", key, 0, -cap - 1)
        self._calls.run("EXPIRE", key, int(self._kept) + 1)

    def newest(self, *, limit: int = 50, tenant: str | None = None) -> list[RefusedSubmission]:
        """Return the newest refusals; with a tenant, only those of its tokens."""
        known = [*self._read_newest(self._key), *self._read_newest(self._messages)]
        known.sort(key=lambda each: each.at, reverse=True)
        return [each for each in known if tenant is None or each.tenant == tenant][:limit]

    def _read_newest(self, key: str) -> list[RefusedSubmission]:
        found = self._calls.run("ZREVRANGE", key, 0, CAP - 1, "WITHSCORES")
        read = (_read(text, float(at)) for text, at in zip(found[::2], found[1::2], strict=True))
        return [each for each in read if each is not None]

    def recent(self) -> int:
        """Return how many submissions were refused within the last hour, up to the caps."""
        since = self._clock.now() - RECENT
        counts = (self._calls.run("ZCOUNT", key, since, "+inf") for key in self._keys)
        return sum(map(int, counts))


def recent_words(count: int) -> str:
    """Return a sentence about the refusals of the last hour: older records may be gone."""
    most = "at least " if count >= CAP else ""
    return f"{most}{counted(count, 'submission')} refused in the last hour"


def _read(text: str, at: float) -> RefusedSubmission | None:
    """Return a record; None if it is damaged or of a later version."""
    try:
        fields = json.loads(text)
        return RefusedSubmission(**{**fields, "problems": tuple(fields["problems"])}, at=at)
    except (TypeError, ValueError, KeyError):
        return None


def _cut(text: str, longest: int = _LONGEST) -> str:
    """Cut a text, and replace half surrogate pairs, which cannot be shown."""
    return joined_surrogates(text if len(text) <= longest else f"{text[:longest]}…")
