"""Webhooks: telling somebody outside, at least once, without ever holding up a queue."""

from __future__ import annotations

import json
import logging
import os
import random
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from mulligan.policies.escalations.alerts import (
    DELIVERY_HEADER,
    SIGNATURE_HEADER,
    Alert,
    AlertLinks,
    alert_body,
    delivery_delay,
    hook_name,
    sign,
)
from mulligan.tasks.ports.errors import LedgerUnavailable
from mulligan.tasks.ports.ledger import JobView
from mulligan.workers.alerts.deliveries import WebhookDeliveries, WebhookDelivery
from mulligan.workers.ledger import rows
from mulligan.workers.ledger.redis_ledger import RedisLedger
from mulligan.workers.settings.alert_settings import WebhookSettings
from mulligan.workers.settings.live_settings import LiveSettings
from mulligan.workers.settings.model import Settings

log = logging.getLogger(__name__)

_TIMEOUT = 10.0
#: Senders of one process, and how many of them one receiver may keep busy.
_SENDERS = 4
_SENDERS_PER_HOOK = 2
#: Looks of one tick, when each found as much as a look takes.
_LOOKS = 20


class Undeliverable(Exception):
    """A try that failed, in words for whoever looks at the dead letters."""

    def __init__(self, message: str, *, final: bool = False) -> None:
        super().__init__(message)
        #: Whether trying again is pointless.
        self.final = final


class Webhooks:
    """Notices what is to be told, and sends it.

    Senders are threads: the control worker has one slot, and a receiver that hangs must not keep
    it from sweeping. A sender that dies leaves a lease behind, and the delivery is sent again.
    """

    def __init__(
        self,
        ledger: RedisLedger,
        live: LiveSettings,
        *,
        randomness: Callable[[], float] = random.random,
    ) -> None:
        self.deliveries = WebhookDeliveries(ledger)
        self._live = live
        self._job = ledger.job
        self._randomness = randomness
        self._busy: Counter[str] = Counter()
        self._senders = 0
        self._changed = threading.Condition()

    def tick(self) -> int:
        """Write the deliveries that are to be made, and see that they are sent."""
        made = 0
        for _ in range(_LOOKS):
            settings = self._live.current()
            found = self.deliveries.notice(settings.webhooks, window=settings.alert_window)
            made += found.made
            if not found.more:
                break
        if found.due:
            self._start(found.due)
        return made

    def drain(self) -> None:
        """Wait until nothing is being sent."""
        with self._changed:
            self._changed.wait_for(lambda: self._senders == 0)

    # -- senders --------------------------------------------------------------------------------

    def _start(self, prefixes: Sequence[str]) -> None:
        with self._changed:
            if self._senders >= _SENDERS:
                return
            self._senders += 1
        threading.Thread(target=self._work, args=(prefixes,), daemon=True).start()

    def _work(self, prefixes: Sequence[str]) -> None:
        """Send, one of each partition in turn, until nothing is due any more."""
        try:
            while sum(self._next(prefix, prefixes) for prefix in prefixes):
                pass
        except LedgerUnavailable as error:
            log.warning("alerts wait: %s", error)
        finally:
            with self._changed:
                self._senders -= 1
                self._changed.notify_all()

    def _next(self, prefix: str, prefixes: Sequence[str]) -> bool:
        tries = self._live.current().webhook_tries
        with self._changed:
            spare = [hook for hook, busy in self._busy.items() if busy >= _SENDERS_PER_HOOK]
            delivery = self.deliveries.take(prefix, tries=tries, spare=spare)
            if delivery is None:
                return False
            self._busy[delivery.hook] += 1
        # One receiver's backlog wants a second sender, and another receiver's a third.
        self._start(prefixes)
        try:
            self._attempt(delivery, tries)
        finally:
            with self._changed:
                self._busy[delivery.hook] -= 1
        return True

    def _attempt(self, delivery: WebhookDelivery, tries: int) -> None:
        error, final = None, False
        try:
            self.send(delivery)
        except Undeliverable as problem:
            error, final = str(problem)[:500], problem.final
        except Exception as problem:  # one alert that cannot be sent must not stop the others
            log.exception("the alert %s could not be sent", delivery.id)
            error = type(problem).__name__
        became = self.deliveries.finish(
            delivery,
            error=error,
            final=final,
            delay=delivery_delay(delivery.tries, randomness=self._randomness()),
            tries=tries,
        )
        if became == "dead":
            log.warning(
                "the alert %s for %s was given up: %s; `mulligan webhooks retry %s` tries anew",
                delivery.id, delivery.hook, error, delivery.id,
            )  # fmt: skip

    # -- one delivery ---------------------------------------------------------------------------

    def send(self, delivery: WebhookDelivery) -> None:
        """One request; anything but a 2xx is Undeliverable."""
        settings = self._live.current()
        hook = _configured(settings, delivery.hook)
        alert = self._complete(delivery.alert)
        body = json.dumps(alert_body(alert, places(settings)), ensure_ascii=False).encode()
        headers = {"Content-Type": "application/json", DELIVERY_HEADER: delivery.id}
        if hook.secret_env is not None:
            headers[SIGNATURE_HEADER] = sign(_secret(hook.secret_env), body, time.time())
        status = _post(hook.url, body, headers)
        if not 200 <= status < 300:
            raise Undeliverable(f"the receiver answered with {status}")

    def _complete(self, alert: Alert) -> Alert:
        """A finished job's own figures, while the ledger has them. Its answer may be secret."""
        if alert.event != "job_finished":
            return alert
        with suppress(LedgerUnavailable):
            view = self._job(str(alert.about["job_id"]))
            if view is not None:
                return alert.model_copy(update={"about": {**alert.about, **_figures(view)}})
        return alert


def _figures(view: JobView) -> Mapping[str, Any]:
    told = rows.outcome(view)
    return {name: told[name] for name in ("score", "labels", "idempotency_key")}


def places(settings: Settings) -> AlertLinks:
    """Where the links of alerts lead."""
    host = settings.console_host
    shown = f"[{host}]" if ":" in host else host
    by_port = f"http://{shown}:{settings.console_port}"
    console = (settings.console_url or by_port).rstrip("/")
    return AlertLinks(console=console, runbook=settings.runbook_url)


def _configured(settings: Settings, name: str) -> WebhookSettings:
    for hook in settings.webhooks:
        if hook_name(hook.url, hook.secret_env) == name:
            return hook
    raise Undeliverable(
        f"no webhook {name} is configured any more; drop it, or configure it and retry", final=True
    )


def _secret(variable: str) -> str:
    secret = os.environ.get(variable)
    if not secret:
        raise Undeliverable(
            f"the variable {variable}, which secret_env names, is not set for the control worker"
        )
    return secret


def _post(url: str, body: bytes, headers: Mapping[str, str]) -> int:
    """The status of the answer, whose body nobody needs. Errors never quote the URL."""
    import httpx2

    host = urlsplit(url).hostname
    try:
        with (
            httpx2.Client(timeout=_TIMEOUT, follow_redirects=False) as client,
            client.stream("POST", url, content=body, headers=headers) as answer,
        ):
            return int(answer.status_code)
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
        what = str(error).replace(url, str(host)) or type(error).__name__
        raise Undeliverable(f"{host} could not be reached: {what}") from error


def try_out(webhooks: Webhooks, hooks: Sequence[WebhookSettings]) -> list[dict[str, str | None]]:
    """Send each webhook a test, from this process and once, whatever comes of it."""
    told = []
    for hook in hooks:
        name = hook_name(hook.url, hook.secret_env)
        alert = Alert(
            id=f"test-{secrets.token_hex(6)}", event="test", at=time.time(), count=1, about={}
        )
        error = None
        try:
            webhooks.send(
                WebhookDelivery(alert=alert, hook=name, state="pending", tries=1, error="")
            )
        except Undeliverable as problem:
            error = str(problem)
        told.append({"hook": name, "id": alert.id, "error": error})
    return told
