"""Merge: the last verification of an attempt lands its work on the branch of its loop.

Whoever does it first takes the fence of the item's group: another merger of the group, which may
only be slow, can then land nothing any more. So looking whether the work is on the branch already
gives an answer that stays true, and a merge that is claimed again after a crash is not made twice.

Work that waits for its turn is merged with it as a batch and verified once. Its own turn finds it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mulligan.policies.failures.failure import VerificationResult
from mulligan.policies.jobs.job import TERMINAL, Workspace
from mulligan.policies.loops.merge_batches import land_good, next_window
from mulligan.tasks.coordination.held_files import lock_token, lost_files, taken_files
from mulligan.tasks.jobs.context import AttemptContext
from mulligan.tasks.jobs.merge import (
    attempt_name,
    commit_message,
    conflict_result,
    fails_together,
    find_commit,
    is_undone,
    merged_result,
    open_repository,
    synced_tip,
    undone_result,
    upstream_of,
)
from mulligan.tasks.jobs.verify_merge import MergeVerification
from mulligan.tasks.ports.errors import (
    BadInput,
    CallCancelled,
    RepositoryUnavailable,
    VerifierError,
    WorkspaceUnavailable,
)
from mulligan.tasks.ports.leases import HeldLease
from mulligan.tasks.ports.ledger import Claim, Entry, Lease, MergeQueue
from mulligan.tasks.ports.repositories import (
    ATTEMPT_TRAILER,
    BATCH_TRAILER,
    BESIDE_TRAILER,
    ITEM_TRAILER,
    BranchCommit,
    Fence,
    Repository,
)

log = logging.getLogger(__name__)

#: Tries while others write to the branch.
_TRIES = 5
#: How often a verified merge is made again because another group has landed, which takes no time.
_MOST_RACES = 20


#: Seconds for git itself, besides the verifiers of a merged tree.
_GIT_SECONDS = 300.0
#: Seconds that a merger may spend on a batch beyond what its own work takes.
_BATCH_SECONDS = 1800.0
#: Of other work in a batch: it stays out, and its own turn says what is wrong with it.
_UNUSABLE = (BadInput, VerifierError, WorkspaceUnavailable)


def merge_time(verification: MergeVerification, claim: Claim, *, hard_limit: float) -> float:
    """Return the most seconds that a merge may take: its own work, and some for its batch.

    Raises BadInput if a verifier cannot be built.
    """
    # What does not pass together with upstream is verified without it, and what fails runs again.
    times = 4 if upstream_of(claim.job) else 2
    own = _GIT_SECONDS + times * verification.longest([claim])
    return own + min(_BATCH_SECONDS, max(0.0, hard_limit - own))


class _Moved(Exception):
    """Somebody else has moved the branch or the fence, so that everything is looked at again."""


def merge_attempt(
    context: AttemptContext,
    claim: Claim,
    held: HeldLease,
    verification: MergeVerification,
    *,
    until: float,
) -> VerificationResult:
    """Merge an attempt's work into the branch, unless it is there already.

    ``until``: the monotonic time before which all of it must be done. Raises CallCancelled if the
    lease is lost, and WorkspaceUnavailable.
    """
    space, output = claim.job.workspace, claim.output
    if space is None or space.git is None or space.branch is None or output is None:
        raise ValueError(f"{claim.lease.entry} has nothing to merge")
    repository, branch = open_repository(context, space.git), space.branch
    token = lock_token(context.ledger.read_loop(claim.job.labels["loop"]), claim)
    for _ in range(_TRIES):
        queue = context.ledger.read_merges(claim.lease.entry)
        fence = repository.take_fence(claim.job.labels["loop"], queue.group)
        context.step("merge_fenced", claim.lease.entry)
        tip = repository.begin_branch(branch, output.base or output.commit or "")
        history = repository.history(branch, until=output.base)
        done = find_commit(history, ATTEMPT_TRAILER, attempt_name(claim))
        if done := done or next((each for each in history if each.commit == output.commit), None):
            if is_undone(history, done):
                return undone_result(done)
            return merged_result(done.commit, space, "was merged before")
        batch = _Batch(
            context=context,
            repository=repository,
            claim=claim,
            space=space,
            held=held,
            verification=verification,
            until=until,
            queue=queue,
            fence=fence,
            tip=tip,
            tokens={attempt_name(claim): token},
        )
        if (result := batch.run()) is not None:
            return result
    raise RepositoryUnavailable(f"{branch} was changed {_TRIES} times during the merge")


@dataclass(kw_only=True)
class _Batch:
    """One merger's turn. Its own work comes first; what others have is left to them if need be."""

    context: AttemptContext
    repository: Repository
    claim: Claim
    space: Workspace
    held: HeldLease
    verification: MergeVerification
    until: float
    queue: MergeQueue
    fence: Fence
    tip: str
    #: Those of the files that each attempt had when it became part of the batch.
    tokens: dict[str, str]
    #: The result of the merger's own work, once it is known.
    result: VerificationResult | None = None
    warnings: tuple[str, ...] = ()
    #: What was landed in this turn: its verifiers must go on passing.
    landed: list[Claim] = field(default_factory=list)
    failed: bool = False
    _last: VerificationResult | None = None

    def run(self) -> VerificationResult | None:
        """Land what is good. Return the result of the merger's own work; None: look again."""
        ours, self.warnings = synced_tip(self.repository, self.claim.job, self.branch, self.tip)
        members = [self.claim, *self._others()]
        try:
            if ours == self.tip or not self._land_with_upstream(members, ours):
                if conflict := self._own_conflict(self.tip):
                    return conflict
                land_good(members, self._land)
            self._adapt_window()
        except _Moved:
            pass
        return self.result

    @property
    def branch(self) -> str:
        return self.space.branch or ""

    def _adapt_window(self) -> None:
        old = self.queue.window
        new = next_window(old, good=not self.failed)
        if new != old and (self.failed or self.landed):
            self.context.ledger.set_merge_window(self.fence.loop, old=old, new=new)

    # -- members -----------------------------------------------------------------------------------

    def _others(self) -> list[Claim]:
        """Return the other work of the batch: what waits, and is not on the branch yet."""
        entries = self.queue.waiting[: self.queue.window - 1]
        if not entries:
            return []
        found: list[Claim] = []
        reading = self.context.ledger.read_loop(self.fence.loop)
        for entry in entries:
            other = _waiting_work(self.context, entry)
            if other is None or not self._fits(other):
                continue
            token = lock_token(reading, other)
            # What waits without a slot for long may have lost its files before this batch.
            if token or not taken_files(reading, other):
                found.append(other)
                self.tokens[attempt_name(other)] = token
        return found

    def _fits(self, other: Claim) -> bool:
        space, output = other.job.workspace, other.output
        if space is None or output is None or output.commit is None:
            return False
        if (space.git, space.branch) != (self.space.git, self.space.branch):
            return False
        try:
            self.verification.longest([other])
            return not self.repository.contains(self.branch, output.commit)
        except _UNUSABLE as error:
            self._leave_out(other, error)
            return False

    def _leave_out(self, other: Claim, error: Exception) -> None:
        log.warning("%s is merged without %s: %s", self.claim.job_id, other.job_id, error)

    def _has_time(self, seconds: float) -> bool:
        """Whether a verification can end, with time left to verify the merger's own work."""
        own = self.verification.longest([self.claim]) if self.result is None else 0.0
        return self._can_end(seconds + 2 * own)

    def _can_end(self, seconds: float) -> bool:
        return self.context.clock.monotonic() + seconds <= self.until

    # -- landing -----------------------------------------------------------------------------------

    def _own_conflict(self, base: str) -> VerificationResult | None:
        merged = self.repository.merge(base, _commit_of(self.claim))
        return conflict_result(merged, base) if merged.conflicts else None

    def _land_with_upstream(self, members: Sequence[Claim], ours: str) -> bool:
        """Land the batch together with what is new upstream. If that fails, upstream waits."""
        conflict = self._own_conflict(ours)
        if conflict is None and self._land(members, base=ours):
            return True
        # The next attempt would begin without what is new there, and fail in the same way.
        why = conflict or self._last
        said = f"with it, {why.summary}" if why is not None else "that could not be verified"
        self.warnings += (f"{upstream_of(self.claim.job)} was not merged: {said}",)
        self.result = None
        return False

    def _land(self, members: Sequence[Claim], *, base: str | None = None) -> bool:
        """Land what does not conflict, if it is good together. What has ended stays out."""
        while True:
            start = base or self.tip
            chain = self._chain(members, start)
            if not chain:
                return True
            members = [each for each, _ in chain]
            if not self._verified(members, chain[-1][1], start):
                return False
            ended = self._move(chain, start)
            if not ended:
                return True
            members = [each for each in members if each not in ended]

    def _chain(
        self, members: Sequence[Claim], start: str, *, verified: str = ""
    ) -> list[tuple[Claim, str]]:
        """Merge members one after the other, without those that conflict or cannot be read.

        ``verified``: the same work, which was verified beside other groups.
        """
        chain: list[tuple[Claim, str]] = []
        how = {BATCH_TRAILER: start} if len(members) > 1 else {}
        how = {BESIDE_TRAILER: verified} if verified else how
        for each in members:
            try:
                made = self._merge_one(each, chain[-1][1] if chain else start, how)
            except _UNUSABLE as error:
                if self._is_own(each):
                    raise
                self._leave_out(each, error)
                continue
            if made is not None:
                chain.append((each, made))
        return chain

    def _merge_one(self, member: Claim, ours: str, how: Mapping[str, str]) -> str | None:
        """Merge a member into a commit and return the merge; None if it conflicts."""
        commit = _commit_of(member)
        merged = self.repository.merge(ours, commit)
        if merged.conflicts:
            return None
        return self.repository.commit(merged.tree, (ours, commit), commit_message(member, how))

    def _verified(self, members: Sequence[Claim], commit: str, base: str) -> bool:
        """Whether work is good together with all that was landed in this turn."""
        if len(members) == 1 and not self.landed:
            tree = self.repository.tree_of(_commit_of(members[0]))
            if tree == self.repository.tree_of(commit):
                return True
        checked, is_own = [*self.landed, *members], len(members) == 1 and self._is_own(members[0])
        has_time = self._can_end if is_own else self._has_time
        if not is_own and not has_time(self.verification.longest(checked)):
            self.failed = True  # fewer take less time
            return False
        try:
            found = self.verification.verify(checked, commit=commit, base=base, has_time=has_time)
        except _UNUSABLE as error:
            if is_own:
                raise
            # One of them, or all of them: fewer are tried, in the end the merger's own work alone.
            names = ", ".join(each.job_id for each in members)
            log.warning("%s cannot be verified together: %s", names, error)
            return False
        if found.flaky:
            names = ", ".join(found.flaky)
            self.warnings += (f"{names} failed, and passed when it ran again on the same files",)
        if found.failures:
            self._note_failure(found.failures, is_own=is_own)
        else:
            self.context.step("merge_verified", self.claim.lease.entry)
        return not found.failures

    def _note_failure(self, failures: Mapping[str, VerificationResult], *, is_own: bool) -> None:
        own = failures.get(attempt_name(self.claim))
        self._last, self.failed = fails_together(own or next(iter(failures.values()))), True
        if is_own:
            self.result = self._last
        self.context.step("merge_failed", self.claim.lease.entry)

    def _is_own(self, member: Claim) -> bool:
        return member.job_id == self.claim.job_id

    def _move(self, chain: Sequence[tuple[Claim, str]], start: str) -> list[Claim]:
        """Move the branch to a verified chain, unless work of it has ended; return what has.

        Raises _Moved if somebody else has moved the branch.
        """
        verified = chain[-1][1]
        for _ in range(_MOST_RACES):
            if ended := self._ended([each for each, _ in chain]):
                return ended
            new = chain[-1][1]
            fence = self.repository.land(self.branch, old=self.tip, new=new, fence=self.fence)
            if fence is not None:
                self.fence, self.tip = fence, new
                self._note_landed(chain)
                return []
            # What was made with upstream is verified again.
            now = self._moved_apart(self.tip, new) if start == self.tip else None
            if now is None:
                break
            again = self._chain([each for each, _ in chain], now, verified=verified)
            if len(again) < len(chain):
                break
            chain, self.tip, start = again, now, now
        raise _Moved

    def _ended(self, members: Sequence[Claim]) -> list[Claim]:
        """Return the work that must not land any more. Raises if that is true of the own one."""
        if not self.held.is_sure():
            raise CallCancelled("the lease is lost, so the work must not be merged")
        # In this order: the rollback's end and the cancellations that follow from it are one write.
        reading = self.context.ledger.read_loop(self.fence.loop)
        if reading is not None and reading.snapshot.loop.rollback:
            # What it undoes may be what this work was built on.
            raise WorkspaceUnavailable("a rollback of the loop is being made")
        ended = []
        for each in members:
            lost = lost_files(reading, each, self.tokens[attempt_name(each)])
            if self._is_own(each):
                if lost:
                    raise WorkspaceUnavailable(lost)
                view = self.context.ledger.job(each.job_id)
                if view is None or view.state in TERMINAL:  # a person's cancellation ends no lease
                    raise WorkspaceUnavailable("the job has ended, so the work must not be merged")
            elif lost or _waiting_work(self.context, each.lease.entry) is None:
                ended.append(each)
        return ended

    def _note_landed(self, chain: Sequence[tuple[Claim, str]]) -> None:
        self.context.step("merge_landed", self.claim.lease.entry)
        for member, commit in chain:
            self.landed.append(member)
            if self._is_own(member):
                self.result = merged_result(commit, self.space, "merged", self.warnings)

    def _moved_apart(self, base: str, new: str) -> str | None:
        """Return the tip if only other groups have landed meanwhile, in other files; else None.

        What was verified then stays as it was: nothing is verified again.
        """
        if not self.queue.group:
            return None
        landed = self.repository.history(self.branch, until=base)
        if not landed or not all(map(self._is_merge, landed)):
            return None
        tip = landed[0].commit
        theirs = {each.path for each in self.repository.changes(base, tip)}
        mine = {each.path for each in self.repository.changes(base, new)}
        return None if theirs & mine else tip

    def _is_merge(self, commit: BranchCommit) -> bool:
        trailers = commit.trailers
        is_of_loop = trailers.get(ITEM_TRAILER, "").startswith(f"{self.fence.loop}/")
        return is_of_loop and ATTEMPT_TRAILER in trailers


def _commit_of(claim: Claim) -> str:
    return (claim.output and claim.output.commit) or ""


def _waiting_work(context: AttemptContext, entry: Entry) -> Claim | None:
    """Return an attempt whose merge waits. Nobody holds it, so its lease is nobody's."""
    view = context.ledger.job(entry.job_id)
    if view is None or view.unreadable or view.state in TERMINAL:
        return None
    attempt = next((each for each in view.attempts if each.plan.number == entry.attempt), None)
    if attempt is None or attempt.unreadable or attempt.state != "verifying":
        return None
    lease = Lease(entry, "", 0.0)
    return Claim(lease=lease, job=view.job, plan=attempt.plan, output=attempt.output)
