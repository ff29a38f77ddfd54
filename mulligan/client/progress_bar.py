"""A progress bar for many jobs, on terminals and in notebooks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec


def visible() -> bool:
    """Whether this is a terminal or a notebook, not a log file, and rich is installed."""
    return (sys.stderr.isatty() or "ipykernel" in sys.modules) and find_spec("rich") is not None


@contextmanager
def bar(title: str, total: int, *, enabled: bool = True) -> Iterator[Callable[[int], None]]:
    """Yield a function that adds finished jobs. Show nothing for fewer than two jobs."""
    if not enabled or total < 2 or not visible():
        yield lambda _count: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(title, total=total)
        yield lambda count: progress.advance(task, count)
