"""The command line: `python -m shop.cli invoice < order.txt`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TextIO

VERSION = "0.1.0"
USAGE = "usage: shop [--version | COMMAND]"

#: What each command prints for the text that it reads. A ValueError is shown to the user.
COMMANDS: dict[str, Callable[[str], str]] = {}


def main(argv: list[str], stdin: TextIO, stdout: TextIO) -> int:
    """Run a command and return its exit code."""
    if argv == ["--version"]:
        stdout.write(f"shop {VERSION}\n")
        return 0
    if len(argv) != 1 or argv[0] not in COMMANDS:
        stdout.write(f"{USAGE}\n")
        return 2
    stdout.write(COMMANDS[argv[0]](stdin.read()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], sys.stdin, sys.stdout))
