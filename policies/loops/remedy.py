"""What changes the state that `why` explains: one action, for people, programs and agents."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

#: The names of the tools for agents. Only people start workers.
Action = Literal[
    "start_loop",
    "resume_loop",
    "configure_loop",
    "reset_item",
    "skip_item",
    "order_item",
    "set_loop_slots",
    "resume_queue",
    "start_worker",
    "start_all_workers",
]
_WORDS: dict[Action, tuple[str, ...]] = {
    "start_loop": ("loops", "start"),
    "resume_loop": ("loops", "resume"),
    "configure_loop": ("loops", "set"),
    "reset_item": ("loops", "reset"),
    "skip_item": ("loops", "skip"),
    "order_item": ("loops", "order"),
    "set_loop_slots": ("loops", "slots"),
    "resume_queue": ("queue", "resume"),
    "start_worker": ("worker",),
    "start_all_workers": ("up",),
}


@dataclass(frozen=True, kw_only=True)
class LoopRemedy:
    """An action and its arguments, in the order of the command line."""

    action: Action
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def command(self) -> str:
        """The command of a terminal that does it."""
        words = ["mulligan", *_WORDS[self.action]]
        for name, value in self.arguments.items():
            match name:
                case "changes":
                    words += _options(value)
                case "reason":
                    words += ["--reason", value]
                case _:
                    words.append(str(value))
        return shlex.join(words)


def _options(changes: Mapping[str, Any]) -> list[str]:
    """Return the options of `mulligan loops set`."""
    words = []
    for name, value in changes.items():
        if name != "budget":
            words += [f"--{name}", str(value)]
            continue
        for scope, limits in value.items():
            for resource, limit in limits.items():
                words += ["--budget", f"{scope}.{resource}={limit}"]
    return words
