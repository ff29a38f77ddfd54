"""What reaches the terminal."""

from __future__ import annotations

import pytest
from rich.table import Table
from rich.text import Text

from mulligan.console.cli.output import screen

HOSTILE = "red \x1b[31m, title \x1b]0;x\x07, c1 \x9b2J, back \x08, return \r, turned \u202e"


def test_control_characters_of_texts_do_not_reach_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Answers, errors and names come from others."""
    table = Table("name")
    table.add_row(HOSTILE)
    screen.say(HOSTILE)
    screen.out().print(table)
    screen.out().print(Text(HOSTILE))
    screen.note(HOSTILE)
    screen.complain(HOSTILE)
    printed = "".join(capsys.readouterr())
    assert printed.count("red") == 5
    assert [each for each in printed if each != "\n" and not each.isprintable()] == []


def test_lines_and_tabs_stay(capsys: pytest.CaptureFixture[str]) -> None:
    screen.say("one\n  two")
    assert capsys.readouterr().out == "one\n  two\n"
