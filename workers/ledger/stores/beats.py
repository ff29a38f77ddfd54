"""Workers' beats: each worker writes one every few seconds, and readers delete stale ones.

Beats are fields of one hash, so that reading all takes one round trip. The processes of a prefork
worker write beats, too, for what their parent cannot know; readers add them to the parent's.
"""

from __future__ import annotations

from pydantic import ValidationError

from mulligan.policies.value import Value
from mulligan.workers.ledger import keys
from mulligan.workers.ledger.calls import RedisCalls

#: Seconds after which a beat is stale.
STALE = 30.0


class Beat(Value):
    """A worker's last sign of life."""

    #: The node name in Celery and Flower.
    name: str
    #: The part of the name before the @.
    pool: str
    host: str
    pid: int
    #: Tasks it can run at once, and tasks it is running.
    slots: int
    active: int
    queues: tuple[str, ...] = ()
    #: Round trips to the ledger so far.
    round_trips: int = 0
    #: When the beat was written, by the ledger's clock.
    at: float = 0.0


class RedisBeats:
    """The beats of the fleet."""

    def __init__(self, calls: RedisCalls, *, prefix: str) -> None:
        self._calls = calls
        self._key = keys.workers(keys.fleet_prefix(prefix))

    def live(self, *, now: float) -> list[Beat]:
        """Return the beats of running workers by name, and delete stale ones."""
        beats, stale = {}, []
        for field, text in self._calls.hashes([self._key])[0].items():
            beat = _read(text)
            if beat is None or now - beat.at > STALE:
                stale.append(field)
            else:
                beats[field] = beat
        if stale:
            self._calls.run("HDEL", self._key, *stale)
        return [
            beat.model_copy(update={"round_trips": _round_trips(beats, name)})
            for name, beat in sorted(beats.items())
            if "/" not in name
        ]

    def write(self, beat: Beat, *, process: int | None = None) -> None:
        """Write the beat of a worker or of one of its processes, with the ledger's time."""
        stamped = beat.model_copy(update={"at": self._calls.now()})
        self._calls.run("HSET", self._key, _field(beat, process), stamped.model_dump_json())

    def delete(self, beat: Beat, *, process: int | None = None) -> None:
        self._calls.run("HDEL", self._key, _field(beat, process))


def _field(beat: Beat, process: int | None) -> str:
    return beat.name if process is None else f"{beat.name}/{process}"


def _round_trips(beats: dict[str, Beat], name: str) -> int:
    """Sum the round trips of a worker and its processes."""
    return sum(
        beat.round_trips
        for field, beat in beats.items()
        if field == name or field.startswith(f"{name}/")
    )


def _read(text: str) -> Beat | None:
    try:
        return Beat.model_validate_json(text)
    except ValidationError:
        return None  # written by another version
