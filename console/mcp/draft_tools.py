"""The tools with which an agent lets a model plan a loop. See loop_tools for the docstrings."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from mulligan.console.mcp.tool_call import (
    ChangeCall,
    Config,
    ConsoleRequest,
    ToolCall,
    loop_path,
    read,
)

Draft = Annotated[str, Field(max_length=200, description="The job_id that draft_loop returned.")]


class DraftLoop(ChangeCall):
    """Let a model write the items of a loop for a goal. Use create_loop if you know the items.

    The draft is checked on the loop's repo: each item needs a verifier that fails before the work.
    Answers with a job_id; follow it with loop_draft. Example: {"goal": "Parse durations",
    "loop": {"name": "durations", "repo": "project", "runner": "coder"}}.
    """

    goal: Annotated[str, Field(max_length=20_000, description="What is to be done.")]
    loop: Annotated[
        Config, Field(description="The configuration without items. It needs name, repo, runner.")
    ]
    runner: Annotated[
        str | None, Field(description="Who writes the draft; leave it out for the default.")
    ] = None
    auto_start: Annotated[
        bool, Field(description="Create and start the loop when a draft has passed.")
    ] = False

    def request(self) -> ConsoleRequest:
        body = self.model_dump(exclude={"idempotency_key"}, exclude_defaults=True)
        return self.change("POST", loop_path("drafts"), body)


class LoopDraft(ToolCall):
    """Show a draft: its state, what was wrong with each attempt, and the items when one passed.

    To use the items call create_draft.
    """

    job_id: Draft

    def request(self) -> ConsoleRequest:
        return read(loop_path("drafts", self.job_id))


class CreateDraft(ChangeCall):
    """Create the loop of a draft that has passed. A second time changes nothing."""

    job_id: Draft
    start: Annotated[bool, Field(description="Start it at once.")] = False

    def request(self) -> ConsoleRequest:
        return self.change(
            "POST", loop_path("drafts", self.job_id, "create"), {"start": self.start}
        )
