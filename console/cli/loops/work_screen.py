"""The work of loops in repositories as people see it on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from mulligan.console.cli.loops.loop_screen import new_table
from mulligan.console.cli.output import screen
from mulligan.console.http.models.work_models import SessionEventRow
from mulligan.policies.figures.format import counted, number, timestamp
from mulligan.policies.loops.checkpoints import Checkpoint
from mulligan.tasks.loops.work_views import WorkDiff
from mulligan.tasks.ports.repositories import ChangedFile

#: Characters of a commit's id.
SHORT_ID = 10
_STYLES = {"action": "cyan", "observation": "dim", "usage": "dim", "note": "yellow"}
_LINE_STYLES = {"+": "green", "-": "red", "@": "cyan"}
_HEADERS = ("diff --git ", "index ", "--- ", "+++ ", "new file ", "deleted file ", "old mode ",
            "new mode ", "similarity ", "rename ", "Binary files ")  # fmt: skip


def print_checkpoints(found: Sequence[Checkpoint]) -> None:
    table = new_table("commit", "when", "kind", "item", "attempt", "about", right=("attempt",))
    for each in found:
        table.add_row(
            each.commit[:SHORT_ID],
            timestamp(each.at, None),
            f"{each.kind}, undone" if each.undone else each.kind,
            each.item,
            str(each.attempt or ""),
            each.subject,
            style="dim" if each.undone or each.kind == "other" else None,
        )
    screen.out().print(table)


# -- changes ---------------------------------------------------------------------------------------


def print_diff(found: WorkDiff) -> None:
    where = "on the branch" if found.merged else "not on the branch"
    files = counted(len(found.changes), "file")
    by = f"attempt {found.attempt}, " if found.attempt and not found.merged else ""
    title = f"{found.old[:SHORT_ID]}..{found.new[:SHORT_ID]}, {files}, {by}{where}"
    screen.say(title, style="bold")
    for each in found.changes:
        screen.say(f"  {_counts(each):>12}  {_in_one_line(each.path)}{_kind(each)}")
    out = screen.out()
    for line in found.text.removesuffix("\n").split("\n"):
        out.print(Text(line, style=_line_style(line)), soft_wrap=True)


def _in_one_line(path: str) -> str:
    """Return a path whose newlines and control characters are escaped: a name may have any."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in path)


def _counts(change: ChangedFile) -> str:
    if change.added is None or change.removed is None:
        return "not text"
    return f"+{change.added} -{change.removed}"


def _kind(change: ChangedFile) -> str:
    return "" if change.kind == "changed" else f" ({change.kind})"


def _line_style(line: str) -> str:
    if line.startswith(_HEADERS):
        return "bold"
    return _LINE_STYLES.get(line[:1], "")


# -- sessions --------------------------------------------------------------------------------------


def print_event(row: SessionEventRow) -> None:
    """Print one event: when it was, what it is, and its text below."""
    style = "red" if row.failed else _STYLES.get(row.kind, "")
    title = " ".join(filter(None, (timestamp(row.at, None)[-8:], row.kind, row.name)))
    screen.say(f"{title}{_used(row)}{', failed' if row.failed else ''}", style=style or "bold")
    for line in row.text.splitlines():
        screen.say(f"  {line}", style="dim" if row.kind == "observation" else None)


def _used(row: SessionEventRow) -> str:
    total = row.usage.total_tokens if row.usage else None
    return "" if total is None else f", {number(total)} tokens so far"
