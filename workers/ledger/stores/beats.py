"""Workers' beats: each worker writes one every few seconds, and readers delete stale ones.

Beats are fields of one hash, so that reading all takes one round trip. The processes of a prefork
worker write beats, too, for what their parent cannot know; readers add them to the parent's.
"""

from __future__ import annotations

from mulligan.policies.value import Value
from mulligan.workers.ledger import keys
from mulligan.workers.ledger.connection.calls import RedisCalls
from mulligan.workers.ledger.stored.stored_bodies import read_tolerantly

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
    #: Calls that have waited long for the ledger, and why.
    waiting: int = 0
    waiting_reason: str = ""
    #: The worker's release, and the newest schema of stored bodies that it reads.
    release: str = "unknown"
    reads_schema: int = 1
    #: When the beat was written, by the ledger's clock.
    at: float = 0.0


class RedisBeats:
    """The beats of the fleet."""

    def __init__(self, calls: RedisCalls, *, prefix: str) -> None:
        self._calls = calls
        self._fleet = keys.fleet_prefix(prefix)
        self._key = keys.workers(self._fleet)

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
            _with_processes(beat, beats) for name, beat in sorted(beats.items()) if "/" not in name
        ]

    def served(self, *, now: float) -> frozenset[str]:
        """Return the queues that running workers serve."""
        return frozenset(queue for beat in self.live(now=now) for queue in beat.queues)

    def write(self, beat: Beat, *, process: int | None = None) -> None:
        """Write the beat of a worker or of one of its processes, with the ledger's time."""
        stamped = beat.model_copy(update={"at": self._calls.now()})
        field = _field(beat, process)
        self._calls.one("beat", self._fleet, field=field, beat=stamped.model_dump_json())

    def delete(self, beat: Beat, *, process: int | None = None) -> None:
        self._calls.run("HDEL", self._key, _field(beat, process))


def _field(beat: Beat, process: int | None) -> str:
    return beat.name if process is None else f"{beat.name}/{process}"


def _with_processes(worker: Beat, beats: dict[str, Beat]) -> Beat:
    """Add what the processes of a prefork worker report to its beat."""
    mine = [beat for field, beat in beats.items() if field.startswith(f"{worker.name}/")]
    if not mine:
        return worker
    everyone = [worker, *mine]
    return worker.model_copy(
        update={
            "round_trips": sum(beat.round_trips for beat in everyone),
            "waiting": sum(beat.waiting for beat in everyone),
            "waiting_reason": next((b.waiting_reason for b in everyone if b.waiting), ""),
        }
    )


def _read(text: str) -> Beat | None:
    """Read a beat. Another release may write more fields: its workers count, too."""
    return read_tolerantly(Beat, text).value
