"""`mulligan jobs lint`: check job files without running anything, and without Redis."""

from __future__ import annotations

from typing import Annotated

import typer

from mulligan.console.cli.exit_codes import ExitCode
from mulligan.console.cli.options import Files, Json
from mulligan.console.cli.output import screen
from mulligan.console.jobfiles.linter import LintReport, lint_files
from mulligan.policies.figures.format import counted

_STYLES = {"error": "red", "warning": "yellow"}


def lint(
    files: Files,
    allow_inline: Annotated[
        bool, typer.Option(help="Allow runners and commands defined in the job file.")
    ] = True,
    json: Json = False,
) -> None:
    """Check job files without running them."""
    found = lint_files(files, allow_inline=allow_inline)
    errors = found.count("error")
    if json:
        screen.emit(
            {
                "ok": not errors,
                "files": found.files,
                "jobs": found.jobs,
                "errors": errors,
                "warnings": found.count("warning"),
                "findings": [each.as_dict() for each in found.all],
            }
        )
    else:
        _print(found)
    raise typer.Exit(int(ExitCode.BAD_INPUT if errors else ExitCode.OK))


def _print(found: LintReport) -> None:
    console = screen.out()
    for each in found.all:
        console.print(f"{each.place}: ", end="", soft_wrap=True)
        console.print(f"{each.severity}: ", end="", style=_STYLES[each.severity])
        console.print(each.text, soft_wrap=True)
    errors, warnings = found.count("error"), found.count("warning")
    looked_at = f"{counted(found.jobs, 'job')} in {counted(found.files, 'file')}"
    if errors or warnings:
        verdict = ", ".join(
            counted(n, word) for n, word in ((errors, "error"), (warnings, "warning")) if n
        )
        screen.say(f"{verdict}; {looked_at}", style="bold")
    else:
        screen.say(f"no problems: {looked_at}", style="green")
