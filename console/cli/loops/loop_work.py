"""`mulligan loops checkpoints`, `diff`, `rollback` and `transcript`: the work in a repository."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated

import typer

from mulligan.console.cli.confirmation import confirm
from mulligan.console.cli.exit_codes import ExitCode
from mulligan.console.cli.loops import work_screen
from mulligan.console.cli.loops.loop_options import Item, Name, open_loops, requester
from mulligan.console.cli.options import By, Json, Yes
from mulligan.console.cli.output import screen
from mulligan.console.http.models import work_models
from mulligan.policies.figures.format import counted
from mulligan.policies.loops.checkpoints import Rollback, named_commits
from mulligan.policies.loops.loop import LoopSnapshot
from mulligan.tasks.loops import view
from mulligan.tasks.loops.context import LoopContext
from mulligan.tasks.loops.registry import read_log
from mulligan.tasks.loops.rollback import (
    RollbackPlan,
    preview_rollback,
    read_checkpoints,
    request_rollback,
)
from mulligan.tasks.loops.session_views import SessionFollower, last_session, read_session
from mulligan.tasks.loops.work_views import checkpoint_diff, item_diff
from mulligan.tasks.ports.errors import BadInput

#: Seconds to wait for the worker that makes a rollback, and between two looks.
PATIENCE = 60.0
_PAUSE = 0.5
#: Seconds between two looks at the end of a transcript.
_POLL = 1.0
#: Items that a question names.
_LISTED = 10
#: Notes of the log in which the end of a rollback is looked for.
_NOTES = 50


def checkpoints(
    name: Name,
    limit: Annotated[int, typer.Option(help="Maximum rows.", min=1, max=10_000)] = 50,
    json: Json = False,
) -> None:
    """List what was merged into a loop's branch, newest first."""
    with open_loops() as context:
        found = read_checkpoints(context, view.view_loop(context, name).snapshot)
    if json:
        page = work_models.checkpoint_page(found, start=0, limit=limit, texts=True)
        screen.emit(page.model_dump(mode="json"))
        return
    if not found:
        screen.say("nothing was merged yet")
        return
    work_screen.print_checkpoints(found[:limit])
    if len(found) > limit:
        screen.note(f"{len(found) - limit:,} more: --limit {len(found)}")


def diff(
    name: Name,
    item: Annotated[str | None, typer.Argument(metavar="[ITEM]", help="Id of an item.")] = None,
    checkpoint: Annotated[
        str | None, typer.Option(metavar="COMMIT", help="A checkpoint, or its beginning.")
    ] = None,
    json: Json = False,
) -> None:
    """Show what an item or a checkpoint changed."""
    if (item is None) == (checkpoint is None):
        raise BadInput("name either an ITEM or a --checkpoint")
    with open_loops() as context:
        snapshot = _loop_of(context, name, item)
        found = (
            item_diff(context, snapshot, item)
            if item is not None
            else checkpoint_diff(context, snapshot, checkpoint or "")
        )
    if json:
        screen.emit(work_models.diff_document(found, texts=True).model_dump(mode="json"))
    elif found is None:
        screen.say(f"nothing was done for {item} yet")
    else:
        work_screen.print_diff(found)


def _loop_of(context: LoopContext, name: str, item: str | None) -> LoopSnapshot:
    """Return a loop. Raises NoSuchLoop and NoSuchItem."""
    snapshot = view.view_loop(context, name).snapshot
    if item is not None and snapshot.spec(item) is None:
        raise view.no_such_item(name, item)
    return snapshot


# -- rollback --------------------------------------------------------------------------------------


def rollback(
    name: Name,
    to: Annotated[
        str | None, typer.Option(metavar="COMMIT", help="The checkpoint to go back to.")
    ] = None,
    item: Annotated[
        str | None, typer.Option(metavar="ITEM", help="Only this item and what depends on it.")
    ] = None,
    yes: Yes = False,
    by: By = None,
    json: Json = False,
) -> None:
    """Undo what was merged after a checkpoint, or one item.

    The branch gets one more commit, and the items run again.
    """
    if to is None and item is None:
        raise BadInput(
            "name a checkpoint (--to COMMIT) or an item (--item ITEM);"
            f" `mulligan loops checkpoints {name}` lists them"
        )
    with open_loops() as context:
        plan = preview_rollback(context, _loop_of(context, name, item), to=to, item=item)
        if not yes:
            confirm(_effects(name, plan))
        asked = request_rollback(context, name, requester(by), to=to, item=item)
        problem = _wait(context, name, asked)
    _report(name, asked, plan, problem, json=json)


def _effects(name: str, plan: RollbackPlan) -> str:
    """Say what a rollback does, as a command."""
    again = "it runs" if len(plan.items) == 1 else "they run"
    undo = f"undo {_listed(plan.items)} of {name}, so that {again} again" if plan.items else ""
    back = f"bring back the earlier work of {_listed(plan.brought_back)}"
    ends = f"end the running attempts of {_listed(plan.interrupted)}, which depend on that"
    removed, returned = plan.effects.removed, plan.effects.returned
    parts = {
        undo: plan.items,
        back: plan.brought_back,
        ends: plan.interrupted,
        f"also remove {named_commits(removed)}": removed,
        f"also bring back {named_commits(returned)}": returned,
    }
    return ", and ".join(text for text, found in parts.items() if found)


def _listed(items: Sequence[str]) -> str:
    more = f" and {len(items) - _LISTED} more" if len(items) > _LISTED else ""
    return f"{', '.join(items[:_LISTED])}{more}"


def _wait(context: LoopContext, name: str, asked: Rollback) -> str | None:
    """Wait until a worker has made a rollback. Return why it was not made, if it was not."""
    until = time.monotonic() + PATIENCE
    with screen.err().status("waiting for a worker to make the rollback …"):
        while _is_pending(context, name, asked):
            if time.monotonic() > until:
                return (
                    f"no worker has made the rollback within {PATIENCE:g} s. It is still pending:"
                    f" `mulligan loops show {name}` says whether it was made, and `mulligan doctor`"
                    " whether the workers run"
                )
            time.sleep(_PAUSE)
    snapshot = view.view_loop(context, name).snapshot
    if any(each.rollback == asked.id for each in read_checkpoints(context, snapshot)):
        return None
    notes = [each.note for each in read_log(context, name, limit=_NOTES) if each.by == "rollback"]
    return next(iter(notes), f"it was not made: see `mulligan loops log {name}`")


def _is_pending(context: LoopContext, name: str, asked: Rollback) -> bool:
    return asked.id in view.view_loop(context, name).snapshot.loop.rollback


def _report(
    name: str, asked: Rollback, plan: RollbackPlan, problem: str | None, *, json: bool
) -> None:
    if json:
        document = {"loop": name, "rollback": asked.id, "to": asked.to, "item": asked.item}
        effects = {
            "reopens": plan.items,
            "restores": plan.brought_back,
            "interrupts": plan.interrupted,
            "removes": [each.commit for each in plan.effects.removed],
            "returns": [each.commit for each in plan.effects.returned],
        }
        screen.emit({**document, **effects, "made": problem is None, "problem": problem})
    elif problem is None:
        again = f"{counted(len(plan.items), 'item')} will run again: {_listed(plan.items)}"
        back = f"work that is back: {_listed(plan.brought_back)}"
        said = [again] * bool(plan.items) + [back] * bool(plan.brought_back)
        screen.say("; ".join(["rolled back", *said]))
    else:
        screen.complain(problem)
    raise typer.Exit(int(ExitCode.OK if problem is None else ExitCode.SOME_FAILED))


# -- sessions --------------------------------------------------------------------------------------


def transcript(
    name: Name,
    item: Item,
    attempt: Annotated[
        int | None, typer.Option(help="Attempt of the last run (default: the newest).", min=1)
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Follow until the agent ends.")] = False,
    json: Annotated[
        bool, typer.Option("--json", help="One document; with --follow, one object per line.")
    ] = False,
) -> None:
    """Show what the agent of an attempt did."""
    with open_loops() as context:
        snapshot = _loop_of(context, name, item)
        job_id, number = last_session(context, snapshot, item, attempt)
        if follow:
            _follow(context, snapshot, item, job_id, number, json=json)
            return
        found = read_session(context, snapshot, item, job_id, number)
    rows = list(work_models.session_rows(found.events, texts=True))
    if json:
        document = {"item": item, "job_id": job_id, "attempt": number, "ended": found.has_ended}
        screen.emit({**document, "events": [row.model_dump(mode="json") for row in rows]})
        return
    screen.note(f"{item}, attempt {number}, job {job_id}")
    for row in rows:
        work_screen.print_event(row)
    if not found.has_ended:
        screen.note("the agent still works: --follow")


def _follow(
    context: LoopContext,
    snapshot: LoopSnapshot,
    item: str,
    job_id: str,
    attempt: int,
    *,
    json: bool,
) -> None:
    follower = SessionFollower(
        context=context, snapshot=snapshot, item=item, job_id=job_id, attempt=attempt
    )
    while True:
        for row in work_models.session_rows(follower.poll(), texts=True):
            if json:
                screen.emit(row.model_dump(mode="json"), indent=None)
            else:
                work_screen.print_event(row)
        if follower.has_ended:
            return
        time.sleep(_POLL)
