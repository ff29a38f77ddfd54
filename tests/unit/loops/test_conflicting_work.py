"""What an agent is told whose earlier work does not fit to the branch any more."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from mulligan.policies.jobs.job import Message
from mulligan.tasks.ports.repositories import ConflictingFile
from mulligan.workers.loops.attempt_work import _with_conflicts


def told(prompt: str, *paths: str) -> str:
    checkout: Any = SimpleNamespace(conflicts=tuple(ConflictingFile(path=each) for each in paths))
    messages = (Message(role="user", content=prompt),)
    return _with_conflicts(messages, checkout)[-1].content


def test_files_with_conflicts_are_named() -> None:
    text = told("Do it.", "a.py", "b.py")
    assert text.startswith("Do it.\n\nThese files have conflicts")
    assert "a.py, b.py" in text


def test_conflicts_that_the_prompt_quotes_are_not_repeated() -> None:
    assert told("Do it. a.py\n<<<<<<< ours", "a.py") == "Do it. a.py\n<<<<<<< ours"
    assert told("Do it.") == "Do it."
