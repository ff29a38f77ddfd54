"""The code of docs/quickstart.md runs, block after block, as one program.

The environment replaces its runner by a scripted one: MULLIGAN_DEFAULT_RUNNER names a profile that
MULLIGAN_RUNNERS defines, as any user may do. The first answer breaks the validator.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "quickstart.md"
ANSWERS = ['{"name": "Alice", "age": 310}', '{"name": "Alice", "age": 31}']


def blocks() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def test_the_quickstart_works(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    profiles = {"scripted": {"kind": "scripted", "answers": ANSWERS}}
    monkeypatch.setenv("MULLIGAN_RUNNERS", json.dumps(profiles))
    monkeypatch.setenv("MULLIGAN_DEFAULT_RUNNER", "scripted")
    scope: dict[str, Any] = {"__name__": "quickstart"}
    outputs = []
    for block in blocks():
        exec(compile(block, str(PAGE), "exec"), scope)  # noqa: S102 - our own page
        outputs.append(capsys.readouterr().out)
    first, result, failed, _own, many, coroutines = outputs
    assert first == "name='Alice' age=31\n"
    assert result.startswith("True succeeded 100.0\n2 None\nPerson  succeeded")
    assert "must be at most 130: read the text again" in result
    assert "was escalated: max_attempts" in failed
    assert many == "name='Alice' age=31\n" * 3
    assert coroutines == "['succeeded', 'succeeded', 'succeeded']\n"
