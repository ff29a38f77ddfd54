"""``execute_edits``: apply a list of edits in this process, without a ledger.

Routing, checks and writing are those of sessions (``tasks.edits.advance``). Edits are measured only
if the context has a suite and a measurer.
"""

from __future__ import annotations

import time
from collections import Counter
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
from mulligan.workers.edits.sessions.bounded_diff import bounded_diff
from mulligan.workers.edits.sessions.engine import utc_now
from mulligan.workers.edits.sessions.session_tree import SessionTree
from mulligan.workers.edits.tree.edited_tree import EditedTree
from mulligan.workers.settings.model import load_settings

_POLL_SECONDS = 0.05


@dataclass(frozen=True, kw_only=True)
class EditContext(ApplyContext):
    """A context with a place for checkpoints and a way to measure edits."""

    #: None: the home in the settings.
    home: Path | None = None
    #: The session id of the checkpoints; None: a new one.
    session: str | None = None
    #: With a suite and a measurer, an edit is kept only if it passes the gate.
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
    """Route, validate and apply edits in order. Return an outcome for each.

    An edit that was not applied has changed nothing. Raises BadInput if two edits have the same id,
    TreeBusy while another process holds the tree.
    """
    if not edits:
        return []
    context = ctx if isinstance(ctx, EditContext) else EditContext(**vars(ctx))
    session = _new_session(edits, context, AutonomyMode(autonomy_mode))
    tree = EditedTree(ctx.root, context.home or load_settings().home, max_bytes=ctx.max_bytes)
    ports = EditContextPorts(
        ctx=ctx,
        appliers=registry or default_registry(),
        tree=SessionTree(tree),
        measurer=context.measurer,
        now=utc_now,
        diff=bounded_diff,
    )
    with tree.held(session.id):
        while session.phase != "done":
            advanced = advance(ports, session)
            if advanced is session:
                time.sleep(_POLL_SECONDS)
            session = advanced
    return session.outcomes


def _new_session(edits: Sequence[Edit], ctx: EditContext, mode: AutonomyMode) -> EditSession:
    for edit_id, count in Counter(edit.id for edit in edits).items():
        if count > 1:
            raise BadInput.at("edits", f"the id {edit_id!r} is used twice")
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
