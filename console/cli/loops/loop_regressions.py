"""`mulligan loops`: what passed and broke later, and asking for a check."""

from __future__ import annotations

from typing import Annotated

import typer

from mulligan.console.cli.loops.loop_options import Name, open_loops, requester
from mulligan.console.cli.options import By, Json
from mulligan.console.cli.output import screen
from mulligan.console.http.models.regression_models import regression_list
from mulligan.policies.figures.format import timestamp
from mulligan.tasks.loops import view
from mulligan.tasks.loops.regressions import regression_words, verify_loop


def regressions(name: Name, json: Json = False) -> None:
    """List what passed and broke later, and by whose work."""
    with open_loops() as context:
        loop = view.view_loop(context, name).snapshot.loop
    if json:
        screen.emit(regression_list(loop, texts=True).model_dump(mode="json"))
        return
    if check := loop.regressions.check:
        items = len(check.items)
        screen.say(f"{items} item{'' if items == 1 else 's'} verified now at {check.commit[:10]}")
    if not loop.regressions.found:
        screen.say("no regression was found")
    for each in reversed(loop.regressions.found):
        screen.say(f"{timestamp(each.at, None)}  {regression_words(each)}")
        blamed = f"; {each.culprit_name} in {each.steps} checks" if each.culprit else ""
        screen.say(f"  {each.checks}: {each.summary}{blamed}")


def verify(
    name: Name,
    item: Annotated[
        str | None, typer.Argument(metavar="[ITEM]", help="Id of an item; else all that passed.")
    ] = None,
    by: By = None,
    json: Json = False,
) -> None:
    """Verify an item, or every one that passed, again."""
    with open_loops() as context:
        view.view_loop(context, name)
        if item is not None:
            view.view_item(context, name, item)  # an unknown one is refused
        verify_loop(context, name, requester(by), item=item)
    if json:
        screen.emit({"loop": name, "item": item, "asked": True})
        return
    screen.say(f"{item or 'every item that passed'} is verified: mulligan loops regressions {name}")
