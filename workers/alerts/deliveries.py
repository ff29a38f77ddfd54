"""Deliveries of alerts, each in its alert's partition: one script per step."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from mulligan.policies.cycles.report import BUDGET_REASONS
from mulligan.policies.escalations.alerts import Alert, WebhookEvent, hook_name
from mulligan.workers.ledger import keys
from mulligan.workers.ledger.partitions import Partitioned
from mulligan.workers.settings.alert_settings import WebhookSettings

#: Maximum waiting deliveries of one webhook, and dead ones of all, in one partition.
CAP = 10_000
DEAD_CAP = 1_000
#: How long any delivery is kept.
KEEP_SECONDS = 7 * 86400.0
#: Longer than sending takes: after it, the sender counts as dead.
LEASE_SECONDS = 60.0
#: Maximum groups and events of a partition per call.
_LIMIT = 500


@dataclass(frozen=True, kw_only=True)
class WebhookDelivery:
    """One alert for one webhook."""

    alert: Alert
    #: The webhook's name. Its URL, which may be secret, stays in the configuration.
    hook: str
    state: str
    #: Tries begun so far, and the error of the last failed one.
    tries: int
    error: str
    token: str = ""

    @property
    def id(self) -> str:
        return self.alert.id

    def as_dict(self) -> dict[str, Any]:
        """Return the fields that people see."""
        return {
            "id": self.id,
            "event": self.alert.event,
            "hook": self.hook,
            "state": self.state,
            "count": self.alert.count,
            "at": self.alert.at,
            "tries": self.tries,
            "error": self.error or None,
            "about": self.alert.about,
        }


@dataclass(frozen=True)
class NewAlerts:
    """The deliveries written in one pass over the partitions."""

    written: int
    #: Prefixes with deliveries to send now.
    due: tuple[str, ...]
    #: Whether there are more alerts than one pass takes.
    more: bool


class WebhookDeliveries:
    """The deliveries in Redis."""

    def __init__(self, ledger: Partitioned) -> None:
        settings = ledger.settings
        self._calls = ledger.calls
        self._new_token = ledger.new_token
        self._prefix = settings.key_prefix
        self._partition_prefixes = ledger.prefixes
        self._fleet = keys.fleet_prefix(settings.key_prefix)
        self._muted = keys.muted(self._fleet)

    def _prefixes(self) -> list[str]:
        return [*self._partition_prefixes(), self._fleet]

    def write_due(self, hooks: Sequence[WebhookSettings], *, window: float) -> NewAlerts:
        """Write the deliveries of all alerts that are due."""
        request = {
            "token": self._new_token(),
            "hooks": [
                {
                    "name": hook_name(hook.url, hook.secret_env),
                    "wants": {event: event in hook.events for event in get_args(WebhookEvent)},
                }
                for hook in hooks
            ],
            "budget": dict.fromkeys(BUDGET_REASONS, True),
            "muted": self._muted_groups(),
            "window_ms": window * 1000,
            "limit": _LIMIT,
            "cap": CAP,
            "keep_ms": KEEP_SECONDS * 1000,
        }
        prefixes = self._prefixes()
        found = self._calls.many("alerts", [(prefix, request) for prefix in prefixes])
        return NewAlerts(
            written=sum(int(answer[0]) for answer in found),
            due=tuple(p for p, a in zip(prefixes, found, strict=True) if int(a[1])),
            more=any(int(answer[2]) for answer in found),
        )

    def _muted_groups(self) -> dict[str, str]:
        """Return the muted signatures and until when, and delete those that are over."""
        muted = self._calls.hashes([self._muted])[0]
        now = self._calls.now() * 1000 if muted else 0.0
        over = [signature for signature, until in muted.items() if float(until) <= now]
        if over:
            self._calls.run("HDEL", self._muted, *over)
        return muted

    def take(self, prefix: str, *, tries: int, skip: Collection[str]) -> WebhookDelivery | None:
        """Lease the next delivery to send and return it. Skips those for the webhooks ``skip``."""
        flat = self._calls.one(
            "deliveries",
            prefix,
            verb="take",
            token=self._new_token(),
            tries=tries,
            spare=dict.fromkeys(skip, True),
            lease_ms=LEASE_SECONDS * 1000,
            dead_cap=DEAD_CAP,
            keep_ms=KEEP_SECONDS * 1000,
        )
        return _read(dict(zip(flat[::2], flat[1::2], strict=True))) if flat else None

    def finish(
        self, delivery: WebhookDelivery, *, error: str | None, final: bool, delay: float, tries: int
    ) -> str:
        """Record the result of a try. Return `done`, `again` (in ``delay``), `dead` or `lost`."""
        answer = self._calls.one(
            "deliveries",
            self._prefix_of(delivery.id),
            verb="end",
            id=delivery.id,
            token=delivery.token,
            error=error,
            final=final,
            delay_ms=delay * 1000,
            tries=tries,
            keep_ms=KEEP_SECONDS * 1000,
        )
        return str(answer[0])

    def retry(self, delivery_id: str | None = None) -> list[str]:
        """Retry one dead delivery or all. Return their ids."""
        return self._change("retry", delivery_id)

    def drop(self, delivery_id: str | None = None) -> list[str]:
        """Delete one delivery, or all dead ones. Return their ids."""
        return self._change("drop", delivery_id)

    def _change(self, verb: str, delivery_id: str | None) -> list[str]:
        request = {"verb": verb, "id": delivery_id, "keep_ms": KEEP_SECONDS * 1000}
        prefixes = self._prefixes() if delivery_id is None else [self._prefix_of(delivery_id)]
        found = self._calls.many("deliveries", [(prefix, request) for prefix in prefixes])
        return [str(name) for names in found for name in names]

    def all(self, *, limit: int = 100) -> list[WebhookDelivery]:
        """Return pending and dead deliveries, the newest first."""
        names: list[str] = []
        for prefix in self._prefixes():
            for index in (*self._waiting(prefix), keys.dead_deliveries(prefix)):
                ids = self._calls.run("ZREVRANGE", index, 0, limit - 1)
                names += [keys.delivery(prefix, found) for found in ids]
        read = [_read(row) for row in self._calls.hashes(names) if row]
        return sorted(read, key=lambda delivery: delivery.alert.at, reverse=True)[:limit]

    def counts(self) -> dict[str, int]:
        """Count the pending and the dead deliveries."""
        prefixes = self._prefixes()
        pending = [index for prefix in prefixes for index in self._waiting(prefix)]
        dead = [keys.dead_deliveries(prefix) for prefix in prefixes]
        return {"pending": self._sum(pending), "dead": self._sum(dead)}

    def _waiting(self, prefix: str) -> list[str]:
        """Return the index of each webhook with waiting deliveries."""
        hooks = self._calls.run("SMEMBERS", keys.waiting_hooks(prefix))
        return [keys.due_deliveries(prefix, str(hook)) for hook in sorted(hooks)]

    def _sum(self, indexes: Sequence[str]) -> int:
        return sum(int(self._calls.run("ZCARD", index)) for index in indexes)

    def _prefix_of(self, delivery_id: str) -> str:
        return keys.prefix_of(self._prefix, delivery_id)


def _read(row: Mapping[str, str]) -> WebhookDelivery:
    alert = Alert.model_validate(
        {
            "id": row["id"],
            "event": row["event"],
            "at": float(row["at"]) / 1000,
            "count": int(float(row["count"])),
            "about": json.loads(row["about"]),
        }
    )
    return WebhookDelivery(
        alert=alert,
        hook=row["hook"],
        state=row["state"],
        tries=int(row["tries"]),
        error=row["error"],
        token=row["token"],
    )
