"""One event of an agent's session: what it does, what comes of it, what it says."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from mulligan.policies.jobs.job import Usage
from mulligan.policies.value import Json

#: ``action``: what the agent does, such as a command or an edit. ``observation``: what came of it.
#: ``text``: what it says or thinks. ``usage``: what it has used so far. ``note``: of the worker.
EventKind = Literal["action", "observation", "text", "usage", "note"]


@dataclass(frozen=True, kw_only=True)
class SessionEvent:
    """One event of a session."""

    kind: EventKind
    #: For people: a command, an output, a sentence.
    text: str = ""
    #: Of an action and its observation: the tool's name.
    name: str = ""
    #: Connects an observation with its action, and the parts of a message; empty if the agent does
    #: not say.
    ref: str = ""
    #: Of an observation: whether the action failed.
    failed: bool = False
    #: All that the session has used so far.
    usage: Usage | None = None
    #: The arguments of an action without the agent's thoughts, for comparing actions.
    data: dict[str, Json] = field(default_factory=dict)
