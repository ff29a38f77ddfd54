"""Look after the repositories of loops: finish rollbacks, deliver, prove, and forget old work.

It runs now and then in one process of the fleet. Everything here can be repeated, and a repository
that is away is tried again the next time. A command that delivers may take long, and should run
once: whoever runs it says so first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from mulligan.policies.loops.checkpoints import missing_merges
from mulligan.policies.loops.loop import DONE, LoopChange, LoopRecord, LoopSnapshot
from mulligan.policies.loops.spec import LoopConfig
from mulligan.tasks.loops.change import change_loop
from mulligan.tasks.loops.context import LoopContext
from mulligan.tasks.loops.regressions import RegressionSweep
from mulligan.tasks.loops.rollback import checkpoints_of, finish_rollback, repository_of
from mulligan.tasks.ports.errors import BadInput, LedgerUnavailable, RepositoryUnavailable
from mulligan.tasks.ports.ledger import Requester
from mulligan.tasks.ports.repositories import Repository

log = logging.getLogger(__name__)

_DELIVERY, _PROOF = Requester(by="delivery"), Requester(by="proof")
#: Seconds between two proofs that what passed is merged.
PROOF_INTERVAL = 600.0
#: Seconds before a delivery that failed is tried again, and a delivered branch is looked at again.
DELIVERY_INTERVAL = 60.0
#: Seconds before a branch is read again although nothing of its loop has changed.
LOOK_INTERVAL = 60.0
_TRIES = 5
#: Lines of a log among which a problem is not repeated, by another process or after a restart.
_RECENT = 200
#: Conflicting files that are named.
_LISTED = 3


@dataclass
class RepositorySweep:
    """What one process remembers between two sweeps."""

    context: LoopContext
    #: Loop → when it was proved last.
    _proved: dict[str, float]
    #: Loop → when its delivery was tried last.
    _tried: dict[str, float]
    #: Problems that were logged, so that each is logged once.
    _said: set[str]
    #: Loop → the record that was looked at for regressions, and when.
    _looked: dict[str, tuple[int, int, float]]
    _regressions: RegressionSweep

    def __init__(self, context: LoopContext) -> None:
        self.context = context
        self._looked, self._regressions = {}, RegressionSweep(context)
        self._proved, self._tried, self._said = {}, {}, set()

    def run(self) -> int:
        """Make rollbacks, and look after what is kept. Return how much was done."""
        return self._run(self._roll_back, self._look_for_regressions, self._prove)

    def deliver(self) -> int:
        """Deliver completed loops, which may take long. Return how many."""
        return self._run(self._deliver)

    def _run(self, *steps: Callable[[LoopRecord], int]) -> int:
        return sum(
            self._guarded(loop, step)
            for loop in self.context.ledger.loops()
            if loop.config.repo is not None
            for step in steps
        )

    def _guarded(self, loop: LoopRecord, step: Callable[[LoopRecord], int]) -> int:
        """Nothing that is wrong with one loop may hold up the others."""
        try:
            return step(loop)
        except LedgerUnavailable:
            raise
        except (RepositoryUnavailable, BadInput) as error:
            self._say(f"The repository of the loop {loop.name} cannot be used: {error}")
        except Exception as error:  # a defect
            if self._say(f"The repository of the loop {loop.name} was not looked after: {error!r}"):
                log.exception("The sweep goes on without it")
        return 0

    def _say(self, message: str) -> bool:
        """Log a problem, unless it was logged before. Return whether it was not."""
        is_new = message not in self._said
        if is_new:
            self._said.add(message)
            log.warning(message)
        return is_new

    def _roll_back(self, loop: LoopRecord) -> int:
        return int(bool(loop.rollback) and finish_rollback(self.context, loop.name))

    def _look_for_regressions(self, loop: LoopRecord) -> int:
        """Verify again what passed. A branch that others commit to is read once a minute."""
        if loop.config.regression_rules is None or loop.started_at is None:
            return 0
        log, now = loop.regressions, self.context.ledger.now()
        version, dirty, at = self._looked.get(loop.name, (-1, -1, 0.0))
        is_known = (version, dirty) == (loop.version, loop.dirty) and now - at < LOOK_INTERVAL
        if is_known and log.check is None and log.searching is None:
            return 0
        reading = self.context.ledger.read_loop(loop.name)
        if reading is None:
            return 0
        read = reading.snapshot.loop
        done = self._regressions.advance(reading)
        self._looked[loop.name] = (read.version, read.dirty, now)
        return int(done)

    def _deliver(self, loop: LoopRecord) -> int:
        wanted = loop.config.deliver
        if loop.state != "completed" or loop.rollback:
            return 0
        if wanted.fast_forward is None and wanted.command is None:
            return 0
        now, was_tried = self.context.ledger.now(), loop.delivered or loop.delivery_problem
        tried = self._tried.get(loop.name, 0.0)
        has_gone_on = tried < loop.since
        if was_tried and not has_gone_on and now - tried < DELIVERY_INTERVAL:
            return 0
        reading = self.context.ledger.read_loop(loop.name)
        if reading is None or not _is_done(reading.snapshot):
            return 0
        if self._regressions.is_pending(reading.snapshot):
            return 0
        self._tried[loop.name] = now
        return int(self._try_delivery(reading.snapshot))

    def _try_delivery(self, snapshot: LoopSnapshot) -> bool:
        """Deliver a loop. What prevents it is a problem of this loop, unless it was delivered."""
        try:
            return deliver(self.context, snapshot)
        except LedgerUnavailable:
            raise
        except Exception as error:
            if not snapshot.loop.delivered:
                away = isinstance(error, RepositoryUnavailable | BadInput)
                what = (
                    "the repository cannot be used"
                    if away
                    else f"an internal error ({type(error).__name__})"
                )
                # Where it is does not concern everybody who sees the loop.
                problem = f"{what}: the logs of the control workers say more"
                _write_down(self.context, snapshot.loop, problem=problem)
            raise

    def _prove(self, loop: LoopRecord) -> int:
        now = self.context.ledger.now()
        if now - self._proved.get(loop.name, 0.0) < PROOF_INTERVAL or loop.started_at is None:
            return 0
        self._proved[loop.name] = now
        reading = self.context.ledger.read_loop(loop.name)
        if reading is None:
            return 0
        self._note(loop.name, missing_work(self.context, reading.snapshot))
        self._note(loop.name, sync_problem(self.context, reading.snapshot))
        return forget_old_work(self.context, reading.snapshot)

    def _note(self, name: str, problem: str) -> None:
        """Write a problem into the log of its loop, unless it is there already."""
        if not problem or not self._say(f"{name}: {problem}"):
            return
        if any(each.note == problem for each in self.context.ledger.loop_log(name, limit=_RECENT)):
            return
        note = LoopChange(note=problem)
        change_loop(self.context, name, _PROOF, lambda _found, _now: note)


def _is_done(snapshot: LoopSnapshot) -> bool:
    """Whether nothing is left to do, also if a rollback or a person has just reopened an item."""
    states = {snapshot.record(spec.id).state for spec in snapshot.specs}
    return states <= DONE and not snapshot.loop.rollback


def unmerged_items(context: LoopContext, snapshot: LoopSnapshot) -> list[str]:
    """Return the items that passed although their work is not on the branch: there must be none."""
    if snapshot.loop.rollback:
        return []
    history = repository_of(context, snapshot).history(snapshot.config.target)
    return missing_merges(snapshot, checkpoints_of(history, snapshot.loop.name))


def missing_work(context: LoopContext, snapshot: LoopSnapshot) -> str:
    """Say which work is not on the branch: somebody has removed or rewritten it."""
    items = unmerged_items(context, snapshot)
    if not items:
        return ""
    more = f" and {len(items) - 1} more" if len(items) > 1 else ""
    return (
        f"{items[0]}{more} passed, but the work is not on {snapshot.config.target}: bring the"
        " branch back, or reset the items"
    )


def deliver(context: LoopContext, snapshot: LoopSnapshot) -> bool:
    """Deliver a completed loop, once for each state of its branch. Return whether it did."""
    loop = snapshot.loop
    repository = context.repository(loop.config.repo or "")
    tip = repository.resolve(loop.config.target) or ""
    if tip == loop.delivered:
        return False
    problem = missing_work(context, snapshot) or _move_forward(repository, loop, tip)
    if not problem and loop.config.deliver.command is not None:
        if not _may_run_command(context, loop.name, tip):
            return False
        problem = context.run_delivery(loop.config, tip)
    _write_down(context, loop, tip=tip, problem=problem)
    return not problem


def _write_down(context: LoopContext, loop: LoopRecord, *, tip: str = "", problem: str) -> None:
    """Record that a loop was delivered, or why not: in its log if that is new."""
    note = f"not delivered: {problem}" if problem else f"delivered {tip[:10]}"
    change = LoopChange(
        delivered="" if problem else tip,
        delivery_problem=problem,
        delivering=0.0,
        note="" if problem and problem == loop.delivery_problem else note,
    )
    change_loop(context, loop.name, _DELIVERY, lambda _found, _now: change)


def _may_run_command(context: LoopContext, name: str, tip: str) -> bool:
    """Say that this process runs the delivery command now, unless another one does or did."""
    may = False

    def decide(found: LoopSnapshot, now: float) -> LoopChange:
        nonlocal may
        may = now >= found.loop.delivering and found.loop.delivered != tip
        until = now + context.delivery_time(found.config)
        return LoopChange(delivering=until) if may else LoopChange()

    change_loop(context, name, _DELIVERY, decide)
    return may


def _move_forward(repository: Repository, loop: LoopRecord, tip: str) -> str:
    """Move the branch of `fast_forward` to the loop's. Return why not, if it cannot be done."""
    target = loop.config.deliver.fast_forward
    if target is None:
        return ""
    if not tip:
        return f"there is no branch {loop.config.target}"
    for _ in range(_TRIES):
        old = repository.resolve(target)
        if old is None:
            return f"there is no branch {target}"
        if old == tip or repository.contains(target, tip):
            return ""
        if not repository.contains(loop.config.target, old):
            return _behind(repository, loop.config, tip, old)
        if folder := repository.checked_out(target):
            return f"{target} is checked out in {folder}: switch to another branch there"
        fence = repository.take_fence(loop.name)
        if repository.land(target, old=old, new=tip, fence=fence) is not None:
            return ""
    return f"{target} changes too often"


def _behind(repository: Repository, config: LoopConfig, tip: str, upstream: str) -> str:
    """Say what to do about a branch that the loop's is behind.

    Nothing verifies what a merge here would make, so a person or the next item merges.
    """
    target, branch = config.deliver.fast_forward, config.target
    conflicts = _conflicts(repository, tip, upstream)
    where = f" and conflicts with it in {conflicts}" if conflicts else ""
    synced = config.sync is not None and repository.resolve(config.sync) == upstream
    helps = synced and not conflicts
    add = ", or add an item: its merge takes them over if both pass together" if helps else ""
    return (
        f"{target} has commits that {branch} does not have{where}: merge {branch} into {target}"
        f" yourself{add}"
    )


def sync_problem(context: LoopContext, snapshot: LoopSnapshot) -> str:
    """Say that what is new in the branch of `sync` cannot be merged into the loop's."""
    sync, target = snapshot.config.sync, snapshot.config.target
    if sync is None:
        return ""
    repository = repository_of(context, snapshot)
    upstream, tip = repository.resolve(sync), repository.resolve(target)
    if upstream is None or tip is None or repository.contains(target, upstream):
        return ""
    conflicts = _conflicts(repository, tip, upstream)
    if not conflicts:
        return ""
    return (
        f"{sync} is not merged into {target} (sync): they conflict in {conflicts}. Merge it there"
        " yourself"
    )


def _conflicts(repository: Repository, ours: str, theirs: str) -> str:
    """Return the files in which two commits conflict, as text."""
    paths = [each.path for each in repository.merge(ours, theirs).conflicts]
    more = f" and {len(paths) - _LISTED} more" if len(paths) > _LISTED else ""
    return ", ".join(paths[:_LISTED]) + more


def forget_old_work(context: LoopContext, snapshot: LoopSnapshot) -> int:
    """Remove the saved work of attempts whose items ended long ago. Return how many."""
    repository, now = repository_of(context, snapshot), context.ledger.now()
    name, old = snapshot.loop.name, []
    for saved in (*repository.saved(name), *repository.transcripts(name)):
        record = snapshot.record(saved.item)
        ended = snapshot.spec(saved.item) is None or record.state in ("passed", "skipped")
        since = max(saved.at, record.since if ended else now)
        if now - since > context.work_retention:
            old.append(saved.ref)
    repository.forget(old)
    return len(old)
