"""Webhooks: send alerts at least once, without ever blocking a queue."""

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
from mulligan.workers.alerts.deliveries import WebhookDeliveries, WebhookDelivery
from mulligan.workers.ledger.redis_ledger import RedisLedger
from mulligan.workers.ledger.stored import rows
from mulligan.workers.settings.alert_settings import WebhookSettings
from mulligan.workers.settings.live_settings import LiveSettings
from mulligan.workers.settings.model import Settings

log = logging.getLogger(__name__)

_TIMEOUT = 10.0
#: Maximum sender threads of a process that are busy with one receiver. There are as many for each
#: webhook, so that receivers that hang leave threads for the others.
_SENDERS_PER_HOOK = 2
#: Maximum passes over the partitions in one tick.
_PASSES = 20


def _start_thread(run: Callable[[], None]) -> None:
    threading.Thread(target=run, name="webhooks", daemon=True).start()


class Undeliverable(Exception):
    """A failed try, with a message for people. ``final``: another try is pointless."""

    def __init__(self, message: str, *, final: bool = False) -> None:
        super().__init__(message)
        self.final = final


class Webhooks:
    """Writes the deliveries of due alerts and sends them.

    Senders are threads, so that a hanging receiver does not keep the control worker, which has one
    slot, from sweeping. If a sender dies, its lease expires and the delivery is sent again.
    """

    def __init__(
        self,
        ledger: RedisLedger,
        live: LiveSettings,
        *,
        randomness: Callable[[], float] = random.random,
        post: Callable[[str, bytes, Mapping[str, str]], int] | None = None,
        start_thread: Callable[[Callable[[], None]], None] = _start_thread,
    ) -> None:
        """``post``: sends a body with headers to a URL and returns the status."""
        self.deliveries = WebhookDeliveries(ledger)
        self._live = live
        self._job = ledger.job
        self._randomness = randomness
        self._post = post or _post
        self._start_thread = start_thread
        self._busy: Counter[str] = Counter()
        self._senders = 0
        self._changed = threading.Condition()

    def tick(self) -> int:
        """Write the due deliveries and start sending. Return the number written."""
        written = 0
        for _ in range(_PASSES):
            settings = self._live.current()
            found = self.deliveries.write_due(settings.webhooks, window=settings.alert_window)
            written += found.written
            if not found.more:
                break
        if found.due:
            self._start(found.due)
        return written

    def drain(self) -> None:
        """Wait until nothing is being sent."""
        with self._changed:
            self._changed.wait_for(lambda: self._senders == 0)

    # -- senders --------------------------------------------------------------------------------

    def _start(self, prefixes: Sequence[str]) -> None:
        most = _SENDERS_PER_HOOK * max(1, len(self._live.current().webhooks))
        with self._changed:
            if self._senders >= most:
                return
            self._senders += 1
        self._start_thread(lambda: self._work(prefixes))

    def _work(self, prefixes: Sequence[str]) -> None:
        """Send one delivery of each partition in turn until none is due."""
        try:
            while sum(self._send_next(prefix, prefixes) for prefix in prefixes):
                pass
        except LedgerUnavailable as error:
            log.warning("Alerts have to wait: %s", error)
        finally:
            with self._changed:
                self._senders -= 1
                self._changed.notify_all()

    def _send_next(self, prefix: str, prefixes: Sequence[str]) -> bool:
        tries = self._live.current().webhook_tries
        with self._changed:
            skip = [hook for hook, busy in self._busy.items() if busy >= _SENDERS_PER_HOOK]
            delivery = self.deliveries.take(prefix, tries=tries, skip=skip)
            if delivery is None:
                return False
            self._busy[delivery.hook] += 1
        # There may be more for this receiver or another one: start a further sender.
        self._start(prefixes)
        try:
            self._try(delivery, tries)
        finally:
            with self._changed:
                self._busy[delivery.hook] -= 1
        return True

    def _try(self, delivery: WebhookDelivery, tries: int) -> None:
        error, final = None, False
        try:
            self.send(delivery)
        except Undeliverable as problem:
            error, final = str(problem)[:500], problem.final
        except Exception as problem:  # so that the other alerts are sent
            log.exception("The alert %s could not be sent.", delivery.id)
            error = type(problem).__name__
        result = self.deliveries.finish(
            delivery,
            error=error,
            final=final,
            delay=delivery_delay(delivery.tries, randomness=self._randomness()),
            tries=tries,
        )
        if result == "dead":
            log.warning(
                "The alert %s for %s was given up: %s. To retry: mulligan webhooks retry %s",
                delivery.id, delivery.hook, error, delivery.id,
            )  # fmt: skip

    # -- one delivery ---------------------------------------------------------------------------

    def send(self, delivery: WebhookDelivery) -> None:
        """Send one request. Raises Undeliverable unless the answer is 2xx."""
        settings = self._live.current()
        hook = _configured(settings, delivery.hook)
        alert = self._complete(delivery.alert)
        body = json.dumps(alert_body(alert, alert_links(settings)), ensure_ascii=False).encode()
        headers = {"Content-Type": "application/json", DELIVERY_HEADER: delivery.id}
        if hook.secret_env is not None:
            headers[SIGNATURE_HEADER] = sign(_secret(hook.secret_env), body, time.time())
        status = self._post(hook.url, body, headers)
        if not 200 <= status < 300:
            raise Undeliverable(f"the receiver answered with {status}")

    def _complete(self, alert: Alert) -> Alert:
        """Add a finished job's score and labels, but not its answer, which may be secret."""
        if alert.event != "job_finished":
            return alert
        with suppress(LedgerUnavailable):
            view = self._job(str(alert.about["job_id"]))
            if view is not None:
                outcome = rows.outcome(view)
                more = {name: outcome[name] for name in ("score", "labels", "idempotency_key")}
                return alert.model_copy(update={"about": {**alert.about, **more}})
        return alert


def alert_links(settings: Settings) -> AlertLinks:
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
        f"the webhook {name} is no longer configured; drop it, or configure it and retry",
        final=True,
    )


def _secret(variable: str) -> str:
    secret = os.environ.get(variable)
    if not secret:
        raise Undeliverable(
            f"the variable {variable}, which secret_env names, is not set for the control worker"
        )
    return secret


def _post(url: str, body: bytes, headers: Mapping[str, str]) -> int:
    """Return the status of the answer. Errors never quote the URL, which may be secret."""
    import httpx2

    host = urlsplit(url).hostname
    try:
        with (
            httpx2.Client(timeout=_TIMEOUT, follow_redirects=False) as client,
            client.stream("POST", url, content=body, headers=headers) as answer,
        ):
            return int(answer.status_code)
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
        reason = str(error).replace(url, str(host)) or type(error).__name__
        raise Undeliverable(f"{host} could not be reached: {reason}") from error


def send_test_alerts(
    webhooks: Webhooks, hooks: Sequence[WebhookSettings]
) -> list[dict[str, str | None]]:
    """Send each webhook one test from this process. Return the results."""
    results = []
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
        results.append({"hook": name, "id": alert.id, "error": error})
    return results
