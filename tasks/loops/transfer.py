"""Transfer: export a loop with its state from one installation, and import it into another.

The archive is no authority. What a loop may do follows from the rules of the new place, as for one
that is created there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import IO, Any

from pydantic import ValidationError

from mulligan.policies.coordination.locks import lock_space
from mulligan.policies.jobs.job import Job
from mulligan.policies.loops.commands import move_loop
from mulligan.policies.loops.loop import MOVED, LoopChange
from mulligan.policies.loops.spec import ItemSpec, LoopConfig, LoopDocument, item_job
from mulligan.policies.problem import Problem
from mulligan.tasks.jobs.validation_errors import problems_of
from mulligan.tasks.loops.caps import current_caps
from mulligan.tasks.loops.change import (
    LoopConflict,
    check_loop,
    move,
    no_such_loop,
    repository_identity,
    repository_problems,
)
from mulligan.tasks.loops.context import LoopContext
from mulligan.tasks.ports.errors import (
    BadInput,
    LedgerUnavailable,
    MissingBlob,
    RepositoryUnavailable,
    refuse,
)
from mulligan.tasks.ports.ledger import (
    ArrivingJob,
    LoopArrival,
    LoopExport,
    LoopReading,
    LoopWrite,
    Requester,
    Written,
)

#: Tries of an import whose records expired while it was made.
_TRIES = 2


@dataclass(frozen=True, kw_only=True)
class LoopArchive:
    """A loop outside of any ledger."""

    records: Mapping[str, Any]
    #: The references of its repository, and the objects that they need.
    refs: Mapping[str, str] = field(default_factory=dict)
    pack: IO[bytes] | None = None
    #: The stored workspaces and differences, by their addresses.
    blobs: Mapping[str, Callable[[], bytes]] = field(default_factory=dict)


# -- export ----------------------------------------------------------------------------------------


def export_loop(
    context: LoopContext,
    name: str,
    pack: IO[bytes],
    *,
    tenant: str | None = None,
    owner: str | None = None,
) -> tuple[LoopExport, LoopArchive]:
    """Read a loop in which nothing runs. Raises LoopConflict if something does.

    ``pack``: a file for the objects of its repository. ``tenant``, ``owner``: whose loops the
    caller sees; None for all.
    """
    found = context.ledger.export_loop(name)
    if found is None or not found.reading.snapshot.loop.is_of(tenant, owner):
        raise no_such_loop(context, name, tenant, owner)
    if found.busy:
        what = ", ".join(dict.fromkeys(found.busy))
        raise LoopConflict(f"the loop {name!r} cannot be exported now: {what}: pause it and wait")
    config = found.reading.snapshot.config
    refs: Mapping[str, str] = {}
    if config.repo is not None:
        repository = context.repository(config.repo)
        refs = repository.export_work(config.name, config.target, config.base, pack)
        pack.seek(0)
    return found, LoopArchive(
        records=found.records,
        refs=refs,
        pack=pack if refs else None,
        blobs={address: _reader(context, address) for address in _kept_blobs(context, found)},
    )


def _kept_blobs(context: LoopContext, export: LoopExport) -> Iterator[str]:
    """Yield the addresses of what is still stored."""
    if context.blobs is None:
        return
    for address in addresses(export.records):
        try:
            context.blobs.keep(address)
            context.blobs.get(address)
        except MissingBlob:
            continue
        yield address


def addresses(records: Mapping[str, Any]) -> list[str]:
    """Return the addresses of the workspaces and differences that a loop names, each once."""
    found = [
        records["config"].get("workspace"),
        *(each.get("workspace") for each in records["spec"]),
    ]
    names = [space.get("snapshot") for space in found if space]
    for job in records["jobs"]:
        names.append((json.loads(job["body"]).get("workspace") or {}).get("snapshot"))
        for attempt in job["attempts"]:
            if "output" in attempt:
                names.append(json.loads(attempt["output"]).get("diff"))
    return list(dict.fromkeys(name for name in names if name))


def _reader(context: LoopContext, address: str) -> Callable[[], bytes]:
    blobs = context.blobs
    assert blobs is not None  # noqa: S101 - only asked for what is stored
    return lambda: blobs.get(address)


def wait_until_quiet(
    context: LoopContext,
    name: str,
    caller: Requester,
    *,
    on_progress: Callable[[Sequence[str]], None],
    pause: Callable[[], None],
) -> None:
    """Pause a loop and wait until nothing of it runs."""
    if _reading(context, name).snapshot.loop.state in ("running", "waiting", "blocked"):
        move(context, name, "pause", caller)
    while busy := _busy(context, name):
        on_progress([*dict.fromkeys(busy)])
        pause()


def _busy(context: LoopContext, name: str) -> Sequence[str]:
    """Return what runs. All records are read only if no worker has an item."""
    live = [each for each in _reading(context, name).fleet.live if each.loop == name and each.held]
    if live:
        return [f"{each.item} runs" for each in live]
    found = context.ledger.export_loop(name)
    return () if found is None else found.busy


def _reading(context: LoopContext, name: str) -> LoopReading:
    reading = context.ledger.read_loop(name)
    if reading is None:
        raise no_such_loop(context, name)
    return reading


def leave(context: LoopContext, export: LoopExport, to: str, caller: Requester) -> None:
    """Stop a loop that was exported, because it goes on elsewhere.

    Raises LoopConflict if it has changed since: then the archive is not what it is now.
    """
    snapshot, now = export.reading.snapshot, context.ledger.now()
    change = move_loop(snapshot, "stop", now=now)
    # A move that leads nowhere is empty: it was stopped before.
    moved = replace(
        change if change.state else LoopChange(state="stopped"),
        reason=f"{MOVED}{to}",
        note=f"{MOVED}{to}",
    )
    written = context.ledger.write_loop(
        LoopWrite(reading=export.reading, change=moved, caller=caller)
    )
    if not isinstance(written, Written):
        raise LoopConflict(
            f"the loop {snapshot.loop.name!r} was changed after it was exported: export it again"
        )
    context.publish(written.publish)
    context.step("loop_left", snapshot.loop.name)
    _end_escalations(context, export, caller, moved.note)


def _end_escalations(
    context: LoopContext, export: LoopExport, caller: Requester, note: str
) -> None:
    """End what is open: it goes on there, too."""
    for job in export.records["jobs"]:
        for each in job["escalations"]:
            context.ledger.end_escalation(each["id"], how="resolved", by=caller.by, note=note)


# -- import ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Destination:
    """Whose loop it becomes, and where it works."""

    name: str | None = None
    repo: str | None = None
    tenant: str = ""
    owner: str = ""


def import_loop(
    context: LoopContext,
    archive: LoopArchive,
    to: Destination,
    caller: Requester,
    *,
    tenant: str | None = None,
    owner: str | None = None,
) -> tuple[str, Written]:
    """Write a loop of another installation; return its name. Nothing of it runs before its start.

    Raises BadInput with every problem, or LoopConflict. The repository comes first, then the stored
    files, the ledger last and in one step: a loop that is there is whole. ``tenant``, ``owner``:
    whose loops the caller sees; None for all. Of another one it only learns that it is in the way.
    """
    arrival = _as_here(context, context.ledger.read_arrival(archive.records), to)
    config = arrival.config
    _refuse_problems(context, archive, arrival)
    reading = context.ledger.read_loop(config.name)
    if reading is not None:
        known = reading.snapshot.loop
        if known.uid != archive.records["uid"] or not known.is_of(tenant, owner):
            raise _in_use(config.name)
        if to.repo is not None and config.repo != known.config.repo:
            message = f"the loop is here already, and works in {known.config.repo}: leave it out"
            raise LoopConflict.at("repo", message, "not_allowed")
        return config.name, Written(status="seen")
    refuse(problem.below("loop") for problem in repository_problems(context, config))
    space = lock_space(repository_identity(context, config), to.tenant)
    arrival = replace(arrival, space=space)
    _bring_work(context, archive, config)
    context.step("work_imported", config.name)
    for address, read in archive.blobs.items():
        if context.blobs is not None and context.blobs.put(read()) != address:
            raise BadInput(f"the archive cannot be read: {address} has another content")
    context.step("blobs_imported", config.name)
    return config.name, _write(context, arrival, to, caller, (tenant, owner))


def _as_here(context: LoopContext, arrival: LoopArrival, to: Destination) -> LoopArrival:
    """Return a loop with its name, repository and owner in this place."""
    changes = {"name": to.name, "repo": to.repo}
    given = {name: value for name, value in changes.items() if value is not None}
    old = arrival.config
    if to.repo is not None and old.repo is None:
        raise BadInput.at("repo", "the loop works in no repository: leave it out")
    if to.name not in (None, old.name) and old.repo is not None:
        message = f"the commits of the loop name it {old.name!r}: it keeps its name"
        raise BadInput.at("name", message, "not_allowed")
    config = _revalidated(old, given)
    specs = {spec.id: spec for spec in arrival.specs}
    labels = {context.tenant_label: to.tenant} if to.tenant else {}
    jobs = tuple(
        replace(
            each,
            job=_job_here(config, specs[each.item], each, labels),
            owner=to.owner or None,
        )
        for each in arrival.jobs
    )
    return replace(arrival, config=config, jobs=jobs)


def _revalidated(config: LoopConfig, changes: dict[str, Any]) -> LoopConfig:
    try:
        return LoopConfig.model_validate({**config.model_dump(exclude_unset=True), **changes})
    except ValidationError as error:
        raise BadInput(*problems_of(error, LoopConfig)) from None


def _job_here(
    config: LoopConfig, item: ItemSpec, arriving: ArrivingJob, labels: dict[str, str]
) -> Job:
    """Return an item's job with the limits and the runner with which it began.

    Its verifiers and its workspace are those of the item, which is checked like a new one.
    """
    old = arriving.job
    job = item_job(config, item, labels=labels, runner=old.runner)
    return job.model_copy(update={"prompt": old.prompt, "policy": old.policy, "budget": old.budget})


def _refuse_problems(context: LoopContext, archive: LoopArchive, arrival: LoopArrival) -> None:
    """Raise BadInput with every problem of what a loop would do here."""
    document = LoopDocument(loop=arrival.config, items=tuple(arrival.specs))
    places = {spec.id: index for index, spec in enumerate(arrival.specs)}
    found = [*check_loop(context, document)]
    known = {(problem.path, problem.message) for problem in found}
    for each in arrival.jobs:
        for problem in context.intake.problems(each.job):
            below = problem.below("items", places[each.item])
            if (below.path, below.message) not in known:
                known.add((below.path, below.message))
                found.append(below)
    for address in sorted(_needed(arrival) - archive.blobs.keys()):
        found.append(Problem(f"the stored workspace {address} is not in the archive"))
    refuse(found)


def _needed(arrival: LoopArrival) -> set[str]:
    spaces = [arrival.config.workspace, *(spec.workspace for spec in arrival.specs)]
    return {each.snapshot for each in spaces if each is not None and each.snapshot is not None}


def _bring_work(context: LoopContext, archive: LoopArchive, config: LoopConfig) -> None:
    if config.repo is None:
        if archive.refs:
            raise BadInput("the archive has references, but the loop works in no repository")
        return
    repository = context.repository(config.repo)
    try:
        repository.import_work(config.name, config.target, config.base, archive.refs, archive.pack)
    except RepositoryUnavailable as error:
        raise BadInput.at("loop.repo", str(error)) from error


def _write(
    context: LoopContext,
    arrival: LoopArrival,
    to: Destination,
    caller: Requester,
    sees: tuple[str | None, str | None],
) -> Written:
    caps = current_caps(context, arrival.config, arrival.specs)
    name = arrival.config.name
    for _ in range(_TRIES):
        answer = context.ledger.import_loop(
            arrival, caps=caps, tenant=to.tenant, by=caller.by, owner=to.owner
        )
        if isinstance(answer, Written):
            context.publish(answer.publish)
            return answer
        here = [each for each in context.ledger.loops() if each.uid == arrival.records["uid"]]
        if answer == "conflict" or (
            answer == "elsewhere" and not any(e.is_of(*sees) for e in here)
        ):
            raise _in_use(name)
        if answer == "full":
            raise LoopConflict("there are too many loops: delete some that have ended")
        if answer == "events":
            raise LoopConflict("you gave off too many events that are kept: withdraw some of them")
        if answer == "elsewhere":
            raise LoopConflict("this loop is here already, under another name")
        if answer == "held":
            raise LoopConflict(f"a worker still runs what the loop {name!r} left here: try again")
    raise LedgerUnavailable("importing took too long; try again")


def _in_use(name: str) -> LoopConflict:
    message = (
        f"{name!r} is the name of another loop, or another loop has its jobs: choose another name,"
        " or delete that loop first"
    )
    return LoopConflict.at("name", message, "key_in_use")


def go_on(context: LoopContext, name: str, written: Written, caller: Requester) -> None:
    """Start or resume a loop that was imported. One that has ended or runs stays as it is."""
    state = _reading(context, name).snapshot.loop.state
    if state in ("created", "stopped"):
        # One that was here before may have moved away. What a new one says of moves is of before.
        move(context, name, "start", caller, despite_move=written.status == "written")
    elif state == "paused":
        move(context, name, "resume", caller)
