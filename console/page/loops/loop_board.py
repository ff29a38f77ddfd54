"""The board of a loop: its items by state, as lines of a table and as cards in columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from mulligan.console.http.models.coordination_models import shown_file
from mulligan.console.page.loops.loop_signs import HealthSign, item_sign
from mulligan.policies.coordination.order import ItemOrders, OrderWord
from mulligan.policies.coordination.outer_waits import open_waits, wait_name
from mulligan.policies.loops.health import HealthCheck
from mulligan.policies.loops.loop import DONE, GAVE_UP, ORDERABLE, ItemRecord, ShownState
from mulligan.policies.loops.plan import satisfied
from mulligan.policies.loops.spec import ItemSpec
from mulligan.tasks.loops.view import LoopView, why_item_of
from mulligan.tasks.ports.ledger import LiveItem

#: ``verifying``: what the agent did is verified or merged.
BoardState = Literal[ShownState, "verifying"]
#: In the order of the columns. The others are shown if an item is in them.
_COLUMNS: tuple[BoardState, ...] = (
    "pending", "ready", "waiting", "running", "verifying", "passed", "blocked", "failed",
    "quarantined", "skipped",
)  # fmt: skip
_ALWAYS = frozenset({"ready", "running", "verifying", "passed", "blocked", "failed"})
BOARD_STATES: tuple[BoardState, ...] = get_args(BoardState)
#: Cards of one column; fewer of what is done.
_CARDS = 6
_CARDS_OF_DONE = 3
#: What an order says about an item, on its card.
_ORDERS: Mapping[OrderWord, str] = {
    "first": "goes first",
    "hold": "held",
    "ignore_locks": "ignores locks",
    "ignore_waits": "does not wait",
}
#: States of items in which a sentence says what they wait for.
WAITING = frozenset({"pending", "ready", "blocked"})


@dataclass(frozen=True, kw_only=True)
class ItemLine:
    """One item on the page, and what may be done with it."""

    spec: ItemSpec
    record: ItemRecord
    state: BoardState
    #: Why it waits or how it ended.
    reason: str
    #: What it waits for: items that have not passed.
    waits_for: Sequence[str]
    #: Of an item that has a slot.
    live: LiveItem | None
    sign: HealthSign | None
    #: Whether it gave up, so that something may heal it.
    healable: bool
    resettable: bool
    skippable: bool
    #: What is to be done about it instead of the usual rules.
    orders: ItemOrders
    #: Whether it waits for other loops or events now.
    waits_outside: bool
    #: Whether it waits, so that an order may be given.
    orderable: bool
    #: The files that it must have alone, and who has them; empty if nobody keeps them from it.
    files: Sequence[str]
    held_by: str

    @property
    def order_words(self) -> str:
        broken = [f"does not wait for {wait_name(each)}" for each in self.orders.broken]
        return ", ".join([*(_ORDERS[each] for each in self.orders.words), *broken])


@dataclass(frozen=True, kw_only=True)
class BoardColumn:
    """The items in one state: some as cards, the others by the first and the last one's id."""

    state: BoardState
    total: int
    cards: Sequence[ItemLine]
    others: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class BoardItems:
    """The items of a loop, sorted by what the board shows of them."""

    view: LoopView
    check: HealthCheck
    now: float
    #: Whether the reader may see what agents do.
    texts: bool = False

    def sign(self, live: LiveItem) -> HealthSign | None:
        """Say how an item is that has a slot."""
        found = next((each for each in self.check.items if each.job_id == live.job_id), None)
        return None if found is None else item_sign(found, self.now, texts=self.texts)

    def state(self, item: str) -> BoardState:
        """Return an item's state as the board shows it."""
        live = self.live(item)
        verified = live is not None and live.is_verified
        return "verifying" if verified else self.view.state(item)

    def live(self, item: str) -> LiveItem | None:
        """Return the slot of an item that runs."""
        record = self.view.snapshot.record(item)
        return self.view.summary.live.get(record.job_id) if record.state == "running" else None

    @property
    def counts(self) -> dict[BoardState, int]:
        return dict(Counter(self.state(spec.id) for spec in self.view.snapshot.specs))

    def reason(self, item: str) -> str:
        """Say what an item waits for, or how it ended."""
        record = self.view.snapshot.record(item)
        if record.state not in WAITING:
            return record.reason
        text = why_item_of(self.view, item, self.now).text
        return text.removeprefix(f"{item} waits: ").removeprefix(f"{item} ")

    def line(self, spec: ItemSpec) -> ItemLine:
        snapshot, live = self.view.snapshot, self.live(spec.id)
        record, config = snapshot.record(spec.id), snapshot.config
        outer = open_waits(snapshot, spec, record) if record.state in WAITING else []
        return ItemLine(
            spec=spec,
            record=record,
            state=self.state(spec.id),
            reason=self.reason(spec.id),
            waits_for=[
                each
                for each in spec.own_dependencies
                if record.state in WAITING
                and not satisfied(snapshot.record(each), config.on_blocked)
            ]
            + [wait_name(each) for each in outer],
            waits_outside=bool(outer),
            live=live,
            sign=None if live is None else self.sign(live),
            healable=record.state in GAVE_UP,
            # Merged work is undone on the item's own page.
            resettable=record.state
            not in (WAITING if config.repo is None else {*WAITING, "passed"}),
            skippable=record.state not in DONE,
            orders=snapshot.orders_of(spec.id),
            orderable=self.state(spec.id) in ORDERABLE,
            files=[shown_file(each, texts=self.texts) for each in snapshot.files(spec)],
            held_by=self.view.files_held_by(spec.id),
        )

    def columns(self) -> list[BoardColumn]:
        """Return the columns of the board. A long one has cards for its first items only."""
        found: dict[BoardState, list[ItemSpec]] = {each: [] for each in _COLUMNS}
        for spec in self.view.snapshot.specs:
            found[self.state(spec.id)].append(spec)
        return [
            self._column(state, specs)
            for state, specs in found.items()
            if specs or state in _ALWAYS
        ]

    def _column(self, state: BoardState, specs: Sequence[ItemSpec]) -> BoardColumn:
        most = _CARDS_OF_DONE if state in DONE else _CARDS
        first = sorted(specs, key=self._order(state))[:most]
        shown = {spec.id for spec in first}
        return BoardColumn(
            state=state,
            total=len(specs),
            cards=[self.line(spec) for spec in first],
            others=[spec.id for spec in specs if spec.id not in shown],
        )

    def _order(self, state: BoardState) -> Callable[[ItemSpec], Any]:
        """Return what the items of a column are sorted by: who goes next, or what was last."""
        record = self.view.snapshot.record
        match state:
            case "ready":
                return lambda spec: (spec.priority, record(spec.id).since)
            case "passed" | "skipped":
                return lambda spec: -record(spec.id).since
            case "pending":
                return lambda spec: spec.priority
        return lambda spec: record(spec.id).since
