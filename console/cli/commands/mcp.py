"""`mulligan mcp`: the control API of loops as tools for an agent."""

from __future__ import annotations

import os
import signal
from typing import Annotated

import typer

from mulligan.client.http_requests import TOKEN_VARIABLE, ConsoleConnection
from mulligan.console.cli.console_url import url_of
from mulligan.console.mcp.tool_server import serve
from mulligan.workers.settings.model import load_settings


def mcp(
    url: Annotated[
        str | None,
        typer.Option(help="The console's URL (default: console_url, or the console of this host)."),
    ] = None,
) -> None:
    """Let an agent drive loops, over MCP on stdin and stdout.

    The token is in MULLIGAN_TOKEN: the agent may do what the token may do.
    """
    settings = load_settings()
    own = settings.console_url or url_of(settings.console_host, settings.console_port)
    token = os.environ.get(TOKEN_VARIABLE) or None
    console = ConsoleConnection(url or own, token, patience=settings.submit_patience)
    # There is nothing to tidy up, and a thread that reads stdin cannot be interrupted.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    serve(console)
