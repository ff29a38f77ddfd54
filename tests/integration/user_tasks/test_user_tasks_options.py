"""The options of a user's own task: one retry authority, and what is refused at registration."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import MaxRetriesExceededError, Retry
from pydantic import BaseModel
from support.jobs import failure_of

from mulligan import RepairingTask, Scored, install
from mulligan.policies.failures.failure import VerificationResult, VerificationStatus
from mulligan.tasks.ports.errors import BadInput
from mulligan.tasks.ports.ledger import JobView
from mulligan.workers.celery.queue_depth import depths
from mulligan.workers.celery.state_task import Corrected, Escalated
from mulligan.workers.ledger import job_ids
from mulligan.workers.ledger.redis_ledger import RedisLedger

AGAIN = {"max_attempts": 3, "same_failure_limit": 9}


@pytest.fixture
def app(redis_url: str) -> Celery:
    app = Celery("mine", broker=redis_url, backend="cache+memory://", set_as_current=False)
    install(app)
    return app


def view_of(ledger: RedisLedger, message_id: str) -> JobView:
    view = ledger.job(job_ids.own_job_id(message_id, partitions=1))
    assert view is not None
    return view


@contextmanager
def delivered(task: Any, message_id: str = "a-message") -> Iterator[None]:
    """As a worker would run it: not inline, so that what is published can be seen."""
    info = {"exchange": "", "routing_key": "celery"}
    task.push_request(called_directly=False, id=message_id, delivery_info=info, args=(), kwargs={})
    try:
        yield
    finally:
        task.pop_request()


def first(text: str) -> str:
    return text[:1]


# -- one retry authority ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"autoretry_for": (ValueError,)}, 'autoretry_for: .* policy={"max_attempts": 4}'),
        ({"max_retries": 2}, 'max_retries: .* policy={"max_attempts": 3}, .* mode="observe"'),
        ({"max_retries": None}, "max_retries: mulligan alone"),
        ({"retry_on_worker_lost": True}, "retry_on_worker_lost: the sweep does that"),
    ],
    ids=["autoretry", "max_retries", "for ever", "worker lost"],
)
def test_a_second_retry_authority_is_refused_each_time_it_is_asked(
    app: Celery, options: dict[str, Any], told: str
) -> None:
    task = app.task(base=RepairingTask, shared=False, name="mine.extract", **options)(first)
    for _ in range(2):
        with pytest.raises(BadInput, match=f"^task mine.extract: {told}"):
            task.delay("text")
    assert depths(app, ["celery"]) == {"celery": 0}


def test_a_class_of_the_users_own_may_not_bring_one_either(app: Celery) -> None:
    class Stubborn(RepairingTask):
        abstract = True
        autoretry_for = (OSError,)

    registered = type("Registered", (Stubborn,), {"run": staticmethod(first), "name": "mine.other"})
    with pytest.raises(BadInput, match=r"^task mine.other: autoretry_for"):
        app.register_task(registered())
    with pytest.raises(BadInput, match=r"^task mine.first: autoretry_for"):
        app.task(base=Stubborn, shared=False, name="mine.first")(first).delay("text")


@pytest.mark.parametrize("exc", [None, ValueError("the age is missing")], ids=["bare", "exc"])
def test_a_retry_of_the_tasks_own_is_the_failure_of_the_attempt(
    app: Celery, ledger: RedisLedger, exc: Exception | None
) -> None:
    ran = []

    def asking(self: Any) -> str:
        ran.append(self.request.retries)
        raise self.retry(exc=exc, countdown=0, max_retries=2)

    task = app.task(base=RepairingTask, shared=False, policy=AGAIN)(asking)
    result = task.apply()
    with pytest.raises(Escalated, match="max_attempts"):
        result.get()
    assert ran == [0, 0, 0]
    view = view_of(ledger, result.id)
    assert (view.state, len(view.attempts), len(ledger.jobs())) == ("escalated", 3, 1)
    message = failure_of(view.attempts[0]).message
    assert message == (str(exc) if exc else "the task asked to be run again")


def test_a_retry_without_exc_is_classified_by_what_is_being_handled(
    app: Celery, ledger: RedisLedger
) -> None:
    def asking(self: Any) -> str:
        try:
            return str(dict[str, str]()["age"])
        except KeyError:
            raise self.retry(countdown=0) from None

    result = app.task(base=RepairingTask, shared=False)(asking).apply()
    failure = failure_of(view_of(ledger, result.id).attempts[0])
    assert failure.kind == "missing_context"


def test_a_retry_of_the_tasks_own_passes_the_tasks_own_handlers(
    app: Celery, ledger: RedisLedger
) -> None:
    """Only Retry and what is above it caught Celery's: the cause must not be caught instead."""

    def asking(self: Any) -> str:
        try:
            self.retry(exc=ValueError("wrong"), throw=False)
        except ValueError:
            return "caught"
        return "went on"

    result = app.task(base=RepairingTask, shared=False)(asking).apply()
    assert failure_of(view_of(ledger, result.id).attempts[0]).message == "wrong"


def test_a_retry_of_the_tasks_own_publishes_nothing_but_the_repair(app: Celery) -> None:
    def asking(self: Any) -> str:
        raise self.retry(exc=KeyError("age"), countdown=0)

    task = app.task(base=RepairingTask, shared=False)(asking)
    with delivered(task), pytest.raises(Retry) as raised:
        task()
    assert isinstance(raised.value.exc, Corrected)
    # By the policy, not the mandatory one: an exception has no score.
    assert depths(app, ["celery", "celery.repair"]) == {"celery": 1, "celery.repair": 0}


def test_autoretry_from_annotations_does_not_loop(app: Celery, ledger: RedisLedger) -> None:
    """They are applied after the class is made, and so cannot be refused there."""
    app.conf.task_annotations = {"*": {"autoretry_for": (ValueError,), "max_retries": 5}}
    ran = []

    def wrong() -> str:
        ran.append(1)
        raise ValueError("wrong")

    task = app.task(base=RepairingTask, shared=False, policy=AGAIN)(wrong)
    assert view_of(ledger, task.apply().id).reason == "max_attempts"
    assert len(ran) == 3


# -- observing changes nothing ---------------------------------------------------------------------


def test_observing_leaves_the_apps_own_retries_as_they_are(
    app: Celery, ledger: RedisLedger
) -> None:
    ran = []

    def away() -> str:
        ran.append(1)
        raise OSError("away")

    options = {"autoretry_for": (OSError,), "retry_backoff": False, "default_retry_delay": 0}
    task = app.task(base=RepairingTask, shared=False, mode="observe", **options)(away)
    with pytest.raises(OSError, match="away"):
        task.apply().get()
    # Celery's default: 3 retries. Each run is one record; the last one has the verdict.
    assert len(ran) == 4
    assert [view.reason for view in ledger.jobs()] == ["observed", *["cancelled"] * 3]


def test_observing_leaves_the_limit_of_self_retry_as_it_is(app: Celery) -> None:
    ran = []

    def asking(self: Any) -> str:
        ran.append(self.request.retries)
        raise self.retry(countdown=0)

    task = app.task(base=RepairingTask, shared=False, mode="observe", max_retries=2)(asking)
    with pytest.raises(MaxRetriesExceededError):
        task.apply().get()
    assert ran == [0, 1, 2]


@pytest.mark.parametrize("late", [True, False])
def test_an_observed_task_is_acknowledged_as_the_app_says(app: Celery, late: bool) -> None:
    app.conf.update(task_acks_late=late, task_ignore_result=late)
    observed = app.task(base=RepairingTask, shared=False, mode="observe", name="seen")(first)
    enforced = app.task(base=RepairingTask, shared=False, name="enforced")(first)
    said = app.task(
        base=RepairingTask, shared=False, name="said", mode="observe", acks_late=not late
    )(first)
    app.finalize()
    assert (observed.acks_late, observed.ignore_result) == (late, late)
    assert observed.reject_on_worker_lost is app.conf.task_reject_on_worker_lost
    assert said.acks_late is not late
    assert (enforced.acks_late, enforced.ignore_result) == (True, False)
    assert enforced.reject_on_worker_lost


class Killed(BaseException):
    """Stands for a worker that is gone in the middle of a task."""


def expire_leases(ledger: RedisLedger) -> None:
    leases = "mulligan:{p00}:leases"
    for entry in ledger.calls.run("ZRANGE", leases, 0, -1):
        ledger.calls.run("ZADD", leases, 1, entry)


def test_a_lost_observed_task_is_not_run_again_and_nobody_is_called(
    app: Celery, ledger: RedisLedger
) -> None:
    def fragile() -> str:
        raise Killed

    task = app.task(base=RepairingTask, shared=False, mode="observe")(fragile)
    with delivered(task), pytest.raises(Killed):
        task()
    assert view_of(ledger, "a-message").state == "running"
    expire_leases(ledger)
    for _ in range(3):
        app.tasks["mulligan.sweep"].apply(throw=True)
    view = view_of(ledger, "a-message")
    assert (view.state, view.attempts[0].claims) == ("cancelled", 1)
    assert "worker was lost" in str(view.detail)
    assert ledger.escalations() == []
    assert depths(app, ["celery", "celery.repair"]) == {"celery": 0, "celery.repair": 0}


def test_an_observed_task_runs_as_often_as_the_app_sends_it(
    app: Celery, ledger: RedisLedger
) -> None:
    """A message that comes again, or one whose task type is paused, is the app's own business."""
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


def test_a_message_that_comes_again_while_it_runs_is_not_swallowed(
    app: Celery, ledger: RedisLedger
) -> None:
    """The worker was killed, and the app has its messages sent again at once."""
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


# -- options that cannot be meant ------------------------------------------------------------------


@dataclass
class Plain:
    name: str


class NoSchema(BaseModel):
    call: Callable[[], None]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"mode": "observ"}, 'mode: is "enforce" or "observe", not .*; did you mean \'observe\'?'),
        ({"mdoe": "observe"}, "mdoe: there is no such option; did you mean 'mode'?"),
        ({"verifers": [Plain]}, "verifers: there is no such option; did you mean 'verifiers'?"),
        ({"policy": {"max_atempts": 2}}, "policy.max_atempts: .*; did you mean 'max_attempts'?"),
        ({"policy": {"max_attempts": 1}}, "policy.max_attempts: must be 2 or more"),
        ({"policy": {"max_attempts": "x"}}, "policy.max_attempts: input should be a valid integer"),
        ({"policy": 4}, 'policy: is a mapping such as {"max_attempts": 4}, not 4'),
        ({"task_type": "<mine>"}, "task_type: .* \\(got '<mine>'\\)"),
        ({"verifiers": "json.object"}, "verifiers: is a list, such as"),
        ({"verifiers": [first, Plain]}, "verifiers\\[1\\]: is a pydantic model, an id, a mapping"),
        ({"verifiers": [NoSchema]}, "verifiers\\[0\\]\\.model: NoSchema has no JSON Schema"),
        ({"verifiers": ["json.objet"]}, "verifiers\\[0\\].id: .*; did you mean 'json.object'?"),
        ({"verifiers": [{"weight": 2}]}, "verifiers\\[0\\].id: is required"),
        ({"verifiers": ["pytest.subprocess"]}, "verifiers\\[0\\]: .* needs a workspace"),
    ],
)
def test_an_option_that_cannot_be_meant_is_refused(
    app: Celery, options: dict[str, Any], told: str
) -> None:
    task = app.task(base=RepairingTask, shared=False, name="mine.extract", **options)(first)
    with pytest.raises(BadInput, match=f"^task mine.extract: {told.replace('?', '[?]')}"):
        task.delay("text")


def test_every_mistake_is_told_at_once(app: Celery) -> None:
    options: dict[str, Any] = {"mode": "of", "task_type": "", "policy": {"a": 1, "b": 2}}
    with pytest.raises(BadInput) as raised:
        app.task(base=RepairingTask, shared=False, **options)(first).delay("text")
    assert len(raised.value.problems) == 4


def test_options_of_the_users_own_are_left_alone(app: Celery, ledger: RedisLedger) -> None:
    options: dict[str, Any] = {"model": "small", "node": 3, "queue_name": "x", "verify": True}
    task = app.task(base=RepairingTask, shared=False, **options)(first)
    result = task.apply(args=("text",))
    assert (task.model, result.get()) == ("small", "t")
    assert view_of(ledger, result.id).state == "succeeded"


def test_an_exempt_type_may_have_one_attempt(redis_url: str) -> None:
    app = Celery("mine", broker=redis_url, backend="cache+memory://", set_as_current=False)
    install(app, exempt_task_types=["once"])
    options: dict[str, Any] = {"task_type": "once", "policy": {"max_attempts": 1}}
    task = app.task(base=RepairingTask, shared=False, **options)(first)
    assert task.apply(["text"]).get() == "t"


# -- arguments -------------------------------------------------------------------------------------


def of_self(self: Any, text: str, *, loud: bool = False) -> str:
    return text.upper() if loud else text


@pytest.mark.parametrize("bind", [True, False], ids=["bound", "self alone"])
def test_arguments_are_checked_where_they_are_sent(app: Celery, bind: bool) -> None:
    task = app.task(base=RepairingTask, shared=False, bind=bind)(of_self)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'text'"):
        task.delay()
    with pytest.raises(TypeError, match="quiet"):
        task.delay("text", quiet=True)
    assert depths(app, ["celery"]) == {"celery": 0}
    task.delay("text", loud=True)
    assert depths(app, ["celery"]) == {"celery": 1}


def test_a_task_may_leave_its_arguments_unchecked(app: Celery) -> None:
    app.task(base=RepairingTask, shared=False, typing=False)(of_self).delay()
    assert depths(app, ["celery"]) == {"celery": 1}


# -- functions as verifiers ------------------------------------------------------------------------


def test_lambdas_are_verifiers_each_with_a_name_of_its_own(
    app: Celery, ledger: RedisLedger
) -> None:
    checks = [lambda text: "a" in text, lambda text: "b" in text, partial(str.startswith, "ab")]
    prompts = []

    def ask(self: Any) -> str:
        prompts.append(self.correct("Ask."))
        return "a" if self.repair is None else "ab"

    task = app.task(base=RepairingTask, shared=False, verifiers=checks)(ask)
    result = task.apply()
    assert result.get() == "ab"
    view = view_of(ledger, result.id)
    assert [spec.id for spec in view.job.verifiers] == [
        "own.lambda",
        "own.lambda-2",
        "own.startswith",
    ]
    assert "own.lambda-2 says no" in prompts[1]
