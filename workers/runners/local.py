"""The ``local`` runner: the bundled SmolLM2-135M on this host's processors; it needs no key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from mulligan.policies.jobs.job import Decoding, Output, Seconds
from mulligan.policies.value import Json, Value
from mulligan.tasks.ports.errors import TransportFault
from mulligan.tasks.ports.runners import Request
from mulligan.workers.runners.blocking import blocked, refusal
from mulligan.workers.runners.local_server import MODEL
from mulligan.workers.runners.local_state import (
    DEFAULT_IDLE_EXIT,
    PROVIDER,
    ensure_local_server,
    stop_local_server,
)
from mulligan.workers.runners.openai import OpenAIOptions, OpenAIRunner
from mulligan.workers.runners.runner_options import RunnerDefaults, read_options

__all__ = ["LocalRunner", "ensure_local_server", "stop_local_server"]


class LocalOptions(Value):
    """Options of ``kind: local``: those of ``openai`` without the connection."""

    temperature: float | None = Field(default=None, ge=0, le=2)
    #: Without a limit, a small model that rambles fills its whole context.
    max_tokens: int = Field(default=512, ge=1)
    timeout: Annotated[Seconds, Field(gt=0)] | None = None
    #: The same seed, prompt and options give the same answer on the same machine.
    seed: int | None = None
    stop: tuple[str, ...] | str = ()
    extra: dict[str, Json] = Field(default_factory=dict)
    #: Seconds without work after which a server that this runner started exits.
    idle_exit: Seconds = DEFAULT_IDLE_EXIT

    @property
    def openai_options(self) -> dict[str, Any]:
        return self.model_dump(exclude={"idle_exit"}) | {"model": MODEL}


class LocalRunner:
    """Finds or starts the host's server and asks it like any OpenAI-compatible server."""

    Options = LocalOptions

    provider = PROVIDER

    def __init__(self, options: LocalOptions) -> None:
        self._options = options
        self.defaults = RunnerDefaults(
            timeout=options.timeout,
            temperature=options.temperature,
            max_tokens=options.max_tokens,
        )

    @classmethod
    def from_options(cls, options: Mapping[str, Json]) -> LocalRunner:
        """Raise BadInput with every problem."""
        local = read_options(LocalOptions, options)
        read_options(OpenAIOptions, local.openai_options)
        return cls(local)

    def constrains(self, decoding: Decoding, _schema: Mapping[str, Json]) -> bool:
        """Return whether decoding follows the job's JSON Schema: llama.cpp always can."""
        return decoding.constrained

    def answer(self, request: Request) -> Output:
        if blocked("local"):
            raise refusal("local")
        base_url = ensure_local_server(idle_exit=self._options.idle_exit)
        options = OpenAIOptions(base_url=base_url, **self._options.openai_options)
        try:
            return OpenAIRunner(options).ask(request)
        except TransportFault as fault:
            # The host's model has one breaker, whatever port it listens on.
            fault.provider = PROVIDER
            raise
