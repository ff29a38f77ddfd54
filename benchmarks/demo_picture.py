"""`make picture`: run the demo and save the end of its output as the README's pictures.

The demo runs in a new folder, so that no earlier run influences its prompts.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
WIDTH = 110
#: The picture starts at this line of the corrected prompt. The lines above repeat the last answer.
FIRST_LINE = "+Do this now:"
#: An image may not load fonts: the browser's own monospace font is used.
SVG_FORMAT = re.sub(r"@font-face \{\{.*?\}\}\n", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)

# GitHub's colours, dark and light: black, red, green, yellow, blue, magenta, cyan, white.
_DARK = ["#0d1117", "#ff7b72", "#3fb950", "#d29922", "#58a6ff", "#bc8cff", "#39c5cf", "#e6edf3"]
_LIGHT = ["#1f2328", "#cf222e", "#1a7f37", "#9a6700", "#0969da", "#8250df", "#1b7c83", "#6e7781"]


def theme(background: str, foreground: str, colours: list[str]) -> TerminalTheme:
    def rgb(colour: str) -> tuple[int, int, int]:
        red, green, blue = bytes.fromhex(colour.removeprefix("#"))
        return red, green, blue

    return TerminalTheme(rgb(background), rgb(foreground), [rgb(colour) for colour in colours])


THEMES = {
    "dark": theme("#0d1117", "#e6edf3", _DARK),
    "light": theme("#f6f8fa", "#1f2328", _LIGHT),
}


def run_demo() -> str:
    """Run the demo and return its output with its colours."""
    program = Path(sys.executable).with_name("mulligan")
    jobs = ROOT / "examples" / "demo" / "jobs.yaml"
    argv = [str(program), "run", str(jobs), "--show-repair", "--wait-cycles", "--always-zero"]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "FORCE_COLOR": "1", "COLUMNS": str(WIDTH)}
    with tempfile.TemporaryDirectory(prefix="mp-") as folder:
        done = subprocess.run(
            argv, cwd=folder, env=environment, capture_output=True, text=True, check=True
        )
    return done.stdout


def render(output: str, colours: TerminalTheme) -> str:
    lines = output.splitlines()
    first = next(n for n, line in enumerate(lines) if Text.from_ansi(line).plain == FIRST_LINE)
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123 - a device
        console = Console(record=True, width=WIDTH, file=nowhere, highlight=False)
        console.print(Text("$ make demo", style="bold"))
        console.print(Text("…", style="dim"))
        for line in lines[first:]:
            console.print(Text.from_ansi(line))
        console.print()
    return console.export_svg(
        title="make demo", theme=colours, code_format=SVG_FORMAT, unique_id="demo"
    )


def main() -> None:
    output = run_demo()
    for name, colours in THEMES.items():
        path = ROOT / "docs" / "images" / f"demo-{name}.svg"
        path.write_text(render(output, colours), encoding="utf-8")
        sys.stdout.write(f"wrote {path.relative_to(ROOT)}\n")


if __name__ == "__main__":
    main()
