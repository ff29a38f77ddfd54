"""What the loop does: read from the API, told as events, and shown while it runs."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from fleet import Fleet
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

LOOP = "shop"
_STYLES = {
    "passed": "green", "running": "cyan", "waiting": "yellow", "ready": "", "pending": "dim",
    "failed": "red", "quarantined": "red", "blocked": "yellow", "skipped": "dim",
}  # fmt: skip
#: States in which attempts may have been added, or files denied, since the last look.
_LIVELY = ("ready", "running", "waiting")
_SHOWN_EVENTS = 8


@dataclass
class Item:
    """An item of the loop, as far as it is known."""

    id: str
    title: str
    state: str = "pending"
    #: Of its last run.
    attempts: list[dict[str, Any]] = field(default_factory=list)
    #: Why it waited, if it did.
    waited_for: str = ""
    #: Who had its files when it was ready, as `loop/item`.
    files_held_by: str = ""
    #: What was done to heal it, the first one first.
    heals: list[dict[str, Any]] = field(default_factory=list)

    @property
    def failures(self) -> list[str]:
        """What was wrong with each attempt that did not pass."""
        return [_short(each["failure"]["message"]) for each in self.attempts if each["failure"]]

    @property
    def ended(self) -> list[str]:
        """How the agent ended where it did not end well."""
        return [str(each["ended"]) for each in self.attempts if each.get("ended")]


@dataclass(frozen=True)
class Event:
    """Something that happened, so many seconds after the start."""

    after: float
    item: str
    text: str
    style: str = ""

    def line(self) -> Text:
        return Text.assemble(
            (f"{self.after:5.1f} s  ", "dim"), (f"{self.item}  ", "bold"), (self.text, self.style)
        )


class Progress:
    """The loop, looked at again and again."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._started = time.monotonic()
        self.status = "created"
        #: Seconds until the last look.
        self.took = 0.0
        self.why = ""
        self.items: dict[str, Item] = {}
        self.events: list[Event] = []

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._started

    @property
    def passed(self) -> int:
        return sum(item.state == "passed" for item in self.items.values())

    def count_attempts(self) -> int:
        """Return the number of all attempts, also of runs that gave up."""
        return len(self._fleet.get(f"/api/loops/{LOOP}/transcripts?limit=100")["transcripts"])

    def look(self) -> list[Event]:
        """Read the loop and return what has happened since the last look."""
        loop = self._fleet.get(f"/api/loops/{LOOP}")
        self.status, self.why = loop["status"], loop["why"]["text"]
        self.took = self.elapsed
        before = len(self.events)
        heals = self._fleet.get(f"/api/loops/{LOOP}/heals")["heals"]
        for row in self._fleet.get(f"/api/loops/{LOOP}/tests?limit=100")["tests"]:
            item = self.items.setdefault(row["id"], Item(row["id"], row["title"]))
            if row["state"] != item.state or row["state"] in _LIVELY:
                self._update(item)
            self._update_heals(item, [each for each in reversed(heals) if each["test"] == item.id])
        return self.events[before:]

    def _update(self, item: Item) -> None:
        detail = self._fleet.get(f"/api/loops/{LOOP}/tests/{item.id}")
        old, item.state = item.state, detail["state"]
        known = len(item.failures), len(item.ended)
        item.attempts = detail["attempts"]
        for text in item.ended[known[1] :]:
            self._tell(item, f"its session broke off: {_short(text)}", "yellow")
        for text in item.failures[known[0] :]:
            self._tell(item, f"not yet: {text}", "yellow")
        if (holder := detail["files_held_by"]) and not item.files_held_by:
            item.files_held_by = holder
            self._tell(item, detail["why"]["text"].removeprefix(f"{item.id} "), "yellow")
        if item.state == old:
            return
        if item.state == "waiting" and not item.waited_for:
            item.waited_for = detail["why"]["text"].removeprefix(f"{item.id} ")
            self._tell(item, item.waited_for, "yellow")
        elif item.state == "passed":
            self._tell(item, f"merged, attempts: {len(item.attempts)}", "green")
        elif item.state in ("failed", "quarantined"):
            self._tell(item, f"{item.state}: {detail['reason']}", "red")

    def _update_heals(self, item: Item, heals: list[dict[str, Any]]) -> None:
        known, item.heals = item.heals, heals
        for each in heals[len(known) :]:
            self._tell(item, f"{heal_words(each)}: {_short(each['reason'])}", "yellow")

    def _tell(self, item: Item, text: str, style: str) -> None:
        self.events.append(Event(self.elapsed, item.id, text, style))

    def render(self) -> RenderableType:
        """Return the items by state and the last events."""
        counts = " · ".join(
            f"{count} {state}" for state in _STYLES if (count := self._count(state))
        )
        title = Text.assemble((f"loop {LOOP} ", "bold"), f"{self.elapsed:.0f} s: {counts}")
        table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
        for item in self.items.values():
            tried = f"attempt {len(item.attempts)}" if item.attempts else ""
            table.add_row(item.id, Text(item.state, _STYLES.get(item.state, "")), tried, item.title)
        lines = [event.line() for event in self.events[-_SHOWN_EVENTS:]]
        for line in lines:
            line.no_wrap, line.overflow = True, "ellipsis"
        return Group(title, table, Text(), *lines)

    def _count(self, state: str) -> int:
        return sum(item.state == state for item in self.items.values())


def heal_words(heal: dict[str, Any]) -> str:
    return f"{heal['action'].replace('_', ' ')} ({heal['parameter']})"


def _short(message: str) -> str:
    """Return the first line of a message, without what makes it long."""
    first = message.strip().splitlines()[0] if message.strip() else "no message"
    return first if len(first) <= 110 else first[:109] + "…"
