"""The files of a running item: what it changed without declaring it, and what it has lost."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from mulligan.policies.coordination.locks import FileLock, find_conflict
from mulligan.policies.jobs.job import Output
from mulligan.policies.loops.spec import MOST_FILES
from mulligan.policies.path_patterns import LONGEST_PATTERN, matches
from mulligan.tasks.jobs.context import AttemptContext
from mulligan.tasks.ports.errors import BadInput, RepositoryUnavailable
from mulligan.tasks.ports.ledger import Claim, LoopReading

log = logging.getLogger(__name__)
_NAMED = 5


def declare_changes(context: AttemptContext, claim: Claim, output: Output) -> None:
    """Declare the files that an item changed although it declares others only.

    It goes on. Who wants to begin with these files waits from now on; who has them goes on, and
    what is merged later is verified together with what was merged before.
    """
    space = claim.job.workspace
    if space is None or space.git is None or space.branch is None or output.commit is None:
        return
    loop, item = claim.job.labels["loop"], claim.job.labels["item"]
    reading = context.ledger.read_loop(loop)
    spec = reading.snapshot.spec(item) if reading is not None else None
    if reading is None or spec is None or not spec.touches or output.base is None:
        return
    snapshot = reading.snapshot
    files = snapshot.files(spec)
    try:
        changed = context.repository(space.git).changes(output.base, output.commit)
    except (BadInput, RepositoryUnavailable) as error:
        log.warning("What %s/%s changed is looked at when it is merged: %s", loop, item, error)
        return
    found = [*_undeclared(files, (each.path for each in changed))]
    new = found[: MOST_FILES - len(files)]
    if not new:
        return
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    names = ", ".join(each.removeprefix("/") for each in found[:_NAMED])
    declares = "that" if len(new) == len(found) else f"{len(new)} of them"
    context.ledger.declare_files(
        FileLock(
            job_id=claim.job_id,
            loop=loop,
            item=item,
            space=snapshot.loop.space,
            files=(*files, *new),
            since=context.ledger.now(),
        ),
        seen=(*snapshot.seen_files.get(item, ()), *new),
        new=new,
        text=f"it changed {names}{more}, which it did not declare:"
        f" it declares {declares} from now on",
    )


def _undeclared(files: Iterable[str], changed: Iterable[str]) -> Iterable[str]:
    """Yield the files that no pattern matches, as patterns from the top of the repository."""
    known = list(files)
    for path in changed:
        # A name with a wildcard would be a pattern that matches other files, too.
        is_plain = not {"*", "?"} & set(path) and len(path) < LONGEST_PATTERN
        if is_plain and not matches(known, path):
            yield f"/{path}"


def lock_token(reading: LoopReading | None, claim: Claim) -> str:
    """Return the token of the files that an item has; empty if it has none."""
    locks = reading.fleet.locks if reading is not None else ()
    return next((each.token for each in locks if each.job_id == claim.job_id), "")


def lost_files(reading: LoopReading | None, claim: Claim, token: str) -> str:
    """Return why an item may not be merged now: others have got its files. Empty if it may.

    ``token``: of the files that it had when its merge began.
    """
    return "" if lock_token(reading, claim) == token else taken_files(reading, claim)


def taken_files(reading: LoopReading | None, claim: Claim) -> str:
    """Return which of an item's files others have, in words; empty if they have none."""
    spec = reading.snapshot.spec(claim.job.labels["item"]) if reading is not None else None
    if reading is None or spec is None:
        return ""
    snapshot, locks = reading.snapshot, reading.fleet.locks
    found = find_conflict(snapshot.loop.space, snapshot.files(spec), locks, job_id=claim.job_id)
    return f"{found.lock.name} changes {found} now" if found else ""
