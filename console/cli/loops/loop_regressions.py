"""`mulligan loops`: what passed and broke later, and asking for a check."""

from __future__ import annotations

from typing import Annotated

import typer

from mulligan.console.cli.loops.loop_options import Name, open_loops, requester
from mulligan.console.cli.options import By, Json
from mulligan.console.cli.output import screen
from mulligan.console.http.models.regression_models import regression_list
from mulligan.policies.figures.format import counted, timestamp
from mulligan.policies.regressions.record import ALL_ITEMS
from mulligan.tasks.loops import view
from mulligan.tasks.loops.regression_search import regression_words
from mulligan.tasks.loops.regressions import verify_loop


def regressions(name: Name, json: Json = False) -> None:
    """List what passed and broke later, and by whose work."""
    with open_loops() as context:
        loop = view.view_loop(context, name).snapshot.loop
    if json:
        screen.emit(regression_list(loop, texts=True).model_dump(mode="json"))
        return
    log = loop.regressions
    if check := log.check:
        after = f", {len(check.rest)} after that" if check.rest else ""
        items = counted(len(check.items), "item")
        screen.say(f"{items} verified now at {check.commit[:10]}{after}")
    if log.asked:
        what = "everything that has passed" if ALL_ITEMS in log.asked else ", ".join(log.asked)
        screen.say(f"{what} will be verified next")
    if log.good_commit:
        when = timestamp(log.good_at, None)
        screen.say(f"everything that had passed was good at {log.good_commit[:10]} ({when})")
    if not log.found:
        screen.say("no regression was found")
    for each in reversed(log.found):
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
        items = verify_loop(context, name, requester(by), item=item)
    if json:
        screen.emit({"loop": name, "item": item, "items": items, "asked": True})
        return
    what = item or counted(len(items), "item")
    screen.say(f"{what} will be verified next: mulligan loops regressions {name}")
