"""`mulligan schema`: what editors and other programs need to check files."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from mulligan.console.cli.output import screen

Kind = Literal["job", "config"]


def schema(
    kind: Annotated[
        Kind, typer.Argument(metavar="KIND", help="job: job files; config: mulligan.toml.")
    ],
) -> None:
    """Print a JSON Schema (draft 2020-12), for editors."""
    screen.emit(schema_for(kind))


def schema_for(kind: Kind) -> dict[str, Any]:
    if kind == "job":
        from mulligan.console.jobfiles.job_schema import job_schema

        return job_schema()
    from mulligan.console.jobfiles.config_schema import config_schema

    return config_schema()
