"""An in-process Redis for tests: fakeredis runs the ledger's own scripts, without a server.

fakeredis compiles a script at each call and collects garbage after it, which takes as long as the
script itself. The runtime here compiles a script once and leaves garbage to Lua's collector.
Only this module imports fakeredis, which is part of the extra ``mulligan[testing]``.
"""

from __future__ import annotations

from typing import Any

import redis
from fakeredis import FakeRedisConnection, FakeServer
from fakeredis._socket import FakeSocket

_COLLECT = "collectgarbage()"


def fake_client(server: FakeServer | None = None) -> redis.Redis:
    """Return a client of ``server``, or of a new, empty one. It answers with text.

    Threads may share the server: it runs one command or script at a time.
    """
    pool = redis.ConnectionPool(
        connection_class=_Connection,
        server=server or FakeServer(version=(7,)),
        decode_responses=True,
        encoding_errors="replace",
        protocol=2,
    )
    return redis.Redis(connection_pool=pool)


class _CompilingRuntime:
    """The part of a Lua runtime that fakeredis uses."""

    def __init__(self, runtime: Any) -> None:
        self._compile = runtime.compile
        self._compiled: dict[bytes | str, Any] = {}
        self.table_from = runtime.table_from
        self.globals = runtime.globals

    def execute(self, script: bytes | str) -> Any:
        if script == _COLLECT:
            return None
        run = self._compiled.get(script)
        if run is None:
            run = self._compiled[script] = self._compile(script)
        return run()


class _Socket(FakeSocket):
    def _get_server_runtime(self, server: Any) -> Any:
        runtime = getattr(server, "compiling_runtime", None)
        if runtime is None:
            runtime = _CompilingRuntime(super()._get_server_runtime(server))
            server.compiling_runtime = runtime
        return runtime


class _Connection(FakeRedisConnection):
    def _connect(self) -> FakeSocket:
        server: Any = self._server
        return _Socket(
            server,
            client_class=self._client_class,
            db=self.db,
            lua_modules=self._lua_modules,
            client_info=self._client_info,
        )
