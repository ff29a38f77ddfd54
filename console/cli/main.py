"""The command line. A command's module is imported when that command is used."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer

from mulligan.console.cli.command_table import COMMANDS
from mulligan.console.cli.lazy_group import LazyGroup, declare
from mulligan.workers.plain_logs import keep_logs_plain
from mulligan.workers.sandbox.hidden_process import hide_process

_ABOUT = (
    "A queue for language-model work that checks every answer and retries a bad one with a"
    " corrected prompt."
)


class RootGroup(LazyGroup):
    """All commands. An exception becomes a message and an exit code here."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands.update(declare(COMMANDS))

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Exception as error:
            # typer handles Exit, Abort and usage errors itself.
            if hasattr(error, "exit_code") or type(error).__name__ == "Abort" or _debugging():
                raise
            # Imported here because only an error needs it.
            from mulligan.console.cli.error_report import report

            raise typer.Exit(int(report(error))) from None


def _debugging() -> bool:
    return os.environ.get("MULLIGAN_DEBUG", "") not in ("", "0")


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"mulligan {version('mulligan')}")
        raise typer.Exit


def create_cli() -> typer.Typer:
    cli = typer.Typer(
        cls=RootGroup,
        help=_ABOUT,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @cli.callback()
    def root(
        _: Annotated[
            bool,
            typer.Option(
                "--version", callback=_print_version, is_eager=True, help="Show the version."
            ),
        ] = False,
    ) -> None:
        pass

    return cli


def main() -> None:
    hide_process()
    _add_users_modules()
    keep_logs_plain()
    create_cli()(prog_name="mulligan")


def _add_users_modules() -> None:
    """Let contracts name models of the user's project, as they can in workers started there.

    The folders come last on the path, so that no installed package is replaced.
    """
    named = os.environ.get("MULLIGAN_CONFIG")
    here = ""  # the current directory, even if it is gone
    folders = [str(Path(named).parent.absolute()), here] if named else [here]
    sys.path += [folder for folder in folders if folder not in sys.path]
