"""The tools with which an agent drives loops, one per operation of the control API.

An agent chooses by these docstrings alone: each says what the tool does, and when to use another.
"""

from __future__ import annotations

from typing import Annotated, ClassVar
from urllib.parse import quote

from pydantic import Field, model_validator

from mulligan.console.http.models.work_models import COMMIT_PATTERN
from mulligan.console.mcp.coordination_tools import (
    Coordination,
    EmitEvent,
    OrderItem,
    OverruleDecision,
)
from mulligan.console.mcp.draft_tools import CreateDraft, DraftLoop, LoopDraft
from mulligan.console.mcp.heal_tools import (
    AnalyseItem,
    HealItem,
    ListHeals,
    LoopRegressions,
    VerifyLoop,
)
from mulligan.console.mcp.tool_call import (
    TEXT_LENGTH,
    ChangeCall,
    Config,
    ConfigChanges,
    ConsoleRequest,
    Cursor,
    Effect,
    Item,
    Items,
    Length,
    Loop,
    Parameters,
    ToolCall,
    loop_path,
    read,
)
from mulligan.policies.loops.commands import Verb
from mulligan.policies.loops.loop import LoopState, ShownState
from mulligan.policies.loops.numbers import Whole
from mulligan.policies.loops.spec import ItemId

AnyItem = Annotated[ItemId | None, Field(description="One item's id; leave it out for the loop.")]
Limit = Annotated[Whole, Field(ge=1, le=100, description="Maximum rows.")]

#: Characters of a diff.
DIFF_LENGTH = 8000

#: What an agent reads once, before it chooses a tool.
INSTRUCTIONS = (
    "mulligan runs loops. A loop is a named set of work items with dependencies. Each item is a"
    " prompt for a model and the checks that its answer must pass; a failed attempt is repeated"
    " with a corrected prompt, up to max_attempts. Workers do the items: no tool waits for them.\n"
    "Usual order: create_loop with dry_run, create_loop, start_loop, then get_loop now and then"
    " until its status is completed or blocked. If something does not go on, ask why first: it says"
    " what to do. For a failed item, read get_item and analyse_item, then heal_item (do the next"
    " thing that may help), reset_item (run it again) or skip_item (go on without it).\n"
    "In a loop with a repo, agents change a git repository: what passed is merged into the loop's"
    " branch. read_transcript shows what an agent did, read_diff what came of it, list_checkpoints"
    " what was merged, and roll_back undoes it.\n"
    "Times are seconds since 1970. Answers call a loop's items tests."
)


# -- reading ---------------------------------------------------------------------------------------


class ListLoops(ToolCall):
    """List the loops, newest first: name, status, priority, progress. Use it to find a loop's name.

    For the details of one loop use get_loop; for its items, list_items.
    """

    state: Annotated[
        LoopState | None, Field(description="Only loops with this status; leave it out for all.")
    ] = None
    limit: Annotated[Whole, Field(ge=1, le=1000, description="Maximum rows.")] = 50

    def request(self) -> ConsoleRequest:
        return read(loop_path(), state=self.state, limit=self.limit)


class GetLoop(ToolCall):
    """Show one loop: status, progress, what runs now, budget used, configuration, why it waits.

    Use it to follow a loop. It has no items: for these use list_items.
    """

    loop: Loop

    def request(self) -> ConsoleRequest:
        return read(loop_path(self.loop))


class LoopHealth(ToolCall):
    """Tell whether a loop is alive: which signal of it or of its items is missing, since when.

    Use it if a running loop makes no progress. For the reason that something waits use why.
    """

    loop: Loop

    def request(self) -> ConsoleRequest:
        return read(loop_path(self.loop, "health"))


class Why(ToolCall):
    """Explain why a loop, or one item of it, does not run, and what would change that.

    `text` is the reason. `remedy`, if any, is what changes it: call the tool that `action` names,
    with `arguments`. If there is no such tool, ask a person to run `command`.
    """

    loop: Loop
    item: AnyItem = None

    def request(self) -> ConsoleRequest:
        return read(loop_path(self.loop, "why"), test=self.item)


class ReadLoopLog(ToolCall):
    """List what happened to a loop, newest first: who changed it, and why items got their slots."""

    loop: Loop
    limit: Limit = 30

    def request(self) -> ConsoleRequest:
        return read(loop_path(self.loop, "log"), limit=self.limit)


class ReportLoop(ToolCall):
    """Report on a loop: progress over time, cost, failures, healing, what is left, when it may end.

    Use it for an overview, also of a loop that has ended. To follow a loop use get_loop.
    """

    loop: Loop
    limit: Annotated[Whole, Field(ge=1, le=100, description="Maximum rows of each list.")] = 20

    def request(self) -> ConsoleRequest:
        return read(loop_path(self.loop, "report"), limit=self.limit)


class ListItems(ToolCall):
    """List the items of a loop with their states and the reasons of failures, a page at a time.

    Use state to find what failed or is blocked. For prompts, attempts and answers use get_item.
    """

    loop: Loop
    state: Annotated[
        ShownState | None, Field(description="Only items in this state; leave it out for all.")
    ] = None
    limit: Limit = 50
    cursor: Cursor = None

    def request(self) -> ConsoleRequest:
        path = loop_path(self.loop, "tests")
        return read(path, state=self.state, limit=self.limit, cursor=self.cursor)


class GetItem(ToolCall):
    """Show one item: prompt, criteria, checks, the attempts of its last run, and why it waits.

    Use it before reset_item or skip_item: its attempts say why it failed. For earlier runs use
    transcripts.
    """

    loop: Loop
    item: Item
    max_chars: Length = TEXT_LENGTH

    @property
    def text_length(self) -> int:
        return self.max_chars

    def request(self) -> ConsoleRequest:
        return read(loop_path(self.loop, "tests", self.item))


class Transcripts(ToolCall):
    """Read what was asked and answered in every attempt of a loop or of one item, page by page.

    It is long: give item if you can. For the last run of one item get_item is enough.
    """

    loop: Loop
    item: AnyItem = None
    limit: Annotated[Whole, Field(ge=1, le=20, description="Runs of items on one page.")] = 5
    cursor: Cursor = None
    max_chars: Length = TEXT_LENGTH

    @property
    def text_length(self) -> int:
        return self.max_chars

    def request(self) -> ConsoleRequest:
        path = loop_path(self.loop, "transcripts")
        return read(path, test=self.item, limit=self.limit, cursor=self.cursor)


class ListCheckpoints(ToolCall):
    """List the commits on the branch of a loop with a repo, newest first: what was merged when.

    For what one of them changed use read_diff; to go back to one use roll_back.
    """

    loop: Loop
    limit: Limit = 30
    cursor: Annotated[
        str | None,
        Field(
            pattern=COMMIT_PATTERN,
            description="For the next page: the cursor of the last answer.",
        ),
    ] = None

    def request(self) -> ConsoleRequest:
        path = loop_path(self.loop, "checkpoints")
        return read(path, limit=self.limit, cursor=self.cursor)


class ReadDiff(ToolCall):
    """Read what an item or a checkpoint changed: the files, and the diff as git shows it.

    Give item or checkpoint. Of an item that is not merged, it is the newest saved work, also of a
    stopped attempt; of one that failed, its best attempt.
    """

    loop: Loop
    item: Annotated[ItemId | None, Field(description="An item's id.")] = None
    checkpoint: Annotated[
        str | None,
        Field(pattern=COMMIT_PATTERN, description="A commit of list_checkpoints, or its start."),
    ] = None
    max_chars: Length = DIFF_LENGTH

    @property
    def text_length(self) -> int:
        return self.max_chars

    @model_validator(mode="after")
    def _names_one(self) -> ReadDiff:
        if (self.item is None) == (self.checkpoint is None):
            raise ValueError("give either item or checkpoint")
        return self

    def request(self) -> ConsoleRequest:
        if self.item is not None:
            return read(loop_path(self.loop, "tests", self.item, "diff"))
        return read(loop_path(self.loop, "checkpoints", self.checkpoint or "", "diff"))


class ReadTranscript(ToolCall):
    """Read what the agent of one attempt did in a loop with a repo, also while it works.

    The job's id is in get_item. Ask again with after=last while `more` is true or `ended` is false.
    """

    loop: Loop
    item: Item
    job_id: Annotated[str, Field(max_length=200, description="A job of the item.")]
    attempt: Annotated[Whole, Field(ge=1, le=100_000, description="Its number, from 1 on.")]
    after: Annotated[Whole, Field(ge=0, description="Only events after this `seq`.")] = 0
    limit: Limit = 30
    max_chars: Length = TEXT_LENGTH

    @property
    def text_length(self) -> int:
        return self.max_chars

    def request(self) -> ConsoleRequest:
        steps = ("tests", self.item, "transcripts", self.job_id, str(self.attempt))
        path = loop_path(self.loop, *steps)
        return read(path, after=self.after, limit=self.limit)


# -- changing loops --------------------------------------------------------------------------------


class CreateLoop(ChangeCall):
    """Create a loop: from loop and items, or from a template. It does nothing until it is started.

    Example: {"loop": {"name": "nightly", "runner": "default"}, "items": [{"id": "A-1", "prompt":
    "List three colours as a JSON object.", "verifiers": ["json.object"]}], "dry_run": true}.
    Other verifiers: {"id": "text.match", "contains": ["red"]}, {"id": "pytest.subprocess"}.
    With dry_run nothing is created: it reports every problem, or the order of the items. A name is
    used once: the same loop again changes nothing, another one of that name is refused.
    """

    loop: Annotated[Config | None, Field(description="The loop's configuration.")] = None
    items: Annotated[
        Items | None,
        Field(
            description="The work items, beside loop. depends_on names items that must pass first."
        ),
    ] = None
    template: Annotated[
        str | None, Field(description="A template of the console, instead of loop and items.")
    ] = None
    parameters: Annotated[
        Parameters | None, Field(description="Values for the template's parameters.")
    ] = None
    dry_run: Annotated[bool, Field(description="Check it only.")] = False
    start: Annotated[bool, Field(description="Start it at once.")] = False

    def request(self) -> ConsoleRequest:
        body = self.model_dump(exclude={"idempotency_key"}, exclude_defaults=True)
        return self.change("POST", loop_path(), body)


class MoveLoop(ChangeCall):
    verb: ClassVar[Verb]

    loop: Loop

    def request(self) -> ConsoleRequest:
        return self.change("POST", loop_path(self.loop, self.verb))


class StartLoop(MoveLoop):
    """Start a loop that was created or stopped. For a paused loop use resume_loop."""

    verb: ClassVar[Verb] = "start"

    despite_move: Annotated[
        bool, Field(description="Also one that moved to another installation and goes on there.")
    ] = False

    def request(self) -> ConsoleRequest:
        query = "?despite_move=true" if self.despite_move else ""
        return self.change("POST", loop_path(self.loop, self.verb) + query)


class StopLoop(MoveLoop):
    """Stop a loop and end the attempts that run now. Their items run again after start_loop.

    In a loop with a repo, what they did is kept: read_diff shows it. Other answers are lost. To let
    running attempts finish use pause_loop.
    """

    effect: ClassVar[Effect] = "destroys"
    verb: ClassVar[Verb] = "stop"


class PauseLoop(MoveLoop):
    """Pause a loop: no item starts, running attempts finish. Continue with resume_loop."""

    verb: ClassVar[Verb] = "pause"


class ResumeLoop(MoveLoop):
    """Continue a paused loop.

    If its budget is used up, raise the budget with configure_loop instead: that resumes it.
    """

    verb: ClassVar[Verb] = "resume"


class ConfigureLoop(ChangeCall):
    """Change the configuration of a loop: priority, concurrency, weight, budget and so on.

    Give only the fields to change. Raising a budget that was used up resumes the loop. Examples of
    changes: {"priority": 1}, {"budget": {"loop": {"tokens": "2M"}}}.
    """

    loop: Loop
    changes: Annotated[ConfigChanges, Field(description="The fields to change.")]

    def request(self) -> ConsoleRequest:
        return self.change("PATCH", loop_path(self.loop), self.changes)


class DeleteLoop(ChangeCall):
    """Delete a loop for ever: its items, states and log. One that runs or is paused is refused.

    Of a loop with a repo, the branch stays; the saved work and the transcripts of its attempts are
    removed at once, also what was never merged. Use it only if you were asked to. To end a loop use
    stop_loop.
    """

    effect: ClassVar[Effect] = "destroys"

    loop: Loop

    def request(self) -> ConsoleRequest:
        return self.change("DELETE", loop_path(self.loop))


# -- changing items --------------------------------------------------------------------------------


class ResetItem(ChangeCall):
    """Run an item again from the beginning: its failures are forgotten, and it is started anew.

    Use it after the cause of the failure is gone. A running attempt of the item is ended. Work that
    is merged is refused: undo it with roll_back.
    """

    effect: ClassVar[Effect] = "destroys"

    loop: Loop
    item: Item

    def request(self) -> ConsoleRequest:
        return self.change("POST", loop_path(self.loop, "tests", self.item, "reset"))


class SkipItem(ChangeCall):
    """Leave an item out. The items that depend on it go on as if it had passed.

    To try it once more use reset_item.
    """

    effect: ClassVar[Effect] = "destroys"

    loop: Loop
    item: Item
    reason: Annotated[str, Field(max_length=200, description="Why, for the people who read it.")]

    def request(self) -> ConsoleRequest:
        path = loop_path(self.loop, "tests", self.item, "skip")
        return self.change("POST", path, {"reason": self.reason})


class AddItems(ChangeCall):
    """Add items to a loop that exists, also while it runs; a completed loop goes on with them.

    Example: {"loop": "nightly", "items": [{"id": "A-2", "prompt": "Do it.", "depends_on": ["A-1"],
    "verifiers": ["json.object"]}]}.
    """

    loop: Loop
    items: Annotated[Items, Field(description="The new items. Their ids must be new, too.")]

    def request(self) -> ConsoleRequest:
        return self.change("POST", loop_path(self.loop, "tests"), {"items": self.items})


class RollBack(ChangeCall):
    """Undo what was merged after a checkpoint, or one item with the items that depend on it.

    The branch gets one more commit, and the undone items run again. Use dry_run first: it says
    which, and whether commits of others are removed, too. A worker does it: `rollback` of get_loop
    is null when it is done, and loop_log says so.
    """

    effect: ClassVar[Effect] = "destroys"

    loop: Loop
    to: Annotated[
        str | None,
        Field(pattern=COMMIT_PATTERN, description="The checkpoint to go back to."),
    ] = None
    item: Annotated[ItemId | None, Field(description="Undo only this item.")] = None
    dry_run: Annotated[bool, Field(description="Only say what would run again.")] = False

    @model_validator(mode="after")
    def _names_something(self) -> RollBack:
        if self.to is None and self.item is None:
            raise ValueError("give to or item")
        return self

    def request(self) -> ConsoleRequest:
        asked = {"to": self.to, "test": self.item, "dry_run": self.dry_run or None}
        body = {name: value for name, value in asked.items() if value is not None}
        return self.change("POST", loop_path(self.loop, "rollback"), body)


# -- the fleet -------------------------------------------------------------------------------------


class SetLoopSlots(ChangeCall):
    """Set how many items of all loops may run at once. It needs a token without a tenant.

    To limit one loop use configure_loop with concurrency.
    """

    slots: Annotated[
        Whole | None,
        Field(
            ge=0, le=100_000, description="For all loops; leave it out for the configured number."
        ),
    ] = None

    def request(self) -> ConsoleRequest:
        return self.change("PUT", "/api/loop-slots", {"slots": self.slots})


class ResumeQueue(ChangeCall):
    """Resume a queue, a task type or a provider that was paused, failed or is out of credits.

    Use it if why says so. For a paused loop use resume_loop.
    """

    what: Annotated[
        str,
        Field(
            max_length=200,
            description="Such as queue:agent, task_type:review or provider:api.example.",
        ),
    ]

    def request(self) -> ConsoleRequest:
        return self.change("DELETE", f"/api/pauses/{quote(self.what, safe=':')}")


TOOLS: dict[str, type[ToolCall]] = {
    "list_loops": ListLoops,
    "get_loop": GetLoop,
    "create_loop": CreateLoop,
    "draft_loop": DraftLoop,
    "loop_draft": LoopDraft,
    "create_draft": CreateDraft,
    "start_loop": StartLoop,
    "stop_loop": StopLoop,
    "pause_loop": PauseLoop,
    "resume_loop": ResumeLoop,
    "configure_loop": ConfigureLoop,
    "delete_loop": DeleteLoop,
    "loop_health": LoopHealth,
    "loop_log": ReadLoopLog,
    "loop_report": ReportLoop,
    "why": Why,
    "list_items": ListItems,
    "get_item": GetItem,
    "reset_item": ResetItem,
    "skip_item": SkipItem,
    "heal_item": HealItem,
    "analyse_item": AnalyseItem,
    "list_heals": ListHeals,
    "loop_regressions": LoopRegressions,
    "verify_loop": VerifyLoop,
    "add_items": AddItems,
    "coordination": Coordination,
    "overrule_decision": OverruleDecision,
    "order_item": OrderItem,
    "emit_event": EmitEvent,
    "transcripts": Transcripts,
    "list_checkpoints": ListCheckpoints,
    "read_diff": ReadDiff,
    "read_transcript": ReadTranscript,
    "roll_back": RollBack,
    "set_loop_slots": SetLoopSlots,
    "resume_queue": ResumeQueue,
}
