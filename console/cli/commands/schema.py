"""`mulligan schema`: JSON Schemas with which editors check files."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from mulligan.console.cli.output import screen
from mulligan.console.jobfiles.config_schema import config_schema
from mulligan.console.jobfiles.job_schema import job_schema

Kind = Literal["job", "config"]


def schema(
    kind: Annotated[
        Kind,
        typer.Argument(metavar="KIND", help="`job` for job files, `config` for mulligan.toml."),
    ],
) -> None:
    """Print a JSON Schema for editors.

    The schema follows draft 2020-12.
    """
    screen.emit(schema_for(kind))


def schema_for(kind: Kind) -> dict[str, Any]:
    return job_schema() if kind == "job" else config_schema()
