"""What a user's task reports of an attempt: the tokens it used, and the answer it rejected."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from support.jobs import failure_of
from support.user_tasks import delivered, job_of

from mulligan import Repair, RepairingTask, Scored, install
from mulligan.console.reports.cost_report import cost_report
from mulligan.policies.failures.failure import VerificationResult, VerificationStatus
from mulligan.policies.jobs.job import Output, Usage
from mulligan.tasks.ports.ledger import Claim, ClaimRefused, Entry, Settlement
from mulligan.workers.figures.fold import Fold
from mulligan.workers.figures.windows import FigureReader
from mulligan.workers.ledger.redis_ledger import RedisLedger
from mulligan.workers.settings.model import Settings
from mulligan.workers.user_tasks.usage import read_usage

TWELVE = {"prompt_tokens": 10, "completion_tokens": 2}


class Refused(Exception):
    """An exception of the user's own that has the answer."""

    def __init__(self, answer: Any) -> None:
        super().__init__("the answer has no age")
        self.answer = answer


@pytest.fixture
def app(redis_url: str) -> Celery:
    app = Celery("mine", broker=redis_url, backend="cache+memory://", set_as_current=False)
    install(app)
    return app


def run(app: Celery, ask: Callable[[Any], Any]) -> Any:
    return app.task(base=RepairingTask, shared=False)(ask).apply()


# -- tokens ----------------------------------------------------------------------------------------


def test_reported_tokens_add_up_and_have_a_price(app: Celery, ledger: RedisLedger) -> None:
    def ask(self: Any) -> str:
        self.report_usage(TWELVE, model="small")
        self.report_usage(SimpleNamespace(input_tokens=100, output_tokens=8))
        if self.repair is None:
            raise Repair("say please")
        return "please"

    view = job_of(ledger, run(app, ask).id)
    outputs = [attempt.output for attempt in view.attempts]
    used = Usage(prompt_tokens=110, completion_tokens=10, total_tokens=120)
    assert [(o.usage, o.model) for o in outputs if o] == [(used, "small"), (used, "small")]
    Fold(ledger).run()
    prices = {"small": {"prompt": 1_000_000, "completion": 2_000_000}}
    report = cost_report(
        FigureReader(ledger), Settings(prices=prices), by="model", window="1h", now=ledger.now()
    )
    assert report["total"]["money"] == 2 * (110 + 2 * 10)
    assert report["total"]["unknown_attempts"] == 0


@pytest.mark.parametrize(
    "end",
    [
        lambda: "an answer",
        lambda: Scored("an answer", [VerificationResult(status="pass", verifier_id="mine")]),
    ],
    ids=["value", "scored"],
)
def test_the_tokens_of_a_returned_value_are_stored(
    app: Celery, ledger: RedisLedger, end: Callable[[], Any]
) -> None:
    def ask(self: Any) -> Any:
        self.report_usage({"total_tokens": 7})
        self.report_usage(None)  # an SDK that reports none
        return end()

    output = job_of(ledger, run(app, ask).id).attempts[0].output
    assert output is not None
    assert output.usage == Usage(total_tokens=7)


def test_an_exception_costs_what_was_reported(app: Celery, ledger: RedisLedger) -> None:
    def ask(self: Any) -> Any:
        self.report_usage(TWELVE)
        if self.repair is None:
            raise KeyError("age")
        assert self.previous_answer is None
        return "an answer"

    first = job_of(ledger, run(app, ask).id).attempts[0]
    assert first.output == Output(
        text="",
        usage=Usage(prompt_tokens=10, completion_tokens=2, total_tokens=12),
        elapsed_seconds=first.output.elapsed_seconds if first.output else 0,
    )
    assert failure_of(first).kind != "unknown"


def test_a_task_without_a_report_has_unknown_usage(app: Celery, ledger: RedisLedger) -> None:
    def ask(self: Any) -> str:
        return "an answer"

    output = job_of(ledger, run(app, ask).id).attempts[0].output
    assert output is not None
    assert output.usage == Usage()


@pytest.mark.parametrize("wrong", [{}, {"prompt_tokens": "12"}, {"prompt_tokens": -1}, object()])
def test_a_report_without_numbers_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match="prompt_tokens"):
        read_usage(wrong)


def test_a_direct_call_reports_nothing(app: Celery) -> None:
    def ask(self: Any) -> str:
        self.report_usage(TWELVE)
        return "an answer"

    assert app.task(base=RepairingTask, shared=False)(ask)() == "an answer"


# -- rejected answers ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (Repair("no age", answer='{"name": "Alice"}'), '{"name": "Alice"}'),
        (Repair("no age", answer={"name": "Alice"}), '{"name": "Alice"}'),
        (Refused("Alice, of age"), "Alice, of age"),
    ],
    ids=["text", "value", "exception"],
)
def test_a_rejected_answer_is_stored_and_shown_to_the_retry(
    app: Celery, ledger: RedisLedger, error: Exception, shown: str
) -> None:
    def ask(self: Any) -> str:
        if self.repair is None:
            raise error
        assert self.previous_answer == shown
        return str(self.correct("Extract the person."))

    result = run(app, ask)
    assert shown in result.get()
    output = job_of(ledger, result.id).attempts[0].output
    assert output is not None
    assert output.text == shown


@pytest.mark.parametrize("error", [Repair("no age", answer="Alice"), Refused("Alice")])
def test_a_worker_lost_after_storing_it_does_not_accept_a_rejected_answer(
    app: Celery, ledger: RedisLedger, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task has no verifiers: without the stored result, any stored answer would be good."""

    def ask(self: Any) -> str:
        raise error

    def killed(_self: RedisLedger, _lease: Any, _settlement: Settlement) -> ClaimRefused:
        raise KeyboardInterrupt

    task = app.task(base=RepairingTask, shared=False)(ask)
    monkeypatch.setattr(RedisLedger, "settle", killed)
    with delivered(task), pytest.raises(KeyboardInterrupt):
        task()
    view = job_of(ledger, "a-message")
    claim = ledger.take_over(Entry("attempt", view.id, 1), worker=str(view.attempts[0].worker))
    assert isinstance(claim, Claim)
    assert [result.status for result in claim.results.values()] == [VerificationStatus.FAIL]
    assert claim.output is not None


# -- errors ----------------------------------------------------------------------------------------


def test_the_paths_of_the_worker_enter_no_prompt(app: Celery, ledger: RedisLedger) -> None:
    prompts: list[str] = []

    def ask(self: Any) -> str:
        prompts.append(self.correct("Summarise the orders."))
        if self.repair is None:
            (Path.cwd() / "orders" / "gone.csv").read_text()
        return "nine orders"

    view = job_of(ledger, run(app, ask).id)
    assert "orders/gone.csv" in prompts[1]
    assert str(Path.cwd()) not in prompts[1]
    assert str(Path.cwd()) not in failure_of(view.attempts[0]).model_dump_json()
