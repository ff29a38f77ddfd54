"""Who is there: every worker writes a beat, readers forget the ones that fell silent.

A beat is a field of one hash, so that reading the fleet is one round trip. The processes of a
prefork worker write beats of their own, which only carry what the parent cannot know; readers add
them to their parent's.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass

from pydantic import ValidationError

from mulligan.policies.value import Value
from mulligan.tasks.ports.errors import LedgerUnavailable
from mulligan.workers.ledger import keys
from mulligan.workers.ledger.calls import RedisCalls

log = logging.getLogger(__name__)

#: Seconds between two beats, and after how many a beat no longer counts.
INTERVAL = 5.0
STALE = 30.0
#: Seconds of silence after which a worker that has nothing to do is taken to be deaf.
_DEAF = 120.0


class Beat(Value):
    """What one worker said last."""

    #: Its node name, as Celery and Flower spell it.
    name: str
    #: The part before the @.
    pool: str
    host: str
    pid: int
    #: How many tasks it can run at once, and how many it is running.
    slots: int
    active: int
    queues: tuple[str, ...] = ()
    #: Round trips to the ledger that it has made.
    round_trips: int = 0
    #: When it said so, by the ledger's clock.
    at: float = 0.0


def fleet(calls: RedisCalls, prefix: str, now: float) -> list[Beat]:
    """The workers that are there, by name; what fell silent is taken out."""
    key = _key(prefix)
    beats, gone = {}, []
    for field, text in calls.hashes([key])[0].items():
        beat = _read(text)
        if beat is None or now - beat.at > STALE:
            gone.append(field)
        else:
            beats[field] = beat
    if gone:
        calls.run("HDEL", key, *gone)
    return [
        beat.model_copy(update={"round_trips": _trips(beats, name)})
        for name, beat in sorted(beats.items())
        if "/" not in name
    ]


def _trips(beats: dict[str, Beat], name: str) -> int:
    """The round trips of a worker and of its processes."""
    return sum(
        beat.round_trips
        for field, beat in beats.items()
        if field == name or field.startswith(f"{name}/")
    )


def _read(text: str) -> Beat | None:
    try:
        return Beat.model_validate_json(text)
    except ValidationError:
        return None  # another version's


def _key(prefix: str) -> str:
    return keys.workers(keys.fleet_prefix(prefix))


class Heartbeat:
    """Beats for this process, in a thread of its own, until it is stopped.

    ``describe`` says what to write; ``after`` is called after each try, whether or not the ledger
    could be reached. ``calls`` should have no patience: the next beat comes soon.
    """

    def __init__(
        self,
        calls: RedisCalls,
        prefix: str,
        describe: Callable[[], Beat],
        *,
        child: bool = False,
        after: Callable[[], None] = lambda: None,
        interval: float = INTERVAL,
    ) -> None:
        self._calls = calls
        self._key = _key(prefix)
        self._describe = describe
        self._child = child
        self._after = after
        self._interval = interval
        self._over = threading.Event()
        self._away = False

    def start(self) -> None:
        threading.Thread(target=self._run, name="presence", daemon=True).start()

    def beat(self) -> None:
        """Say once that this process is there."""
        seconds, micros = self._calls.run("TIME")
        beat = self._describe().model_copy(update={"at": int(seconds) + int(micros) / 1e6})
        self._calls.run("HSET", self._key, self._field(beat), beat.model_dump_json())

    def leave(self) -> None:
        """Stop beating, and say so: nobody should count on this process for 30 more seconds."""
        self._over.set()
        try:
            self._calls.run("HDEL", self._key, self._field(self._describe()))
        except LedgerUnavailable:
            log.debug("the ledger is away: readers will find this beat too old")

    def _field(self, beat: Beat) -> str:
        return f"{beat.name}/{os.getpid()}" if self._child else beat.name

    def _run(self) -> None:
        while True:
            try:
                self.beat()
                self._away = False
            except LedgerUnavailable as error:
                if not self._away:
                    log.warning("this worker cannot say that it is there: %s", error)
                self._away = True
            self._after()
            if self._over.wait(self._interval):
                return


@dataclass
class StallDetector:
    """Whether a worker still hears its broker: its event loop should tick.

    One that is busy or cut off is not deaf. One that has nothing to do, whose broker answers and
    whose loop stands still for two minutes, is: it would sit there for ever.
    """

    #: Whether the broker answers; asked only when the loop seems to stand still.
    broker_answers: Callable[[], bool]
    ticked_at: float
    _suspect_since: float | None = None

    def tick(self, now: float) -> None:
        self.ticked_at = now

    def is_deaf(self, now: float, *, busy: bool) -> bool:
        if busy or now - self.ticked_at < STALE or not self.broker_answers():
            self._suspect_since = None
            return False
        if self._suspect_since is None:
            self._suspect_since = now
        return now - self._suspect_since >= _DEAF
