"""The conversation with one agent: what it is told, what it prints, and who watches it."""

from __future__ import annotations

import json

from mulligan.policies.loops.stuck import StuckFinding
from mulligan.tasks.ports.runners import Request
from mulligan.workers.runners.agent_watch import AgentWatch
from mulligan.workers.runners.sessions.session_parser import SessionParser
from mulligan.workers.runners.sessions.session_relay import SessionRelay
from mulligan.workers.sandbox.streams import OpenInput


class AgentSession:
    """Tells an agent its prompt, passes on what it prints, and nudges it if it repeats itself."""

    def __init__(
        self,
        parser: SessionParser,
        request: Request,
        watch: AgentWatch,
        prompt: str,
        *,
        can_hear: bool,
    ) -> None:
        """``can_hear``: whether it reads messages as JSON lines until its input ends."""
        self.relay = SessionRelay(parser, request, listen=watch.hear)
        self.watch = watch
        watch.nudge = self._nudge
        self._can_hear = can_hear
        said = _message(prompt) if can_hear else prompt.encode("utf-8", "replace")
        self.stdin = OpenInput(said, closed=not can_hear)

    def feed(self, chunk: bytes) -> None:
        """Read what it has printed. After its result, it is told nothing more."""
        self.watch.hear_output(chunk)
        self.relay.feed(chunk)
        if self._can_hear and self.relay.has_result:
            self.stdin.close()

    def _nudge(self, finding: StuckFinding) -> bool:
        """Tell it what it repeats; return whether it hears that."""
        self.relay.note(f"nudge: it {finding.told}")
        return self._can_hear and self.stdin.write(_message(f"You {finding.told}."))


def _message(text: str) -> bytes:
    """Return a message of the user as Claude Code reads it (``--input-format stream-json``)."""
    content = [{"type": "text", "text": text}]
    message = {"type": "user", "message": {"role": "user", "content": content}}
    return f"{json.dumps(message)}\n".encode()
