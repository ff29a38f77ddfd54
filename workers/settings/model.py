"""Settings: environment (MULLIGAN_…) over mulligan.toml over the defaults below."""

from __future__ import annotations

import os
import tomllib
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
)
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from mulligan.policies.edits.edit import EditRiskTier
from mulligan.policies.jobs.job import Seconds
from mulligan.tasks.jobs.validation_errors import meaning
from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.settings.addresses import check_broker, check_ledger

CONFIG_VARIABLE = "MULLIGAN_CONFIG"
#: Variables that are read elsewhere: they are no settings.
OTHER_VARIABLES = frozenset(
    {
        CONFIG_VARIABLE,
        "MULLIGAN_DEBUG",
        "MULLIGAN_NO_MODELS",
        "MULLIGAN_REPEAT",
        "MULLIGAN_RUNTIME_DIR",
        "MULLIGAN_SEED",
        "MULLIGAN_TOKEN",
        "MULLIGAN_TRACE",
        "MULLIGAN_CRASH_DIR",
    }
)


class TenantQuota(BaseModel):
    """What one value of the tenant label may use; None is no limit."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    concurrency: int | None = Field(default=None, ge=1)
    tokens_per_day: int | None = Field(default=None, ge=1)


class ModelPrice(BaseModel):
    """What a runner's tokens cost: an amount of money per million of them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    prompt: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    completion: float = Field(default=0.0, ge=0, allow_inf_nan=False)


WebhookEvent = Literal["escalated", "breaker_opened", "budget_exhausted", "job_finished"]


class WebhookSettings(BaseModel):
    """Somebody who wants to be told. The secret itself stays in the environment."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str = Field(pattern=r"^https?://\S+$")
    secret_env: str | None = None
    events: frozenset[WebhookEvent] = frozenset({"escalated", "breaker_opened", "budget_exhausted"})


class Settings(BaseSettings):
    """Every knob there is. Each limit is enforced somewhere, and a test shows it."""

    model_config = SettingsConfigDict(
        env_prefix="MULLIGAN_", env_nested_delimiter="__", extra="forbid", frozen=True
    )

    #: Where messages go. None: `run` and `up` start an embedded Redis.
    broker_url: Annotated[str, AfterValidator(check_broker)] | None = None
    #: Where the truth is kept; the broker's Redis if it is one.
    ledger_url: Annotated[str, AfterValidator(check_ledger)] | None = None
    #: Where the embedded stack keeps its data.
    home: Path = Path(".mulligan")
    key_prefix: str = Field(default="mulligan", pattern=r"^[\w.-]+$")
    partitions: int = Field(default=1, ge=1, le=100)

    #: A worker that says nothing for this long has lost its attempt.
    lease: Seconds = Field(default=30.0, gt=0)
    #: The longest any claim may last, renewals included; what cannot fit is refused.
    hard_limit: Seconds = Field(default=3600.0, gt=0)
    #: After this many lost workers an attempt is escalated.
    max_claims: int = Field(default=3, ge=1)
    #: How often a verifier that reaches no verdict is run again before it is escalated.
    verifier_tries: int = Field(default=3, ge=1)
    #: How long the process that wrote an outbox entry has to publish it itself.
    outbox_grace: Seconds = 1.0
    #: An entry overtaken by one published this much later is published again.
    republish_after: Seconds = Field(default=60.0, gt=0)
    sweep_interval: Seconds = Field(default=1.0, gt=0)
    sweep_limit: int = Field(default=500, ge=1)
    #: A delayed verification that is this late is escalated as stale.
    stale_after: Seconds = 72 * 3600.0

    retention: Seconds = 7 * 86400.0
    cycle_retention: Seconds = 400 * 86400.0
    cycles_cap: int = Field(default=200_000, ge=1)
    events_cap: int = Field(default=100_000, ge=100)
    #: The most signatures in a memory that jobs share (`memory_scope`).
    memory_cap: int = Field(default=1000, ge=10)

    prompt_cap: int = Field(default=1_000_000, ge=1)
    answer_cap: int = Field(default=4_000_000, ge=1)
    workspace_cap: int = Field(default=20_000_000, ge=1)
    #: Where snapshots and diffs are kept: the ledger, or a shared directory as file:///path.
    blob_url: str | None = None

    #: Task types without a mandatory retry.
    exempt_task_types: frozenset[str] = frozenset({"read_aloud", "benchmark"})
    #: Whether jobs may define runners inline rather than name a profile.
    allow_inline: bool = False
    #: Named runners: the only ones a job from a queue may use.
    runners: dict[str, dict[str, Any]] = Field(default_factory=dict)
    #: Named commands for command.subprocess: `{argv = […], timeout = …}`.
    commands: dict[str, dict[str, Any]] = Field(default_factory=dict)
    #: Named directories that jobs from a queue may use as their workspace.
    workspaces: dict[str, Path] = Field(default_factory=dict)
    #: The runner of a client's jobs that name none. None: the bundled model on an embedded stack.
    default_runner: str | None = None
    #: Modules, or packages with all below them, whose pydantic models jobs may name as contracts.
    model_modules: frozenset[str] = frozenset()
    #: The longest a runner may take for one answer, unless its profile says less.
    runner_timeout: Seconds = Field(default=300.0, gt=0)

    #: How long producers wait for a ledger that is away, and workers.
    submit_patience: Seconds = 5.0
    worker_patience: Seconds = 600.0
    #: Back-off between tries at a provider that is away.
    backoff_base: Seconds = 1.0
    backoff_cap: Seconds = 60.0

    attempt_slots: int = Field(default=16, ge=1)
    repair_slots: int = Field(default=4, ge=1)
    verify_slots: int = Field(default_factory=lambda: max(1, os.cpu_count() or 1))
    #: With one of these, the pool has processes instead of threads: between its slots and so many.
    attempt_slots_max: int | None = Field(default=None, ge=1)
    repair_slots_max: int | None = Field(default=None, ge=1)
    verify_slots_max: int | None = Field(default=None, ge=1)
    #: How long an autoscaled pool must be too large before it gives one process back.
    scale_quiet: Seconds = Field(default=60.0, gt=0)
    #: Task events for Flower; they cost about a quarter of the throughput.
    task_events: bool = True
    flower_port: int = Field(default=5555, ge=0, le=65535)

    #: Where the console (HTTP API and page) listens.
    console_host: str = "127.0.0.1"
    console_port: int = Field(default=8700, ge=0, le=65535)
    #: Where people reach it: alerts link there. None: what host and port say.
    console_url: str | None = Field(default=None, pattern=r"^https?://\S+$")
    #: Bytes of one request's body, requests a minute of one token, and listeners to events.
    request_cap: int = Field(default=5_000_000, ge=1000)
    rate_limit: int = Field(default=1200, ge=1)
    listeners_cap: int = Field(default=200, ge=1)
    #: Where Flower is, as people reach it; None: where `mulligan up` starts it.
    flower_url: str | None = None
    #: Where the runbook is, as people reach it: alerts link to `<runbook_url>#<alert>`.
    runbook_url: str | None = None

    #: The label that says whose a job is: quotas, tokens and lists go by it.
    tenant_label: str = Field(default="tenant", min_length=1)
    #: What each tenant may use; `*` is for everybody who is not named.
    quotas: dict[str, TenantQuota] = Field(default_factory=dict)
    #: What tokens cost, by a runner's profile or else by its model.
    prices: dict[str, ModelPrice] = Field(default_factory=dict)
    #: Labels that figures are kept by, besides the tenant's.
    report_labels: frozenset[str] = frozenset()
    #: How long figures by the hour are kept.
    stats_retention: Seconds = 60 * 86400.0

    webhooks: tuple[WebhookSettings, ...] = ()
    #: One alert per signature and so much time.
    alert_window: Seconds = Field(default=900.0, gt=0)
    #: A delivery is tried so often before it is put aside as dead.
    webhook_tries: int = Field(default=8, ge=1)
    #: The most escalations on record; the oldest ended ones go first.
    escalations_cap: int = Field(default=100_000, ge=100)

    #: Tiers of edit operations that differ from the built-in table: `write_file = "review"`.
    edit_tiers: dict[str, EditRiskTier] = Field(default_factory=dict)
    #: Formatters that edits may name, each an argument vector.
    formatters: dict[str, list[str]] = Field(default_factory=dict)

    #: How long a subject may keep an attempt that is made elsewhere.
    external_lease: Seconds = Field(default=1800.0, gt=0)
    #: Guardrails: at most so many repair loops of one skill in a session, and so large a share
    #: of its time; a session is what happened within the window.
    guard_window: Seconds = Field(default=5400.0, gt=0)
    guard_loops: int = Field(default=2, ge=1)
    guard_share: float = Field(default=0.25, gt=0, le=1)
    #: Whether jobs of the queue have guardrails too, each for itself.
    guard_jobs: bool = False

    #: Names that code gave, rather than the environment or the file.
    _given: frozenset[str] = PrivateAttr(default=frozenset())

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        self._given = frozenset(values)

    @property
    def given(self) -> frozenset[str]:
        """What code gave these settings: nothing else may change it."""
        return self._given

    @cached_property
    def ledger(self) -> str | None:
        """The ledger's URL, as redis-py spells it."""
        url = self.ledger_url or self.broker_url
        return url.replace("redis+socket://", "unix://") if url else None

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - pydantic's signature
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - pydantic's signature
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, InitSettingsSource(settings_cls, read_file())


def config_place() -> Path:
    """Where the configuration file is, if there is one: MULLIGAN_CONFIG, or ./mulligan.toml."""
    return Path(os.environ.get(CONFIG_VARIABLE) or "mulligan.toml")


def config_path() -> Path | None:
    """The configuration file in force."""
    place = config_place()
    if place.is_file():
        return place
    if os.environ.get(CONFIG_VARIABLE):
        raise BadInput(f"{CONFIG_VARIABLE}: there is no file {place}")
    return None


def read_file() -> dict[str, Any]:
    """What the configuration file says, as it stands there."""
    path = config_path()
    if path is None:
        return {}
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: {error}") from None


def load_settings(**overrides: Any) -> Settings:
    """The settings in force, or BadInput with one line per bad value."""
    try:
        return Settings(**overrides)
    except ValidationError as error:
        raise BadInput(*(_explain(item) for item in error.errors())) from None


def _explain(item: Any) -> str:
    name = ".".join(str(part) for part in item["loc"])
    if item["type"] == "value_error":
        # Our own words say what is wrong; an address may have a password in it.
        return f"setting {name}: {meaning(item)}"
    if item["type"] != "extra_forbidden":
        return f"setting {name}: {meaning(item)} (got {item['input']!r})"
    from rapidfuzz import process  # only for a typo: a producer starts without it

    near = process.extractOne(name, list(Settings.model_fields), score_cutoff=60)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"setting {name}: there is no such setting{hint}"
