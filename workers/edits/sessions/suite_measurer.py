"""Measuring a tree by a suite: jobs go to the fleet, commands are run here, nothing twice."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Protocol

from mulligan.policies.edits.suite import (
    WHOLE,
    Suite,
    SuiteRuns,
    SuiteScores,
    SuiteTask,
    TaskScore,
    run_key,
)
from mulligan.policies.jobs.job import TERMINAL, Job
from mulligan.policies.problem import Problem
from mulligan.tasks.jobs.submit import Intake, submit_jobs
from mulligan.tasks.ports.appliers import FileChange
from mulligan.tasks.ports.blobs import BlobStore
from mulligan.tasks.ports.errors import BadInput, refuse
from mulligan.tasks.ports.ledger import JobView
from mulligan.workers.edits.sessions.suite_commands import program_problem, run_command
from mulligan.workers.edits.sessions.suite_jobs import TreeState, make_job
from mulligan.workers.ledger import keys
from mulligan.workers.ledger.calls import RedisCalls
from mulligan.workers.ledger.redis_ledger import RedisLedger
from mulligan.workers.ledger.stores.blobs import blob_store
from mulligan.workers.sandbox.file_tree import TreeNode, decode_tree, encode_tree, read_tree
from mulligan.workers.sandbox.subprocesses import Limits
from mulligan.workers.settings.model import Settings

#: Files may hold this many times the packed cap before they are packed.
_UNPACKED_FACTOR = 10


_NO_COMMANDS = (
    "a suite may bring no commands here: make it a job with a verifier that names one of"
    " [commands.NAME], or set allow_inline = true in mulligan.toml"
)


class ScoreStore(Protocol):
    """What commands scored, by run: so that a step that died, or a state that comes back, is not
    measured again. Jobs need none: the ledger knows them by the same key."""

    def get(self, key: str) -> TaskScore | None: ...

    def put(self, key: str, score: TaskScore) -> None: ...


class MemoryScores:
    """For a session that one process drives."""

    def __init__(self) -> None:
        self._scores: dict[str, TaskScore] = {}

    def get(self, key: str) -> TaskScore | None:
        return self._scores.get(key)

    def put(self, key: str, score: TaskScore) -> None:
        self._scores[key] = score


class RedisScores:
    """In the ledger's Redis, as long as jobs are kept there."""

    def __init__(self, calls: RedisCalls, *, prefix: str, retention: float) -> None:
        self._calls = calls
        self._fleet = keys.fleet_prefix(prefix)
        self._ttl = max(1, int(retention))

    def get(self, key: str) -> TaskScore | None:
        found = self._calls.run("GET", keys.edit_score(self._fleet, key))
        return None if found is None else TaskScore.model_validate_json(found)

    def put(self, key: str, score: TaskScore) -> None:
        self._calls.run(
            "SET", keys.edit_score(self._fleet, key), score.model_dump_json(), "EX", self._ttl
        )


class SuiteMeasurer:
    """The Measurer. For one thread at a time."""

    def __init__(
        self,
        *,
        blobs: BlobStore,
        store: ScoreStore,
        intake: Intake | None = None,
        commands: bool = True,
        home: Path | None = None,
        cap: int = 20_000_000,
        limits: Limits | None = None,
        threads: int | None = None,
        time_slice: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``intake`` takes the jobs; without one, there are none. ``commands``: whether a suite may
        bring programs to run here. ``home``: mulligan's own folder, which no copy has."""
        self._blobs = blobs
        self._store = store
        self._intake = intake
        self._commands = commands
        self._home = home.resolve() if home is not None else None
        self._cap = cap
        self._limits = limits or Limits()
        self._threads = threads or min(4, os.cpu_count() or 1)
        self._slice = time_slice
        self._clock = clock
        self._held: dict[str, TreeState] = {}

    # -- what can be measured ---------------------------------------------------------------------

    def problems(self, suite: Suite, root: Path) -> list[Problem]:
        """Everything that keeps the suite from being run on this tree."""
        found = self.forbidden(suite)
        tree = self._read(root)
        state = TreeState(address="sha256:0", tree=tree, put=lambda _: "sha256:0")
        for index, task in enumerate(suite.tasks):
            if task.command is not None:
                problem = program_problem(task.command, root) if self._commands else None
                found += [Problem(problem, ("tasks", index, "command"))] if problem else []
            else:
                inside = self._job_problems(task, state)
                found += [each.below("tasks", index, "job") for each in inside]
        return found

    def forbidden(self, suite: Suite) -> list[Problem]:
        """What of it may not be run here, whatever the tree holds."""
        if self._commands:
            return []
        return [
            Problem(_NO_COMMANDS, ("tasks", index, "command"), "not_allowed")
            for index, task in enumerate(suite.tasks)
            if task.command is not None
        ]

    def _job_problems(self, task: SuiteTask, state: TreeState) -> list[Problem]:
        if self._intake is None:
            return [Problem("jobs need workers: use commands, or run the plan with a stack")]
        try:
            job = make_job(task, state, session="check", repeat=0)
        except BadInput as error:
            return list(error.problems)
        return self._intake.problems(job)

    # -- states -----------------------------------------------------------------------------------

    def snapshot(self, root: Path, changes: Sequence[FileChange] = ()) -> str:
        """Keep the tree as it is now, or as it would be with these changes; the name of that
        state. BadInput if it is too large.

        As in every private copy, version control, environments and caches are left out; so are
        links that leave the tree, and what is neither file, folder nor link.
        """
        tree = changed(self._read(root), changes)
        address = self._blobs.put(encode_tree(tree))
        self._hold(address, tree)
        return address

    def _read(self, root: Path) -> Mapping[str, TreeNode]:
        left_out: list[str] = []
        most = self._cap * _UNPACKED_FACTOR
        tree = read_tree(root, max_bytes=most, refused=left_out)
        if self._home is None or not self._home.is_relative_to(root.resolve()):
            return tree
        own = self._home.relative_to(root.resolve()).as_posix()
        return {n: v for n, v in tree.items() if n != own and not n.startswith(f"{own}/")}

    def _state(self, address: str) -> TreeState:
        return self._held.get(address) or self._hold(address, decode_tree(self._blobs.get(address)))

    def _hold(self, address: str, tree: Mapping[str, TreeNode]) -> TreeState:
        """Keep a state in memory, and the one before it: the two sides of a comparison."""
        last = {name: self._held[name] for name in list(self._held)[-1:] if name != address}
        state = TreeState(address=address, tree=tree, put=self._blobs.put)
        self._held = {**last, address: state}
        return state

    # -- measuring --------------------------------------------------------------------------------

    def start(self, suite: Suite, state: str, *, session: str, repeat: int) -> SuiteRuns:
        """Begin one repeat: submit its jobs. One that cannot be made from this state scores 0."""
        jobs: dict[str, Job] = {}
        failed: dict[str, str] = {}
        refuse(self.forbidden(suite))  # it may have begun elsewhere
        for task in suite.tasks:
            if task.job is None:
                continue
            try:
                seed = suite.seed_of(task.id, repeat)
                jobs[task.id] = self._job(task, state, session=session, repeat=repeat, seed=seed)
            except BadInput as error:
                failed[task.id] = "; ".join(map(str, error.problems))
        submitted: dict[str, str] = {}
        if jobs and self._intake is not None:
            accepted = submit_jobs(self._intake, list(jobs.values()))
            submitted = {task: one.id for task, one in zip(jobs, accepted, strict=True)}
        return SuiteRuns(session=session, state=state, repeat=repeat, jobs=submitted, failed=failed)

    def _job(self, task: SuiteTask, state: str, *, session: str, repeat: int, seed: int) -> Job:
        """With the repeat's seed, if its runner takes one."""
        if self._intake is None:
            raise BadInput("jobs need workers")
        make = partial(make_job, task, self._state(state), session=session, repeat=repeat)
        job = make(seed=seed)
        if self._intake.check(job):
            job = make()
        refuse(self._intake.problems(job))
        return job

    def poll(self, suite: Suite, runs: SuiteRuns) -> SuiteScores | None:
        """The scores of that one repeat, or None: not all of it has ended."""
        commands = self._command_scores(suite, runs)
        found: list[TaskScore] = []
        for task in suite.tasks:
            score = commands.get(task.id) if task.job is None else self._of_job(suite, task, runs)
            if score is None:
                return None
            found.append(score)
        return SuiteScores(runs=(tuple(found),))

    def _of_job(self, suite: Suite, task: SuiteTask, runs: SuiteRuns) -> TaskScore | None:
        """What a task's job scored; one that gave no verdict is submitted once more."""
        if task.id in runs.failed:
            return _score(task, 0.0, runs.failed[task.id])
        first = self._job_score(task, runs.jobs[task.id])
        if first is None or first.verdict or self._intake is None:
            return first
        seed = suite.seed_of(task.id, runs.repeat)
        try:
            job = self._job(task, runs.state, session=runs.session, repeat=runs.repeat, seed=seed)
            again = job.model_copy(update={"idempotency_key": _again(str(job.idempotency_key))})
            (accepted,) = submit_jobs(self._intake, [again])
        except BadInput as error:
            return first.model_copy(update={"note": f"{first.note}; {error}"})
        return self._job_score(task, accepted.id)

    def _job_score(self, task: SuiteTask, job_id: str) -> TaskScore | None:
        """What the first attempt scored, and a word about it; None: it has not ended."""
        if self._intake is None:
            raise BadInput("jobs need workers")
        view = self._intake.ledger.job(job_id)
        if view is None:
            return _score(task, 0.0, f"job {job_id} is no longer known", verdict=False)
        verdict = view.attempts[0].verdict if view.attempts else None
        if verdict is not None and verdict.score is not None:
            self._close(view)
            return _score(task, min(1.0, max(0.0, verdict.score / 100)))
        if view.state not in TERMINAL:
            return None
        why = f"job {job_id} was {view.state}: {view.detail or view.reason or 'no score'}"
        return _score(task, 0.0, why, verdict=False)

    def _close(self, view: JobView) -> None:
        """A low score is a measurement, not something that a person must look at."""
        if view.state == "escalated" and self._intake is not None:
            self._intake.ledger.end_escalation(
                f"{view.id}:1", how="resolved", by="benchmark", note="measured"
            )

    def _command_scores(self, suite: Suite, runs: SuiteRuns) -> dict[str, TaskScore]:
        """Of the commands that have been run, some of them just now."""
        scores: dict[str, TaskScore] = {}
        left: list[SuiteTask] = []
        for task in suite.tasks:
            if task.command is None:
                continue
            known = self._known(run_key(runs.session, task, runs.repeat, runs.state))
            if known is None:
                left.append(task)
            else:
                scores[task.id] = known
        if left:
            tree = self._state(runs.state).tree
            for task, score in self._run(suite, left, tree, runs.repeat):
                key = run_key(runs.session, task, runs.repeat, runs.state)
                self._store.put(key if self._store.get(key) is None else _again(key), score)
                known = self._known(key)
                if known is not None:
                    scores[task.id] = known
        return scores

    def _known(self, key: str) -> TaskScore | None:
        """What a command scored; None: it is to be run, or once more because it gave no verdict."""
        first = self._store.get(key)
        return first if first is None or first.verdict else self._store.get(_again(key))

    def _run(
        self, suite: Suite, tasks: Sequence[SuiteTask], tree: Mapping[str, TreeNode], repeat: int
    ) -> Iterator[tuple[SuiteTask, TaskScore]]:
        """Run commands side by side; begin none after the time slice, but some at least."""
        end = self._clock() + self._slice
        rest = iter(tasks[self._threads :])
        with ThreadPoolExecutor(self._threads, thread_name_prefix="suite") as pool:

            def begin(task: SuiteTask) -> Future[TaskScore]:
                seed = suite.seed_of(task.id, repeat)
                call = partial(run_command, task, tree, seed=seed, repeat=repeat)
                return pool.submit(call, limits=self._limits)

            running = {begin(task): task for task in tasks[: self._threads]}
            while running:
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    yield running.pop(future), future.result()
                    if self._clock() < end and (task := next(rest, None)) is not None:
                        running[begin(task)] = task


def _again(key: str) -> str:
    """What the second run of what gave no verdict is known by."""
    return f"{key}:again"


def _score(task: SuiteTask, value: float, note: str = "", *, verdict: bool = True) -> TaskScore:
    return TaskScore(
        task=task.id, cluster=task.cluster, values={WHOLE: value}, note=note, verdict=verdict
    )


def suite_measurer(
    settings: Settings, ledger: RedisLedger, intake: Intake | None, *, commands: bool
) -> SuiteMeasurer:
    """The measurer of an installation. ``commands``: whether a suite may bring programs."""
    return SuiteMeasurer(
        blobs=blob_store(settings),
        store=RedisScores(ledger.calls, prefix=settings.key_prefix, retention=settings.retention),
        intake=intake,
        commands=commands,
        home=settings.home,
        cap=settings.workspace_cap,
    )


def changed(tree: Mapping[str, TreeNode], changes: Sequence[FileChange]) -> Mapping[str, TreeNode]:
    """A tree as it would be with these changes."""
    found = dict(tree)
    for change in changes:
        if change.after is None:
            found.pop(change.path, None)
            continue
        for folder in PurePosixPath(change.path).parents[:-1]:
            found.setdefault(folder.as_posix(), TreeNode("directory", 0o755))
        old = found.get(change.path)
        kept = old.mode if old is not None else 0o644
        mode = kept if change.mode is None else change.mode
        found[change.path] = TreeNode("file", mode, change.after)
    return dict(sorted(found.items()))
