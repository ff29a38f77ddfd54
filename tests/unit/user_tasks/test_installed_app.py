"""A user's app that is configured after `install` keeps its settings and ours."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery, signals

from mulligan import install
from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.user_tasks.installed_app import installed

LATE = "redis://late:6379/3"
NIGHTLY = {"nightly": {"task": "mine.nightly", "schedule": 86400.0}}
OPTIONS = {"visibility_timeout": 7}


def assign(app: Celery) -> None:
    app.conf.broker_url = LATE
    app.conf.beat_schedule = dict(NIGHTLY)
    app.conf.broker_transport_options = OPTIONS


def update(app: Celery) -> None:
    app.conf.update(broker_url=LATE, beat_schedule=dict(NIGHTLY), broker_transport_options=OPTIONS)


def from_object(app: Celery) -> None:
    app.config_from_object(
        SimpleNamespace(
            broker_url=LATE, beat_schedule=dict(NIGHTLY), broker_transport_options=OPTIONS
        )
    )


def from_namespace(app: Celery) -> None:
    app.config_from_object(
        SimpleNamespace(
            CELERY_BROKER_URL=LATE,
            CELERY_BEAT_SCHEDULE=dict(NIGHTLY),
            CELERY_BROKER_TRANSPORT_OPTIONS=OPTIONS,
        ),
        namespace="CELERY",
    )


Configure = Callable[[Celery], None]


@pytest.fixture(params=[assign, update, from_object, from_namespace])
def configure(request: pytest.FixtureRequest) -> Configure:
    chosen: Configure = request.param
    return chosen


def check(app: Celery) -> None:
    assert app.conf.beat_schedule.keys() == {"nightly"}
    assert app.conf.broker_transport_options == {"queue_order_strategy": "priority", **OPTIONS}
    assert installed(app).settings.broker_url == LATE


def begin_worker(app: Celery) -> None:
    """Send the signal that a worker sends before it connects."""
    worker = SimpleNamespace(app=app)
    signals.celeryd_init.send(sender="worker", instance=worker, conf=app.conf, options={})


def test_an_app_may_be_configured_after_install(configure: Configure) -> None:
    app = Celery("mine", set_as_current=False)
    install(app)
    configure(app)
    app.finalize()
    check(app)


def test_an_app_may_be_configured_before_install(configure: Configure) -> None:
    app = Celery("mine", set_as_current=False)
    configure(app)
    install(app)
    app.finalize()
    check(app)


def test_an_app_may_be_configured_after_its_first_use(configure: Configure) -> None:
    app = Celery("mine", set_as_current=False)
    install(app)
    app.finalize()
    configure(app)
    begin_worker(app)
    check(app)


def test_a_finalized_app_may_be_installed() -> None:
    app = Celery("mine", broker=LATE, set_as_current=False)
    app.finalize()
    install(app)
    assert app.conf.broker_transport_options["queue_order_strategy"] == "priority"


def test_a_schedule_for_beat_is_not_changed() -> None:
    app = Celery("mine", broker=LATE, set_as_current=False)
    install(app)
    app.conf.beat_schedule = dict(NIGHTLY)
    app.finalize()
    begin_worker(app)
    assert app.conf.beat_schedule == NIGHTLY


def test_other_apps_are_not_changed() -> None:
    install(Celery("mine", broker=LATE, set_as_current=False))
    other = Celery("other", broker=LATE, set_as_current=False)
    other.finalize()
    begin_worker(other)
    assert not other.conf.broker_transport_options


def test_an_unknown_setting_is_refused_at_once() -> None:
    app = Celery("mine", set_as_current=False)
    with pytest.raises(BadInput, match="did you mean 'lease'"):
        install(app, **{"leese": 3})


def test_install_reads_no_configuration() -> None:
    """Reading it would fix it before the app has set it."""
    app = Celery("mine", set_as_current=False)
    read: list[Any] = []
    app.on_after_configure.connect(lambda **_: read.append(1), weak=False)
    install(app)
    assert read == []
