"""An agent: the official MCP client, connected to our server in this process or over stdio."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from anyio.from_thread import BlockingPortal, start_blocking_portal
from mcp import Client, StdioServerParameters, stdio_client
from mcp.client import Transport
from mcp.server import Server
from mcp.types import CallToolResult, TextContent, Tool


@dataclass
class Agent:
    """Calls tools one after the other."""

    portal: BlockingPortal
    client: Client

    def call(self, name: str, **arguments: Any) -> Any:
        """Return the answer of a call that must succeed."""
        result = self._call(name, arguments)
        assert not result.is_error, _text(result)
        return json.loads(_text(result))

    def refusal(self, name: str, **arguments: Any) -> str:
        """Return the message of a call that must be refused."""
        result = self._call(name, arguments)
        assert result.is_error, _text(result)
        return _text(result)

    def text(self, name: str, **arguments: Any) -> str:
        """Return the answer of a call that must succeed, as the agent reads it."""
        result = self._call(name, arguments)
        assert not result.is_error, _text(result)
        return _text(result)

    def tools(self) -> list[Tool]:
        return self.portal.call(self.client.list_tools).tools

    def _call(self, name: str, arguments: dict[str, Any]) -> CallToolResult:
        result = self.portal.call(self.client.call_tool, name, arguments)
        assert isinstance(result, CallToolResult)
        return result


def _text(result: CallToolResult) -> str:
    (content,) = result.content
    assert isinstance(content, TextContent)
    return content.text


@contextmanager
def connected_agent(
    server: Server[Any] | Transport, *, mode: Literal["legacy", "auto"] = "auto"
) -> Iterator[Agent]:
    with start_blocking_portal() as portal:
        client = Client(server, mode=mode)
        with portal.wrap_async_context_manager(client):
            yield Agent(portal, client)


@contextmanager
def stdio_agent(*options: str, log: Path, **environment: str) -> Iterator[Agent]:
    """Start `mulligan mcp` as an agent's program does. Its stderr goes to ``log``."""
    command = StdioServerParameters(
        command=sys.executable,
        args=["-m", "mulligan.console", "mcp", *options],
        env=environment,
        cwd=log.parent,
    )
    with log.open("w") as errors, connected_agent(stdio_client(command, errlog=errors)) as agent:
        yield agent
