"""`mulligan loops`: what loops have to do with each other; overrule decisions, order, emit."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from mulligan.console.cli.confirmation import confirm
from mulligan.console.cli.loops import coordination_screen
from mulligan.console.cli.loops.loop_options import Item, Name, open_loops, requester
from mulligan.console.cli.options import By, Json, Yes
from mulligan.console.cli.output import screen
from mulligan.console.http.models import coordination_models
from mulligan.policies.coordination.decision import overruling
from mulligan.policies.figures.format import counted
from mulligan.tasks.coordination import orders
from mulligan.tasks.coordination.view import view_coordination
from mulligan.tasks.loops.view import no_such_item, view_loop

Word = Literal["first", "hold", "ignore_locks", "ignore_waits", "none"]


def coordination(
    name: Annotated[
        str | None, typer.Argument(metavar="[LOOP]", help="Name of the loop; all without it.")
    ] = None,
    limit: Annotated[int, typer.Option(help="Maximum rows of each list.", min=1, max=2000)] = 20,
    json: Json = False,
) -> None:
    """Show who has which files, who waits for whom, and decisions."""
    with open_loops() as context:
        view, now = view_coordination(context, loop=name, limit=limit), context.ledger.now()
    found = coordination_models.coordination_document(view, limit=limit, texts=True)
    if json:
        screen.emit(found.model_dump(mode="json"))
    else:
        coordination_screen.print_coordination(found, now)


def overrule(
    number: Annotated[int, typer.Argument(metavar="NUMBER", help="The decision's number.", min=1)],
    yes: Yes = False,
    by: By = None,
    json: Json = False,
) -> None:
    """Overrule a decision about items of loops.

    It says first what that does.
    """
    with open_loops() as context:
        effect = overruling(orders.find_decision(context, str(number)))
        if effect is not None and not yes:
            confirm(f"overrule decision {number}, so that {effect.text}")
        done = orders.overrule(context, str(number), requester(by))
    row = coordination_models.overruling_row(done)
    if json:
        screen.emit({"number": number, "overruled": True, "done": row.model_dump(mode="json")})
    else:
        screen.say(f"decision {number} is overruled: {done.text}")


def order(
    name: Name,
    item: Item,
    word: Annotated[
        Word, typer.Argument(metavar="ORDER", help="What happens; none for the usual rules.")
    ],
    by: By = None,
    json: Json = False,
) -> None:
    """Say what happens to an item that waits.

    Orders end when the item gets its slot. first: it gets the next free one. hold: it gets none.
    ignore_locks: it need not wait for files that others change. ignore_waits: nor for other loops
    and events. Only first and hold replace each other. none: all its orders end.
    """
    given = None if word == "none" else word
    with open_loops() as context:
        if view_loop(context, name).snapshot.spec(item) is None:
            raise no_such_item(name, item)
        orders.give_order(context, name, item, given, requester(by))
    if json:
        screen.emit({"loop": name, "item": item, "order": given})
    else:
        screen.say(f"{item} {orders.ORDERED[given] if given else 'follows the usual rules again'}")


def emit(
    event: Annotated[str, typer.Argument(metavar="EVENT", help="Name of the event.")],
    tenant: Annotated[str, typer.Option(help="The tenant whose loops wait for it.")] = "",
    withdraw: Annotated[
        bool, typer.Option("--withdraw", help="Take back what a person gave off.")
    ] = False,
    by: By = None,
    json: Json = False,
) -> None:
    """Give off an event that items wait for, or take it back."""
    with open_loops() as context:
        waiting = orders.count_waiting(context, event, tenant=tenant)
        if withdraw:
            done = orders.withdraw(context, event, tenant=tenant)
        else:
            done = orders.emit(context, event, tenant=tenant, by=requester(by).by)
    if json:
        what = {"emitted": done and not withdraw, "withdrawn": done and withdraw}
        screen.emit({"event": event, "tenant": tenant or None, **what, "waiting": waiting})
    elif withdraw:
        screen.say(f"{event} was withdrawn" if done else f"{event} was not given off")
    elif not done:
        screen.say(f"{event} had been given off before")
    else:
        whom = f"{counted(waiting, 'item')} waited for it" if waiting else "no item waits for it"
        screen.say(f"{event} was given off: {whom}")
