"""Settings of the ledger and the broker: addresses, leases, retention and size limits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, Field

from mulligan.policies.jobs.job import Seconds
from mulligan.workers.settings.addresses import check_broker, check_ledger


class ConnectionSettings(BaseModel):
    #: The broker of messages. None: `run` and `up` start an embedded Redis.
    broker_url: Annotated[str, AfterValidator(check_broker)] | None = None
    #: The Redis of the ledger. None: the broker's.
    ledger_url: Annotated[str, AfterValidator(check_ledger)] | None = None
    #: The directory of the embedded stack's data.
    home: Path = Path(".mulligan")
    #: An embedded server that gives no answer for this long is ended and started again.
    embedded_hung_after: Seconds = Field(default=30.0, gt=0)
    key_prefix: str = Field(default="mulligan", pattern=r"^[\w.-]+$")
    #: Raises the ledger's number of partitions. None: the ledger's number, at first 1.
    partitions: int | None = Field(default=None, ge=1, le=100)

    @property
    def ledger(self) -> str | None:
        """The ledger's URL for redis-py."""
        url = self.ledger_url or self.broker_url
        return url.replace("redis+socket://", "unix://") if url else None


class LeaseSettings(BaseModel):
    #: A worker that does not renew its lease for this long has lost its attempt.
    lease: Seconds = Field(default=30.0, gt=0)
    #: Maximum duration of a claim with its renewals; jobs that need more are refused.
    hard_limit: Seconds = Field(default=3600.0, gt=0)
    #: An attempt is escalated after this many lost workers. If others ran in the last one, too, it
    #: is first tried once more in a process of its own.
    max_claims: int = Field(default=2, ge=1)
    #: Runs of a verifier that reaches no verdict, before the job is escalated.
    verifier_tries: int = Field(default=3, ge=1)
    #: Time for the process that wrote an outbox entry to publish it, before the sweep does.
    outbox_grace: Seconds = 1.0
    #: Failures to send an entry, while the broker answers, before it is quarantined.
    publish_tries: int = Field(default=5, ge=1)
    #: An entry overtaken by one published this much later is published again.
    republish_after: Seconds = Field(default=60.0, gt=0)
    sweep_interval: Seconds = Field(default=1.0, gt=0)
    sweep_limit: int = Field(default=500, ge=1)
    #: A delayed verification this late is escalated as stale.
    stale_after: Seconds = 72 * 3600.0


class RetentionSettings(BaseModel):
    retention: Seconds = 7 * 86400.0
    cycle_retention: Seconds = 400 * 86400.0
    cycles_cap: int = Field(default=200_000, ge=1)
    events_cap: int = Field(default=100_000, ge=100)
    #: Maximum signatures in a memory that jobs share (`memory_scope`).
    memory_cap: int = Field(default=1000, ge=10)


class SizeSettings(BaseModel):
    prompt_cap: int = Field(default=1_000_000, ge=1)
    answer_cap: int = Field(default=4_000_000, ge=1)
    workspace_cap: int = Field(default=20_000_000, ge=1)
    #: Maximum bytes of a message from the broker, also after inflating it.
    message_cap: int = Field(default=20_000_000, ge=1000)
    #: The store of snapshots and diffs: a shared directory as file:///path. None: the ledger.
    blob_url: str | None = None
