"""`mulligan loops export`, and the import of what it wrote."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Annotated

import typer

from mulligan.console.cli.loops.loop_options import Name, open_loops, requester
from mulligan.console.cli.options import By, Json
from mulligan.console.cli.output import screen
from mulligan.policies.figures.format import counted
from mulligan.tasks.loops import transfer, view
from mulligan.tasks.loops.context import LoopContext
from mulligan.tasks.loops.transfer import Destination
from mulligan.tasks.ports.errors import BadInput
from mulligan.tasks.ports.ledger import LoopExport, Requester
from mulligan.workers.loops.loop_archive import load_loop, save_loop
from mulligan.workers.settings.model import load_settings

_SECONDS = 1.0


def export_loop(
    name: Name,
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="FILE", help="File to write. [LOOP.tar.gz]"),
    ] = None,
    pause: Annotated[
        bool, typer.Option("--pause", help="Pause it, and wait until running attempts end.")
    ] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave it as it is: a copy, not a move.")
    ] = False,
    by: By = None,
    json: Json = False,
) -> None:
    """Write a loop with its state to a file, to move it.

    Nothing of it may run. Without --keep the loop is stopped here then.
    """
    file = output or Path(f"{name}.tar.gz")
    if file.exists():
        raise BadInput(f"{file} exists: name another file with --output")
    who = requester(by)
    with open_loops() as context:
        if pause:
            _wait(context, name, who)
        export = _write(context, name, file)
        if not keep:
            transfer.leave(context, export, file.name[:100], who)
    jobs = len(export.records["jobs"])
    if json:
        document = {"loop": name, "file": str(file), "bytes": file.stat().st_size}
        screen.emit({**document, "jobs": jobs, "left": not keep})
        return
    screen.say(f"{file}: {name} with {counted(jobs, 'job')}, {file.stat().st_size:,} bytes")
    if not keep:
        screen.say(f"{name} was stopped here; to go on elsewhere: `mulligan loops import {file}`")


def _wait(context: LoopContext, name: str, who: Requester) -> None:
    said: list[str] = []

    def tell(busy: Sequence[str]) -> None:
        if said != (now := [*busy]):
            said[:] = now
            screen.note(f"waiting: {', '.join(now[:5])}{', …' if len(now) > 5 else ''}")

    transfer.wait_until_quiet(
        context, name, who, on_progress=tell, pause=lambda: time.sleep(_SECONDS)
    )


def _write(context: LoopContext, name: str, file: Path) -> LoopExport:
    """Write the whole file or none."""
    try:
        with NamedTemporaryFile(dir=file.parent, prefix=f".{file.name}.", delete=False) as into:
            partial = Path(into.name)
            try:
                export = save_loop(context, name, into)
                into.flush()
                os.fsync(into.fileno())
            except BaseException:
                partial.unlink(missing_ok=True)
                raise
        partial.rename(file)
    except OSError as error:
        raise BadInput(f"{file} cannot be written: {error.strerror}") from error
    return export


def import_archive(file: Path, to: Destination, who: Requester, *, start: bool, json: bool) -> None:
    """Write an exported loop into the ledger, and let it go on."""
    with open_loops() as context, file.open("rb") as source:
        cap = load_settings().workspace_cap
        name, written = load_loop(context, source, to, who, blob_cap=cap)
        if start:
            transfer.go_on(context, name, written, who)
        loop = view.view_loop(context, name).snapshot.loop
    state = loop.state
    seen = written.status == "seen"
    if json:
        screen.emit({"loop": name, "state": state, "imported": not seen})
        return
    screen.say(f"{name} {'is here already' if seen else 'was imported'}; it is {state}")
    if verb := {"paused": "resume", "created": "start", "stopped": "start"}.get(state):
        # One that was here before may have moved away: two places must not go on with it.
        has_moved = seen and loop.has_moved
        more = " --despite-move`, unless it goes on elsewhere" if has_moved else "`"
        screen.say(f"to go on: `mulligan loops {verb} {name}{more}")
