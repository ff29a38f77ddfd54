"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

Files = Annotated[list[str], typer.Argument(metavar="FILE", help="Job files; - is stdin.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Timeout = Annotated[float | None, typer.Option(help="Seconds to wait.", min=0.1)]
By = Annotated[
    str | None, typer.Option("--by", help="Your name for the record (default: user@host).")
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]
