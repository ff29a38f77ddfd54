"""What a session did lately, as far as the rules about stuck agents need it."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256

from mulligan.policies.failures.mask import Level, mask_lines
from mulligan.policies.loops.session_event import SessionEvent
from mulligan.policies.value import Json

#: Completed actions that are remembered; more than any rule looks at.
_MOST_STEPS = 50
#: Actions without an observation, and files, that are remembered.
_MOST_OPEN = 1000
_MOST_FILES = 1000
#: Characters of the end of an observation that are compared.
_COMPARED = 4000
#: Characters of an action that are remembered.
_LONGEST_TEXT = 500
#: Tools that wait or look whether something has ended, and commands that wait.
_WAITING_TOOL = re.compile(
    r"wait|sleep|poll|monitor|(?:bash|task|agent|job|shell|command)_?(?:output|status)",
    re.IGNORECASE,
)
_WAITING_COMMAND = re.compile(
    r"(?:^|[;&|(]|\bdo\b|\bthen\b|\s-l?c\b)[\s'\"]{0,9}"
    # A few seconds of sleep are no wait: they may stand before any command.
    r"(?:sleep\s+(?:\d{2,}|\d+[mh])|wait\b|tail -f\b|watch\b)"
)
#: Tools that only look at files, whatever arguments they have.
_READING_TOOL = re.compile(r"read|view|list|ls|glob|grep|search|find|fetch|cat", re.IGNORECASE)
_PATHS = ("file_path", "notebook_path", "path")


@dataclass(frozen=True, kw_only=True)
class Step:
    """An action, and what came of it."""

    #: Equal for the same tool with the same arguments.
    key: str
    #: For people.
    text: str
    #: Whether it waits for something on purpose.
    waits: bool = False
    failed: bool = False
    #: Of a failure: equal for the same error, but for times, addresses and the like.
    result: str = ""


class SessionLog:
    """Reads the events of a session one by one, in limited memory."""

    def __init__(self, events: Iterable[SessionEvent] = ()) -> None:
        #: The last actions with an observation, the newest last.
        self.steps: deque[Step] = deque(maxlen=_MOST_STEPS)
        #: The actions without one, by reference.
        self.open: dict[str, Step] = {}
        #: Messages of the agent since its last action.
        self.messages = 0
        #: Files that its tools were asked to change.
        self.files: set[str] = set()
        self._message = ""
        for event in events:
            self.add(event)

    def add(self, event: SessionEvent) -> None:
        match event.kind:
            case "action":
                self._act(event)
            case "observation":
                self._observe(event)
            case "text" if event.ref and not event.name and event.ref != self._message:
                self._message = event.ref
                self.messages += 1

    def _act(self, event: SessionEvent) -> None:
        self.messages = 0
        self.open[event.ref] = Step(key=_key(event), text=_in_words(event), waits=_waits(event))
        if len(self.open) > _MOST_OPEN:
            del self.open[next(iter(self.open))]
        if len(self.files) < _MOST_FILES:
            self.files.update(_changed_files(event))

    def _observe(self, event: SessionEvent) -> None:
        self.messages = 0
        step = self.open.pop(event.ref, None)
        if step is not None:
            self.steps.append(replace(step, failed=event.failed, result=_result(event)))


def _key(event: SessionEvent) -> str:
    # Without arguments, the text is all that is known of the action.
    about = event.data or {"text": event.text}
    return _digest(f"{event.name}\n{json.dumps(about, sort_keys=True, default=str)}")


def _in_words(event: SessionEvent) -> str:
    """Return a command as it is, and the arguments of any other tool after its name."""
    is_command = "command" in event.data and event.text
    text = event.text if is_command else f"{event.name} {event.text}".strip()
    return text[:_LONGEST_TEXT]


def _digest(text: str) -> str:
    return sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


def _result(event: SessionEvent) -> str:
    # Only failures are compared.
    text = event.text[-_COMPARED:] if event.failed else ""
    return _digest(mask_lines(text, Level.NOISE))


def _waits(event: SessionEvent) -> bool:
    command = event.data.get("command")
    if isinstance(command, list):
        command = " ".join(map(str, command))
    if isinstance(command, str):
        return _WAITING_COMMAND.search(command[:2000]) is not None
    return _WAITING_TOOL.search(event.name) is not None


def _changed_files(event: SessionEvent) -> Iterable[str]:
    """Return the files that an action changes, as far as its arguments name them."""
    if _READING_TOOL.match(event.name):
        return ()
    changes = event.data.get("changes")
    each = changes if isinstance(changes, list) else [event.data]
    return [path for item in each if isinstance(item, Mapping) for path in _paths_in(item)]


def _paths_in(item: Mapping[str, Json]) -> Iterable[str]:
    return [path for name in _PATHS if isinstance(path := item.get(name), str) and path]
