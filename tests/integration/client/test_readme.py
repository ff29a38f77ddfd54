"""The README's Python blocks, run as printed. test_http_client.py runs its curl commands."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

README = Path(__file__).resolve().parents[3] / "README.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", README.read_text("utf-8"), re.MULTILINE | re.DOTALL)
WRONG, RIGHT = '{"name": "Alice", "age": "thirty"}', '{"name": "Alice", "age": 31}'


def run(block: str, scope: dict[str, Any]) -> dict[str, Any]:
    exec(compile(block, str(README), "exec"), scope)  # noqa: S102 - the project's README
    return scope


@pytest.fixture(autouse=True)
def _model_with_a_wrong_first_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    profiles = {"scripted": {"kind": "scripted", "answers": [WRONG, RIGHT]}}
    monkeypatch.setenv("MULLIGAN_RUNNERS", json.dumps(profiles))
    monkeypatch.setenv("MULLIGAN_DEFAULT_RUNNER", "scripted")


def test_every_block_is_short_and_tested() -> None:
    assert len(BLOCKS) == 2
    assert all(len(block.splitlines()) <= 10 for block in BLOCKS)


def test_the_python_block_works(capsys: pytest.CaptureFixture[str]) -> None:
    result = run(BLOCKS[0], {"__name__": "readme"})["result"]
    assert capsys.readouterr().out == "name='Alice' age=31\n"
    assert len(result.attempts) == 2


def test_the_celery_block_works(redis_url: str) -> None:
    prompts: list[str] = []

    def ask_my_model(prompt: str) -> str:
        prompts.append(prompt)
        return [WRONG, RIGHT][len(prompts) - 1]

    scope = run(BLOCKS[0], {"__name__": "readme", "ask_my_model": ask_my_model})
    run(BLOCKS[1].replace("redis://localhost:6379/0", redis_url), scope)
    assert scope["extract"].apply(args=("Alice is 31.",)).get() == RIGHT
    assert "$.age" in prompts[1]
