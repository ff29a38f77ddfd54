"""A pytest plug-in for your own tests: an in-memory stack, scripted answers, blocked models.

pytest loads it in every project with mulligan installed, so it imports mulligan only when used.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar, overload

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from celery import Celery

    from mulligan.client.async_client import AsyncClient
    from mulligan.client.in_memory import Answers
    from mulligan.client.result import Result
    from mulligan.client.sync_client import Client
    from mulligan.policies.edits.edit import Edit
    from mulligan.policies.failures.failure import VerificationResult
    from mulligan.policies.jobs.job import Output
    from mulligan.tasks.ports.appliers import EditApplier, FileChange
    from mulligan.tasks.ports.ledger import JobView
    from mulligan.tasks.ports.runners import Runner
    from mulligan.tasks.ports.verifiers import Verifier
    from mulligan.workers.local.local_stack import LocalStack

T = TypeVar("T")
#: While this variable is set, only scripts answer jobs, even in workers that a test starts.
NO_MODELS = "MULLIGAN_NO_MODELS"
_OUTSIDE = pytest.StashKey[str | None]()


def pytest_configure(config: pytest.Config) -> None:
    meaning = "this test may ask real models, or only runners of the named kinds"
    config.addinivalue_line("markers", f"real_models(*kinds): {meaning}")
    # Not in a fixture: fixtures of a wider scope would run before it.
    config.stash[_OUTSIDE] = os.environ.get(NO_MODELS)
    os.environ.setdefault(NO_MODELS, "1")


def pytest_unconfigure(config: pytest.Config) -> None:
    if config.stash.get(_OUTSIDE, None) is None:
        os.environ.pop(NO_MODELS, None)


@contextmanager
def real_models(*kinds: str) -> Iterator[None]:
    """Allow real models, or only runners of these kinds. For fixtures of a wide scope that start
    workers; a single test uses the marker instead."""
    before = os.environ.pop(NO_MODELS, None)
    if kinds:
        os.environ[NO_MODELS] = f"except:{','.join(kinds)}"
    try:
        yield
    finally:
        os.environ.pop(NO_MODELS, None)
        if before is not None:
            os.environ[NO_MODELS] = before


@pytest.fixture(autouse=True)
def _as_marked(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that would ask a model fails at once, unless it is marked `real_models`."""
    marker = request.node.get_closest_marker("real_models")
    with real_models(*marker.args) if marker is not None else nullcontext():
        yield


class InMemoryStack:
    """The whole queue in this process: real policies, verifiers and tasks, no other process."""

    def __init__(self, stack: LocalStack) -> None:
        self._stack = stack
        self._undo: list[Callable[[], None]] = []

    @overload
    def run(
        self, job: Mapping[str, Any] | str, *, returns: type[T], answers: Answers = (),
        timeout: float = 30.0, **options: Any,
    ) -> Result[T]: ...  # fmt: skip

    @overload
    def run(
        self, job: Mapping[str, Any] | str, *, returns: Mapping[str, Any] | None = None,
        answers: Answers = (), timeout: float = 30.0, **options: Any,
    ) -> Result[Any]: ...  # fmt: skip

    def run(
        self,
        job: Mapping[str, Any] | str,
        *,
        returns: Any = None,
        answers: Answers = (),
        timeout: float = 30.0,
        **options: Any,
    ) -> Result[Any]:
        """Run a job (or a prompt) to its end, with these answers by attempt; the last repeats.

        The rest is as for ``Client.run``. With neither ``returns`` nor verifiers, any JSON object
        is good.
        """
        from mulligan.client.result import WaitTimeout

        fields: dict[str, Any] = {"prompt": job} if isinstance(job, str) else dict(job)
        if returns is None:
            fields = {"task_type": "test", "verifiers": ["json.object"], **fields}
        with self.client(answers=answers) as client:
            try:
                return client.run(fields, returns=returns, timeout=timeout, **options)
            except WaitTimeout as error:
                raise AssertionError(str(error)) from error

    def client(self, *, answers: Answers = ()) -> Client:
        """Return a real Client of this stack, for code that takes one.

        ``answers`` answer its jobs, whatever runner they name: a list by attempt, whose last item
        repeats, or a function from the prompt to such a list.
        """
        from mulligan.client.in_memory import ScriptedBackend
        from mulligan.client.sync_client import Client

        return Client.at(ScriptedBackend(self._stack, answers))

    def async_client(self, *, answers: Answers = ()) -> AsyncClient:
        """Like ``client``, for asyncio."""
        from mulligan.client.async_client import AsyncClient
        from mulligan.client.in_memory import ScriptedBackend

        return AsyncClient.at(ScriptedBackend(self._stack, answers))

    def install(self, app: Celery) -> None:
        """Replace ``mulligan.install(app)`` until the end of the test: the app's repairing tasks
        run inline, with all their attempts, without a broker or Redis."""
        from mulligan.client.in_memory import install_in_memory

        self._undo.append(install_in_memory(app, self._stack))

    def jobs(self) -> list[JobView]:
        """Return all jobs of this stack in their order, those of repairing tasks included."""
        ledger = self._stack.ledger
        ids = dict.fromkeys(event.job_id for event in ledger.events() if event.type == "job")
        return [view for view in map(ledger.job, ids) if view is not None]

    def close(self) -> None:
        """Restore every app."""
        while self._undo:
            self._undo.pop()()


@pytest.fixture
def mulligan_stack() -> Iterator[InMemoryStack]:
    """An in-memory stack for one test."""
    from mulligan.workers.local.local_stack import local_stack
    from mulligan.workers.local.temporary_ledger import temporary_ledger
    from mulligan.workers.settings.model import Settings

    settings = Settings(allow_inline=True, sweep_interval=0.05)
    with (
        temporary_ledger(settings) as ledger,
        local_stack(settings, ledger, grace=1.0) as stack,
    ):
        in_memory = InMemoryStack(stack)
        try:
            yield in_memory
        finally:
            in_memory.close()


def assert_repaired(
    job: Result[Any] | JobView, *, by: str | None = None, attempts: int | None = None
) -> None:
    """Assert that a job failed first and succeeded later; ``by``: part of the technique's name."""
    from mulligan.client.result import Result

    view = job.view if isinstance(job, Result) else job
    count = len(view.attempts)
    ended = f"{view.job.label} ended {view.state} ({view.reason}) after {count} attempts"
    assert view.state == "succeeded", ended
    assert count > 1, f"{ended}: it needed no repair"
    if attempts is not None:
        assert count == attempts, ended
    techniques = [attempt.plan.technique or "" for attempt in view.attempts[1:]]
    if by is not None:
        assert any(by in technique for technique in techniques), f"{ended}, by {techniques}"


def check_verifier(verifier: Verifier, *, good: str, bad: str) -> None:
    """Assert a verifier's contract: it tells good from bad, always the same way, as plain JSON."""
    from mulligan.policies.failures.classify import classify_failure
    from mulligan.policies.failures.failure import VerificationStatus

    assert isinstance(verifier.slow, bool), "a verifier says whether it is slow"
    passed, failed = _verify(verifier, good), _verify(verifier, bad)
    assert passed.status is not VerificationStatus.FAIL, f"refuses the good answer: {passed}"
    assert failed.status is VerificationStatus.FAIL, f"accepts the bad answer: {failed}"
    assert failed.summary or failed.errors, "a failure says what is wrong"
    for result in (passed, failed):
        assert type(result).model_validate_json(result.model_dump_json()) == result
    first = classify_failure(failed, source="verify")
    again = classify_failure(_verify(verifier, bad), source="verify")
    assert first.classification_signature == again.classification_signature, (
        "the same failure must have the same signature: keep clocks and ids out of errors"
    )


def _verify(verifier: Verifier, text: str) -> VerificationResult:
    from mulligan.policies.jobs.job import Output
    from mulligan.tasks.ports.verifiers import Candidate

    return verifier.verify(Candidate(output=Output(text=text), text=text))


def check_runner(runner: Runner, *, prompt: str = "Say something.") -> Output:
    """Assert a runner's contract: a named provider, and an answer that can be stored."""
    from mulligan.policies.jobs.job import Message, Output
    from mulligan.tasks.ports.runners import Request

    assert runner.provider, "a runner names its provider: breakers are kept by it"
    output = runner.answer(Request(messages=(Message(role="user", content=prompt),), timeout=30.0))
    assert isinstance(output, Output), f"answer() returns an Output, not {type(output).__name__}"
    # What an answer says about its provider is not stored.
    about_provider = ("provider_wait", "rate_limits", "token_cap")
    stored = output.model_copy(update=dict.fromkeys(about_provider))
    assert Output.model_validate_json(output.model_dump_json()) == stored
    return output


def check_applier(
    applier: EditApplier, edit: Edit, *, root: Path, expect: Mapping[str, bytes | None]
) -> list[FileChange]:
    """Assert an applier's contract: it computes changes and writes nothing, reports the present
    files correctly, and changes nothing the second time. ``expect``: each file afterwards; None:
    deleted."""
    from mulligan.tasks.ports.appliers import ApplyContext, EditRefused
    from mulligan.workers.edits.tree.confined_paths import normalize
    from mulligan.workers.edits.tree.write_changes import perform

    ctx = ApplyContext(root=root)
    assert applier.op == edit.op, f"it is for {applier.op}, the edit is {edit.op}"
    validation = applier.validate(edit, ctx)
    assert validation.ok, f"refuses the form of the edit: {validation.reason}"
    before = _files(root)
    changes = applier.changes(edit, ctx)
    assert _files(root) == before, "changes() must only read: the one writer writes"
    for change in changes:
        assert normalize(change.path) == change.path, f"{change.path}: relative to the root, with /"
        assert change.before == before.get(change.path), f"{change.path}: before is not what it is"
    assert {c.path: c.after for c in changes if not c.unchanged} == dict(expect)
    perform(root, changes)
    try:
        again = applier.changes(edit, ctx)
    except EditRefused:
        return changes  # what is deleted or renamed is gone
    assert all(change.unchanged for change in again), "done twice, it must change nothing"
    return changes


def _files(root: Path) -> dict[str, bytes]:
    found = (path for path in root.rglob("*") if path.is_file())
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in found}
