"""The port for runners."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from mulligan.policies.jobs.job import Decoding, Message, Output, Workspace
from mulligan.policies.loops.budget import Resource
from mulligan.policies.loops.progress import AgentProgress
from mulligan.policies.value import Json
from mulligan.tasks.ports.sessions import Session, SilentSession


@dataclass(frozen=True, kw_only=True)
class Request:
    """One call to a runner."""

    messages: tuple[Message, ...]
    decoding: Decoding = field(default_factory=Decoding)
    #: The job's contract, for runners that can constrain their output.
    json_schema: Mapping[str, Json] | None = None
    attempt: int = 1
    #: Seconds until the whole call is abandoned.
    timeout: float = 120.0
    #: Maximum tokens for the answer, from the rest of the budget.
    token_allowance: int | None = None
    workspace: Workspace | None = None
    job_id: str = ""
    #: For the branch of a loop: its name, the item, and the token of the attempt's lease.
    loop: str = ""
    item: str = ""
    token: str = ""
    #: The commit with the work that this attempt goes on with; None: it begins with the branch.
    kept: str | None = None
    #: Called with what the call has used so far, by a runner that knows it before its end.
    meter: Callable[[Mapping[Resource, float]], None] = lambda _used: None
    #: Called with how the work goes, by a runner that watches it; None: it no longer does.
    progress: Callable[[AgentProgress | None], None] = lambda _progress: None
    #: Asked just before the runner is, after a checkout was made: whether the lease surely holds.
    may_ask: Callable[[], bool] = lambda: True
    #: Gets what a runner does while it works, if it says so.
    session: Session = field(default_factory=SilentSession)


class Runner(Protocol):
    """Something that answers prompts."""

    @property
    def provider(self) -> str:
        """Whom it asks: a host, a program, or the kind. Limits and breakers are kept by it."""

    def answer(self, request: Request) -> Output:
        """Answer, or raise TransportFault (ask again later) or RunnerError (final)."""


def provider_for(runner: Runner, decoding: Decoding) -> str:
    """Return whom an attempt asks. A runner with fallbacks has a method ``provider_for``."""
    # Not a Protocol checked at run time: isinstance takes longer than everything else here.
    of_fallback: Callable[[Decoding], str] | None = getattr(runner, "provider_for", None)
    return runner.provider if of_fallback is None else of_fallback(decoding)


def constrains(runner: Runner, decoding: Decoding, schema: Mapping[str, Json]) -> bool:
    """Whether a runner constrains such an attempt to a JSON Schema.

    A runner that can has a method ``constrains``.
    """
    of_runner: Callable[[Decoding, Mapping[str, Json]], bool] | None
    of_runner = getattr(runner, "constrains", None)
    return False if of_runner is None else of_runner(decoding, schema)
