"""A Redis in this process, for tests: fakeredis runs the ledger's own scripts, without a server.

fakeredis compiles a script for each call and collects Lua's garbage after it, which takes as long
as the script itself. The runtime here compiles a script once and leaves garbage to Lua's collector.
Only this module knows fakeredis; it is part of the extra ``mulligan[testing]``.
"""

from __future__ import annotations

from typing import Any

import redis
from fakeredis import FakeRedisConnection, FakeServer
from fakeredis._socket import FakeSocket

_COLLECT = "collectgarbage()"


def fake_client(server: FakeServer | None = None) -> redis.Redis:
    """A client of a new, empty server, or of one that exists. Answers with text.

    Threads may share the server: it runs one command or script at a time.
    """
    pool = redis.ConnectionPool(
        connection_class=_Connection,
        server=server or FakeServer(version=(7,)),
        decode_responses=True,
        protocol=2,
    )
    return redis.Redis(connection_pool=pool)


class _CompilingRuntime:
    """As much of a Lua runtime as fakeredis asks for to run a script."""

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
        found = getattr(server, "compiling_runtime", None)
        if found is None:
            runtime = super()._get_server_runtime(server)
            found = server.compiling_runtime = _CompilingRuntime(runtime)
        return found


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
