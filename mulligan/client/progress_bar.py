"""A progress bar for many jobs, where somebody can see it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec


def visible() -> bool:
    """On a terminal or in a notebook, where rich is installed; never in a log file."""
    return (sys.stderr.isatty() or "ipykernel" in sys.modules) and find_spec("rich") is not None


@contextmanager
def bar(title: str, total: int, *, wanted: bool = True) -> Iterator[Callable[[int], None]]:
    """What to call with how many more are done. Shows nothing for fewer than two."""
    if not wanted or total < 2 or not visible():
        yield lambda _count: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(title, total=total)
        yield lambda count: progress.advance(task, count)
