"""What reaches the terminal: text for people on both streams, data as JSON on stdout."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from shutil import which
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from mulligan.policies.terminal_text import terminal_json, terminal_text

#: Without a terminal lines are not wrapped, and a table keeps all its columns.
_WIDTH_WITHOUT_TERMINAL = 140


def out() -> Console:
    """Standard output. Colours only on a terminal, and never with NO_COLOR."""
    return _console(stderr=False)


def err() -> Console:
    """Standard error: progress, notes and errors."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else _WIDTH_WITHOUT_TERMINAL
    # Jobs' texts are printed here: no markup in brackets, no coloured numbers.
    return _SafeConsole(stderr=stderr, width=width, markup=False, highlight=False, emoji=False)


class _SafeConsole(Console):
    """A console that shows control characters of texts instead of obeying them.

    Answers, errors and names come from others: an escape sequence could rewrite the screen.
    """

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            plain = segment.text if segment.control else terminal_text(segment.text)
            yield segment if plain == segment.text else Segment(plain, segment.style)

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # error_report ends the command: rich would do so with another code


def say(text: str = "", *, style: str | None = None) -> None:
    out().print(text, style=style, soft_wrap=True)


def note(text: str, *, style: str | None = "dim") -> None:
    """Print a note on stderr, apart from the data."""
    err().print(text, style=style, soft_wrap=True)


def complain(*problems: str) -> None:
    """Print one line per problem."""
    console = err()
    for problem in problems:
        console.print("mulligan:", style="red", end=" ")
        console.print(problem, soft_wrap=True)


def emit(document: Any, *, indent: int | None = 2) -> None:
    """Print one JSON document on stdout; without ``indent``, as one line."""
    text = json.dumps(document, indent=indent, ensure_ascii=False, default=str)
    sys.stdout.write(terminal_json(text) + "\n")
    sys.stdout.flush()  # at the exit it would be too late to say that the reader is gone


def discard_output() -> None:
    """Discard stdout, so that flushing it at exit does not fail again."""
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123 - it lives as long as we do


def program_name(here: Path | None = None) -> str:
    """Return what to type in a directory for this program: its path, if it is not on the PATH."""
    path, here = Path(sys.argv[0]).absolute(), (here or Path()).absolute()
    if path.name != "mulligan" or which("mulligan"):
        return "mulligan"
    return shlex.quote(str(path.relative_to(here) if path.is_relative_to(here) else path))
