"""The work of loops on a terminal."""

from __future__ import annotations

import pytest

from mulligan.console.cli.loops.work_screen import print_diff
from mulligan.tasks.loops.work_views import WorkDiff
from mulligan.tasks.ports.repositories import ChangedFile


def test_the_name_of_a_file_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    names = ["é.py", "a\n  +1 -0  safe.py", "b\x1b[31m\u202e"]
    changes = [ChangedFile(path=name, kind="changed", added=1, removed=0) for name in names]
    print_diff(WorkDiff(old="1" * 40, new="2" * 40, changes=changes, text="", merged=True))
    lines = capsys.readouterr().out.splitlines()
    shown = [line.partition("+1 -0  ")[2] for line in lines[1:4]]
    assert shown == ["é.py", r"a\n  +1 -0  safe.py", r"b\x1b[31m\u202e"]
