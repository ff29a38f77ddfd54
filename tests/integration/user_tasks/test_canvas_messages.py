"""What a retry's message repeats of the first one, what is refused, and what comes twice."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from celery import Celery, chain
from celery.app.trace import build_tracer
from support.user_tasks import job_of

from mulligan import Repair, RepairingTask, install
from mulligan.tasks.ports.errors import BadInput
from mulligan.tasks.ports.ledger import Publication
from mulligan.workers.celery.broker.celery_broker import FIRST_HEADER
from mulligan.workers.celery.broker.queue_depth import depths
from mulligan.workers.celery.state_task import Escalated
from mulligan.workers.ledger.redis_ledger import RedisLedger
from mulligan.workers.user_tasks.installed_app import installed


@pytest.fixture
def app(redis_url: str) -> Celery:
    app = Celery("mine", broker=redis_url, backend=redis_url, set_as_current=False)
    install(app)
    return app


def please(self: Any, drink: str) -> str:
    if self.repair is None:
        raise Repair("say please", score=40)
    return f"please {drink}"


def polite_task(app: Celery, **options: Any) -> Any:
    return app.task(base=RepairingTask, shared=False, name="please", **options)(please)


def step(app: Celery) -> Any:
    def returned(value: Any) -> Any:
        return value

    return app.task(shared=False, name="step")(returned)


def take(app: Celery, queue: str) -> Any:
    """Take the next message of a queue."""
    with app.connection_for_read() as connection:
        message = connection.SimpleQueue(queue).get(timeout=5)
        message.ack()
        return message


def deliver(task: Any, message: Any) -> None:
    """Trace a message as a worker does, without acknowledging anything."""
    args, kwargs, embedded = message.payload
    info = message.delivery_info
    request = {
        **message.headers,
        **embedded,
        "args": args,
        "kwargs": kwargs,
        "delivery_info": {**info, "priority": message.properties.get("priority")},
        "reply_to": message.properties.get("reply_to"),
        "correlation_id": message.properties.get("correlation_id"),
    }
    tracer = build_tracer(task.name, task, app=task.app)
    tracer(message.headers["id"], args, kwargs, request)


def test_a_retry_repeats_the_options_of_the_first_message(app: Celery) -> None:
    task, after = polite_task(app), step(app)
    first = task.s("tea").set(
        priority=3,
        headers={"x-request": "42"},
        time_limit=90,
        soft_time_limit=60,
        expires=3600,
        shadow="a name for Flower",
        link_error=after.s(),
    )
    first.stamp(customer="ada")
    chain(first, after.s()).apply_async()
    message = take(app, "celery")
    deliver(task, message)
    retry = take(app, "celery.repair")
    (_, _, embedded), (_, _, repeated) = message.payload, retry.payload
    assert repeated == embedded
    assert embedded["chain"]
    assert embedded["errbacks"]
    same = ("root_id", "timelimit", "shadow", "x-request", "stamps", "stamped_headers", "group")
    assert {name: retry.headers[name] for name in same} == {
        name: message.headers[name] for name in same
    }
    assert retry.headers["stamps"] == {"customer": "ada"}
    assert retry.properties["priority"] == 3
    assert retry.properties["reply_to"] == message.properties["reply_to"]
    assert retry.headers["expires"] is None
    assert retry.headers["parent_id"] == message.headers["id"]
    assert retry.headers[FIRST_HEADER] == message.headers["id"]


def test_a_message_that_comes_again_after_the_end_sends_nothing_twice(app: Celery) -> None:
    task, after = polite_task(app), step(app)
    result = chain(task.s("tea"), after.s()).apply_async()
    message = take(app, "celery")
    deliver(task, message)
    retry = take(app, "celery.repair")
    deliver(task, retry)
    for again in (message, retry):
        deliver(task, again)
    assert depths(app, ["celery"]) == {"celery": 1}
    assert result.parent.get(timeout=5) == "please tea"


def test_the_end_of_an_attempt_does_not_replace_the_result_of_its_retry(app: Celery) -> None:
    """Given a retry that ends before the first attempt's worker could store RETRY, and a message
    that comes again, then the result stays."""

    def never(self: Any) -> str:
        raise Repair("no", score=40)

    options: dict[str, Any] = {"policy": {"max_attempts": 2}, "track_started": True}
    task = app.task(base=RepairingTask, shared=False, name="never", **options)(never)
    result = task.apply_async()
    first = take(app, "celery")
    services = installed(app).services
    publish = services.publish

    def publish_and_run(publications: Sequence[Publication]) -> None:
        publish(publications)
        if publications:
            deliver(task, take(app, "celery.repair"))

    object.__setattr__(services.context, "publish", publish_and_run)
    deliver(task, first)
    deliver(task, first)
    assert result.state == "FAILURE"


def test_a_task_may_replace_itself_with_a_repairing_task(app: Celery, ledger: RedisLedger) -> None:
    """Given a replacement with the id of the task, then each is a job of its own."""
    task = polite_task(app)

    def host(self: Any, drink: str) -> Any:
        if self.repair is None:
            raise Repair("once more", score=40)
        return self.replace(task.s(drink))

    replaced = app.task(base=RepairingTask, shared=False, name="host")(host)
    result = replaced.apply_async(("tea",))
    for which in (replaced, task):
        deliver(which, take(app, "celery"))
        deliver(which, take(app, "celery.repair"))
    assert result.get(timeout=5) == "please tea"
    assert job_of(ledger, result.id).reason == "signalled"


@pytest.mark.parametrize("backend", [None, "the app's"])
def test_a_chain_continues_without_a_stored_result(redis_url: str, backend: str | None) -> None:
    """Given no result backend, or a task that stores no result."""
    url = redis_url if backend else None
    app = Celery("mine", broker=redis_url, backend=url, set_as_current=False)
    install(app)
    task, after = polite_task(app, ignore_result=backend is not None), step(app)
    chain(task.s("tea"), after.s()).apply_async()
    deliver(task, take(app, "celery"))
    deliver(task, take(app, "celery.repair"))
    following = take(app, "celery")
    assert (following.headers["task"], following.payload[0]) == ("step", ["please tea"])


def test_a_task_may_have_a_result_backend_of_its_own(redis_url: str) -> None:
    app = Celery("mine", broker=redis_url, backend="cache+memory://", set_as_current=False)
    install(app)
    own = Celery("other", backend=redis_url, set_as_current=False).backend
    task = polite_task(app, backend=own)
    result = task.apply_async(("tea",))
    deliver(task, take(app, "celery"))
    deliver(task, take(app, "celery.repair"))
    assert result.get(timeout=5) == "please tea"
    assert own.get_result(result.id) == "please tea"


def test_lost_workers_are_reported_to_the_caller_and_the_errbacks(
    app: Celery, ledger: RedisLedger
) -> None:
    """Given a retry whose workers were lost three times, then its next delivery reports that."""
    task, after = polite_task(app), step(app)
    result = task.apply_async(("tea",), link_error=after.si("lost"))
    deliver(task, take(app, "celery"))
    key = f"mulligan:{{p00}}:job:{job_of(ledger, result.id).id}:2"
    ledger.calls.run("HSET", key, "claims", 3)
    deliver(task, take(app, "celery.repair"))
    with pytest.raises(Escalated, match="worker_lost"):
        result.get(timeout=5)
    assert take(app, "celery").headers["task"] == "step"


# -- refused when it is sent -----------------------------------------------------------------------


class Thing:
    """Only pickle can send it."""


@pytest.mark.parametrize(
    ("place", "options"),
    [
        ("argument 1", {}),
        ("link", {"link": True}),
        ("link_error", {"link_error": True}),
        ("chain", {"chain": True}),
        ("chord", {"chord": True}),
    ],
)
@pytest.mark.parametrize("eager", [False, True])
def test_what_json_cannot_keep_is_refused(
    app: Celery, place: str, options: dict[str, Any], eager: bool
) -> None:
    app.conf.update(task_serializer="pickle", accept_content=["pickle"], task_always_eager=eager)
    task, after = polite_task(app), step(app)
    thing = after.s(Thing())
    following = {name: [thing] if name != "chord" else thing for name in options}
    with pytest.raises(BadInput, match=f"{place}: a Thing|{place}: a .* cannot be kept"):
        task.apply_async((Thing() if not options else "tea",), **following)
    assert depths(app, ["celery"]) == {"celery": 0}


def test_what_is_too_large_is_refused_with_its_size(app: Celery) -> None:
    task, after = polite_task(app), step(app)
    canvas = chain(task.s("tea"), after.si("x" * 1_200_000))
    with pytest.raises(BadInput, match=r"chain: a retry repeats 1,200,\d+ bytes.*1,000,000"):
        canvas.apply_async()
    with pytest.raises(BadInput, match="arguments: a retry repeats"):
        task.apply_async(("x" * 1_200_000,))


def test_a_sender_without_the_task_learns_of_it_from_the_result(app: Celery) -> None:
    task = polite_task(app)
    result = app.send_task("please", ("x" * 1_200_000,))
    deliver(task, take(app, "celery"))
    with pytest.raises(BadInput, match="cap is 1,000,000"):
        result.get(timeout=5)


@pytest.mark.parametrize("method", ["map", "starmap", "chunks"])
def test_plain_calls_by_celery_are_refused(app: Celery, method: str) -> None:
    task = polite_task(app)
    more = (2,) if method == "chunks" else ()
    with pytest.raises(BadInput, match=f"{method}: Celery calls please as a plain function"):
        getattr(task, method)([("tea",)], *more)


def test_json_may_change_what_is_sent(app: Celery) -> None:
    """Given the serializer json, then what arrives is JSON, and a retry repeats that."""
    task, after = polite_task(app), step(app)
    chain(task.s({1: "tea"}), after.si({2: "milk"})).apply_async()
    deliver(task, take(app, "celery"))
    retry = take(app, "celery.repair")
    assert json.loads(json.dumps(retry.payload[0])) == [{"1": "tea"}]
