"""What the prompt of an item says besides the item's own text."""

from __future__ import annotations

import json
from typing import Any

from mulligan.policies.edits.edit import EditPlan
from mulligan.policies.loops.spec import LoopDocument, item_job

ITEM = {"id": "A", "prompt": "Do it.", "verifiers": ["json.object"]}


def prompt(**loop: Any) -> str:
    config = {"name": "a", "runner": "coder", **loop}
    document = LoopDocument.model_validate({"loop": config, "items": [ITEM]})
    return item_job(document.loop, document.items[0]).prompt or ""


def test_without_a_repository_an_item_is_asked_as_it_is_written() -> None:
    assert prompt() == "Do it."


def test_an_agent_knows_from_the_start_what_is_protected() -> None:
    assert prompt(repo="/repo", protect=["tests/**", "setup.cfg"]) == (
        "Do it.\n\n"
        "Do the task by changing files in the working directory. Only the files count, not what you"
        " say about them.\n\n"
        "Do not change or delete files that match one of these patterns: `tests/**`, `setup.cfg`."
        " You may add test files, but no conftest.py and no settings of pytest."
    )


def test_what_is_protected_by_default_is_named_too() -> None:
    assert "`tests/**`, `conftest.py`" in prompt(repo="/repo")


def test_nothing_is_said_about_patterns_if_there_are_none_and_little_about_many() -> None:
    assert "patterns" not in prompt(repo="/repo", protect=[])
    many = prompt(repo="/repo", protect=[f"{n}.py" for n in range(100)])
    assert "`29.py`, and 70 more. You may" in many


def test_a_model_that_answers_with_edits_gets_a_plan_as_an_example() -> None:
    asked = prompt(repo="/repo", edits=True)
    example = asked.partition("```json")[2].partition("```")[0]
    plan = EditPlan.model_validate(json.loads(example))
    assert [each.op for each in plan.edits] == ["write_file", "search_replace"]
    assert "working directory" not in asked
    assert "`tests/**`" in asked
