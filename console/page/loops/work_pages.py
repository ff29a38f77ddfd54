"""The pages of work in a repository: checkpoints, what they and items changed, and sessions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Query
from fastapi import Path as InPath
from starlette.requests import Request
from starlette.responses import HTMLResponse

from mulligan.console.http.access import Caller, Reader
from mulligan.console.http.context import ConsoleContext
from mulligan.console.http.errors import unavailable
from mulligan.console.http.models.heal_models import AnalysisDocument, analysis_document
from mulligan.console.http.models.work_models import (
    COMMIT_PATTERN,
    SessionEventRow,
    pending_rollback,
    session_rows,
)
from mulligan.console.http.routes.loop_routes import visible_loop
from mulligan.console.http.routes.loop_work_routes import visible_item
from mulligan.console.page.loops.checkpoint_reader import CheckpointReader
from mulligan.console.page.loops.diff_files import DiffFile, diff_files
from mulligan.console.page.loops.loop_board import BoardItems
from mulligan.console.page.render import ShortText, address, page
from mulligan.policies.loops.checkpoints import (
    Checkpoint,
    Rollback,
    RollbackEffects,
    effects_of,
    in_effect,
    named_commits,
)
from mulligan.policies.loops.commands import NotPossible
from mulligan.policies.loops.loop import GAVE_UP, LoopSnapshot
from mulligan.tasks.loops import heal
from mulligan.tasks.loops.monitor import check_health
from mulligan.tasks.loops.registry import ItemRunView, read_runs
from mulligan.tasks.loops.rollback import find_checkpoint, read_checkpoints
from mulligan.tasks.loops.session_views import read_session
from mulligan.tasks.loops.view import no_such_item
from mulligan.tasks.loops.work_views import WorkDiff, checkpoint_diff, item_diff
from mulligan.tasks.ports.errors import RepositoryUnavailable

#: Rows of checkpoints on a loop's page and on their own, runs of an item, and events.
NEWEST = 10
_ROWS = 100
_RUNS = 10
_EVENTS = 300
#: Items that a question names.
_LISTED = 12

_Found = TypeVar("_Found")


@dataclass(frozen=True, kw_only=True)
class CheckpointLine:
    """One checkpoint on the page, and what going back to it would undo."""

    checkpoint: Checkpoint
    effects: RollbackEffects

    @property
    def is_possible(self) -> bool:
        return bool(self.effects.undone or self.effects.restored)

    def question(self, *, texts: bool) -> str:
        """Ask whether to go back. ``texts``: whether the caller may read what commits are about."""
        effects = self.effects
        restores = [each.item for each in reversed(effects.restored)]
        again = [each.item for each in reversed(effects.undone) if each.item not in restores]
        parts = (
            f"Go back to {self.checkpoint.commit[:10]}?",
            undo_words(again) if again else "",
            f"The earlier work of {_named(restores)} comes back." if restores else "",
            _others("also removes", effects.removed, texts=texts),
            _others("also brings back", effects.returned, texts=texts),
        )
        return " ".join(filter(None, parts))


def _others(what: str, commits: Sequence[Checkpoint], *, texts: bool) -> str:
    return f"It {what} {named_commits(commits, texts=texts)}." if commits else ""


@dataclass(frozen=True, kw_only=True)
class Checkpoints:
    """The checkpoints of a loop on a page."""

    lines: Sequence[CheckpointLine] = field(default_factory=tuple)
    total: int = 0
    #: The place of the first line among all of them.
    first: int = 0
    #: Why they cannot be read, or may be old.
    problem: str = ""


def checkpoint_lines(
    found: Sequence[Checkpoint], first: int = 0, last: int | None = None
) -> list[CheckpointLine]:
    """Return the lines of some of the checkpoints."""
    return [_line(found, each) for each in found[first:last]]


def _line(found: Sequence[Checkpoint], checkpoint: Checkpoint) -> CheckpointLine:
    try:
        effects = effects_of(found, Rollback(id="", to=checkpoint.commit), ())
    except NotPossible:  # another loop has worked on the branch since
        effects = RollbackEffects()
    return CheckpointLine(checkpoint=checkpoint, effects=effects)


def undo_words(items: Sequence[str]) -> str:
    """Say what undoing merges means."""
    again = "it runs" if len({*items}) == 1 else "they run"
    return (
        f"The work of {_named(items)} is undone by a new commit on the branch, and {again} again."
    )


def _named(items: Sequence[str]) -> str:
    names = list(dict.fromkeys(items))
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"{', '.join(names[:_LISTED])}{more}"


def read_for_loop(
    reader: CheckpointReader, caller: Caller, snapshot: LoopSnapshot
) -> Checkpoints | None:
    """Return the newest checkpoints for a loop's own page; None if it has no repository."""
    if snapshot.config.repo is None:
        return None
    view = reader.read(snapshot)
    found = view.found or ()
    if view.problem is not None:
        problem = unavailable(view.problem, details=caller.runs_fleet)
    else:
        problem = "" if view.found is not None else "the repository has not answered yet"
    lines = checkpoint_lines(found, 0, NEWEST)
    return Checkpoints(lines=lines, total=len(found), problem=problem)


def add(router: APIRouter, context: ConsoleContext) -> None:
    _add_checkpoints(router, context)
    _add_item(router, context)
    _add_session(router, context)


def _tried(
    context: ConsoleContext, caller: Caller, read: Callable[[], _Found]
) -> tuple[_Found | None, str]:
    """Return what is read from a repository, or why it cannot be reached."""
    try:
        with context.repository_reads.place():
            return read(), ""
    except RepositoryUnavailable as error:
        return None, unavailable(error, details=caller.runs_fleet)


Start = Annotated[ShortText, Query(pattern=r"^\d{0,9}$")]


def _add_checkpoints(router: APIRouter, context: ConsoleContext) -> None:
    loops = context.services.loops

    @router.get("/loops/{name}/checkpoints")
    def checkpoints(request: Request, caller: Reader, name: str, start: Start = "") -> HTMLResponse:
        snapshot = visible_loop(context, caller, name).snapshot
        found, problem = _tried(context, caller, lambda: read_checkpoints(loops, snapshot))
        every, first = found or [], int(start or 0)
        base, following = f"/loops/{name}/checkpoints", first + _ROWS
        lines = checkpoint_lines(every, first, following)
        return page(
            request,
            "checkpoints.html",
            caller=caller,
            l=snapshot.loop,
            pending=pending_rollback(snapshot.loop),
            checkpoints=Checkpoints(lines=lines, total=len(every), first=first, problem=problem),
            first=first,
            previous=address(base, start=str(max(0, first - _ROWS) or "")) if first else None,
            following=address(base, start=str(following)) if following < len(every) else None,
        )

    @router.get("/loops/{name}/checkpoints/{commit}")
    def checkpoint(
        request: Request,
        caller: Reader,
        name: str,
        commit: Annotated[str, InPath(pattern=COMMIT_PATTERN)],
    ) -> HTMLResponse:
        snapshot = visible_loop(context, caller, name).snapshot

        def read() -> tuple[CheckpointLine, WorkDiff]:
            found = read_checkpoints(loops, snapshot)
            chosen = find_checkpoint(found, commit)
            return _line(found, chosen), checkpoint_diff(loops, snapshot, chosen.commit)

        found, problem = _tried(context, caller, read)
        line, diff = found or (None, None)
        return page(
            request,
            "checkpoint.html",
            caller=caller,
            l=snapshot.loop,
            line=line,
            commit=commit,
            pending=pending_rollback(snapshot.loop),
            problem=problem,
            command=f"mulligan loops diff {name} --checkpoint {commit[:10]}",
            **_shown_diff(diff, caller),
        )


def _shown_diff(diff: WorkDiff | None, caller: Caller) -> dict[str, Any]:
    files: list[DiffFile] = []
    if diff is not None and caller.texts:
        files = diff_files(diff.text, diff.changes)
    changes = diff.changes if diff is not None else ()
    return {
        "diff": diff,
        "files": files,
        "added": sum(each.added or 0 for each in changes),
        "removed": sum(each.removed or 0 for each in changes),
    }


def _add_item(router: APIRouter, context: ConsoleContext) -> None:
    loops = context.services.loops

    @router.get("/loops/{name}/items/{item}")
    def work(request: Request, caller: Reader, name: str, item: str) -> HTMLResponse:
        view = visible_loop(context, caller, name)
        snapshot, spec = view.snapshot, view.snapshot.spec(item)
        if spec is None:
            raise no_such_item(name, item)

        def read() -> tuple[list[str], WorkDiff | None]:
            if snapshot.config.repo is None:
                return [], None
            undone = _undone(read_checkpoints(loops, snapshot), snapshot, item)
            return undone, item_diff(loops, snapshot, item)

        found, problem = _tried(context, caller, read)
        undone, diff = found or ([], None)
        return page(
            request,
            "item_work.html",
            caller=caller,
            l=snapshot.loop,
            i=BoardItems(
                view=view,
                check=check_health(loops, view),
                now=context.ledger.now(),
                texts=caller.texts,
            ).line(spec),
            has_repo=snapshot.config.repo is not None,
            needed_by=[each.id for each in snapshot.specs if item in each.depends_on],
            outer=[each for each in spec.depends_on if "/" in each],
            heals=[each for each in reversed(snapshot.heals) if each.item == item],
            may_create=False,
            analysis=_analysis(context, caller, snapshot, item),
            runs=_newest_runs(context, snapshot, item),
            undo=undo_words(undone) if undone else "",
            pending=pending_rollback(snapshot.loop),
            problem=problem,
            command=f"mulligan loops diff {name} {item}",
            **_shown_diff(diff, caller),
        )


def _analysis(
    context: ConsoleContext, caller: Caller, snapshot: LoopSnapshot, item: str
) -> AnalysisDocument | None:
    """Say why an item failed and what may help; None if it did not give up."""
    if snapshot.record(item).state not in GAVE_UP:
        return None
    found = heal.analyse_item(context.services.loops, snapshot, item)
    command = heal.suggest(snapshot, item, context.ledger.now())
    return analysis_document(found, command, texts=caller.texts)


def _undone(found: Sequence[Checkpoint], snapshot: LoopSnapshot, item: str) -> list[str]:
    """Return the items whose work goes with an item's."""
    if all(each.item != item for each in in_effect(found)):
        return []
    try:
        undone = effects_of(found, Rollback(id="", item=item), snapshot.specs).undone
    except NotPossible:
        return []
    return [each.item for each in reversed(undone)]


def _newest_runs(context: ConsoleContext, snapshot: LoopSnapshot, item: str) -> list[ItemRunView]:
    """Return the last runs of an item, the newest first."""
    start = max(0, snapshot.record(item).runs - _RUNS)
    runs, _ = read_runs(context.services.loops, snapshot, items=[item], start=start, limit=_RUNS)
    return list(reversed(runs))


def _add_session(router: APIRouter, context: ConsoleContext) -> None:
    loops = context.services.loops

    @router.get("/loops/{name}/items/{item}/transcripts/{job_id}/{attempt}")
    def session(
        request: Request,
        caller: Reader,
        name: str,
        item: str,
        job_id: str,
        attempt: Annotated[int, InPath(ge=1, le=100_000)],
        before: Start = "",
    ) -> HTMLResponse:
        snapshot = visible_item(context, caller, name, item)
        found, problem = _tried(
            context, caller, lambda: read_session(loops, snapshot, item, job_id, attempt)
        )
        every = list(found.events) if found is not None else []
        chosen = [each for each in every if not before or int(each["seq"]) < int(before)]
        shown = chosen[-_EVENTS:]
        rows: list[SessionEventRow] = list(session_rows(shown, texts=caller.texts))
        earlier = f"{request.url.path}?before={shown[0]['seq']}" if len(shown) < len(chosen) else ""
        return page(
            request,
            "session.html",
            caller=caller,
            l=snapshot.loop,
            item=item,
            job_id=job_id,
            attempt=attempt,
            rows=rows,
            total=len(every),
            last=int(every[-1]["seq"]) if every else 0,
            follows=found is not None and not found.has_ended and not before,
            earlier=earlier,
            before=before,
            problem=problem,
        )
