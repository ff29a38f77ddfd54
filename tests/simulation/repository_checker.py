"""The invariants of loops that work in a repository.

What is on a branch is read from its files: each item has one of its own, which names the attempt
that wrote it. What the trailers of commits say is compared with that.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mulligan.policies.jobs.job import TERMINAL
from mulligan.policies.loops.checkpoints import ALREADY_DONE
from mulligan.policies.loops.loop import ItemRecord
from mulligan.policies.loops.spec import LoopConfig, LoopDocument
from mulligan.policies.repair.retry import FREE_CONFLICTS, MAX_ATTEMPTS, REPEATED_FAILURE
from mulligan.tasks.ports.ledger import Entry, JobView
from mulligan.tasks.ports.repositories import (
    ATTEMPT_TRAILER,
    ROLLBACK_TRAILER,
    SYNC_TRAILER,
    Fence,
)
from mulligan.workers.ledger import keys
from simulation.agents import own_path
from simulation.regression_checker import RegressionChecker
from simulation.repositories import FENCES, Files, GitModel
from simulation.scheduler import Process

if TYPE_CHECKING:
    from simulation.checker import Checker

#: Scripts after which an item may have passed, and those that give the right to merge.
_CHECKED = frozenset({"settle", "write_loop", "claim_verification", "end_escalation"})
#: Longer than it takes from landing a rollback to writing that down.
_ROLLBACK_SECONDS = 60.0
#: Scores of slots that are leased are above it.
_LEASED = 1e15


@dataclass
class AskedRollback:
    """A rollback that Redis has written down."""

    loop: str
    to: str | None
    #: The commits that made it.
    commits: list[str] = field(default_factory=list)
    made_at: float | None = None
    #: How it ended: None as long as it is pending.
    ended: str | None = None


@dataclass
class RepositoryChecker:
    checker: Checker
    configs: dict[str, LoopConfig] = field(default_factory=dict)
    #: The jobs of items that work in a repository.
    jobs: set[str] = field(default_factory=set)
    rollbacks: dict[str, AskedRollback] = field(default_factory=dict)
    #: Loop and group → the process that took their fence last.
    _fences: dict[tuple[str, str], Process] = field(default_factory=dict)
    #: Loop and process → the fences when the process read the loop's branch last.
    _looked: dict[tuple[str, Process], set[str]] = field(default_factory=dict)
    #: What people have put on branches: repository, branch, commit.
    _pushed: list[tuple[GitModel, str, str]] = field(default_factory=list)
    #: Reference → the commit that was saved there last.
    _saved: dict[str, tuple[GitModel, str]] = field(default_factory=dict)
    #: Items that a person has reset, skipped or stopped: loop and item → when, last.
    _touched: dict[tuple[str, str], float] = field(default_factory=dict)
    #: Jobs that a person has requeued.
    requeued: set[str] = field(default_factory=set)
    regressions: RegressionChecker = field(init=False)

    def __post_init__(self) -> None:
        self.regressions = RegressionChecker(self)

    # -- while the run goes on --------------------------------------------------------------------

    def created(self, document: LoopDocument) -> None:
        if document.loop.repo is not None:
            self.configs[document.loop.name] = document.loop

    def admitted(self, loop: str, job_id: str) -> None:
        if loop in self.configs:
            self.jobs.add(job_id)

    def written(self, loop: str, change: dict[str, Any], by: str) -> None:
        """Note what a write about a loop changed."""
        if loop not in self.configs:
            return
        # An empty table of Lua is a list.
        if by == "ada":
            self._touched |= {(loop, item): self._now for item in change["items"] or ()}
        text = (change["fields"] or {}).get("rollback")
        if text:
            asked = json.loads(text)
            self.rollbacks[asked["id"]] = AskedRollback(loop, _target(asked))
        elif text == "":
            for each in self.rollbacks.values():
                if each.loop == loop and each.ended is None:
                    self._ended(each, change["note"])

    def _ended(self, rollback: AskedRollback, note: str) -> None:
        """Invariant (e): a rollback ends when it was made, or with the reason why not."""
        rollback.ended = note
        refused = note.startswith("the rollback was not possible")
        if not rollback.commits and not refused:
            self._violated(f"a rollback of {rollback.loop} ended without being made: {note}")
        if rollback.commits and refused:
            self._violated(f"a rollback of {rollback.loop} was made and then refused: {note}")

    def restored(self) -> None:
        """Redis has lost its last second: a rollback may be forgotten, or pending again."""
        for name, each in self.rollbacks.items():
            pending = f'"{name}"' in self.checker.loops.row(each.loop).get("rollback", "")
            each.ended = None if pending else each.ended or "was forgotten"

    def script_answered(self, script: str, request: str, answer: Any) -> None:
        if not self.configs or script not in _CHECKED:
            return
        if script == "end_escalation":
            if answer[0] == "ended":
                self.requeued.add(json.loads(request)["id"].partition(":")[0])
            return
        if script == "claim_verification":
            if answer[0] == "claimed":
                self._check_mergers()
            return
        if answer[0] in ("settled", "written"):
            job = json.loads(request).get("id")
            for loop in self.configs:
                if script == "write_loop" or self._place(job)[0] == loop:
                    self._check_passed(loop)

    def _check_mergers(self) -> None:
        """Invariant (g): one merge of a group of items is claimed at a time."""
        client, counts = self._client, Counter[str]()
        for text, expires in client.zrange(f"{self._prefix}leases", 0, -1, withscores=True):
            entry, held = Entry.parse(text), expires / 1000 > self._now
            if held and entry.kind == "verification" and self._is_merge(entry):
                counts[self._gate(entry.job_id)] += 1
        for gate in counts:
            slots = client.zcount(f"{self._prefix}active:{gate}", _LEASED, "+inf")
            if counts[gate] > 1 or slots > 1:
                self._violated(f"{max(counts[gate], slots)} of {gate} are claimed at once")

    def _gate(self, job_id: str) -> str:
        """Return what the merge of an item waits behind."""
        group = self._client.hget(keys.job(self._prefix, job_id), "merge_group")
        return "/".join(filter(None, (f"merge:{self._place(job_id)[0]}", group)))

    def _is_merge(self, entry: Entry) -> bool:
        key = keys.attempt(self._prefix, entry.job_id, entry.attempt)
        return entry.job_id in self.jobs and self._client.hget(key, "merge") == str(entry.index)

    def _check_passed(self, loop: str) -> None:
        """Invariant (b), first half: what passed is merged, unless a rollback is being made.

        A restart of Redis may have forgotten that a rollback was made.
        """
        row = self.checker.loops.row(loop)
        if not row or row.get("rollback") or self._forgot_rollback(loop):
            return
        merged = self.merged(loop)
        for item, record in self.checker.loops.items(loop).items():
            if record.state == "passed" and record.job_id and item not in merged:
                self._violated(f"{loop}/{item} passed, but its work is not on the branch")

    def _forgot_rollback(self, loop: str) -> bool:
        """Whether Redis may have lost what a rollback changed, or that it was asked for."""
        made = [each.made_at for each in self.rollbacks.values() if each.loop == loop]
        return any(
            restart.written - _ROLLBACK_SECONDS <= at for restart in self.checker.world.restarts
            for at in made if at is not None
        )  # fmt: skip

    def fenced(self, loop: str, group: str, process: Process) -> None:
        self._fences[loop, group] = process

    def looked(self, model: GitModel, branch: str, process: Process) -> None:
        """Note the fence under which a process reads what is on a branch."""
        for loop, config in self.configs.items():
            if config.target == branch:
                fences = f"{FENCES}{loop}/"
                found = {value for ref, value in model.refs.items() if ref.startswith(fences)}
                self._looked[loop, process] = found

    def pushed(self, model: GitModel, branch: str, commit: str) -> None:
        self._pushed.append((model, branch, commit))

    def landed(
        self,
        model: GitModel,
        branch: str,
        *,
        old: str,
        new: str,
        fence: Fence,
        kept: str,
        process: Process,
    ) -> None:
        """Check what a process has just put on a branch. ``kept``: the fence as it is now."""
        loop = fence.loop
        line = model.line(new)
        fresh = line[: next((i for i, each in enumerate(line) if each.id == old), 0)]
        # Where a loop is delivered, others may be, too: their work came by its merges.
        delivered = branch != self.configs[loop].target and old in model.ancestors(new) - {new}
        if not fresh and not delivered:  # invariant (c)
            self._violated(f"{branch} moved from {old[:10]} to {new[:10]}, which is not after it")
        if self._fences.get((loop, fence.group)) is not process:  # invariant (d)
            self._violated(f"{process.name} moved {branch} after its fence was taken")
        if branch != self.configs[loop].target:
            self.regressions.check_delivered(loop, new)
            return
        if fence.value not in self._looked.get((loop, process), ()):  # invariant (d)
            self._violated(f"{process.name} moved {branch}, but looked before it took the fence")
        self._looked.setdefault((loop, process), set()).add(kept)
        names = Counter(each.trailers.get(ATTEMPT_TRAILER) for each in line)
        for each in fresh:
            trailers = each.trailers
            name = trailers.get(ATTEMPT_TRAILER)
            if name is not None and names[name] > 1:  # invariant (a)
                self._violated(f"{name} was merged {names[name]} times")
            if ROLLBACK_TRAILER in trailers:
                self._rolled_back(model, trailers[ROLLBACK_TRAILER], each.id)
        self._check_passed(loop)

    def _rolled_back(self, model: GitModel, name: str, commit: str) -> None:
        """Invariant (e): a rollback is made once, while it is wanted, and is what was asked for."""
        asked = self.rollbacks.get(name)
        if asked is None:
            self._violated(f"nobody asked for the rollback {name}")
            return
        if asked.ended is not None and not self.checker.world.restarts:
            self._violated(f"a rollback of {asked.loop} was made although it {asked.ended}")
        asked.commits.append(commit)
        asked.made_at = self._now
        if len(asked.commits) > 1:
            self._violated(f"a rollback of {asked.loop} was made {len(asked.commits)} times")
        if asked.to is not None:
            self._check_files(model, asked.loop, asked.to, commit)

    def _check_files(self, model: GitModel, loop: str, to: str, commit: str) -> None:
        """Invariant (e): the files are those of the checkpoint.

        What came from upstream since then stays, but is no work of an item.
        """
        line = model.line(commit)
        later = line[: next((i for i, each in enumerate(line) if each.id == to), 0)]
        synced = any(SYNC_TRAILER in each.trailers for each in later)
        found, wanted = model.files(commit), model.files(to)
        if synced:
            own = own_path(loop, "")
            found = {path: text for path, text in found.items() if path.startswith(own)}
            wanted = {path: text for path, text in wanted.items() if path.startswith(own)}
        if found != wanted:
            self._violated(f"the rollback of {loop} to {to[:10]} has other files")

    def saved(self, model: GitModel, ref: str, commit: str) -> None:
        self._saved[ref] = model, commit

    def forgotten(self, ref: str) -> None:
        """Invariant (h): only the work of what ended long ago is removed."""
        self._saved.pop(ref, None)
        loop, item = ref.removeprefix("refs/mulligan/attempts/").split("/")[:2]
        record = self.checker.loops.items(loop).get(item)
        if record is not None and record.state not in ("passed", "skipped"):
            since = self._touched.get((loop, item), 0.0)
            if self._now - since > 20.0 and not self.rollbacks:
                self._violated(f"the work of {loop}/{item}, which is {record.state}, was removed")

    # -- at rest ----------------------------------------------------------------------------------

    def merged(self, loop: str) -> dict[str, str]:
        """Return the items whose own work is on the branch now, and the attempt that did it."""
        files, found = self._files(loop), {}
        for item in self.checker.loops.specs.get(loop, {}):
            words = files.get(own_path(loop, item), "").split()
            if words[1:2] == [f"{loop}/{item}"]:
                found[item] = words[2]
        return found

    def _files(self, loop: str) -> Files:
        """Return the files on the branch of a loop."""
        config = self.configs[loop]
        model = self.checker.world.repositories.model(config.repo or "")
        tip = model.tip(config.target)
        return model.files(tip) if tip is not None else {}

    def merged_items(self, loop: str) -> list[str]:
        return sorted(self.merged(loop)) if loop in self.configs else []

    def moving(self) -> list[str]:
        """Return the rollbacks that are pending, and what is being verified again."""
        rows = {loop: self.checker.loops.row(loop) for loop in self.configs}
        return [
            *(f"a rollback of {loop}" for loop, row in rows.items() if row.get("rollback")),
            *(f"a check of {loop}" for loop in rows if self.regressions.is_moving(loop)),
        ]

    def check_rest(self) -> None:
        for loop in self.configs:
            row = self.checker.loops.row(loop)
            if not row:
                continue
            if row.get("rollback"):
                self._violated(f"a rollback of {loop} is never made")
            self._check_passed(loop)
            self.regressions.check_rest(loop, row["state"])
            merged, files = self.merged(loop), self._files(loop)
            for item, record in self.checker.loops.items(loop).items():
                if item in merged:
                    self._check_merged(loop, item, record, row["state"])
                elif record.reason == ALREADY_DONE and own_path(loop, item) not in files:
                    self._violated(f"{loop}/{item} was skipped, but what had done it is gone")

    def _check_merged(self, loop: str, item: str, record: ItemRecord, state: str) -> None:
        """Invariant (b), second half: what is merged has passed, unless somebody came between.

        - A person skipped it while it was merged, or before, if another run had merged it.
        - It was stopped, reset or brought back, and its loop does not run, or is blocked: it will
          be looked at when the loop goes on.
        - It was reopened because it was broken later, and may have been skipped since.
        - Its job ended after the merge, before that could be said: a person cancelled it, or three
          workers were lost, or its deadline passed, or its message could not be sent. A person
          who resets it learns that it is merged.
        """
        if record.state == "passed" or self.checker.world.restarts:
            return
        if record.state == "skipped" and (loop, item) in self._touched:
            return
        if record.state in ("pending", "ready") and state in ("stopped", "paused"):
            return
        reopened = {each.repairs for each in self.checker.loops.regressions(loop).found}
        if item in reopened:
            return
        brought_back = (loop, item) in self._touched or any(
            each.loop == loop and each.commits for each in self.rollbacks.values()
        )
        if record.state == "blocked" and brought_back:
            return
        job = self.checker.job_row(record.job_id) if record.job_id else {}
        ended = job.get("reason") in ("cancelled", "worker_lost", "deadline", "unsendable")
        if record.state in ("failed", "quarantined") and ended:
            return
        if record.job_id in self.requeued:  # its next attempt does not look
            return
        self._violated(
            f"{loop}/{item} is merged, but {record.state} ({record.reason}) in a loop that is"
            f" {state}; its job is {job.get('state')} ({job.get('reason')})"
        )

    def check(self) -> None:
        """Check the repositories of a run that has been drained."""
        self.check_rest()
        for ref, (model, commit) in sorted(self._saved.items()):  # invariant (h)
            if model.refs.get(ref) != commit:
                self._violated(f"the work in {ref} is lost")
        for model, branch, commit in self._pushed:  # invariant (c)
            if commit not in model.ancestors(model.tip(branch) or ""):
                self._violated(f"{commit[:10]}, which a person pushed, is not on {branch}")

    def check_job(self, view: JobView) -> None:
        """Invariant (i): conflicts with others do not use up an item's attempts."""
        if view.id not in self.jobs:
            return
        since = max((each.plan.since for each in view.attempts), default=0)
        counted = [each for each in view.attempts if each.plan.number > since]
        failures = [
            each.verdict.failure.cause if each.verdict and each.verdict.failure else None
            for each in counted
        ]
        free = min(failures.count("merge_conflict"), FREE_CONFLICTS)
        most = view.job.policy.max_attempts
        if view.reason == MAX_ATTEMPTS and len(counted) - free < most:
            self._violated(
                f"{view.id} gave up after {len(counted)} attempts, of which {free} were conflicts"
            )
        if view.reason == REPEATED_FAILURE and failures[-1] == "merge_conflict":
            self._violated(f"{view.id} gave up because of a repeated conflict")
        for each in counted:
            self._check_kept(view, each.output.commit if each.output else None)

    def _check_kept(self, view: JobView, commit: str | None) -> None:
        """Invariant (h): the work of every answer can be reached, unless it is forgotten."""
        space = view.job.workspace
        if commit is None or space is None or space.git is None:
            return
        model = self.checker.world.repositories.model(space.git)
        heads = [each for each in model.refs.values() if each in model.commits]
        if commit not in model.ancestors(*heads) and view.state not in TERMINAL:
            self._violated(f"the work {commit[:10]} of {view.id} cannot be reached")

    # -- records ----------------------------------------------------------------------------------

    def _place(self, job_id: str | None) -> tuple[str, str]:
        return self.checker.loops.jobs.get(job_id or "", ("", ""))

    @property
    def _prefix(self) -> str:
        return keys.partition_prefixes(self.checker.world.settings.key_prefix, 1)[0]

    @property
    def _client(self) -> Any:
        return self.checker.world.server.client

    @property
    def _now(self) -> float:
        return self.checker.world.scheduler.now

    def _violated(self, text: str) -> None:
        self.checker.violated(text)


def _target(asked: dict[str, Any]) -> str | None:
    """Return the checkpoint that a rollback must lead to exactly; None for that of an item."""
    return None if asked.get("item") else asked.get("to")
