"""Measure a tree with a suite: jobs go to the fleet, commands run here, and none runs twice."""

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
from mulligan.workers.ledger.connection.calls import RedisCalls
from mulligan.workers.ledger.redis_ledger import RedisLedger
from mulligan.workers.ledger.stores.blobs import blob_store
from mulligan.workers.sandbox.allowed import program_limits
from mulligan.workers.sandbox.file_tree import TreeNode, decode_tree, encode_tree, read_tree
from mulligan.workers.sandbox.limits import Limits
from mulligan.workers.settings.model import Settings

#: Unpacked files may be this many times larger than the cap on packed ones.
_UNPACKED_FACTOR = 10

_NO_COMMANDS = (
    "a suite may not contain commands here: use a job with a verifier that names one of"
    " [commands.NAME], or set allow_inline = true in mulligan.toml"
)
_NO_WORKERS = "jobs need workers, and this process has none: use commands instead"


class ScoreStore(Protocol):
    """The scores of commands, by run. After a crash, or when a state of the tree returns, they are
    not measured again. Jobs need no store: the ledger knows them by the same key."""

    def get(self, key: str) -> TaskScore | None: ...

    def put(self, key: str, score: TaskScore) -> None: ...


class RedisScores:
    """A ScoreStore in the ledger's Redis that keeps scores as long as jobs."""

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
        """``intake`` takes the jobs; without it, a suite may not contain any. ``commands``: whether
        a suite may contain commands. ``home``: mulligan's own folder, which no copy contains."""
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
        self._states: dict[str, TreeState] = {}

    # -- problems ---------------------------------------------------------------------------------

    def problems(self, suite: Suite, root: Path) -> list[Problem]:
        """Return every reason why the suite cannot run on this tree."""
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
        """Return what may not run here, whatever the tree contains."""
        if self._commands:
            return []
        return [
            Problem(_NO_COMMANDS, ("tasks", index, "command"), "not_allowed")
            for index, task in enumerate(suite.tasks)
            if task.command is not None
        ]

    def _job_problems(self, task: SuiteTask, state: TreeState) -> list[Problem]:
        if self._intake is None:
            return [Problem(_NO_WORKERS)]
        try:
            job = make_job(task, state, session="check", repeat=0)
        except BadInput as error:
            return list(error.problems)
        return self._intake.problems(job)

    # -- states -----------------------------------------------------------------------------------

    def snapshot(self, root: Path, changes: Sequence[FileChange] = ()) -> str:
        """Store the tree as it is now, or with these changes, and return the name of that state.
        Raises BadInput if it is too large.

        Like every private copy, it leaves out version control, environments, caches, links that
        leave the tree, and anything that is not a file, folder or link.
        """
        tree = apply_changes(self._read(root), changes)
        address = self._blobs.put(encode_tree(tree))
        self._cache(address, tree)
        return address

    def _read(self, root: Path) -> Mapping[str, TreeNode]:
        tree = read_tree(root, max_bytes=self._cap * _UNPACKED_FACTOR, refused=[])
        if self._home is None or not self._home.is_relative_to(root.resolve()):
            return tree
        home = self._home.relative_to(root.resolve()).as_posix()
        return {n: v for n, v in tree.items() if n != home and not n.startswith(f"{home}/")}

    def _state(self, address: str) -> TreeState:
        known = self._states.get(address)
        return known or self._cache(address, decode_tree(self._blobs.get(address)))

    def _cache(self, address: str, tree: Mapping[str, TreeNode]) -> TreeState:
        """Keep the last two states in memory: the two sides of a comparison."""
        last = {name: self._states[name] for name in list(self._states)[-1:] if name != address}
        state = TreeState(address=address, tree=tree, put=self._blobs.put)
        self._states = {**last, address: state}
        return state

    # -- measuring --------------------------------------------------------------------------------

    def start(self, suite: Suite, state: str, *, session: str, repeat: int) -> SuiteRuns:
        """Submit the jobs of one repeat. A job that cannot be built from this state scores 0."""
        jobs: dict[str, Job] = {}
        failed: dict[str, str] = {}
        refuse(self.forbidden(suite))  # another process, with more rights, may have begun it
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
        """Build a job, with the repeat's seed if its runner takes one."""
        if self._intake is None:
            raise BadInput(_NO_WORKERS)
        make = partial(make_job, task, self._state(state), session=session, repeat=repeat)
        job = make(seed=seed)
        if self._intake.check(job):
            job = make()
        refuse(self._intake.problems(job))
        return job

    def poll(self, suite: Suite, runs: SuiteRuns) -> SuiteScores | None:
        """Return the scores of one repeat, or None if some of it has not ended."""
        commands = self._command_scores(suite, runs)
        found: list[TaskScore] = []
        for task in suite.tasks:
            score = commands.get(task.id) if task.job is None else self._score(suite, task, runs)
            if score is None:
                return None
            found.append(score)
        return SuiteScores(runs=(tuple(found),))

    def _score(self, suite: Suite, task: SuiteTask, runs: SuiteRuns) -> TaskScore | None:
        """Return the score of a task's job, or None if it has not ended. A job without a verdict is
        submitted once more."""
        if task.id in runs.failed:
            return _score_of(task, 0.0, runs.failed[task.id])
        first = self._job_score(task, runs.jobs[task.id])
        if first is None or first.verdict or self._intake is None:
            return first
        seed = suite.seed_of(task.id, runs.repeat)
        try:
            job = self._job(task, runs.state, session=runs.session, repeat=runs.repeat, seed=seed)
            key = _second_key(str(job.idempotency_key))
            (accepted,) = submit_jobs(
                self._intake, [job.model_copy(update={"idempotency_key": key})]
            )
        except BadInput as error:
            return first.model_copy(update={"note": f"{first.note}; {error}"})
        return self._job_score(task, accepted.id)

    def _job_score(self, task: SuiteTask, job_id: str) -> TaskScore | None:
        """Return the score of a job's first attempt, or None if it has not ended."""
        if self._intake is None:
            raise BadInput(_NO_WORKERS)
        view = self._intake.ledger.job(job_id)
        if view is None:
            return _score_of(task, 0.0, f"job {job_id} no longer exists", verdict=False)
        verdict = view.attempts[0].verdict if view.attempts else None
        if verdict is not None and verdict.score is not None:
            self._resolve(view)
            return _score_of(task, min(1.0, max(0.0, verdict.score / 100)))
        if view.state not in TERMINAL:
            return None
        why = f"job {job_id} was {view.state}: {view.detail or view.reason or 'no score'}"
        return _score_of(task, 0.0, why, verdict=False)

    def _resolve(self, view: JobView) -> None:
        """Resolve the escalation of a low score: it is a measurement and needs no person."""
        if view.state == "escalated" and self._intake is not None:
            self._intake.ledger.end_escalation(
                f"{view.id}:1", how="resolved", by="benchmark", note="measured"
            )

    def _command_scores(self, suite: Suite, runs: SuiteRuns) -> dict[str, TaskScore]:
        """Run the remaining commands for a time slice. Return the scores of all that have run."""

        def key_of(task: SuiteTask) -> str:
            return run_key(runs.session, task, runs.repeat, runs.state)

        commands = [task for task in suite.tasks if task.command is not None]
        scores = {task.id: self._stored(key_of(task)) for task in commands}
        left = [task for task in commands if scores[task.id] is None]
        if left:
            tree = self._state(runs.state).tree
            for task, score in self._run(suite, left, tree, runs.repeat):
                key = key_of(task)
                self._store.put(key if self._store.get(key) is None else _second_key(key), score)
                scores[task.id] = self._stored(key)
        return {name: score for name, score in scores.items() if score is not None}

    def _stored(self, key: str) -> TaskScore | None:
        """Return a command's score, or None if it has to be run, for the first time or, without a
        verdict, once more."""
        first = self._store.get(key)
        return first if first is None or first.verdict else self._store.get(_second_key(key))

    def _run(
        self, suite: Suite, tasks: Sequence[SuiteTask], tree: Mapping[str, TreeNode], repeat: int
    ) -> Iterator[tuple[SuiteTask, TaskScore]]:
        """Run commands in parallel: at first one per thread, and none after the time slice."""
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


def _second_key(key: str) -> str:
    """Return the key of the second run, which follows a run without a verdict."""
    return f"{key}:again"


def _score_of(task: SuiteTask, value: float, note: str = "", *, verdict: bool = True) -> TaskScore:
    return TaskScore(
        task=task.id, cluster=task.cluster, values={WHOLE: value}, note=note, verdict=verdict
    )


def suite_measurer(
    settings: Settings, ledger: RedisLedger, intake: Intake | None, *, commands: bool
) -> SuiteMeasurer:
    """Build the measurer of these settings. ``commands``: whether a suite may contain commands."""
    return SuiteMeasurer(
        blobs=blob_store(settings),
        store=RedisScores(ledger.calls, prefix=settings.key_prefix, retention=settings.retention),
        intake=intake,
        commands=commands,
        limits=program_limits(settings),
        home=settings.home,
        cap=settings.workspace_cap,
    )


def apply_changes(
    tree: Mapping[str, TreeNode], changes: Sequence[FileChange]
) -> Mapping[str, TreeNode]:
    """Return the tree with these changes."""
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
