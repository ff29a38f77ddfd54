"""Loops and their items as people see them on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from mulligan.console.cli.output import screen
from mulligan.console.http.models.loop_models import (
    ItemRow,
    TranscriptRow,
    budget_rows,
    repo_of,
)
from mulligan.console.http.models.work_models import pending_rollback
from mulligan.policies.coordination.locks import plain_pattern
from mulligan.policies.coordination.outer_waits import wait_name
from mulligan.policies.figures.format import duration, money, number, score, words
from mulligan.policies.loops.loop import LoopRecord, ShownState
from mulligan.policies.loops.why import Reason
from mulligan.tasks.loops.registry import LoopSummary
from mulligan.tasks.loops.view import ItemView, LoopView

STYLES = {
    "running": "cyan",
    "passed": "green",
    "completed": "green",
    "failed": "red",
    "quarantined": "red",
    "blocked": "yellow",
    "paused": "yellow",
    "waiting": "yellow",
    "skipped": "dim",
    "pending": "dim",
    "stopped": "dim",
}


#: How the states of items are listed.
_ORDER: tuple[ShownState, ...] = (
    "passed",
    "running",
    "waiting",
    "ready",
    "pending",
    "blocked",
    "failed",
    "quarantined",
    "skipped",
)


#: The states of items that wait for something.
_BEFORE_RUNNING: tuple[ShownState, ...] = ("running", "waiting", "ready")


def new_table(*columns: str, right: Sequence[str] = ()) -> Table:
    """Return a table without lines. Only reasons and descriptions are wrapped."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in columns:
        table.add_column(
            name,
            no_wrap=name not in ("reason", "about"),
            justify="right" if name in right else "left",
        )
    return table


def _state(state: str) -> Text:
    return Text(state, style=STYLES.get(state, ""))


def print_loops(loops: Sequence[LoopSummary]) -> None:
    table = new_table("loop", "state", "passed", "priority", "running", "reason", right=("passed",))
    for each in loops:
        table.add_row(
            each.loop.name,
            _state(each.loop.state),
            f"{each.counts.get('passed', 0)}/{len(each.items)}",
            str(each.loop.config.priority),
            ", ".join(each.running[:3]) + (" …" if len(each.running) > 3 else ""),
            each.loop.reason or _not_delivered(each.loop) or _not_running(each),
        )
    screen.out().print(table)


def _not_delivered(loop: LoopRecord) -> str:
    is_over = loop.state == "completed" and loop.delivery_problem
    return f"not delivered: {loop.delivery_problem}" if is_over else ""


def _not_running(summary: LoopSummary) -> str:
    """Say in short what a loop does of which no item runs; `why` says more."""
    if summary.loop.state != "running" or summary.running:
        return ""
    counts = summary.counts
    found = [f"{counts[state]} {state}" for state in _BEFORE_RUNNING if state in counts]
    return ", ".join(found)


def print_loop(view: LoopView, why: Reason, now: float) -> None:
    loop = view.snapshot.loop
    config = loop.config
    screen.out().print(Text(loop.name, style="bold"), _state(loop.state), Text(loop.reason))
    found = view.summary.counts
    counts = [f"{found[state]} {state}" for state in _ORDER if state in found]
    screen.say(f"  items     {', '.join(counts)}")
    live = view.fleet_state.live_of_loop
    screen.say(
        f"  slots     {live} of {config.concurrency}; all loops {view.fleet_state.live}"
        f" of {view.slots}; priority {config.priority}, weight {config.weight:g}"
    )
    for each in view.holders:
        held = duration(now - each.claimed_at) if each.claimed_at else "?"
        screen.say(f"  runs      {each.item}, attempt {each.attempt}, on {each.worker} for {held}")
    for row in budget_rows(view):
        amount = money if row.resource == "money" else number
        limit = f" of {amount(row.limit)}" if row.limit is not None else ""
        reserved = f", {amount(row.reserved)} reserved" if row.reserved else ""
        unknown = f", {row.unknown} unknown" if row.unknown else ""
        screen.say(
            f"  budget    {row.scope} {row.resource}: {amount(row.used)}{limit}{reserved}{unknown}"
        )
    if config.repo is not None:
        _print_repository(loop, now)
    print_why(why)


def _print_repository(loop: LoopRecord, now: float) -> None:
    screen.say(f"  repo      {repo_of(loop.config)}, branch {loop.config.target}")
    screen.say(f"  merges    up to {loop.merge_window} at once")
    pending = pending_rollback(loop)
    if pending is not None:
        what = f"of {pending.item}" if pending.item else f"to {(pending.to or '')[:10]}"
        ago = duration(now - pending.at)
        screen.say(f"  rollback  {what}, requested {ago} ago by {pending.by}, not made yet")
    if loop.delivery_problem:
        screen.say(f"  delivery  {loop.delivery_problem}", style="yellow")
    elif loop.delivered:
        screen.say(f"  delivery  {loop.delivered[:10]} was delivered")


def print_why(why: Reason) -> None:
    screen.say(f"  why       {why.text}")
    if why.detail:
        screen.say(f"            {why.detail}")
    if why.command and why.cause not in ("runs", "done"):
        screen.say(f"  do        {why.command}")


def print_items(items: Sequence[ItemRow], now: float) -> None:
    table = new_table("item", "state", "for", "runs", "after", "about", right=("runs",))
    for each in items:
        table.add_row(
            each.id,
            _state(each.state),
            duration(now - each.since),
            str(each.runs),
            " ".join(each.depends_on),
            each.reason or each.title,
        )
    screen.out().print(table)


def print_item(view: ItemView) -> None:
    spec = view.spec
    screen.out().print(Text(spec.id, style="bold"), _state(view.state), Text(spec.title))
    _print_coordination(view)
    for criterion in spec.pass_criteria:
        screen.say(f"  passes if {criterion}")
    for attempt in view.job.attempts if view.job else ():
        failure = attempt.verdict.failure if attempt.verdict else None
        found = f"score {score(attempt.score)}"
        if failure is not None:
            found += f": {failure.message}"
        elif attempt.score is None and view.job and view.job.detail:
            found = view.job.detail  # it ended before anybody worked
        screen.say(f"  attempt   {attempt.plan.number} {words(attempt.plan.mode)}, {found}")
        if attempt.output is not None and attempt.output.ended:
            screen.say(f"            its session broke off: {attempt.output.ended}")
    if view.job is not None:
        screen.say(f"  job       {view.job.id} (`mulligan jobs show {view.job.id}`)")
    print_why(view.why)


def _print_coordination(view: ItemView) -> None:
    lists: dict[str, Sequence[str]] = {
        "after": view.spec.depends_on,
        "waits for": view.spec.waits_for,
        "emits": view.spec.emits,
        "touches": view.spec.touches,
        "changed": [plain_pattern(each) for each in view.seen_files],
    }
    for name, names in lists.items():
        if names:
            screen.say(f"  {name:9} {', '.join(names)}")
    if view.files_held_by:
        screen.say(f"  files     {view.files_held_by} has them")
    if view.orders.said:
        given = ", ".join(f"{each.word} by {each.by}" for each in view.orders.said)
        screen.say(f"  orders    {given}")
    if view.orders.broken:
        waits = ", ".join(map(wait_name, view.orders.broken))
        screen.say(f"  deadlock  it does not wait for {waits} any more")


def print_transcript(row: TranscriptRow) -> None:
    outcome = "no verdict" if row.success is None else "passed" if row.success else row.failure
    title = f"{row.item} run {row.run} attempt {row.attempt} ({words(row.mode)}): {outcome}"
    screen.say(title, style="bold")
    screen.say(row.prompt, style="dim")
    screen.say(row.answer or "(no answer)")
    screen.say()
