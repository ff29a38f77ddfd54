"""A Redis in this process: fakeredis with simulated time, faults and seeded chance."""

from __future__ import annotations

import contextlib
import copy
import random
from collections.abc import Callable, Iterator
from hashlib import sha1
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import redis
from fakeredis import FakeServer
from fakeredis._helpers import SimpleError
from redis.client import Pipeline

from mulligan.workers.ledger import fake_redis
from mulligan.workers.ledger.connection.scripts import SCRIPTS
from simulation.faults import Refusal

_NAMES = {script.sha: name for name, script in SCRIPTS.items()}
#: Write commands that a full Redis refuses, and those that it allows because they free memory.
_GROWING = {"append", "hincrby", "hincrbyfloat", "hmset", "hset", "hsetnx", "incr", "incrby",
            "lpush", "psetex", "rpush", "sadd", "set", "setex", "setrange", "xadd",
            "zadd"}  # fmt: skip
_SHRINKING = {"del", "expire", "hdel", "lpop", "lrem", "ltrim", "persist", "pexpire", "rpop",
              "srem", "unlink", "xtrim", "zpopmax", "zpopmin", "zrem", "zremrangebyrank",
              "zremrangebyscore"}  # fmt: skip
_TEXTS = {
    "OOM": "OOM command not allowed when used memory > 'maxmemory'.",
    "READONLY": "READONLY You can't write against a read only replica.",
    "BUSY": "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN"
    " NOSAVE.",
    "LOADING": "LOADING Redis is loading the dataset in memory",
}
#: fakeredis reads the time and draws random members in these modules.
_FAKEREDIS_CLOCKS = [
    "_socket._base",
    "_helpers",
    "model._stream",
    "commands_mixins.server_mixin",
    "_core._server",
]
_FAKEREDIS_CHANCE = [
    "commands_mixins.hash_mixin",
    "commands_mixins.sortedset_mixin",
    "model._expiring_members_set",
]
#: One per Python process: compiling the scripts takes longer than a run.
_shared: Any = None


def call_name(args: tuple[Any, ...]) -> str:
    """Return the script's name, or the command in lower case."""
    command = str(args[0]).lower()
    if command == "evalsha":
        return _NAMES.get(str(args[1]), "script")
    if command == "eval":
        text = str(args[1])
        return _NAMES.get(sha1(text.encode(), usedforsecurity=False).hexdigest(), "script")
    return command


def refusal_error(refusal: Refusal, sha: str | None, version: int) -> redis.RedisError:
    """Return the error that redis-py raises for a refused command or script."""
    text = _TEXTS[refusal]
    if sha is not None and refusal in ("OOM", "READONLY"):
        if version < 7:
            text = (
                f"ERR Error running script (call to f_{sha}): @user_script:1: @user_script: 1:"
                f" -{text}"
            )
        else:
            text = f"{text} script: {sha}, on @user_script:1."
    parser: Any = redis.connection.DefaultParser(socket_read_size=1)
    error: redis.RedisError = parser.parse_error(text)
    return error


def _empty_server() -> tuple[Any, Any]:
    """Return the fakeredis of this Python process, emptied, and a client without faults."""
    global _shared
    if _shared is None:
        server = FakeServer(version=(7,))
        pool = redis.ConnectionPool(
            connection_class=_Connection, server=server, decode_responses=True, protocol=2
        )
        _shared = server, redis.Redis(connection_pool=pool, single_connection_client=True)
    server, client = _shared
    server.dbs[0]._dict = {}
    server.dbs[0]._expiry_heap.clear()
    server.script_cache.update(
        {script.sha.encode(): script.text.encode() for script in SCRIPTS.values()}
    )
    return server, client


class SimulatedServer:
    """The data of one Redis, and what is wrong with it at present."""

    def __init__(self, clock: Callable[[], float], chance: random.Random, *, version: int) -> None:
        self.version = version
        self._clock = clock
        self._chance = chance
        self.refusal: Refusal | None = None
        self.away = False
        #: The client is for the simulator itself: no faults, and no simulated time passes.
        self._server, self.client = _empty_server()
        self._server.simulated = self
        self.wrote = False

    def execute(self, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Run a command, unless it is refused or nobody is there to hear it."""
        if self.away:
            raise redis.ConnectionError("Error 111 connecting to localhost:6379. Refused.")
        if self.refusal in ("BUSY", "LOADING"):
            raise refusal_error(self.refusal, None, self.version)
        script = str(args[1]) if str(args[0]).upper() == "EVALSHA" else None
        self.wrote = False
        try:
            return self.client.execute_command(*args, **options)
        except redis.ResponseError as error:
            if self.refusal is not None and self.refusal in str(error):
                raise refusal_error(self.refusal, script, self.version) from error
            raise

    def is_unexpected(self, error: redis.RedisError) -> bool:
        """Whether an error is none of the simulated ones: a defect of a script."""
        known = isinstance(error, redis.exceptions.NoScriptError | redis.ConnectionError)
        return not known and self.refusal is None

    def snapshot(self) -> Any:
        """Copy all data."""
        return copy.deepcopy(self._server.dbs[0]._dict)

    def restore(self, snapshot: Any) -> None:
        """Replace all data, as a restart from a file does."""
        self._server.dbs[0]._dict = copy.deepcopy(snapshot)
        self._server.script_cache.clear()

    def refuses(self, command: str) -> bool:
        """Whether this command within a script or alone is refused. Notes what was written."""
        grows = command in _GROWING
        if not grows and command not in _SHRINKING:
            return False
        if self.refusal == "READONLY":
            return True
        if self.refusal == "OOM" and grows and not self.wrote:
            return True
        self.wrote = True
        return False

    @contextlib.contextmanager
    def deterministic(self) -> Iterator[None]:
        """Give fakeredis the simulated time and seeded randomness."""
        patched: list[tuple[Any, str, Any]] = []
        clock = SimpleNamespace(time=self._clock)
        for names, attribute, value in (
            (_FAKEREDIS_CLOCKS, "time", clock),
            (_FAKEREDIS_CHANCE, "random", self._chance),
        ):
            for name in names:
                module = import_module(f"fakeredis.{name}")
                if hasattr(module, attribute):
                    patched.append((module, attribute, getattr(module, attribute)))
                    setattr(module, attribute, value)
        try:
            yield
        finally:
            for module, attribute, value in patched:
                setattr(module, attribute, value)

    def shuffled(self, members: list[Any]) -> list[Any]:
        """Return the members of a set in an order that only the seed decides."""
        members = sorted(members)
        self._chance.shuffle(members)
        return members


class _Socket(fake_redis._Socket):
    def _run_command(self, func: Any, sig: Any, args: Any, from_script: bool) -> Any:
        simulated: SimulatedServer | None = getattr(self._server, "simulated", None)
        if simulated is None:
            return super()._run_command(func, sig, args, from_script)
        if simulated.refusal is not None and simulated.refuses(sig.name.lower()):
            return SimpleError(_TEXTS[simulated.refusal])
        result = super()._run_command(func, sig, args, from_script)
        if sig.name.lower() == "smembers" and isinstance(result, list):
            return simulated.shuffled(result)
        return result


class _Connection(fake_redis._Connection):
    def _connect(self) -> Any:
        server: Any = self._server
        return _Socket(
            server,
            client_class=self._client_class,
            db=self.db,
            lua_modules=self._lua_modules,
            client_info=self._client_info,
        )


#: Runs a command for a process: takes the command and its options.
Execute = Callable[[tuple[Any, ...], dict[str, Any]], Any]


class SimulatedClient(redis.Redis):
    """A client of one simulated process. Each command is a port call."""

    def __init__(self, execute: Execute) -> None:
        super().__init__(connection_pool=redis.ConnectionPool(decode_responses=True, protocol=2))
        self._execute = execute

    def client(self) -> SimulatedClient:
        return self

    def execute_command(self, *args: Any, **options: Any) -> Any:
        return self._execute(args, options)

    def pipeline(self, transaction: bool = True, shard_hint: Any = None) -> Any:
        return _Pipeline(self._execute, self.connection_pool, transaction)


class _Pipeline(Pipeline):
    """Without a transaction, others may come between two commands of a pipeline."""

    def __init__(self, execute: Execute, pool: redis.ConnectionPool, transaction: bool) -> None:
        super().__init__(pool, {}, transaction, None)
        assert not transaction, "the simulator has no transactions"
        self._execute_one = execute

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        commands, self.command_stack = self.command_stack, []
        answers: list[Any] = []
        for args, options in commands:
            try:
                answers.append(self._execute_one(args, options))
            except redis.ResponseError as error:
                answers.append(error)
        for answer in answers:
            if raise_on_error and isinstance(answer, Exception):
                raise answer
        return answers
