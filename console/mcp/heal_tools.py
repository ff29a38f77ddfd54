"""The tools with which an agent heals loops. See loop_tools for their docstrings' purpose."""

from __future__ import annotations

from typing import Annotated, ClassVar

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
from mulligan.policies.loops.spec import HealAction, ItemId


class ListHeals(ToolCall):
    """List what was done to heal a loop, newest first: the action, its reason and its outcome.

    Use it before heal_item: what failed for an item is not worth repeating.
    """

    loop: Loop

    def request(self) -> ConsoleRequest:
        return read(loop_path(self.loop, "heals"))


class LoopRegressions(ToolCall):
    """List what passed and broke later, newest first: the culprit, and what came of it.

    `check` is what is verified now. read_diff with the culprit as checkpoint shows what it changed.
    """

    loop: Loop

    def request(self) -> ConsoleRequest:
        return read(loop_path(self.loop, "regressions"))


class VerifyLoop(ChangeCall):
    """Verify an item that passed, or all of them, again: within seconds, and asking no model.

    What broke runs again. See loop_regressions for the result.
    """

    loop: Loop
    item: Annotated[
        ItemId | None, Field(description="One item's id; leave it out for all that passed.")
    ] = None

    def request(self) -> ConsoleRequest:
        return self.change("POST", loop_path(self.loop, "verify"), {"test": self.item})


class AnalyseItem(ToolCall):
    """Say why an item failed: the pattern of its attempts, what they differ in, what was tried.

    `command` names the step that may help; heal_item does it.
    """

    loop: Loop
    item: Item

    def request(self) -> ConsoleRequest:
        return read(loop_path(self.loop, "tests", self.item, "analysis"))


class HealItem(ChangeCall):
    """Heal an item that failed or is quarantined. Without an action, do the next one not yet tried.

    change_strategy runs it again and tells it what went wrong; escalate with to_human false gives
    it to a stronger runner; split makes two smaller items; unblock only runs it again; rollback
    goes back to the last good checkpoint first. For a plain new run use reset_item.
    """

    effect: ClassVar[Effect] = "destroys"

    loop: Loop
    item: Item
    action: Annotated[
        HealAction | None, Field(description="Leave it out for the next one not yet tried.")
    ] = None
    to_human: Annotated[bool, Field(description="Of escalate: whether to a person.")] = True
    reason: Annotated[str, Field(max_length=200, description="Why, for people.")] = ""

    def request(self) -> ConsoleRequest:
        path = loop_path(self.loop, "tests", self.item, "heal")
        body = {"action": self.action, "to_human": self.to_human, "reason": self.reason}
        return self.change("POST", path, body)
