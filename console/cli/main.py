"""The command line. Commands import what they need when they run, so that --help is quick."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from mulligan.console.cli.commands import (
    classify,
    config,
    doctor,
    escalations,
    init,
    jobs,
    run,
    schema,
    submit,
    token,
    up,
    verify,
    webhooks,
)
from mulligan.console.cli.commands import console as serve
from mulligan.console.cli.commands import queue as queues
from mulligan.console.cli.commands import report as reports
from mulligan.console.cli.edits import edits_command as edits
from mulligan.console.cli.exit_codes import ErrorReportingGroup

_ABOUT = "A queue for language-model work: retries correct their own input."


def _version(wanted: bool) -> None:
    if not wanted:
        return
    from importlib.metadata import version

    typer.echo(f"mulligan {version('mulligan')}")
    raise typer.Exit


def create_cli() -> typer.Typer:
    cli = typer.Typer(
        cls=ErrorReportingGroup,
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
            typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
        ] = False,
    ) -> None:
        pass

    cli.command()(init.init)
    cli.command()(run.run)
    cli.command()(up.up)
    cli.command()(serve.console)
    cli.command()(submit.submit)
    cli.add_typer(jobs.create_cli(), name="jobs")
    cli.add_typer(queues.create_cli(), name="queue")
    cli.add_typer(escalations.create_cli(), name="escalations")
    cli.add_typer(edits.create_cli(), name="edits")
    cli.add_typer(token.create_cli(), name="token")
    cli.command()(verify.verify)
    cli.command()(classify.classify)
    cli.add_typer(reports.create_cli(), name="report")
    cli.add_typer(webhooks.create_cli(), name="webhooks")
    cli.add_typer(config.create_cli(), name="config")
    cli.command()(schema.schema)
    cli.command()(doctor.doctor)
    return cli


def main() -> None:
    _find_users_modules()
    create_cli()(prog_name="mulligan")


def _find_users_modules() -> None:
    """Let contracts name models of the user's project, as workers that are started there can.

    Last on the path: nothing of the project takes the place of an installed package.
    """
    named = os.environ.get("MULLIGAN_CONFIG")
    here = ""  # the current directory, even if it is gone
    folders = [str(Path(named).parent.absolute()), here] if named else [here]
    sys.path += [folder for folder in folders if folder not in sys.path]
