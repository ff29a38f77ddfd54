"""The tools with which an agent sees and steers what loops have to do with each other."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from mulligan.console.mcp.tool_call import (
    ChangeCall,
    ConsoleRequest,
    Effect,
    Item,
    Loop,
    ToolCall,
    loop_path,
    read,
)
from mulligan.policies.loops.numbers import Whole
from mulligan.policies.loops.spec import EventName, LoopName


class Coordination(ToolCall):
    """Show what loops have to do with each other: who has which files, who waits for whom, events.

    `decisions` says why items got slots or wait, newest first, and what overruling each one does.
    For one item's reason use why.
    """

    loop: Annotated[
        LoopName | None, Field(description="Only what concerns this loop; leave it out for all.")
    ] = None
    limit: Annotated[Whole, Field(ge=1, le=100, description="Maximum rows of each list.")] = 20

    def request(self) -> ConsoleRequest:
        return read("/api/coordination", loop=self.loop, limit=self.limit)


class OverruleDecision(ChangeCall):
    """Overrule a decision of coordination. Its `overruling` says what that does.

    It cannot be taken back, but order_item changes the orders of the item.
    """

    effect: ClassVar[Effect] = "destroys"

    number: Annotated[Whole, Field(ge=1, le=10**15, description="The decision's number.")]

    def request(self) -> ConsoleRequest:
        return self.change("POST", f"/api/coordination/decisions/{self.number}/overrule")


class OrderItem(ChangeCall):
    """Say what happens to an item that waits, until it gets its slot.

    first: it gets the next free slot. hold: it gets none. ignore_locks: it need not wait for files
    that others change. ignore_waits: nor for other loops and events. none: all orders end. Only
    first and hold replace each other.
    """

    loop: Loop
    item: Item
    order: Annotated[
        Literal["first", "hold", "ignore_locks", "ignore_waits", "none"],
        Field(description="The new order."),
    ]

    def request(self) -> ConsoleRequest:
        order = None if self.order == "none" else self.order
        path = loop_path(self.loop, "tests", self.item, "order")
        return self.change("PUT", path, {"order": order})


class EmitEvent(ChangeCall):
    """Give off an event that items name in waits_for, so that they go on. Twice changes nothing.

    withdraw takes back an event that was given off in this way.
    """

    event: Annotated[EventName, Field(description="Its name, such as api-ready.")]
    tenant: Annotated[
        str | None,
        Field(max_length=200, description="Whose loops; only for a token without a tenant."),
    ] = None
    withdraw: Annotated[bool, Field(description="Take it back instead.")] = False

    def request(self) -> ConsoleRequest:
        body: dict[str, Any] = {"event": self.event}
        body |= {"tenant": self.tenant} if self.tenant else {}
        body |= {"withdraw": True} if self.withdraw else {}
        return self.change("POST", "/api/loop-events", body)
