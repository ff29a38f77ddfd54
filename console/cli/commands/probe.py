"""`mulligan probe`: whether a process of this host is alive, or ready. For supervisors."""

from __future__ import annotations

import urllib.error
import urllib.request
from typing import Annotated

import typer

from mulligan.console.cli.console_url import url_of
from mulligan.console.cli.exit_codes import ExitCode
from mulligan.console.cli.output import screen
from mulligan.workers.liveness_file import find_problem
from mulligan.workers.settings.model import Settings, load_settings

_TIMEOUT = 5.0


def probe(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="A pool of workers, console, flower, or up."),
    ],
    ready: Annotated[bool, typer.Option("--ready", help="Whether it can do its work.")] = False,
) -> None:
    """Tell whether a process of this host is alive.

    Exits with 0 if it is, else with 1. With --ready, it must also reach what it needs.
    """
    settings = load_settings()
    if name in ("console", "flower"):
        problem = _unanswered(_url(settings, name, ready=ready))
    else:
        problem = find_problem(settings.home, name, ready=ready)
    if problem:
        screen.say(problem)
        raise typer.Exit(int(ExitCode.SOME_FAILED))


def _url(settings: Settings, name: str, *, ready: bool) -> str:
    if name == "flower":
        return f"{url_of('127.0.0.1', settings.flower_port)}/healthcheck"
    return (
        f"{url_of(settings.console_host, settings.console_port)}/{'readyz' if ready else 'livez'}"
    )


def _unanswered(url: str) -> str:
    """Return why a URL does not answer with success; empty if it does."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=_TIMEOUT):
            return ""
    except urllib.error.HTTPError as error:
        return f"{url} answered with {error.code}"
    except OSError as error:
        return f"{url} does not answer: {error}"
