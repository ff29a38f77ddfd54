"""Corrected prompts as unified diffs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mulligan.console.cli.output import screen
from mulligan.tasks.jobs.job_story import diff_lines, prompt_of
from mulligan.tasks.ports.ledger import JobView

_STYLES = {"+": "green", "-": "red", "@": "cyan"}


def print_diff(lines: Iterable[str], *, indent: str = "") -> None:
    console = screen.out()
    for line in lines:
        style = "bold" if line[:3] in ("+++", "---") else _STYLES.get(line[:1])
        console.print(indent + line, style=style, soft_wrap=True)


def print_repair(views: Sequence[JobView]) -> None:
    """Print the diff of one corrected prompt, if possible of a job that it repaired.

    A constrained retry may have the same prompt, which shows nothing.
    """
    retried = [view for view in views if len(view.attempts) > 1]
    changed = [view for view in retried if len(set(_first_two(view))) == 2]
    if not changed:
        return
    view = next((v for v in changed if v.state == "succeeded"), changed[0])
    first, second = _first_two(view)
    names = (f"{view.job.label} attempt 1", f"{view.job.label} attempt 2")
    print_diff(diff_lines(first, second, names=names))
    screen.say()


def _first_two(view: JobView) -> list[str]:
    return [prompt_of(view, attempt) for attempt in view.attempts[:2]]
