"""What every reader of an agent's output has in common: events on the way, a summary at the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

from mulligan.policies.jobs.job import Usage
from mulligan.tasks.ports.sessions import SessionEvent

#: Why a provider refused: ``credits`` or a quota are used up; it is ``busy`` and may serve later;
#: it does not accept the ``key``.
Refusal = Literal["credits", "busy", "key"]
#: Replaces parts of a text, such as secrets.
TextFilter = Callable[[str], str]


def unchanged(text: str) -> str:
    return text


@dataclass(frozen=True, kw_only=True)
class SessionSummary:
    """What a session says about itself."""

    #: The final answer: its result, or else its last message.
    answer: str = ""
    #: All tokens of the session and its sub-agents. Those read from a cache count as well.
    usage: Usage = field(default_factory=Usage)
    model: str | None = None
    #: The agent's own estimate, in US dollars.
    cost_usd: float | None = None
    #: Its own verdict; None if it did not end with one.
    failed: bool | None = None
    #: Why it failed, in its own words.
    error: str = ""
    #: Only ever from a structured code.
    refused: Refusal | None = None
    #: The code of the refusal, by the name that the format has for it.
    code: str = ""
    #: When the provider accepts calls again, in seconds since 1970.
    resets_at: float | None = None


class SessionParser(Protocol):
    """Reads what one agent prints. Nothing that it prints raises an error."""

    def feed(self, chunk: bytes) -> list[SessionEvent]:
        """Return the events of what is complete."""

    def finish(self) -> list[SessionEvent]:
        """Return the events of the rest."""

    @property
    def summary(self) -> SessionSummary:
        """What is known so far."""
