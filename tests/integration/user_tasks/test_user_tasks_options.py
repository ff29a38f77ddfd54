"""The options of a user's task: one retry authority, observing, and invalid options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import MaxRetriesExceededError, Retry
from pydantic import BaseModel
from support.jobs import failure_of
from support.user_tasks import delivered, job_of

from mulligan import RepairingTask, Scored, install
from mulligan.policies.failures.failure import VerificationResult, VerificationStatus
from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.celery.broker.queue_depth import depths
from mulligan.workers.celery.state_task import Corrected, Escalated
from mulligan.workers.ledger.redis_ledger import RedisLedger

THREE_ATTEMPTS = {"max_attempts": 3, "same_failure_limit": 9}


@pytest.fixture
def app(redis_url: str) -> Celery:
    app = Celery("mine", broker=redis_url, backend="cache+memory://", set_as_current=False)
    install(app)
    return app


def first_letter(text: str) -> str:
    return text[:1]


# -- one retry authority ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"autoretry_for": (ValueError,)}, 'autoretry_for: .* policy={"max_attempts": 4}'),
        ({"max_retries": 2}, 'max_retries: .* policy={"max_attempts": 3}, .* mode="observe"'),
        ({"max_retries": None}, "max_retries: only mulligan"),
        ({"retry_on_worker_lost": True}, "retry_on_worker_lost: the sweep does that"),
    ],
    ids=["autoretry", "max_retries", "unlimited", "worker lost"],
)
def test_a_second_retry_authority_is_refused_every_time(
    app: Celery, options: dict[str, Any], expected: str
) -> None:
    task = app.task(base=RepairingTask, shared=False, name="mine.extract", **options)(first_letter)
    for _ in range(2):
        with pytest.raises(BadInput, match=f"^task mine.extract: {expected}"):
            task.delay("text")
    assert depths(app, ["celery"]) == {"celery": 0}


def test_a_second_retry_authority_of_a_base_class_is_refused(app: Celery) -> None:
    class Stubborn(RepairingTask):
        abstract = True
        autoretry_for = (OSError,)

    registered = type(
        "Registered", (Stubborn,), {"run": staticmethod(first_letter), "name": "mine.other"}
    )
    with pytest.raises(BadInput, match=r"^task mine.other: autoretry_for"):
        app.register_task(registered())
    with pytest.raises(BadInput, match=r"^task mine.first: autoretry_for"):
        app.task(base=Stubborn, shared=False, name="mine.first")(first_letter).delay("text")


@pytest.mark.parametrize("exc", [None, ValueError("the age is missing")], ids=["bare", "exc"])
def test_self_retry_is_a_failed_attempt(
    app: Celery, ledger: RedisLedger, exc: Exception | None
) -> None:
    ran = []

    def asking(self: Any) -> str:
        ran.append(self.request.retries)
        raise self.retry(exc=exc, countdown=0, max_retries=2)

    task = app.task(base=RepairingTask, shared=False, policy=THREE_ATTEMPTS)(asking)
    result = task.apply()
    with pytest.raises(Escalated, match="max_attempts"):
        result.get()
    assert ran == [0, 0, 0]
    view = job_of(ledger, result.id)
    assert (view.state, len(view.attempts), len(ledger.jobs())) == ("escalated", 3, 1)
    message = failure_of(view.attempts[0]).message
    assert message == (str(exc) if exc else "the task asked to be run again")


def test_self_retry_without_exc_is_classified_by_the_handled_exception(
    app: Celery, ledger: RedisLedger
) -> None:
    def asking(self: Any) -> str:
        try:
            return str(dict[str, str]()["age"])
        except KeyError:
            raise self.retry(countdown=0) from None

    result = app.task(base=RepairingTask, shared=False)(asking).apply()
    failure = failure_of(job_of(ledger, result.id).attempts[0])
    assert failure.kind == "schema_invalid"


def test_self_retry_is_not_caught_by_handlers_of_its_cause(
    app: Celery, ledger: RedisLedger
) -> None:
    """Handlers of the cause do not catch it, as they do not catch Celery's Retry."""

    def asking(self: Any) -> str:
        try:
            self.retry(exc=ValueError("wrong"), throw=False)
        except ValueError:
            return "caught"
        return "went on"

    result = app.task(base=RepairingTask, shared=False)(asking).apply()
    assert failure_of(job_of(ledger, result.id).attempts[0]).message == "wrong"


def test_self_retry_publishes_only_the_next_attempt(app: Celery) -> None:
    def asking(self: Any) -> str:
        raise self.retry(exc=KeyError("age"), countdown=0)

    task = app.task(base=RepairingTask, shared=False)(asking)
    with delivered(task), pytest.raises(Retry) as raised:
        task()
    assert isinstance(raised.value.exc, Corrected)
    # A policy retry, not a mandatory one: an exception has no score.
    assert depths(app, ["celery", "celery.repair"]) == {"celery": 1, "celery.repair": 0}


def test_autoretry_from_annotations_does_not_loop(app: Celery, ledger: RedisLedger) -> None:
    """Annotations are applied after the class is created, so they cannot be refused there."""
    app.conf.task_annotations = {"*": {"autoretry_for": (ValueError,), "max_retries": 5}}
    ran = []

    def wrong() -> str:
        ran.append(1)
        raise ValueError("wrong")

    task = app.task(base=RepairingTask, shared=False, policy=THREE_ATTEMPTS)(wrong)
    assert job_of(ledger, task.apply().id).reason == "max_attempts"
    assert len(ran) == 3


# -- observing changes nothing ---------------------------------------------------------------------


def test_observing_keeps_autoretry(app: Celery, ledger: RedisLedger) -> None:
    ran = []

    def away() -> str:
        ran.append(1)
        raise OSError("away")

    options = {"autoretry_for": (OSError,), "retry_backoff": False, "default_retry_delay": 0}
    task = app.task(base=RepairingTask, shared=False, mode="observe", **options)(away)
    with pytest.raises(OSError, match="away"):
        task.apply().get()
    # Celery's default is 3 retries. Each run is one record; the last one has the verdict.
    assert len(ran) == 4
    assert [view.reason for view in ledger.jobs()] == ["observed", *["signalled"] * 3]


def test_observing_keeps_the_limit_of_self_retry(app: Celery) -> None:
    ran = []

    def asking(self: Any) -> str:
        ran.append(self.request.retries)
        raise self.retry(countdown=0)

    task = app.task(base=RepairingTask, shared=False, mode="observe", max_retries=2)(asking)
    with pytest.raises(MaxRetriesExceededError):
        task.apply().get()
    assert ran == [0, 1, 2]


@pytest.mark.parametrize("late", [True, False])
def test_an_observed_task_keeps_the_app_s_acknowledgement(app: Celery, late: bool) -> None:
    app.conf.update(task_acks_late=late, task_ignore_result=late)
    observed = app.task(base=RepairingTask, shared=False, mode="observe", name="seen")(first_letter)
    enforced = app.task(base=RepairingTask, shared=False, name="enforced")(first_letter)
    explicit = app.task(
        base=RepairingTask, shared=False, name="explicit", mode="observe", acks_late=not late
    )(first_letter)
    app.finalize()
    assert (observed.acks_late, observed.ignore_result) == (late, late)
    assert observed.reject_on_worker_lost is app.conf.task_reject_on_worker_lost
    assert explicit.acks_late is not late
    assert (enforced.acks_late, enforced.ignore_result) == (True, False)
    assert enforced.reject_on_worker_lost


class Killed(BaseException):
    """The loss of a worker during a task."""


def expire_leases(ledger: RedisLedger) -> None:
    ledger.sweep(empty_queues=())  # the first sweep gives everyone one more lease
    leases = "mulligan:{p00}:leases"
    for entry in ledger.calls.run("ZRANGE", leases, 0, -1):
        ledger.calls.run("ZADD", leases, 1, entry)


def test_a_lost_observed_task_is_neither_repeated_nor_escalated(
    app: Celery, ledger: RedisLedger
) -> None:
    def fragile() -> str:
        raise Killed

    task = app.task(base=RepairingTask, shared=False, mode="observe")(fragile)
    with delivered(task), pytest.raises(Killed):
        task()
    assert job_of(ledger, "a-message").state == "running"
    expire_leases(ledger)
    for _ in range(3):
        app.tasks["mulligan.sweep"].apply(throw=True)
    view = job_of(ledger, "a-message")
    assert (view.state, view.attempts[0].claims) == ("cancelled", 1)
    assert "worker was lost" in str(view.detail)
    assert ledger.escalations() == []
    assert depths(app, ["celery", "celery.repair"]) == {"celery": 0, "celery.repair": 0}


def test_an_observed_task_runs_for_every_message(app: Celery, ledger: RedisLedger) -> None:
    """Repeated messages and paused task types do not stop it."""
    ran = []

    def count() -> Scored:
        ran.append(1)
        passed = VerificationResult(status=VerificationStatus.PASS, verifier_id="counted")
        return Scored(len(ran), [passed])

    task = app.task(base=RepairingTask, shared=False, mode="observe", task_type="counted")(count)
    assert task.apply(task_id="one").get() == 1
    assert task.apply(task_id="one").get() == 2
    ledger.pause("task_type:counted")
    assert task.apply(task_id="two").get() == 3
    ledger.resume("task_type:counted")
    for _ in range(2):
        app.tasks["mulligan.sweep"].apply(throw=True)
    assert depths(app, ["celery"]) == {"celery": 0}
    assert [view.state for view in ledger.jobs()] == ["cancelled", "succeeded"]


def test_a_repeated_message_of_a_running_observed_task_runs(app: Celery) -> None:
    """Given a killed worker whose message is delivered again at once."""
    ran = []

    def fragile() -> str:
        ran.append(1)
        if len(ran) == 1:
            raise Killed
        return "done"

    task = app.task(base=RepairingTask, shared=False, mode="observe")(fragile)
    with delivered(task), pytest.raises(Killed):
        task()
    with delivered(task):
        assert task() == "done"


# -- invalid options -------------------------------------------------------------------------------


@dataclass
class Plain:
    name: str


class NoSchema(BaseModel):
    call: Callable[[], None]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {"mode": "observ"},
            'mode: must be "enforce" or "observe", not .*; did you mean .observe.?',
        ),
        ({"mdoe": "observe"}, "mdoe: there is no such option; did you mean 'mode'?"),
        ({"verifers": [Plain]}, "verifers: there is no such option; did you mean 'verifiers'?"),
        ({"policy": {"max_atempts": 2}}, "policy.max_atempts: .*; did you mean 'max_attempts'?"),
        ({"policy": {"max_attempts": 1}}, "policy.max_attempts: must be 2 or more"),
        ({"policy": {"max_attempts": "x"}}, "policy.max_attempts: must be an integer"),
        ({"policy": 4}, 'policy: must be a mapping such as {"max_attempts": 4}, not 4'),
        ({"task_type": "<mine>"}, "task_type: .* \\(got '<mine>'\\)"),
        ({"verifiers": "json.object"}, "verifiers: must be a list, such as"),
        (
            {"verifiers": [first_letter, Plain]},
            "verifiers\\[1\\]: is a pydantic model, an id, a mapping",
        ),
        ({"verifiers": [NoSchema]}, "verifiers\\[0\\]\\.model: NoSchema has no JSON Schema"),
        ({"verifiers": ["json.objet"]}, "verifiers\\[0\\].id: .*; did you mean 'json.object'?"),
        ({"verifiers": [{"weight": 2}]}, "verifiers\\[0\\].id: is required"),
        ({"verifiers": ["pytest.subprocess"]}, "verifiers\\[0\\]: .* needs a workspace"),
    ],
)
def test_an_invalid_option_is_refused(app: Celery, options: dict[str, Any], expected: str) -> None:
    task = app.task(base=RepairingTask, shared=False, name="mine.extract", **options)(first_letter)
    with pytest.raises(BadInput, match=f"^task mine.extract: {expected.replace('?', '[?]')}"):
        task.delay("text")


def test_every_invalid_option_is_reported_at_once(app: Celery) -> None:
    options: dict[str, Any] = {"mode": "of", "task_type": "", "policy": {"a": 1, "b": 2}}
    limits = {"time_limit": 7200, "soft_time_limit": 7000}
    with pytest.raises(BadInput) as raised:
        app.task(base=RepairingTask, shared=False, **options, **limits)(first_letter).delay("text")
    assert len(raised.value.problems) == 6


def test_unrelated_options_are_accepted(app: Celery, ledger: RedisLedger) -> None:
    options: dict[str, Any] = {"model": "small", "node": 3, "queue_name": "x", "verify": True}
    task = app.task(base=RepairingTask, shared=False, **options)(first_letter)
    result = task.apply(args=("text",))
    assert (task.model, result.get()) == ("small", "t")
    assert job_of(ledger, result.id).state == "succeeded"


@pytest.mark.parametrize("name", ["time_limit", "soft_time_limit"])
def test_a_time_limit_above_that_of_a_claim_is_refused(app: Celery, name: str) -> None:
    """After `hard_limit`, another worker runs the task while the first one goes on."""
    declare = partial(app.task, base=RepairingTask, shared=False)
    with pytest.raises(BadInput, match=rf"{name}: 7200 s is above hard_limit \(3600 s\)"):
        declare(**{name: 7200})(first_letter).delay("text")
    with pytest.raises(BadInput, match=name):
        declare(name="mine.sent")(first_letter).apply_async(("text",), **{name: 7200})
    assert declare(name="mine.allowed", **{name: 3600})(first_letter).apply(("text",)).get() == "t"
    app.conf[f"task_{name}"] = 7200
    with pytest.raises(BadInput, match=name):
        declare(name="mine.by_app")(first_letter).delay("text")
    declare(name="mine.observed", mode="observe")(first_letter).apply(("text",)).get()


def test_an_exempt_type_may_have_one_attempt(redis_url: str) -> None:
    app = Celery("mine", broker=redis_url, backend="cache+memory://", set_as_current=False)
    install(app, exempt_task_types=["once"])
    options: dict[str, Any] = {"task_type": "once", "policy": {"max_attempts": 1}}
    task = app.task(base=RepairingTask, shared=False, **options)(first_letter)
    assert task.apply(["text"]).get() == "t"


# -- arguments -------------------------------------------------------------------------------------


def with_self(self: Any, text: str, *, loud: bool = False) -> str:
    return text.upper() if loud else text


@pytest.mark.parametrize("bind", [True, False], ids=["bound", "self alone"])
def test_arguments_are_checked_when_a_task_is_sent(app: Celery, bind: bool) -> None:
    task = app.task(base=RepairingTask, shared=False, bind=bind)(with_self)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'text'"):
        task.delay()
    with pytest.raises(TypeError, match="quiet"):
        task.delay("text", quiet=True)
    assert depths(app, ["celery"]) == {"celery": 0}
    task.delay("text", loud=True)
    assert depths(app, ["celery"]) == {"celery": 1}


def test_a_task_may_turn_argument_checks_off(app: Celery) -> None:
    app.task(base=RepairingTask, shared=False, typing=False)(with_self).delay()
    assert depths(app, ["celery"]) == {"celery": 1}


# -- functions as verifiers ------------------------------------------------------------------------


def test_each_lambda_is_a_verifier_with_its_own_id(app: Celery, ledger: RedisLedger) -> None:
    checks = [lambda text: "a" in text, lambda text: "b" in text, partial(str.startswith, "ab")]
    prompts = []

    def ask(self: Any) -> str:
        prompts.append(self.correct("Ask."))
        return "a" if self.repair is None else "ab"

    task = app.task(base=RepairingTask, shared=False, verifiers=checks)(ask)
    result = task.apply()
    assert result.get() == "ab"
    view = job_of(ledger, result.id)
    assert [spec.id for spec in view.job.verifiers] == [
        "own.lambda",
        "own.lambda-2",
        "own.startswith",
    ]
    assert "own.lambda-2 says no" in prompts[1]
