"""Simulated receivers of webhooks: what they got, and whether they answer."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mulligan.policies.escalations.alerts import DELIVERY_HEADER
from mulligan.workers.alerts.webhooks import Undeliverable
from simulation.scheduler import Process

if TYPE_CHECKING:
    from simulation.world import World

#: The webhooks of a run: one hears of every finished job, both of escalations.
ALL = "http://all.example/hook"
FEW = "http://few.example/hook"
WEBHOOKS: list[dict[str, Any]] = [
    {"url": ALL, "events": ["job_finished", "escalated"]},
    {"url": FEW, "events": ["escalated"]},
]


@dataclass
class Receivers:
    world: World
    #: Until then, none of them answers.
    away: bool = False
    #: URL → delivery → its alert.
    received: dict[str, dict[str, dict[str, Any]]] = field(
        default_factory=lambda: defaultdict(dict)
    )

    def post(self, process: Process, url: str, body: bytes, headers: Mapping[str, str]) -> int:
        """Receive one alert, as a port call of a process."""
        delivery = headers[DELIVERY_HEADER]
        found = self.world.before(process, "post", f"{delivery} to {url}")
        if self.away:
            raise Undeliverable("simulated: nobody answers")
        self.received[url][delivery] = json.loads(body)
        self.world.after(process, found)
        return 200

    def finished(self, job_id: str) -> int:
        """Return how many alerts about the end of a job were received."""
        alerts = self.received[ALL].values()
        return sum(a["event"] == "job_finished" and a["job_id"] == job_id for a in alerts)
