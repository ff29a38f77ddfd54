"""Change: create loops, move them between their states, and change, reset, skip and add items."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from mulligan.policies.coordination.locks import lock_space
from mulligan.policies.jobs.job import Job, RunnerSpec, Workspace
from mulligan.policies.loops.commands import (
    NotPossible,
    Verb,
    add_items,
    configure_loop,
    move_loop,
    own_jobs,
    reset_item,
    skip_item,
)
from mulligan.policies.loops.loop import LoopChange, LoopSnapshot
from mulligan.policies.loops.spec import (
    PLAIN_LINE,
    ItemSpec,
    ItemVerifier,
    LoopConfig,
    LoopDocument,
    branch_clashes,
    item_job,
    item_problems,
    item_set_problems,
    own_verifiers,
    spec_path,
)
from mulligan.policies.problem import Problem, distinct, first_problems
from mulligan.policies.suggestions import did_you_mean
from mulligan.tasks.jobs.merge import find_merge
from mulligan.tasks.jobs.validation_errors import problems_of
from mulligan.tasks.loops.caps import current_caps
from mulligan.tasks.loops.context import LoopContext
from mulligan.tasks.ports.errors import (
    BadInput,
    LedgerUnavailable,
    RepositoryUnavailable,
    refuse,
)
from mulligan.tasks.ports.ledger import LoopReading, LoopWrite, Requester, Written
from mulligan.tasks.ports.repositories import Repository

log = logging.getLogger(__name__)

_LONGEST_REASON = 200
#: Tries of one change while others write.
_TRIES = 20
#: Of the configuration, what may change while a loop exists.
CHANGEABLE = frozenset(
    {"priority", "weight", "concurrency", "max_attempts", "auto_heal", "on_blocked", "budget",
     "runner", "escalate_to", "regressions"}
)  # fmt: skip


class NoSuchLoop(BadInput):
    """There is no loop of this name, or the caller may not see it."""


class LoopConflict(BadInput):
    """The loop's state, its name or an idempotency key does not allow the change."""


def check_loop(context: LoopContext, document: LoopDocument) -> list[Problem]:
    """Return every problem of a loop that is well-formed."""
    config = document.loop
    return [
        *(problem.below("loop") for problem in _workspace_problems(context, document)),
        *(problem.below("loop") for problem in context.check_config(config)),
        *(problem.below("loop") for problem in _stronger_problems(context, config, document.items)),
        *(problem.below("items") for problem in item_set_problems(document.items)),
        *(
            problem.below("items", index)
            for index, item in enumerate(document.items)
            for problem in check_item(context, config, item)
        ),
    ]


def _workspace_problems(context: LoopContext, document: LoopDocument) -> list[Problem]:
    """Check the loop's own workspace, which is stored even if every item has another one."""
    config, first = document.loop, document.items[0]
    if config.workspace is None or any(item.workspace is None for item in document.items):
        return []
    found = check_item(context, config, first.model_copy(update={"workspace": None}))
    return [problem for problem in found if problem.path[:1] == ("workspace",)]


def _stronger_problems(
    context: LoopContext, config: LoopConfig, items: Sequence[ItemSpec]
) -> Iterator[Problem]:
    """Check the runners that items are escalated to, as if the first item had them."""
    for index, runner in enumerate(config.escalate_to):
        for problem in check_item(context, config, items[0].model_copy(update={"runner": runner})):
            if problem.path[:1] == ("runner",):
                yield replace(problem, path=("escalate_to", index, *problem.path[1:]))


def repository_problems(context: LoopContext, config: LoopConfig) -> list[Problem]:
    """Find whether a loop's repository can be reached, and its branch be written. Contacts it."""
    if config.repo is None:
        return []
    try:
        repository = context.repository(config.repo)
        found = [*branch_problems(repository, config)]
    except BadInput as error:
        return [Problem.at("repo", str(error))]
    except RepositoryUnavailable as error:
        return [Problem.at("repo", f"cannot be reached: {error}")]
    strangers = sorted({*context.worker_hosts()} - {context.host})
    if strangers and context.is_local_path(config.repo):
        message = (
            f"{config.repo} is a path of {context.host}, but workers run on"
            f" {', '.join(strangers[:3])}, too: use a URL that all of them reach, or a name of"
            " [repositories] in each mulligan.toml"
        )
        found.append(Problem.at("repo", message))
    shared = distinct(_shared_branches(context, config, repository))
    places = {problem.path for problem in shared}
    return [*(problem for problem in found if problem.path not in places), *shared]


def _shared_branches(
    context: LoopContext, config: LoopConfig, repository: Repository
) -> Iterator[Problem]:
    """Find branches that another loop writes: a rollback of one would undo the work of the other.

    Several loops may be delivered to one branch.
    """
    for each in context.ledger.loops():
        repo, clashes = each.config.repo, [*branch_clashes(config, each.config)]
        if repo is None or each.name == config.name or not clashes:
            continue
        with suppress(BadInput):  # its repository is not there any more
            if repo == config.repo or context.repository(repo).identity == repository.identity:
                yield from clashes


def branch_problems(repository: Repository, config: LoopConfig) -> Iterator[Problem]:
    """Find what is wrong with the branches that a loop names. Raises RepositoryUnavailable."""
    if repository.resolve(config.base) is None:
        lacks = f"has no branch, tag or commit {config.base!r}"
        if config.base == "HEAD":
            lacks = "has no commits: make a first commit, or name its branch as base"
        yield Problem.at("base", f"{config.repo} {lacks}")
    if folder := repository.checked_out(config.target):
        message = (
            f"{config.target} is checked out in {folder}: name another branch, or switch to"
            " another one there"
        )
        yield Problem.at("branch", message)
    elif other := repository.in_the_way(config.target):
        message = (
            f"git cannot have {config.target} beside the branch {other}: name another branch, or"
            " rename that one"
        )
        yield Problem.at("branch", message)
    if config.sync is not None and repository.resolve(config.sync) is None:
        yield Problem.at("sync", f"{config.repo} has no branch {config.sync!r}")
    forward = config.deliver.fast_forward
    if forward == config.target:
        message = f"{forward} is the loop's own branch: name another one, or leave deliver out"
        yield Problem.at("deliver.fast_forward", message)
    elif forward is not None and repository.resolve(f"refs/heads/{forward}") is None:
        message = f"{config.repo} has no branch {forward!r}: make it first, or name another one"
        yield Problem.at("deliver.fast_forward", message)


def check_item(context: LoopContext, config: LoopConfig, item: ItemSpec) -> list[Problem]:
    """Return every reason not to accept an item: those of its job, and a cost that is unknown."""
    if wrong := [*item_problems(config, item)]:
        return wrong
    try:
        job = item_job(config, item)
    except ValueError as error:
        return [Problem.at("runner", str(error), "missing")]
    found = [
        replace(each, path=spec_path(config, each.path)) for each in context.intake.problems(job)
    ]
    return [*found, *_cost_problems(context, config, job.runner)]


def _cost_problems(
    context: LoopContext, config: LoopConfig, runner: RunnerSpec | None
) -> list[Problem]:
    """Refuse to limit money that a runner costs if its price is unknown."""
    budget = config.budget
    scopes = (budget.attempt, budget.item, budget.loop, budget.day)
    if runner is None or all(scope.money is None for scope in scopes):
        return []
    if context.price(runner) is not None:
        return []
    name = runner.profile or runner.kind
    message = f"the budget limits money, but {name} has no price: add it to [prices]"
    return [Problem.at("runner", message, "missing")]


def create_loop(
    context: LoopContext,
    document: LoopDocument,
    *,
    tenant: str = "",
    by: str,
    owner: str = "",
    draft: str = "",
) -> Written:
    """Register a loop. Raises BadInput with every problem, or LoopConflict for a name in use.

    ``owner``: the producer that creates it; ``draft``: the job that drafted it.
    """
    refuse(check_loop(context, document))
    refuse(problem.below("loop") for problem in repository_problems(context, document.loop))
    packed = LoopDocument(
        loop=document.loop.model_copy(
            update={"workspace": _packed(context, document.loop.workspace), "specs": ()}
        ),
        items=tuple(complete_item(context, document.loop, item) for item in document.items),
        states=document.states,
    )
    caps = current_caps(context, packed.loop, packed.items)
    answer = context.ledger.create_loop(
        packed,
        caps=caps,
        tenant=tenant,
        by=by,
        owner=owner,
        draft=draft,
        space=lock_space(repository_identity(context, document.loop), tenant),
    )
    if answer == "conflict":
        message = (
            f"{document.loop.name!r} is the name of another loop: choose another name, or delete"
            " that loop first"
        )
        raise LoopConflict.at("name", message, "key_in_use")
    if answer == "full":
        raise LoopConflict("there are too many loops: delete some that have ended")
    context.publish(answer.publish)
    return answer


def repository_identity(context: LoopContext, config: LoopConfig) -> str | None:
    """Return what tells a loop's repository from others; None if it has none."""
    return None if config.repo is None else context.repository(config.repo).identity


def _packed(context: LoopContext, workspace: Workspace | None) -> Workspace | None:
    if workspace is None or workspace.snapshot is not None:
        return workspace
    return context.intake.snapshot(workspace)


def complete_item(context: LoopContext, config: LoopConfig, item: ItemSpec) -> ItemSpec:
    """Add what an item only names: its workspace's snapshot, the schemas of models."""
    job: Job = context.intake.complete(item_job(config, item))
    verifiers = tuple(
        ItemVerifier.model_validate({**plain.model_dump(exclude_unset=True), "role": own.role})
        for own, plain in zip(item.verifiers, own_verifiers(job), strict=True)
    )
    workspace = _packed(context, item.workspace)
    return item.model_copy(update={"verifiers": verifiers, "workspace": workspace})


def move(
    context: LoopContext, name: str, verb: Verb, caller: Requester, *, despite_move: bool = False
) -> LoopReading:
    """Start, stop, pause or resume a loop. ``despite_move``: see move_loop."""

    def decide(found: LoopSnapshot, now: float) -> LoopChange:
        return move_loop(found, verb, now=now, despite_move=despite_move)

    return change_loop(context, name, caller, decide)


def start_new(context: LoopContext, name: str, caller: Requester) -> None:
    """Start a loop that was created. One that was started before stays as people left it."""
    reading = context.ledger.read_loop(name)
    if reading is not None and reading.snapshot.loop.state == "created":
        move(context, name, "start", caller)


def reset(context: LoopContext, name: str, item: str, caller: Requester) -> LoopReading:
    """Run an item again in a new context. Raises LoopConflict for work that is on the branch."""

    def decide(found: LoopSnapshot, now: float) -> LoopChange:
        return reset_item(found, item, now=now, merged=_is_merged(context, found, item))

    return change_loop(context, name, caller, decide)


def _is_merged(context: LoopContext, snapshot: LoopSnapshot, item: str) -> bool:
    """Whether an item that passed is on the branch, which somebody may have moved since."""
    config = snapshot.config
    if config.repo is None or snapshot.record(item).state != "passed":
        return False
    history = context.repository(config.repo).history(config.target)
    return find_merge(history, f"{config.name}/{item}") is not None


def skip(
    context: LoopContext, name: str, item: str, caller: Requester, *, reason: str = ""
) -> LoopReading:
    """Leave an item out. The reason is one line of at most 200 characters."""
    if len(reason) > _LONGEST_REASON or not re.fullmatch(PLAIN_LINE, reason):
        raise BadInput.at("reason", f"must be one line of at most {_LONGEST_REASON} characters")
    return change_loop(
        context, name, caller, lambda found, now: skip_item(found, item, reason=reason, now=now)
    )


def inject(
    context: LoopContext, name: str, items: Sequence[ItemSpec], caller: Requester
) -> LoopReading:
    """Add items to a loop, also to one that is running or completed."""

    def decide(found: LoopSnapshot, now: float) -> LoopChange:
        change = add_items(found, items, now=now)
        refuse(first_problems(_added_problems(context, found, items)))
        complete = (complete_item(context, found.config, item) for item in items)
        specs = (*found.specs, *complete)
        return replace(change, specs=specs, caps=current_caps(context, found.config, specs))

    return change_loop(context, name, caller, decide)


def _added_problems(
    context: LoopContext, found: LoopSnapshot, items: Sequence[ItemSpec]
) -> Iterator[Problem]:
    """Yield every problem of items whose ids are new."""
    for index, item in enumerate(items):
        for problem in check_item(context, found.config, item):
            yield problem.below("items", index)
    before = len(found.specs)
    for problem in item_set_problems((*found.specs, *items)):
        place, *field = problem.path
        if isinstance(place, int) and place >= before:
            yield replace(problem, path=("items", place - before, *field))


def configure(
    context: LoopContext, name: str, values: dict[str, Any], caller: Requester
) -> LoopReading:
    """Change a loop's configuration. Raising a cap resumes a loop that had used it up."""
    fixed = sorted(values.keys() - CHANGEABLE)
    refuse(first_problems(Problem.at(each, "cannot be changed", "not_allowed") for each in fixed))

    def decide(found: LoopSnapshot, _now: float) -> LoopChange:
        try:
            change = configure_loop(found, values)
        except ValidationError as error:
            raise BadInput(*problems_of(error, LoopConfig)) from None
        if change.config is not None and found.specs:
            # One that uses the loop's runner; if none does, an item that is added is checked.
            own = next((each for each in found.specs if each.runner is None), found.specs[0])
            refuse(check_item(context, change.config, own))
            refuse(_stronger_problems(context, change.config, found.specs))
            refuse(
                first_problems(
                    problem
                    for item in found.specs
                    for problem in _cost_problems(context, change.config, item.runner)
                )
            )
            return replace(change, caps=current_caps(context, change.config, found.specs))
        return change

    return change_loop(context, name, caller, decide)


def set_slots(context: LoopContext, slots: int | None) -> None:
    """Set how many items of all loops run at once; None: as the settings say."""
    context.publish(context.ledger.set_loop_slots(slots))


def delete(
    context: LoopContext,
    name: str,
    caller: Requester,
    *,
    tenant: str | None = None,
    owner: str | None = None,
) -> None:
    """Forget a loop that does nothing. The jobs of its items are kept like others.

    Its branch stays. What was saved of its attempts is removed, as far as the repository is there.

    ``tenant``, ``owner``: whose loops the caller sees; None for all.

    Repeated by its caller with the same idempotency key, it has been done; a new loop of that name
    stays.
    """
    keyed = replace(caller, key=f"delete/{caller.by}/{caller.key}") if caller.key else caller
    reading = context.ledger.read_loop(name)
    hidden = reading is not None and not reading.snapshot.loop.is_of(tenant, owner)
    jobs = own_jobs(reading.snapshot) if reading is not None else ()
    answer = "gone" if hidden else context.ledger.delete_loop(name, keyed, cancel=jobs)
    if answer == "gone":
        raise no_such_loop(context, name, tenant, owner)
    if answer == "held":
        raise LoopConflict(f"the loop {name!r} has not ended: stop it first")
    if reading is None or reading.snapshot.loop.has_moved:
        return  # its repository may be that of the loop that goes on
    if reading.snapshot.config.repo is not None:
        _forget_work(context, reading.snapshot)


def _forget_work(context: LoopContext, snapshot: LoopSnapshot) -> None:
    try:
        repository = context.repository(snapshot.config.repo or "")
        name = snapshot.loop.name
        kept = [*repository.saved(name), *repository.transcripts(name)]
        repository.forget([each.ref for each in kept])
    except (BadInput, RepositoryUnavailable) as error:
        log.warning("The saved work of %s is still there: %s", snapshot.loop.name, error)


def change_loop(
    context: LoopContext,
    name: str,
    caller: Requester,
    decide: Callable[[LoopSnapshot, float], LoopChange],
) -> LoopReading:
    """Decide and write, again if something changes in between. Return the loop before it."""
    for _ in range(_TRIES):
        reading = context.ledger.read_loop(name)
        if reading is None:
            raise no_such_loop(context, name)
        # A key belongs to this loop, not to a later one of its name.
        uid = reading.snapshot.loop.uid
        keyed = replace(caller, key=f"{uid}/{caller.key}") if caller.key else caller
        made = context.ledger.change_made(name, keyed)
        if made == "seen":
            return reading
        if made == "conflict":
            raise LoopConflict.at(
                "idempotency_key", "was used for another change of this loop", "key_in_use"
            )
        try:
            change = decide(reading.snapshot, context.ledger.now())
        except NotPossible as error:
            raise LoopConflict(str(error)) from None
        write = LoopWrite(reading=reading, change=change, caller=keyed)
        written = context.ledger.write_loop(write)
        if isinstance(written, Written):
            context.publish(written.publish)
            return reading
    raise LedgerUnavailable(f"the loop {name!r} changes too often; try again")


def no_such_loop(
    context: LoopContext, name: str, tenant: str | None = None, owner: str | None = None
) -> NoSuchLoop:
    """Return the error. ``tenant``, ``owner``: whose loops the caller sees; None for all."""
    seen = [each.name for each in context.ledger.loops() if each.is_of(tenant, owner)]
    hint = did_you_mean(name, seen)
    return NoSuchLoop.at("loop", f"there is no loop {name!r}{hint}", "unknown_name")
