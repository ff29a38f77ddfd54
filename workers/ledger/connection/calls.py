"""Calls to Redis: Lua scripts by hash, several per round trip, repeated while Redis refuses.

How long a call waits is a property of the call: see `Patience`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from typing import Any, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.client import NEVER_DECODE
from redis.exceptions import NoScriptError, RedisError
from redis.retry import Retry

from mulligan.tasks.ports.clock import SYSTEM_CLOCK, Clock
from mulligan.tasks.ports.errors import BadInput, LedgerRefused, LedgerUnavailable
from mulligan.workers.ledger.connection.connections import Connections
from mulligan.workers.ledger.connection.refusals import SAID, Refusal, plain_text, refusal_of
from mulligan.workers.ledger.connection.scripts import SCRIPTS
from mulligan.workers.ledger.connection.waits import CallInProgress, LedgerWaits

T = TypeVar("T")
#: Seconds after which a hanging Redis counts as unreachable. Blocking calls are shorter.
#: An address can override it: `?socket_timeout=5`.
SOCKET_TIMEOUT = 30.0
#: redis-py's own pool never refuses: `Connections` counts.
_UNLIMITED = 1 << 30
#: Seconds that a call in a hurry waits.
_BRIEF = 3.0
_LONGEST_PAUSE = 2.0


class Patience(Enum):
    """How long a call waits while Redis is away or refuses."""

    #: It stores what was paid for: as long as a claim may live, whatever the reason.
    KEEP = auto()
    #: It starts or returns work: the ledger's patience, whatever the reason. A worker that waits
    #: leaves the messages in the broker, and nothing has been paid yet.
    WORK = auto()
    #: The ledger's patience while the reason usually ends by itself, else not at all: a person or a
    #: periodic task learns at once that Redis is full.
    NORMAL = auto()
    #: A few seconds at most: its caller repeats it anyway.
    BRIEF = auto()


#: The patience of each script; all others are NORMAL, as are commands unless they say otherwise.
PATIENCE = {
    "store_output": Patience.KEEP,
    "store_result": Patience.KEEP,
    "settle": Patience.KEEP,
    "store_cycle_output": Patience.KEEP,
    "settle_cycle": Patience.KEEP,
    "claim": Patience.WORK,
    "claim_verification": Patience.WORK,
    "claim_cycle": Patience.WORK,
    "requeue": Patience.WORK,
    "renew": Patience.BRIEF,
    "beat": Patience.BRIEF,
}


def connect(url: str, *, timeout: float = SOCKET_TIMEOUT) -> redis.Redis:
    """Return a client without retries, because `RedisCalls` does them.

    Raises BadInput for an address that redis-py cannot read.
    """
    options: dict[str, Any] = {} if url.startswith("unix:") else {"socket_keepalive": True}
    try:
        client: redis.Redis = redis.Redis.from_url(
            url,
            decode_responses=True,
            # Damaged bytes in one record must not make the others unreadable.
            encoding_errors="replace",
            retry=Retry(NoBackoff(), 0),
            protocol=2,
            socket_timeout=timeout,
            **options,
        )
    except ValueError as error:
        raise BadInput(f"the ledger's address (ledger_url, else broker_url): {error}") from None
    client.connection_pool.max_connections = _UNLIMITED
    return client


class RedisCalls:
    """Scripts and commands that are repeated while Redis is away or refuses.

    Repeating is safe: a script called twice with one token answers the same twice. All threads
    share a few connections, and no lock is held during a round trip.

    Scripts take the time from Redis. With a ``test_clock``, each request carries ``now_ms``, which
    overrides it.
    """

    def __init__(
        self,
        client: redis.Redis,
        *,
        patience: float,
        limits: Mapping[str, Any],
        keep: float | None = None,
        test_clock: Callable[[], float] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """``keep``: seconds that Patience.KEEP waits; by default no longer than the others."""
        self._client: Any = client
        self.clock = clock
        self._shared = Connections(client)
        self._blocking = Connections(client, limit=None)
        self._patience = patience
        self._keep = max(patience, keep or 0.0)
        self._stopping = False
        self.waits = LedgerWaits(clock=clock)
        self._test_clock = test_clock
        self._limits = ""
        self.send_always(limits)
        #: Reported by `make bench`.
        self.round_trips = 0

    def send_always(self, limits: Mapping[str, Any]) -> None:
        """Make these part of every request, in addition to what was."""
        # Rendered once, because every request contains them.
        more = json.dumps(dict(limits), separators=(",", ":"))[1:-1]
        self._limits = f"{self._limits},{more}" if self._limits else more

    def one(self, name: str, prefix: str, /, **request: Any) -> list[Any]:
        """Run a script in one round trip."""
        script, body = SCRIPTS[name], self._body(request)

        def run(client: Any) -> list[Any]:
            try:
                answer: list[Any] = client.evalsha(script.sha, 1, prefix, body)
            except NoScriptError:
                answer = client.eval(script.text, 1, prefix, body)
            return answer

        return self._retry(run, PATIENCE.get(name, Patience.NORMAL))

    def many(self, name: str, requests: Sequence[tuple[str, dict[str, Any]]]) -> list[list[Any]]:
        """Run a script for several requests, in one round trip."""
        script = SCRIPTS[name]
        bodies = [(prefix, self._body(request)) for prefix, request in requests]

        def run(client: Any) -> list[list[Any]]:
            pipe = client.pipeline(transaction=False)
            for prefix, body in bodies:
                pipe.evalsha(script.sha, 1, prefix, body)
            try:
                answers: list[list[Any]] = pipe.execute()
            except NoScriptError:
                client.script_load(script.text)
                return run(client)
            return answers

        return self._retry(run, PATIENCE.get(name, Patience.NORMAL)) if bodies else []

    def hashes(self, names: Sequence[str]) -> list[dict[str, str]]:
        """Read several hashes in one round trip; a missing one is empty."""
        return self._pipeline([("HGETALL", name) for name in names])

    def records(self, names: Sequence[str]) -> list[dict[str, str]]:
        """Read several hashes as `hashes` does. A value of another type, which must not hide the
        others, is a hash without any field of a record."""
        return self._pipeline([("HGETALL", name) for name in names], wrong_type={"": "WRONGTYPE"})

    def types(self, names: Sequence[str]) -> list[str]:
        """Return the types of several keys in one round trip; ``none`` for a missing one."""
        return self._pipeline([("TYPE", name) for name in names])

    def fields(self, names: Sequence[str], field: str) -> list[str | None]:
        """Read one field of several hashes in one round trip; None where it is missing."""
        return self._pipeline([("HGET", name, field) for name in names])

    def _pipeline(
        self, commands: Sequence[tuple[str, ...]], *, wrong_type: Any = None
    ) -> list[Any]:
        """``wrong_type``: the answer for a value of another type; without it, that raises."""

        def read(answer: Any) -> Any:
            if not isinstance(answer, Exception):
                return answer
            if wrong_type is None or not str(answer).startswith("WRONGTYPE"):
                raise answer
            return wrong_type

        def run(client: Any) -> list[Any]:
            pipe = client.pipeline(transaction=False)
            for command in commands:
                pipe.execute_command(*command)
            return [read(answer) for answer in pipe.execute(raise_on_error=False)]

        return self._retry(run) if commands else []

    def run(
        self, *command: Any, patience: Patience = Patience.NORMAL, block: float | None = None
    ) -> Any:
        """Run one command. ``block``: seconds for which it may wait on a connection of its own."""
        return self._retry(lambda client: client.execute_command(*command), patience, block=block)

    def read_bytes(self, *command: Any) -> bytes | None:
        """Run one command whose answer is bytes."""
        options = {NEVER_DECODE: True}
        answer: bytes | None = self._retry(
            lambda client: client.execute_command(*command, **options), Patience.WORK
        )
        return answer

    def stop_waiting(self) -> None:
        """Let no call wait any more, except those that store what was paid for.

        Only sets a flag: signal handlers call it.
        """
        self._stopping = True

    def now(self) -> float:
        """Return the time of Redis in seconds, which scripts use."""
        if self._test_clock is not None:
            return self._test_clock()
        seconds, micros = self.run("TIME")
        return int(seconds) + int(micros) / 1e6

    def _body(self, request: Mapping[str, Any]) -> bytes:
        """Render the request as JSON, with ``?`` for lone surrogates, which JSON readers refuse."""
        if self._test_clock is not None:
            request = {**request, "now_ms": self._test_clock() * 1000}
        text = json.dumps(request, separators=(",", ":"), ensure_ascii=False)
        if self._limits and request:
            text = f"{text[:-1]},{self._limits}}}"
        return text.encode("utf-8", "replace")

    def _retry(
        self,
        call: Callable[[Any], T],
        patience: Patience = Patience.NORMAL,
        *,
        block: float | None = None,
    ) -> T:
        """``block``: seconds that the call itself may wait, on a connection of its own."""
        self.round_trips += 1
        connections = self._shared if block is None else self._blocking
        waiting = self.waits.begin(expected=block or 0.0)
        try:
            delay = 0.05
            while True:
                try:
                    with connections.taken() as client:
                        return call(client)
                except RedisError as error:
                    problem, refusal = self._problem(error), refusal_of(error)
                    if refusal is Refusal.READ_ONLY:
                        self._reconnect()
                    left = self._limit(patience, refusal) - self._elapsed(waiting)
                    if left < delay:
                        raise problem from error
                    self.waits.blocked(waiting, str(problem))
                self.clock.sleep(delay)
                delay = min(delay * 2, _LONGEST_PAUSE)
        finally:
            self.waits.end(waiting)

    def _reconnect(self) -> None:
        """Follow the address, which may lead to another server after a failover."""
        self._shared.reconnect()
        self._blocking.reconnect()

    def _elapsed(self, waiting: CallInProgress) -> float:
        return self.clock.monotonic() - waiting.since

    def _limit(self, patience: Patience, refusal: Refusal | None) -> float:
        """Return the seconds for which a call may be repeated."""
        match patience:
            case _ if refusal is None:
                return 0.0
            case Patience.KEEP:
                return self._keep
            case _ if self._stopping:
                return 0.0
            case Patience.WORK:
                return self._patience
            case Patience.NORMAL:
                return self._patience if refusal.ends_by_itself else 0.0
            case Patience.BRIEF:
                return min(self._patience, _BRIEF)

    def _problem(self, error: RedisError) -> LedgerUnavailable:
        """Say in plain words why a call failed."""
        refusal = refusal_of(error)
        if refusal is None:
            return LedgerRefused(f"the ledger refused: {plain_text(error)}")
        if refusal is Refusal.AWAY:
            return LedgerUnavailable(self._unreachable(error))
        kind = LedgerRefused if refusal.refuses_writes else LedgerUnavailable
        return kind(f"the ledger {SAID[refusal]}", reason=refusal.value)

    def _unreachable(self, error: Exception) -> str:
        where = self._client.get_connection_kwargs()
        address = where.get("path") or f"{where.get('host')}:{where.get('port') or 6379}"
        # redis-py writes "Error 111 connecting to localhost:6379. Connection refused."
        reason = str(error).rstrip(".").rpartition(". ")[2]
        return f"cannot reach the ledger at {address} ({reason[:1].lower()}{reason[1:]})"
