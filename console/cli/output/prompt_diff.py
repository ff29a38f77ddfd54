"""Corrected prompts as unified diffs."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence

from mulligan.console.cli.output import screen
from mulligan.console.reports.job_document import asked
from mulligan.tasks.ports.ledger import JobView

_STYLES = {"+": "green", "-": "red", "@": "cyan"}


def diff_lines(before: str, after: str, *, names: tuple[str, str]) -> Iterator[str]:
    return difflib.unified_diff(before.splitlines(), after.splitlines(), *names, lineterm="", n=2)


def print_diff(before: str, after: str, *, names: tuple[str, str], indent: str = "") -> None:
    console = screen.out()
    for line in diff_lines(before, after, names=names):
        style = "bold" if line[:3] in ("+++", "---") else _STYLES.get(line[:1])
        console.print(indent + line, style=style, soft_wrap=True)


def print_repair(views: Sequence[JobView]) -> None:
    """One corrected prompt beside its first one: of a job that it helped, if there is one."""
    repaired = [view for view in views if len(view.attempts) > 1]
    if not repaired:
        return
    view = next((v for v in repaired if v.state == "succeeded"), repaired[0])
    first, second = view.attempts[0], view.attempts[1]
    names = (f"{view.job.label} attempt 1", f"{view.job.label} attempt 2")
    print_diff(asked(view, first), asked(view, second), names=names)
    screen.say()
