"""`mulligan schema`: JSON Schemas with which editors check files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

import typer

from mulligan.console.cli.output import screen
from mulligan.console.jobfiles.config_schema import config_schema
from mulligan.console.jobfiles.job_schema import job_schema
from mulligan.console.jobfiles.model_schema import Schema
from mulligan.console.loopfiles.loop_schema import loop_schema, spec_schema

Kind = Literal["job", "config", "loop", "spec"]
_SCHEMAS: dict[Kind, Callable[[], Schema]] = {
    "job": job_schema,
    "config": config_schema,
    "loop": loop_schema,
    "spec": spec_schema,
}


def schema(
    kind: Annotated[
        Kind,
        typer.Argument(
            metavar="KIND",
            help="`job` for job files, `config` for mulligan.toml, `loop` for loop.yaml and"
            " templates, `spec` for spec files.",
        ),
    ],
) -> None:
    """Print a JSON Schema for editors.

    The schema follows draft 2020-12.
    """
    screen.emit(schema_for(kind))


def schema_for(kind: Kind) -> Schema:
    return _SCHEMAS[kind]()
