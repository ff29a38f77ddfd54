"""Calls to Redis: Lua scripts by hash, several per round trip, retried while it is unreachable."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha1
from importlib import resources
from typing import Any, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.client import NEVER_DECODE
from redis.exceptions import BusyLoadingError, NoScriptError, ReadOnlyError, RedisError
from redis.retry import Retry

from mulligan.tasks.ports.clock import SYSTEM_CLOCK, Clock
from mulligan.tasks.ports.errors import BadInput, LedgerRefused, LedgerUnavailable

T = TypeVar("T")
#: Seconds after which a hanging Redis counts as unreachable. Blocking calls are shorter.
#: An address can override it: `?socket_timeout=5`.
SOCKET_TIMEOUT = 30.0
#: What redis-py and Redis add to a script's error, useless to a reader.
_NOISE = re.compile(
    r"^(?:Command # \d+ \(.*\) of pipeline caused error: )?"
    r"(?:Error running script \(call to f_\w+\): )?(?:@\w+: ?\d+: )*(?:-(?=[A-Z]))?"
    r"|\s*script: [0-9a-f]{40}, on @\w+:\d+\.?",
    re.DOTALL,
)
_UNREACHABLE = (redis.ConnectionError, redis.TimeoutError, BusyLoadingError, ReadOnlyError)


@dataclass(frozen=True)
class Script:
    text: str
    sha: str


def _load_scripts() -> dict[str, Script]:
    folder = resources.files("mulligan.workers.ledger.lua")
    prelude = (folder / "prelude.lua").read_text()
    scripts = {}
    for file in folder.iterdir():
        if file.name.endswith(".lua") and file.name != "prelude.lua":
            text = prelude + file.read_text()
            sha = sha1(text.encode(), usedforsecurity=False).hexdigest()
            scripts[file.name.removesuffix(".lua")] = Script(text, sha)
    return scripts


SCRIPTS = _load_scripts()


def connect(url: str) -> redis.Redis:
    """Return a client without retries, because `RedisCalls` does them.

    Raises BadInput for an address that redis-py cannot read.
    """
    options: dict[str, Any] = {} if url.startswith("unix:") else {"socket_keepalive": True}
    try:
        return redis.Redis.from_url(
            url,
            decode_responses=True,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
            socket_timeout=SOCKET_TIMEOUT,
            **options,
        )
    except ValueError as error:
        raise BadInput(f"the ledger's address (ledger_url, else broker_url): {error}") from None


class RedisCalls:
    """Scripts and commands that are repeated while Redis is unreachable.

    Repeating is safe: a script called twice with one token answers the same twice.

    Scripts take the time from Redis. With a ``test_clock``, each request carries ``now_ms``, which
    overrides it.
    """

    def __init__(
        self,
        client: redis.Redis,
        *,
        patience: float,
        limits: Mapping[str, Any],
        test_clock: Callable[[], float] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._client: Any = client
        self.clock = clock
        self._patience = patience
        self._test_clock = test_clock
        #: Rendered once, because every request contains them.
        self._limits = json.dumps(dict(limits), separators=(",", ":"))[1:-1]
        self._local = threading.local()
        #: Reported by `make bench`.
        self.round_trips = 0

    def one(self, name: str, prefix: str, /, **request: Any) -> list[Any]:
        """Run a script in one round trip."""
        script, body = SCRIPTS[name], self._body(request)

        def run() -> list[Any]:
            try:
                answer: list[Any] = self._redis.evalsha(script.sha, 1, prefix, body)
            except NoScriptError:
                answer = self._redis.eval(script.text, 1, prefix, body)
            return answer

        return self._retry(run)

    def many(self, name: str, requests: Sequence[tuple[str, dict[str, Any]]]) -> list[list[Any]]:
        """Run a script for several requests, in one round trip."""
        script = SCRIPTS[name]
        bodies = [(prefix, self._body(request)) for prefix, request in requests]

        def run() -> list[list[Any]]:
            pipe = self._redis.pipeline(transaction=False)
            for prefix, body in bodies:
                pipe.evalsha(script.sha, 1, prefix, body)
            try:
                answers: list[list[Any]] = pipe.execute()
            except NoScriptError:
                self._redis.script_load(script.text)
                return run()
            return answers

        return self._retry(run) if bodies else []

    def hashes(self, names: Sequence[str]) -> list[dict[str, str]]:
        """Read several hashes in one round trip; a missing one is empty."""
        return self._pipeline([("HGETALL", name) for name in names])

    def fields(self, names: Sequence[str], field: str) -> list[str | None]:
        """Read one field of several hashes in one round trip; None where it is missing."""
        return self._pipeline([("HGET", name, field) for name in names])

    def _pipeline(self, commands: Sequence[tuple[str, ...]]) -> list[Any]:
        def run() -> list[Any]:
            pipe = self._redis.pipeline(transaction=False)
            for command in commands:
                pipe.execute_command(*command)
            answers: list[Any] = pipe.execute()
            return answers

        return self._retry(run) if commands else []

    def read_streams(
        self, names: Sequence[str], *, after: str, block: float | None
    ) -> Iterator[tuple[str, str]]:
        """Yield (id, data) of entries after an id. Waits up to ``block`` seconds for the first."""
        wait = None if block is None else max(1, int(block * 1000))
        streams = dict.fromkeys(names, after)
        found = self._retry(lambda: self._redis.xread(streams, count=1000, block=wait))
        for _, items in found or []:
            for entry_id, fields in items:
                yield entry_id, fields["data"]

    def run(self, *command: Any) -> Any:
        """Run one command."""
        return self._retry(lambda: self._redis.execute_command(*command))

    def read_bytes(self, *command: Any) -> bytes | None:
        """Run one command whose answer is bytes."""
        options = {NEVER_DECODE: True}
        answer: bytes | None = self._retry(lambda: self._redis.execute_command(*command, **options))
        return answer

    def now(self) -> float:
        """Return the time of Redis in seconds, which scripts use."""
        if self._test_clock is not None:
            return self._test_clock()
        seconds, micros = self.run("TIME")
        return int(seconds) + int(micros) / 1e6

    @property
    def _redis(self) -> Any:
        """Return this thread's connection; a pool's bookkeeping costs as much as a round trip."""
        client = getattr(self._local, "client", None)
        if client is None:
            client = self._local.client = self._client.client()
        return client

    def _body(self, request: Mapping[str, Any]) -> bytes:
        """Render the request as JSON, with ``?`` for lone surrogates, which JSON readers refuse."""
        if self._test_clock is not None:
            request = {**request, "now_ms": self._test_clock() * 1000}
        text = json.dumps(request, separators=(",", ":"), ensure_ascii=False)
        if self._limits and request:
            text = f"{text[:-1]},{self._limits}}}"
        return text.encode("utf-8", "replace")

    def _unreachable(self, error: Exception) -> str:
        where = self._client.get_connection_kwargs()
        address = where.get("path") or f"{where.get('host')}:{where.get('port') or 6379}"
        # redis-py writes "Error 111 connecting to localhost:6379. Connection refused."
        reason = str(error).rstrip(".").rpartition(". ")[2]
        return f"cannot reach the ledger at {address} ({reason[:1].lower()}{reason[1:]})"

    def _retry(self, call: Callable[[], T]) -> T:
        self.round_trips += 1
        started = self.clock.monotonic()
        delay = 0.05
        while True:
            try:
                return call()
            except _UNREACHABLE as error:
                if self.clock.monotonic() - started + delay > self._patience:
                    raise LedgerUnavailable(self._unreachable(error)) from error
            except RedisError as error:
                reason = _NOISE.sub("", str(error)).rstrip(".")
                raise LedgerRefused(f"the ledger refused: {reason}") from error
            self.clock.sleep(delay)
            delay = min(delay * 2, 2.0)
