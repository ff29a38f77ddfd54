"""`mulligan loops`: heal items that gave up, see what was done, and analyse failures."""

from __future__ import annotations

from typing import Annotated

import typer

from mulligan.console.cli.loops.loop_options import Item, Name, open_loops, requester
from mulligan.console.cli.options import By, Json
from mulligan.console.cli.output import screen
from mulligan.console.http.models import heal_models
from mulligan.policies.figures.format import timestamp
from mulligan.policies.loops.heal_record import HealRecord
from mulligan.policies.loops.spec import HealAction
from mulligan.tasks.loops import heal as healing
from mulligan.tasks.loops import view


def heal(
    name: Name,
    item: Annotated[
        str | None, typer.Argument(metavar="[ITEM]", help="Id of an item; else what blocks others.")
    ] = None,
    action: Annotated[
        HealAction | None, typer.Option(help="What to do; else the next step not tried yet.")
    ] = None,
    to_human: Annotated[
        bool, typer.Option("--to-human/--to-runner", help="Whom to escalate to.")
    ] = True,
    to: Annotated[str | None, typer.Option(help="Checkpoint to roll back to.")] = None,
    reason: Annotated[str, typer.Option(help="Reason, for the record.")] = "",
    by: By = None,
    json: Json = False,
) -> None:
    """Heal an item that gave up, or all that block others."""
    with open_loops() as context:
        view.view_loop(context, name)
        if item is None:
            made = healing.repair_dependency_chain(context, name, requester(by))
        else:
            made = [
                healing.heal_item(
                    context,
                    name,
                    item,
                    requester(by),
                    action=action,
                    parameter=to,
                    to_human=to_human,
                    reason=reason,
                )
            ]
    if json:
        _emit(made)
        return
    for each in made:
        screen.say(f"{each.item}: {_what(each)}")


def heals(name: Name, json: Json = False) -> None:
    """List what was done to heal a loop, newest first."""
    with open_loops() as context:
        found = list(reversed(view.view_loop(context, name).snapshot.heals))
    if json:
        _emit(found)
        return
    if not found:
        screen.say("nothing was healed yet")
    for each in found:
        result = f" ({each.result})" if each.result else ""
        screen.say(
            f"{timestamp(each.at, None)}  {each.item}: {_what(each)} → {each.outcome}{result}"
        )
        screen.say(f"  {each.reason}")


def analyse(name: Name, item: Item, json: Json = False) -> None:
    """Say why an item failed, and what may help."""
    with open_loops() as context:
        snapshot = view.view_loop(context, name).snapshot
        view.view_item(context, name, item)  # an unknown one is refused
        found = healing.analyse_failed(context, snapshot, item)
        command = healing.suggest(snapshot, item, context.ledger.now())
    if json:
        document = heal_models.analysis_document(found, command, texts=True)
        screen.emit(document.model_dump(mode="json"))
        return
    screen.say(found.text)
    screen.say(f"  do: {command}")


def _what(heal: HealRecord) -> str:
    return f"{heal.action} ({heal.parameter})" if heal.parameter else heal.action


def _emit(found: list[HealRecord]) -> None:
    rows = [heal_models.heal_row(each, texts=True).model_dump(mode="json") for each in found]
    screen.emit({"heals": rows})
