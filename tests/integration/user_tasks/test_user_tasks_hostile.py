"""Whatever a user's task raises, returns or reports, its attempt is settled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery
from support.user_tasks import job_of

from mulligan import Repair, RepairingTask, install
from mulligan.policies.jobs.job import Usage
from mulligan.workers.ledger.redis_ledger import RedisLedger

HALF = "\ud800"


class Unprintable:
    """Cannot be shown in any way."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class WithAnswer(Exception):
    """An exception with an answer of any type."""

    def __init__(self, answer: Any, message: str = "wrong") -> None:
        super().__init__(message)
        self.answer = answer


class RaisingAnswer(Exception):
    """An exception whose answer cannot be read."""

    @property
    def answer(self) -> str:
        raise RuntimeError("no answer")


@pytest.fixture
def app(redis_url: str) -> Celery:
    app = Celery("mine", broker=redis_url, backend="cache+memory://", set_as_current=False)
    install(app)
    return app


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: WithAnswer(Unprintable()), "wrong"),
        (lambda: WithAnswer("an answer", f"half {HALF}"), "half"),
        (lambda: WithAnswer("an answer", "x" * 1_000_000), "xxx"),
        (lambda: RaisingAnswer("unreadable"), "unreadable"),
        (lambda: Repair(HALF, path=HALF, answer=HALF), "\ufffd"),
        (lambda: Repair("y" * 1_000_000, path="z" * 1_000_000), "yyy"),
    ],
)
def test_an_exception_of_any_kind_is_a_failure_of_the_task(
    app: Celery, ledger: RedisLedger, make: Callable[[], Exception], said: str
) -> None:
    def ask(self: Any) -> str:
        raise make()

    result = app.task(base=RepairingTask, shared=False, policy={"max_attempts": 2})(ask).apply()
    view = job_of(ledger, result.id)
    assert (view.state, view.reason) == ("escalated", "max_attempts")
    assert said in str(view.detail)
    assert len(str(view)) < 200_000


def test_a_value_that_cannot_be_text_is_a_failure_of_the_task(
    app: Celery, ledger: RedisLedger
) -> None:
    def ask(self: Any) -> Any:
        return Unprintable()

    result = app.task(base=RepairingTask, shared=False, policy={"max_attempts": 2})(ask).apply()
    view = job_of(ledger, result.id)
    assert (view.state, view.reason) == ("escalated", "max_attempts")


@pytest.mark.parametrize("tokens", [10**30, 2**63, -1])
def test_an_impossible_number_of_tokens_is_unknown(
    app: Celery, ledger: RedisLedger, tokens: int
) -> None:
    def ask(self: Any) -> str:
        self.report_usage({"prompt_tokens": tokens, "completion_tokens": 5})
        return "answer"

    result = app.task(base=RepairingTask, shared=False)(ask).apply()
    assert result.get() == "answer"
    output = job_of(ledger, result.id).attempts[0].output
    assert output is not None
    assert output.usage.prompt_tokens is None
    assert Usage(total_tokens=tokens).total_tokens is None


def test_a_model_that_is_no_text_is_refused_where_it_is_reported(app: Celery) -> None:
    def ask(self: Any) -> str:
        with pytest.raises(TypeError, match="model is a name"):
            self.report_usage({"total_tokens": 5}, model=5)
        return "answer"

    assert app.task(base=RepairingTask, shared=False)(ask).apply().get() == "answer"
