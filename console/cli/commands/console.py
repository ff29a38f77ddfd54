"""`mulligan console`: the HTTP API and the page, in this process."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from mulligan.console.cli.console_url import url_of
from mulligan.console.cli.open_ledgers import locate_ledger
from mulligan.console.cli.output import screen
from mulligan.console.http.access import LOOPBACK
from mulligan.console.http.context import open_context
from mulligan.console.server import ConsoleServer, listen
from mulligan.workers.plain_logs import keep_logs_plain
from mulligan.workers.settings.model import Settings, load_settings


def console(
    host: Annotated[
        str | None, typer.Option(help="Address to listen on (default: console_host).")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(help="Port; 0 picks a free one (default: console_port).", min=0, max=65535),
    ] = None,
) -> None:
    """Serve the HTTP API and the page until Ctrl-C."""
    options: dict[str, Any] = {"console_host": host, "console_port": port}
    overrides = {name: value for name, value in options.items() if value is not None}
    with locate_ledger(load_settings(**overrides)) as settings:
        _serve(settings)


def _serve(settings: Settings) -> None:
    listening = listen(settings.console_host, settings.console_port)
    context = open_context(settings)
    context.ledger.numbers()  # fails now if the ledger cannot be reached or has more partitions
    tokens = context.tokens.any()
    port = listening.getsockname()[1]
    screen.say(f"console  {url_of(settings.console_host, port)}")
    if not tokens and settings.console_host not in LOOPBACK:
        screen.note(
            "no one can log in yet: create a token with `mulligan token create --role admin`",
            style="yellow",
        )
    server = ConsoleServer(context)
    keep_logs_plain()
    server.run(sockets=[listening])
