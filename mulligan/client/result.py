"""What a client returns: a handle when a job is accepted, a result when it has ended."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from mulligan.policies.problem import Problem
from mulligan.policies.repair.free_repair import extract_json
from mulligan.policies.repair.retry import score_in_full
from mulligan.tasks.ports.errors import BadInput, MulliganError

if TYPE_CHECKING:
    from mulligan.tasks.ports.ledger import AttemptView, JobView

T = TypeVar("T")
#: Verifiers whose answers are JSON.
_JSON = frozenset({"json.object", "contract.schema"})


class JobFailed(MulliganError):
    """A job ended without success, so it has no value. ``result`` has the details."""

    def __init__(self, message: str, result: Result[Any]) -> None:
        super().__init__(message)
        self.result = result


class BadValue(MulliganError):
    """The job passed its verifiers, but the caller's own model refuses the answer."""


class NotAllStored(BadInput):
    """Some of many jobs were refused after others had been stored.

    ``handles`` maps the indices of the stored jobs to their handles; ``problems`` name the rest.
    """

    def __init__(self, problems: Sequence[Problem], handles: Mapping[int, Handle[Any]]) -> None:
        count = len(handles)
        stored = "1 job is" if count == 1 else f"{count} jobs are"
        super().__init__(*problems, f"{stored} stored all the same; see handles of this error")
        self.problems = tuple(problems)
        self.handles = dict(handles)


class WaitTimeout(MulliganError, TimeoutError):
    """Some jobs did not end in time. They continue; wait for them again."""

    def __init__(self, unfinished: Sequence[str], timeout: float) -> None:
        self.unfinished = tuple(unfinished)
        count = len(self.unfinished)
        which = f"job {self.unfinished[0]} has" if count == 1 else f"{count} jobs have"
        super().__init__(f"{which} not ended within {timeout:g} s")


@dataclass(frozen=True, kw_only=True)
class Handle(Generic[T]):
    """A job that the ledger has accepted. ``id`` finds it again from any process."""

    id: str
    label: str = ""
    #: Whether the same job came before, under the same idempotency key.
    seen: bool = False
    returns: type[T] | Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Result(Generic[T]):
    """A job that has ended."""

    view: JobView
    returns: type[T] | Mapping[str, Any] | None = None

    @property
    def id(self) -> str:
        return self.view.id

    @property
    def state(self) -> str:
        """``succeeded``, ``escalated`` or ``cancelled``."""
        return self.view.state

    @property
    def ok(self) -> bool:
        return self.view.state == "succeeded"

    @property
    def reason(self) -> str | None:
        """Why it was escalated or cancelled: ``repeated_failure``, ``budget_tokens``…"""
        return self.view.reason

    @property
    def detail(self) -> str | None:
        """More about the reason."""
        return self.view.detail

    @property
    def attempts(self) -> tuple[AttemptView, ...]:
        """Every attempt with its prompt, answer and verdict."""
        return self.view.attempts

    @property
    def best(self) -> AttemptView | None:
        """The best attempt, whose answer is the job's, whether it is good enough or not."""
        return self.view.best

    @property
    def text(self) -> str | None:
        """The best answer as the model gave it, whatever its score; None if there is none."""
        return self.best.output.text if self.best and self.best.output else None

    @property
    def score(self) -> float | None:
        """The best attempt's score, 0 to 100; None if nothing was verified."""
        return self.best.score if self.best else None

    @property
    def tokens(self) -> int | None:
        """The tokens of all attempts together; None if no runner reported them."""
        return self.view.tokens

    @property
    def value(self) -> T:
        """The answer as requested: the model, parsed JSON, or text.

        Raises JobFailed if the job did not succeed: an unverified value is never returned. Raises
        BadValue if it succeeded, but the model of ``returns`` refuses the answer.
        """
        self.raise_for_state()
        text = self.text or ""
        if not self.view.job.verifiers or not _wants_json(self.view):
            return cast(T, text)
        truncated = bool(self.best and self.best.output and self.best.output.truncated)
        found = extract_json(text, truncated=truncated, repair=_repair_json)
        if self.returns is None or isinstance(self.returns, Mapping):
            return cast(T, found.value)
        return cast(T, self._model_of(self.returns, found.value))

    def _model_of(self, model: Any, value: Any) -> Any:
        from pydantic import ValidationError

        from mulligan.workers.contract_models import read_as

        try:
            return read_as(model, json.dumps(value))
        except ValidationError as error:
            raise BadValue(
                f"job {self.view.job.label!r} ({self.id}) succeeded, but its answer is no"
                f" {getattr(model, '__name__', model)}: {error}"
            ) from error

    def raise_for_state(self) -> Result[T]:
        """Return this result, or raise JobFailed with its state, reason and best attempt."""
        if not self.ok:
            raise JobFailed(self._failure_message(), self)
        return self

    def _failure_message(self) -> str:
        view, best = self.view, self.best
        reason = f": {view.reason}" if view.reason else ""
        detail = f" ({view.detail})" if view.detail else ""
        state = f"job {view.job.label!r} ({view.id}) was {view.state}{reason}{detail}"
        if view.state not in ("escalated", "cancelled"):
            state = f"job {view.job.label!r} ({view.id}) has not ended; it is {view.state}"
        if best is None:
            return f"{state}; no attempt has an answer"
        score = "no score" if self.score is None else f"a score of {score_in_full(self.score)}"
        count = len(view.attempts)
        return f"{state}; attempt {best.plan.number} of {count} was the best, with {score}"

    def story(self) -> str:
        """Return the prompts, answers, errors and changes of all attempts, for people."""
        from mulligan.client.job_story import tell

        return tell(self.view)

    def __repr__(self) -> str:
        score = "" if self.score is None else f", score {score_in_full(self.score)}"
        return f"<Result {self.id} {self.state}{score}, {len(self.attempts)} attempts>"


def _wants_json(view: JobView) -> bool:
    return any(spec.id in _JSON for spec in view.job.verifiers)


def _repair_json(text: str) -> str | None:
    from mulligan.workers.verifiers.json_text import repair_json_text  # few answers need it

    return repair_json_text(text)
