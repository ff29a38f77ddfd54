"""Warn about waits for loops, items and events that are not there."""

from __future__ import annotations

from collections.abc import Sequence

from mulligan.console.cli.exit_codes import NoBroker
from mulligan.console.cli.open_ledgers import open_located_ledger
from mulligan.console.cli.output import screen
from mulligan.policies.loops.spec import ItemSpec
from mulligan.tasks.coordination.find_unknown_waits import find_unknown_waits
from mulligan.tasks.loops.spec_check import SpecFinding
from mulligan.tasks.ports.errors import LedgerUnavailable
from mulligan.workers.settings.model import Settings


def look_up_waits(settings: Settings, items: Sequence[ItemSpec]) -> list[SpecFinding]:
    """Return a warning for each wait for what is not there, if a ledger tells what is."""
    if not any(each.outer_waits for each in items):
        return []
    try:
        with open_located_ledger(settings) as ledger:
            return find_unknown_waits(ledger, items, tenant="")
    except (NoBroker, LedgerUnavailable):
        screen.note("no ledger tells whether there is what items wait for in other loops")
        return []
