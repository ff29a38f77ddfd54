"""What every part of the ledger on Redis needs: the calls, the settings, the partitions."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import redis
from pydantic import BaseModel

from mulligan.policies.jobs.breaker import ProviderPolicy
from mulligan.policies.jobs.job import Job
from mulligan.policies.jobs.provider_limits import ProviderLimits
from mulligan.tasks.ports.clock import SYSTEM_CLOCK, Clock
from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.ledger import keys
from mulligan.workers.ledger.connection.calls import RedisCalls
from mulligan.workers.ledger.stored import job_ids, rows
from mulligan.workers.ledger.stored.schema import CURRENT, StoredSchema
from mulligan.workers.settings.model import Settings
from mulligan.workers.settings.profile_pools import own_limits
from mulligan.workers.settings.tenant_settings import TenantQuota

#: Quotas by tenant, and limits by provider.
_Limits = tuple[Mapping[str, TenantQuota], Mapping[str, ProviderLimits]]
#: Seconds after which a process looks again whether the number of partitions was raised.
REFRESH = 30.0


@dataclass(frozen=True)
class PartitionNumbers:
    """How many partitions the ledger has. The ledger keeps it, not the settings."""

    #: The number before the first job was stored, which never changes. It decides where work lives
    #: that is found by a name: by a key, the id of a user's message, a subject, a shared memory.
    first: int = 1
    #: The number now, which only grows. Other jobs are spread over all of them.
    count: int = 1


def _new_token() -> str:
    return secrets.token_hex(8)


class Partitioned:
    """Access to the scripts and keys of all partitions."""

    def __init__(
        self,
        client: redis.Redis,
        settings: Settings,
        *,
        patience: float,
        keep: float | None = None,
        live: Callable[[], Settings] | None = None,
        test_clock: Callable[[], float] | None = None,
        clock: Clock = SYSTEM_CLOCK,
        new_token: Callable[[], str] = _new_token,
        schema: StoredSchema = CURRENT,
    ) -> None:
        self._settings = settings
        self._schema = schema
        self._own_limits = {name: limit * 1000 for name, limit in own_limits(settings).items()}
        #: Returns a random token, for a lease or a call.
        self.new_token = new_token
        #: The settings in force now: quotas may change while a process runs.
        self._live = live or (lambda: settings)
        self.calls = RedisCalls(
            client,
            patience=patience,
            keep=keep,
            test_clock=test_clock,
            clock=clock,
            limits={
                "retention_ms": settings.retention * 1000,
                "cycle_retention_ms": settings.cycle_retention * 1000,
                "cycles_cap": settings.cycles_cap,
                "events_cap": settings.events_cap,
                "memory_cap": settings.memory_cap,
                "escalations_cap": settings.escalations_cap,
                "stale_ms": settings.stale_after * 1000,
                "grace_ms": settings.outbox_grace * 1000,
                "schema": schema.number,
                "start_limit": ProviderPolicy().start,
                # A text, because few scripts decode it.
                "gate": json.dumps(ProviderPolicy().request()),
            },
        )
        #: Whether this process runs several claims at once, so that its end may be another's fault.
        self.shares_process = False
        #: Returns the configured limits of each provider.
        self._ceilings: Callable[[], Mapping[str, ProviderLimits]] = dict
        #: The configured limits that this process last wrote to the ledger.
        self._limits_from: _Limits = ({}, {})
        self._limits_digest = ""
        self._numbers: PartitionNumbers | None = None
        self._numbers_read_at = 0.0
        self._refuses_more = True

    @property
    def settings(self) -> Settings:
        """The settings that the ledger was opened with."""
        return self._settings

    @property
    def round_trips(self) -> int:
        """Round trips to Redis so far."""
        return self.calls.round_trips

    def limit_providers(self, ceilings: Callable[[], Mapping[str, ProviderLimits]]) -> None:
        """Limit the calls and tokens of providers. ``ceilings`` is asked once, before a claim."""
        self._ceilings = cache(ceilings)

    def now(self) -> float:
        """Return the ledger's time."""
        return self.calls.now()

    def _prefix(self, job_id: str) -> str:
        return keys.prefix_of(self._settings.key_prefix, job_id)

    def prefixes(self) -> list[str]:
        """Return the prefix of each partition, in order."""
        return keys.partition_prefixes(self._settings.key_prefix, self.numbers().count)

    def numbers(self) -> PartitionNumbers:
        """Return the numbers of partitions, read every half minute at most.

        Raises BadInput at the first call if the settings name a lower number than the ledger's.
        """
        age = self.calls.clock.monotonic() - self._numbers_read_at
        if self._numbers is None or age >= REFRESH:
            self._read_numbers()
        return self._numbers or PartitionNumbers()

    def allow_more_partitions(self) -> None:
        """Use the ledger's number from the first call on, as a process does that runs already."""
        self._refuses_more = False

    def _read_numbers(self) -> None:
        asked_at, wanted = self.calls.clock.monotonic(), self._settings.partitions
        first_prefix = keys.partition_prefixes(self._settings.key_prefix, 1)[0]
        stored = self.calls.hashes([keys.partitions(first_prefix)])[0]
        found = PartitionNumbers(int(stored.get("first", 1)), int(stored.get("count", 1)))
        if self._refuses_more and wanted is not None and wanted < found.count:
            raise BadInput.at(
                "partitions",
                f"is {wanted} here, but the ledger has {found.count}. The number can only be"
                f" raised: set it to {found.count}, or leave it out",
            )
        number = max(wanted or 1, self._numbers.count if self._numbers else 1)
        if number > found.count:
            first = None if stored else self._first_number(number)
            answer = self.calls.one("partitions", first_prefix, number=number, first=first)
            found = PartitionNumbers(*map(int, answer))
        if found.count != (self._numbers or PartitionNumbers()).count:
            self.calls.send_always({"partitions": found.count})
        self._numbers, self._numbers_read_at, self._refuses_more = found, asked_at, False

    def _first_number(self, number: int) -> int | None:
        """Return the first number of a ledger without a record; None if its script decides."""
        if self._numbers is not None and self._numbers.count > 1:
            return self._numbers.first  # Redis has lost its last second, and the record with it
        # Earlier releases kept no record: their jobs are spread by the number of the settings.
        others = keys.partition_prefixes(self._settings.key_prefix, number)[1:]
        spread = self.calls.run("EXISTS", *(keys.jobs(prefix) for prefix in others))
        return number if spread else None

    def new_id(self, job: Job, owner: str | None = None) -> str:
        """Return the id of a job to be stored."""
        key, scope = rows.key_of(job, self._settings, owner), rows.scope_of(job, self._settings)
        numbers = self.numbers()
        number = numbers.count if key is scope is None else numbers.first
        return job_ids.job_id(partitions=number, key=key, scope=scope)

    def user_task_id(self, message_id: str) -> str:
        """Return the id of the job of a user's Celery task."""
        return job_ids.user_task_job_id(message_id, partitions=self.numbers().first)

    @property
    def schema(self) -> StoredSchema:
        """The schema of the release that uses this ledger."""
        return self._schema

    def _needs(self, *bodies: BaseModel | None) -> dict[str, Any]:
        """Return the part of a request that says what its bodies need of their readers."""
        needs = self._schema.needed_by(*bodies)
        return {"needs": needs, "release": self._schema.release} if needs > 1 else {}

    def _lease_terms(self, lease: float | None = None) -> dict[str, Any]:
        """Return the limits of a claim. A ``lease`` is a whole duration, without renewal."""
        return {
            "lease_ms": (lease or self._settings.lease) * 1000,
            "hard_ms": (lease or self._settings.hard_limit) * 1000,
            # By profile: the script reads which one an attempt uses, and nothing of the job's body.
            "hard_ms_of": None if lease else self._own_limits,
            "max_claims": self._settings.max_claims,
            **({"shared": True} if self.shares_process and lease is None else {}),
        }

    def _write_limits(self) -> str:
        """Write the configured limits to the ledger if they changed here. Return their digest."""
        self.numbers()  # a slot that is freed may be for another partition
        # The same objects cost nothing to compare; they change only when settings are reloaded.
        if self._limits_from != (self._live().quotas, self._ceilings()):
            self._replace_limits()
        return self._limits_digest

    def _replace_limits(self) -> None:
        """Write the quotas and the providers' limits, which the first partition has for all."""
        quotas, ceilings = self._live().quotas, self._ceilings()
        limits = {
            f"tenant:{tenant}": f"{_text(quota.concurrency)}|{_text(quota.tokens_per_day)}"
            for tenant, quota in quotas.items()
        }
        for name, each in ceilings.items():
            if each.concurrency is not None:
                limits[f"provider:{name}"] = str(each.concurrency)
            if each.tokens_per_minute is not None:
                limits[f"tokens:{name}"] = str(each.tokens_per_minute)
        text = json.dumps(limits, sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:16] if limits else ""
        self.calls.one("limits", self.prefixes()[0], limits=limits, digest=digest)
        self._limits_from, self._limits_digest = (quotas, ceilings), digest


def _text(limit: int | None) -> str:
    return "" if limit is None else str(limit)
