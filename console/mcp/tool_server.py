"""The MCP server: it lists the tools, and asks the console for what they do.

It holds no state and decides nothing: roles, tenants and idempotency are the console's.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from functools import partial
from importlib.metadata import version
from typing import Any

import anyio
from anyio.to_thread import run_sync
from mcp import types
from mcp.server import Server
from mcp.server.context import ServerRequestContext
from mcp.server.stdio import stdio_server
from pydantic import ValidationError

from mulligan.client.http_requests import ConsoleConnection
from mulligan.console.mcp.bounded_answer import bounded_answer, bounded_lines
from mulligan.console.mcp.loop_tools import INSTRUCTIONS, TOOLS
from mulligan.console.mcp.tool_call import ToolCall, input_schema
from mulligan.policies.problem import MOST_FOUND, first_problems
from mulligan.policies.suggestions import name_hint
from mulligan.tasks.jobs.validation_errors import problems_of
from mulligan.tasks.ports.errors import BadInput, MulliganError

_Context = ServerRequestContext[Any]


def serve(console: ConsoleConnection) -> None:
    """Answer an agent on stdin and stdout until it closes stdin."""
    anyio.run(_serve, create_server(console))


async def _serve(server: Server[Any]) -> None:
    async with stdio_server() as (messages, answers):
        await server.run(messages, answers, server.create_initialization_options())


def create_server(console: ConsoleConnection) -> Server[Any]:
    tools = [tool_document(name, call) for name, call in TOOLS.items()]

    async def list_tools(
        _: _Context, __: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        return types.ListToolsResult(tools=tools)

    async def call_tool(_: _Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        # A thread, because the console may take its time; nobody waits for it after a cancellation.
        ask = partial(answer, console, params.name, params.arguments or {})
        return await run_sync(ask, abandon_on_cancel=True)

    return Server(
        "mulligan",
        version=version("mulligan"),
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def tool_document(name: str, call: type[ToolCall]) -> types.Tool:
    """Return a tool as agents see it."""
    return types.Tool(
        name=name,
        description=inspect.getdoc(call),
        input_schema=input_schema(call),
        annotations=types.ToolAnnotations(
            read_only_hint=call.effect == "reads",
            destructive_hint=call.effect == "destroys",
            open_world_hint=False,
        ),
    )


def answer(
    console: ConsoleConnection, name: str, arguments: Mapping[str, Any]
) -> types.CallToolResult:
    """Return what the console answers to a call, or its error in its own words."""
    try:
        call = read_call(name, arguments)
        asked = call.request()
        content = None if asked.body is None else json.dumps(asked.body)
        found = console.ask(asked.method, asked.path, content, key=asked.key).body
    except MulliganError as error:
        return _result(bounded_lines(str(error)), is_error=True)
    if found is None:
        return _result("done")
    return _result(bounded_answer(found, text_length=call.text_length))


def read_call(name: str, arguments: Mapping[str, Any]) -> ToolCall:
    """Return the call that an agent asks for. Raises BadInput with its problems."""
    if name not in TOOLS:
        raise BadInput(f"there is no tool {name!r}{name_hint(name, TOOLS)}")
    kind = TOOLS[name]
    try:
        return kind.model_validate(arguments)
    except ValidationError as error:
        problems = problems_of(
            error, kind, what="argument", list_known=True, show_values=True, most=MOST_FOUND
        )
        raise BadInput(*first_problems(problems)) from None


def _result(text: str, *, is_error: bool = False) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=text)], is_error=is_error)
