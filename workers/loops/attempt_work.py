"""The work of an attempt in a repository: a private checkout, an agent in it, and nothing lost.

However the agent ends, what it did and what it said is saved before anything else happens. While it
works, it is saved now and then, so that losing the host costs no more than that.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from mulligan.policies.jobs.job import Message, Output, Workspace
from mulligan.policies.repair import wording
from mulligan.tasks.ports.cancellation import current
from mulligan.tasks.ports.errors import (
    BadInput,
    CallCancelled,
    RepositoryUnavailable,
    RunnerError,
    SetupFailed,
)
from mulligan.tasks.ports.ledger import Entry
from mulligan.tasks.ports.runners import Request, Runner
from mulligan.workers.loops.workspace_trees import WorkspaceTrees
from mulligan.workers.repositories.checkouts import AttemptCheckout
from mulligan.workers.repositories.git_repository import MoveRefused
from mulligan.workers.runners.sessions.transcript import TranscriptWriter
from mulligan.workers.sandbox.protection import ALWAYS, Protection
from mulligan.workers.sandbox.workspace import place_answer
from mulligan.workers.verifiers.edits_plan import EditsPlan

log = logging.getLogger(__name__)

#: Seconds that an attempt waits at its end for a repository that is away, and between two tries.
_PATIENCE = 600.0
_PAUSE = 5.0
#: And for one that answers, but refuses the work.
_REFUSED_PATIENCE = 60.0
#: Seconds that its work waits afterwards, without the attempt.
_LATER_PATIENCE = 24 * 3600.0
#: Bytes of new content that are saved each second while an agent works, on the average: what was
#: saved before stays in the repository until git removes it.
_MOST_SAVED = 300_000
#: Files with conflicts that a prompt names, and those that are no part of the work.
_MOST_NAMED, _FEW_NAMED = 20, 5


class AgentRunner(Protocol):
    """A runner that works in a directory."""

    def work_in(self, request: Request, directory: Path, read: Sequence[Path]) -> Output:
        """Work there, and raise as ``answer`` does. ``read``: what else it must be able to read."""


@dataclass(frozen=True, kw_only=True)
class AttemptWork:
    """Asks runners, in a checkout if the work is for the branch of a loop."""

    trees: WorkspaceTrees
    save_interval: float
    #: Called after each attempt in a repository.
    tidy: Callable[[], None] = lambda: None
    #: Shows the last lines of a transcript to those who watch: job, attempt, lines.
    show: Callable[[str, int, Sequence[str]], None] = lambda _job, _attempt, _lines: None
    #: Called at named steps, where crash tests kill a process.
    step: Callable[[str, Entry], None] = lambda _name, _entry: None

    def answer(self, runner: Runner, request: Request) -> Output:
        """Ask a runner. What it leaves in its checkout is part of its answer."""
        space = request.workspace
        if space is None or space.branch is None:
            return runner.answer(request)
        works_there = hasattr(runner, "work_in")
        repository = self.trees.open(space.git or "")
        transcript = TranscriptWriter(
            clock=time.time,
            tail=lambda lines: self.show(request.job_id, request.attempt, lines),
        )
        with ExitStack() as stack:
            checkout = stack.enter_context(
                self.trees.checkouts.attempt(
                    repository,
                    branch=space.branch,
                    start=space.ref,
                    loop=request.loop,
                    item=request.item,
                    attempt=request.attempt,
                    token=request.token,
                    job=request.job_id,
                    # A text replaces the one before: only an agent goes on with what is there.
                    kept=request.kept if works_there else None,
                    is_protected=partial(_is_protected, Protection(space.protect)),
                )
            )
            self._step("cloned", request)
            try:
                self.trees.prepare(space, checkout.directory, keep=checkout.kept is None)
            except SetupFailed:
                if checkout.kept is None:
                    raise
                # The work that it goes on with may have broken it, and the prompt says so.
            checkout.begin_work()
            began = checkout.save()
            if not request.may_ask():  # this process slept while it made the checkout
                raise CallCancelled("the lease is lost, so the runner must not be asked")
            asked = replace(
                request, session=transcript, messages=_with_conflicts(request.messages, checkout)
            )
            with self._saving(checkout, transcript):
                output, error = _ask(runner, asked, checkout, space)
            commit = _save_at_last(checkout, transcript, stack)
            self._step("saved", request)
            self.tidy()
            if error is not None and (commit == began or not _may_be_verified(error)):
                raise error
            return output.model_copy(
                update={
                    "commit": commit or checkout.base,
                    "base": checkout.base,
                    "ended": str(error) if error is not None else None,
                    "not_saved": "; ".join(_not_saved(checkout, commit)) or None,
                }
            )

    def _step(self, name: str, request: Request) -> None:
        self.step(name, Entry("attempt", request.job_id, request.attempt))

    @contextmanager
    def _saving(self, checkout: AttemptCheckout, transcript: TranscriptWriter) -> Iterator[None]:
        """Save the work now and then, in a thread of its own."""
        ended = threading.Event()

        def save() -> None:
            while not ended.wait(max(self.save_interval, checkout.content / _MOST_SAVED)):
                try:
                    checkout.save(transcript.files())
                except (RepositoryUnavailable, BadInput) as error:
                    log.warning("The work of %s cannot be saved now: %s", checkout.directory, error)

        thread = threading.Thread(target=save, name="save work", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def _save_at_last(
    checkout: AttemptCheckout, transcript: TranscriptWriter, stack: ExitStack
) -> str | None:
    """Save the work of an attempt that has ended.

    A repository that is away is waited for: by the attempt, as long as somebody wants it, and then
    by a thread, which takes the checkout over. The same network may be in between to the ledger.
    """
    transcript.close()
    try:
        return _save(
            checkout,
            transcript,
            if_away=_PATIENCE,
            if_refused=_REFUSED_PATIENCE,
            is_unwanted=lambda: current().cancelled,
        )
    except BadInput as error:
        raise RunnerError(
            f"the work cannot be saved: {error}",
            {"kind": "command_failed", "class": "work_refused"},
            final=False,
        ) from error
    except RepositoryUnavailable as error:
        thread = threading.Thread(
            target=_save_later,
            args=(checkout, transcript, stack.pop_all()),
            name="save work later",
            daemon=True,
        )
        thread.start()
        if isinstance(error, MoveRefused):  # one more agent could not save its work, either
            raise RunnerError(
                f"the repository refuses the work of attempts: {error}; allow the workers to write"
                " refs/mulligan/ there",
                {"kind": "tool_error", "class": "work_refused"},
            ) from error
        raise


def _save(
    checkout: AttemptCheckout,
    transcript: TranscriptWriter,
    *,
    if_away: float,
    if_refused: float,
    is_unwanted: Callable[[], bool] = lambda: False,
) -> str | None:
    """Save the work, for so many seconds if the repository is away or refuses it."""
    began = time.monotonic()
    while True:
        try:
            return checkout.save(transcript.files())
        except RepositoryUnavailable as error:
            patience = if_refused if isinstance(error, MoveRefused) else if_away
            if time.monotonic() - began > patience or is_unwanted():
                raise
            time.sleep(_PAUSE)


def _save_later(checkout: AttemptCheckout, transcript: TranscriptWriter, stack: ExitStack) -> None:
    with stack:
        try:
            _save(checkout, transcript, if_away=_LATER_PATIENCE, if_refused=_LATER_PATIENCE)
        except (BadInput, RepositoryUnavailable):
            log.exception("The work in %s is lost.", checkout.directory)
        else:
            log.info("The work in %s is saved now.", checkout.directory)


def _not_saved(checkout: AttemptCheckout, commit: str | None) -> Iterator[str]:
    """Say what is no part of the work: what is too much, and why nothing may have changed."""
    if checkout.left_out:
        yield f"too large to be saved, and left out: {_few(checkout.left_out)}"
    if commit is None and (ignored := checkout.newly_ignored()):
        yield f"git ignores {_few(ignored)}"


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - _FEW_NAMED} more" if len(names) > _FEW_NAMED else ""
    return ", ".join(names[:_FEW_NAMED]) + more


def _is_protected(protection: Protection, path: str, *, is_new: bool) -> bool:
    return (ALWAYS if is_new else protection).covers(path)


def _with_conflicts(
    messages: tuple[Message, ...], checkout: AttemptCheckout
) -> tuple[Message, ...]:
    """Say which files have conflicts, unless the prompt quotes them already."""
    last = messages[-1].content
    paths = [each.path for each in checkout.conflicts if each.path not in last]
    if not paths:
        return messages
    said = wording.BOTH_SIDES.format(paths=", ".join(paths[:_MOST_NAMED]))
    return (*messages[:-1], Message(role="user", content=f"{last}\n\n{said}"))


def _may_be_verified(error: Exception) -> bool:
    """Whether work is verified although the agent did not end well: only verifiers decide.

    Not if nobody wants it any more, or the same attempt is tried again.
    """
    return isinstance(error, RunnerError) and not error.final


def _ask(
    runner: Runner, request: Request, checkout: AttemptCheckout, space: Workspace
) -> tuple[Output, Exception | None]:
    """Return the answer, or the error with what is known of the answer."""
    try:
        work_in: Callable[..., Output] | None = getattr(runner, "work_in", None)
        if work_in is not None:
            return work_in(request, checkout.directory, checkout.readable), None
        output = runner.answer(request)
        if space.edits:
            EditsPlan(EditsPlan.Options()).apply(output.text, checkout.directory)
        else:
            place_answer(checkout.directory, space, output.text)
    except Exception as error:  # whatever it is, what was done is saved first
        said = error.output if isinstance(error, RunnerError) else None
        return said or Output(text=""), error
    return output, None
