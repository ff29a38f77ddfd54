"""`mulligan jobs refused`: submissions of which nothing was stored, and every reason."""

from __future__ import annotations

from typing import Annotated

import typer

from mulligan.console.cli.open_ledgers import open_located_ledger
from mulligan.console.cli.options import Json
from mulligan.console.cli.output import screen
from mulligan.policies.figures.format import minute
from mulligan.workers.settings.model import load_settings


def refused(
    limit: Annotated[int, typer.Option(help="Maximum rows.", min=1, max=1000)] = 50,
    json: Json = False,
) -> None:
    """List refused submissions and their problems, newest first."""
    with open_located_ledger(load_settings()) as ledger:
        found = ledger.refused_submissions.newest(limit=limit)
    if json:
        screen.emit({"submissions": [each.as_dict() for each in found]})
        return
    for each in found:
        by = f" by {each.by}" if each.by else ""
        name = each.task_type or "without a task type"
        screen.say(f"{each.id or 'a message'}  {name}  {each.origin}{by}  {minute(each.at)}")
        for problem in each.problems:
            screen.say(f"  {problem}")
        if each.begins:
            screen.say(f"  it begins with {each.begins}")
    if not found:
        screen.say("no submissions were refused")
