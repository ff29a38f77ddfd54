"""`mulligan loops report`: the report of a loop, as text, Markdown, HTML or JSON."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import typer

from mulligan.console.cli.loops.loop_options import Name, open_loops
from mulligan.console.cli.options import Json
from mulligan.console.cli.output import screen
from mulligan.console.cli.output.report_output import write_report
from mulligan.console.reports.html_report import as_html
from mulligan.console.reports.loop_report_view import loop_view
from mulligan.console.reports.report_view import ReportView
from mulligan.console.reports.text_report import as_json, as_markdown, as_text
from mulligan.tasks.loops.report import ROWS, generate_report

Format = Literal["text", "md", "html", "json"]
_WRITERS: dict[Format, Callable[[ReportView], str]] = {
    "text": as_text,
    "md": as_markdown,
    "html": as_html,
    "json": as_json,
}


def report(
    name: Name,
    form: Annotated[
        Format | None,
        typer.Option("--format", help="The default is the file's ending, else text."),
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Write the report to this file.")] = None,
    limit: Annotated[int, typer.Option(help="Maximum rows of each table.", min=1, max=1000)] = ROWS,
    json: Json = False,
) -> None:
    """Report on a loop: progress, cost, failures, what is left."""
    with open_loops() as context:
        found = generate_report(context, name, rows=limit)
    text = _WRITERS["json" if json else form or _format_of(output)](loop_view(found))
    if output is None:
        screen.say(text.rstrip())
    else:
        write_report(output, text)


def _format_of(output: Path | None) -> Format:
    """Return the format that a file's ending names; text if there is no such format."""
    ending = output.suffix.removeprefix(".") if output else ""
    return next((each for each in _WRITERS if each == ending), "text")
