"""``execute_edits``: a list of edits applied here and now, without a ledger.

The routing, the checks and the writer are those of sessions (``tasks.edits.advance``). Nothing is
measured unless the context has something to measure by.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex

from mulligan.policies.edits.edit import AutonomyMode, BenchmarkSpec, Edit, EditOutcome
from mulligan.policies.edits.session import EditSession, records_of
from mulligan.policies.edits.suite import Suite
from mulligan.tasks.edits.advance import Appliers, EditContextPorts, advance
from mulligan.tasks.ports.appliers import ApplyContext
from mulligan.tasks.ports.errors import BadInput
from mulligan.tasks.ports.measurer import Measurer
from mulligan.workers.edits.applier_registry import default_registry
from mulligan.workers.edits.sessions.engine import utc_now
from mulligan.workers.edits.sessions.session_tree import SessionTree
from mulligan.workers.edits.tree.edited_tree import EditedTree
from mulligan.workers.settings.model import load_settings

_POLL = 0.05


@dataclass(frozen=True, kw_only=True)
class EditContext(ApplyContext):
    """A context that also says where checkpoints are kept and what edits are measured by."""

    #: None: the home of the settings in force.
    home: Path | None = None
    #: What the checkpoints are known by; None: a new name.
    session: str | None = None
    #: With a suite and a measurer, an edit is kept only if the gate says so.
    suite: Suite | None = None
    measurer: Measurer | None = None
    benchmark: BenchmarkSpec = field(default_factory=lambda: BenchmarkSpec(policy="allow"))


def execute_edits(
    *,
    edits: Sequence[Edit],
    ctx: ApplyContext,
    autonomy_mode: AutonomyMode | str,
    registry: Appliers | None = None,
) -> list[EditOutcome]:
    """Route, validate and apply edits, in order; one outcome for each.

    What an edit's outcome says is in the tree: one that was not applied changed nothing. Raises
    BadInput for a list that is no plan (an id twice), TreeBusy while another process has the tree.
    """
    if not edits:
        return []
    around = ctx if isinstance(ctx, EditContext) else EditContext(**vars(ctx))
    session = _session(edits, around, AutonomyMode(autonomy_mode))
    tree = EditedTree(ctx.root, around.home or load_settings().home, max_bytes=ctx.max_bytes)
    context = EditContextPorts(
        ctx=ctx,
        appliers=registry or default_registry(),
        tree=SessionTree(tree),
        measurer=around.measurer,
        now=utc_now,
    )
    with tree.held(session.id):
        while session.phase != "done":
            moved = advance(context, session)
            if moved is session:
                time.sleep(_POLL)
            session = moved
    return session.outcomes


def _session(edits: Sequence[Edit], ctx: EditContext, mode: AutonomyMode) -> EditSession:
    seen: set[str] = set()
    for edit in edits:
        if edit.id in seen:
            raise BadInput.at("edits", f"the id {edit.id!r} is used twice")
        seen.add(edit.id)
    now = utc_now()
    return EditSession(
        id=ctx.session or f"x{int(now.timestamp()):x}{token_hex(3)}",
        host="",
        root=str(ctx.root),
        config=str(ctx.config),
        mode=mode,
        benchmark=ctx.benchmark,
        suite=ctx.suite if ctx.measurer else None,
        inline=True,
        records=records_of(edits, ctx.tiers),
        created_at=now,
        updated_at=now,
    )
