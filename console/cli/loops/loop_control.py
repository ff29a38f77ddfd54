"""`mulligan loops`: start, stop, pause, resume, change and delete loops; reset and skip items."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from mulligan.console.cli.confirmation import confirm
from mulligan.console.cli.loops.loop_options import (
    Item,
    Name,
    budget_values,
    open_loops,
    read_pairs,
    requester,
)
from mulligan.console.cli.options import By, Json, Yes
from mulligan.console.cli.output import screen
from mulligan.console.http.models import loop_models
from mulligan.policies.figures.format import counted
from mulligan.policies.loops.commands import MOVES, Verb
from mulligan.policies.loops.spec import OnBlocked
from mulligan.tasks.loops import change, view
from mulligan.tasks.loops.context import LoopContext
from mulligan.tasks.loops.work_views import unmerged_attempts
from mulligan.tasks.ports.errors import BadInput, RepositoryUnavailable

_DONE: dict[Verb, str] = {
    "start": "started",
    "stop": "stopped; what was running was cancelled",
    "pause": "paused; running attempts finish",
    "resume": "resumed",
}


def start(
    name: Name,
    despite_move: Annotated[
        bool, typer.Option("--despite-move", help="Also a loop that moved elsewhere.")
    ] = False,
    by: By = None,
    json: Json = False,
) -> None:
    """Start a loop."""
    _move(name, "start", by, json, despite_move=despite_move)


def stop(name: Name, by: By = None, json: Json = False) -> None:
    """Stop a loop and cancel what it runs."""
    _move(name, "stop", by, json)


def pause(name: Name, by: By = None, json: Json = False) -> None:
    """Pause a loop; running attempts finish."""
    _move(name, "pause", by, json)


def resume(name: Name, by: By = None, json: Json = False) -> None:
    """Resume a paused loop."""
    _move(name, "resume", by, json)


def _move(name: str, verb: Verb, by: str | None, json: bool, *, despite_move: bool = False) -> None:
    with open_loops() as context:
        found = change.move(context, name, verb, requester(by), despite_move=despite_move)
        before = found.snapshot.loop.state
    moved = before != MOVES[verb].to
    text = _DONE[verb] if moved else f"is {before} already"
    _tell(f"{name} {text}", {"loop": name, "done": verb, "changed": moved}, json=json)


def set_loop(
    name: Name,
    priority: Annotated[int | None, typer.Option(help="1 is the most urgent.")] = None,
    weight: Annotated[float | None, typer.Option(help="Share among equal priorities.")] = None,
    concurrency: Annotated[int | None, typer.Option(help="Maximum items at once.")] = None,
    max_attempts: Annotated[int | None, typer.Option(help="Attempts of each item.")] = None,
    runner: Annotated[str | None, typer.Option(help="Profile of the items' runner.")] = None,
    on_blocked: Annotated[
        OnBlocked | None, typer.Option(help="What follows a failed item.")
    ] = None,
    auto_heal: Annotated[
        str | None,
        typer.Option(metavar="ACTIONS", help="true, false, or actions with commas."),
    ] = None,
    regressions: Annotated[
        str | None,
        typer.Option(metavar="RULES", help="true, false, or every=24h,roll_back=true."),
    ] = None,
    budget: Annotated[
        list[str] | None,
        typer.Option(metavar="SCOPE.RESOURCE=LIMIT", help="A limit, or none to remove it."),
    ] = None,
    by: By = None,
    json: Json = False,
) -> None:
    """Change a loop: priority, concurrency, budget."""
    given: dict[str, Any] = {
        "priority": priority,
        "weight": weight,
        "concurrency": concurrency,
        "max_attempts": max_attempts,
        "runner": runner,
        "auto_heal": None if auto_heal is None else _actions(auto_heal),
        "on_blocked": on_blocked,
        "regressions": None if regressions is None else _rules(regressions),
        "budget": budget_values(budget) or None,
    }
    values = {field: value for field, value in given.items() if value is not None}
    if not values:
        raise BadInput("nothing to change: give an option, such as --priority 1")
    with open_loops() as context:
        change.configure(context, name, values, requester(by))
    _tell(f"{name}: changed {', '.join(values)}", {"loop": name, "changed": values}, json=json)


def _actions(text: str) -> bool | list[str]:
    if text in ("true", "false"):
        return text == "true"
    return [each.strip() for each in text.split(",") if each.strip()]


def _rules(text: str) -> bool | dict[str, Any]:
    """Read the rules of regressions: what is not named has its default."""
    if text in ("true", "false"):
        return text == "true"
    return dict(read_pairs([each.strip() for each in text.split(",")], "--regressions"))


def reset(name: Name, item: Item, by: By = None, json: Json = False) -> None:
    """Run an item again; earlier failures no longer count."""
    with open_loops() as context:
        change.reset(context, name, item, requester(by))
    _tell(f"{item} was reset", {"loop": name, "item": item, "done": "reset"}, json=json)


def skip(
    name: Name,
    item: Item,
    reason: Annotated[str, typer.Option(help="Reason, for the record.")] = "",
    by: By = None,
    json: Json = False,
) -> None:
    """Leave an item out; what depends on it goes on."""
    with open_loops() as context:
        change.skip(context, name, item, requester(by), reason=reason)
    _tell(f"{item} was skipped", {"loop": name, "item": item, "done": "skip"}, json=json)


def delete(name: Name, yes: Yes = False, by: By = None, json: Json = False) -> None:
    """Delete an ended loop, its saved work and its transcripts.

    The branch of a loop with a repository stays, and so do the jobs of its items.
    """
    with open_loops() as context:
        if not yes:
            confirm(f"delete the loop {name}{_saved_work(context, name)}")
        change.delete(context, name, requester(by))
    _tell(f"{name} was deleted", {"loop": name, "done": "delete"}, json=json)


def _saved_work(context: LoopContext, name: str) -> str:
    """Say what goes with a loop that has a repository. Raises NoSuchLoop."""
    snapshot = view.view_loop(context, name).snapshot
    if snapshot.config.repo is None:
        return ""
    try:
        found = counted(unmerged_attempts(context, snapshot), "attempt")
    except RepositoryUnavailable:
        return ", its transcripts and its saved work; its branch stays"
    return f", its transcripts and the unmerged work of {found}; its branch stays"


def slots(
    number: Annotated[int | None, typer.Argument(metavar="N", help="Slots.", min=0)] = None,
    default: Annotated[
        bool, typer.Option("--default", help="Use loop_slots of the configuration again.")
    ] = False,
    json: Json = False,
) -> None:
    """Show or set how many items of all loops run at once."""
    with open_loops() as context:
        if number is not None or default:
            change.set_slots(context, None if default else number)
        found = loop_models.slots(context)
    origin = "set by a person" if found.set else "loop_slots of the configuration"
    _tell(f"{found.slots} ({origin})", found.model_dump(), json=json)


def _tell(text: str, document: dict[str, Any], *, json: bool) -> None:
    if json:
        screen.emit(document)
    else:
        screen.say(text)
