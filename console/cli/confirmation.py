"""Ask a person before something that cannot be undone."""

from __future__ import annotations

import sys
from collections.abc import Callable

import typer

from mulligan.console.cli.exit_codes import ExitCode
from mulligan.console.cli.output import screen
from mulligan.policies.terminal_text import terminal_text
from mulligan.tasks.ports.errors import BadInput


def confirm(what: str, *, hint: str = "", show: Callable[[], None] = lambda: None) -> None:
    """Ask "``what``?"; exit if the answer is no, and refuse where there is no terminal.

    ``show`` is called before the question. ``hint`` completes "Pass --yes".
    """
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise BadInput(
            f"this would {what}. No terminal to confirm on. Pass --yes{hint}. Nothing was changed."
        )
    show()
    if not typer.confirm(terminal_text(f"{what}?"), default=False, err=True):
        screen.note("nothing was changed")
        raise typer.Exit(int(ExitCode.SOME_FAILED))
