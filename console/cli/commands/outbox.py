"""`mulligan outbox`: entries that could not be sent or read, and what becomes of them."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from mulligan.console.cli.confirmation import confirm
from mulligan.console.cli.end_escalations import who
from mulligan.console.cli.exit_codes import ExitCode
from mulligan.console.cli.open_ledgers import open_located_ledger
from mulligan.console.cli.options import By, Json, Yes
from mulligan.console.cli.output import screen
from mulligan.policies.figures.format import counted, minute
from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.settings.model import load_settings

Ids = Annotated[list[str] | None, typer.Argument(metavar="ID…", help="Ids of quarantined entries.")]
All = Annotated[bool, typer.Option("--all", help="All quarantined entries.")]
_NONE = "no entries are quarantined"


def list_entries(
    limit: Annotated[int, typer.Option(help="Maximum rows.", min=1, max=10_000)] = 50,
    json: Json = False,
) -> None:
    """List quarantined entries, newest first."""
    with open_located_ledger(load_settings()) as ledger:
        total = ledger.quarantine.count()
        found = ledger.quarantine.entries(limit=limit)
    if json:
        screen.emit({"total": total, "entries": [each.as_dict() for each in found]})
        return
    for each in found:
        where = f" to {each.queue}" if each.queue else ""
        screen.say(f"{each.id}{where}  {each.reason}  {minute(each.at)}  failures: {each.failures}")
        screen.say(f"  {' '.join(each.error.split())}")
    if total > len(found):
        screen.say(f"and {total - len(found):,} more")
    if not total:
        screen.say(_NONE)


def retry(ids: Ids = None, all_: All = False, by: By = None, json: Json = False) -> None:
    """Send quarantined entries again.

    Their jobs go on where they stopped, and their escalations end as requeued.
    """
    _check(ids, all_)
    with open_located_ledger(load_settings()) as ledger:
        done = ledger.quarantine.retry(ids, by=by or who())
    _tell(done, ids, json, "to be sent again by the next sweep")


def drop(
    ids: Ids = None, all_: All = False, yes: Yes = False, by: By = None, json: Json = False
) -> None:
    """Drop quarantined entries and resolve their escalations.

    What they stood for is not done any more: the jobs stay as they are.
    """
    _check(ids, all_)
    with open_located_ledger(load_settings()) as ledger:
        found = ledger.quarantine.count(ids)
        if found and not yes:
            hint = "; `mulligan outbox list` shows them"
            confirm(f"drop {counted(found, 'entry', 'entries')}", hint=hint)
        done = ledger.quarantine.drop(ids, by=by or who())
    _tell(done, ids, json, "dropped")


def _check(ids: list[str] | None, all_: bool) -> None:
    if bool(ids) == all_:
        raise BadInput("pass the IDs of entries, or --all; see `mulligan outbox list`")


def _tell(done: list[str], asked: list[str] | None, json: bool, what: str) -> None:
    missing = [each for each in asked or [] if each not in done]
    if json:
        document: dict[str, Any] = {"entries": done, "not_changed": missing}
        screen.emit(document)
    elif not done and not asked:
        screen.say(_NONE)
    else:
        screen.say(f"{counted(len(done), 'entry', 'entries')} {what}")
        for each in missing:
            screen.say(f"not changed: {each} (not quarantined, or there is nothing left to send)")
    if missing:
        raise typer.Exit(int(ExitCode.SOME_FAILED))
