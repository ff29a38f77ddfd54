"""Loops that move from one installation to another in one process."""

from __future__ import annotations

import io
from typing import Any

from mulligan.tasks.loops.context import LoopContext
from mulligan.tasks.loops.transfer import Destination, leave
from mulligan.tasks.ports.ledger import Requester
from mulligan.workers.loops.loop_archive import load_loop, save_loop

EVE = Requester(by="eve")
BLOB_CAP = 1_000_000


def exported(context: LoopContext, name: str, *, keep: bool = True) -> bytes:
    """Return the archive of a loop. ``keep``: it may go on here."""
    into = io.BytesIO()
    export = save_loop(context, name, into)
    if not keep:
        leave(context, export, "elsewhere", EVE)
    return into.getvalue()


def imported(context: LoopContext, archive: bytes, **destination: Any) -> str:
    """Import a loop; return `written` or `seen`."""
    _, written = load_loop(
        context, io.BytesIO(archive), Destination(**destination), EVE, blob_cap=BLOB_CAP
    )
    return written.status
