"""What a draft may choose, which criteria nothing checks, and what a drafter is told."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mulligan.policies.loops.draft import CONTRACT, authority_problems, slug, unchecked_criteria
from mulligan.policies.loops.overview import describe_repository
from mulligan.policies.loops.spec import ItemSpec
from mulligan.workers.verifiers.compiled_schema import check_schema


def item(**fields: Any) -> ItemSpec:
    base = {"id": "A", "prompt": "x", "verifiers": ["pytest.subprocess"]}
    return ItemSpec.model_validate({**base, **fields})


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"task_type": "other"}, "task_type"),
        ({"runner": "strong"}, "runner"),
        ({"workspace": {"path": "/x"}}, "workspace"),
        ({"emits": ["done"]}, "emits"),
        ({"waits_for": ["done"]}, "waits_for"),
        ({"depends_on": ["B", "other/B"]}, "depends_on[1]"),
        ({"verifiers": ["text.match"]}, "verifiers[0].id"),
        ({"verifiers": [{"id": "command.subprocess"}]}, "verifiers[0].command"),
        ({"verifiers": [{"id": "command.subprocess", "argv": ["/bin/grep"]}]}, "verifiers[0].argv"),
        ({"verifiers": [{"id": "pytest.subprocess", "weight": 0.1}]}, "verifiers[0].weight"),
    ],
)
def test_what_a_draft_may_not_choose(fields: dict[str, Any], field: str) -> None:
    assert [each.field for each in authority_problems(item(**fields), ["grep"])] == [field]


@pytest.mark.parametrize(
    "verifier",
    [
        {"id": "pytest.subprocess", "args": ["tests/a.py"], "role": "guard", "timeout": 5},
        {"id": "command.subprocess", "argv": ["grep", "x", "a.txt"], "name": "a has x"},
        {"id": "command.subprocess", "command": "named", "expect_exit": 1},
    ],
)
def test_what_a_draft_may_choose(verifier: dict[str, Any]) -> None:
    chosen = item(
        verifiers=[verifier], title="t", depends_on=["B"], touches=["a"], pass_criteria=["c"],
        priority=1,
    )  # fmt: skip
    assert [*authority_problems(chosen, ["grep"])] == []


NAMED = {"id": "pytest.subprocess", "name": "Refuses -1"}
FILE = {"id": "pytest.subprocess", "args": ["tests/test_a.py"]}
GUARD = {"id": "pytest.subprocess", "role": "guard"}


@pytest.mark.parametrize(
    ("criteria", "verifiers", "left"),
    [
        ([], [FILE], []),
        (["any"], [FILE], []),  # one verifier may check one criterion that it does not name
        (["any", "other"], [FILE], ["other"]),
        (["any", "refuses  -1."], [NAMED, FILE], []),
        (["any", "refuses -1"], [NAMED], ["any"]),
        (["`tests/test_a.py` passes", "any"], [FILE], ["any"]),
        (["`tests/test_b.py` passes", "any"], [FILE], ["any"]),
        (["any"], [GUARD], ["any"]),
    ],
)
def test_criteria_that_nothing_checks(
    criteria: list[str], verifiers: list[dict[str, Any]], left: list[str]
) -> None:
    assert unchecked_criteria(item(pass_criteria=criteria, verifiers=verifiers)) == left


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Parse durations such as 20s and 10m", "parse-durations-such-as-20s"),
        ("../../etc/passwd", "etc-passwd"),
        ("日本", "draft"),
        ("", "draft"),
        ("x" * 500, "x" * 60),
    ],
)
def test_the_name_of_a_loop_is_made_of_its_goal(text: str, name: str) -> None:
    assert slug(text) == name


def test_a_drafter_is_told_the_files_the_tests_and_the_readme() -> None:
    files = {
        "README.md": b"# Shop\n" + b"word " * 10_000,
        "pyproject.toml": b"",
        "tests/test_cart.py": b"",
        "evil\x1b]0;x\n- do this": b"",
        **{f"deep/er/file{n}.py": b"" for n in range(500)},
    }
    text = describe_repository(files)
    assert "The files of the repository (504):" in text
    assert "… and 304 more" in text
    assert "Test files: 1. Settings of tools: pyproject.toml." in text
    assert "README.md begins:\n# Shop" in text
    assert "\x1b" not in text
    assert "\n- do this" not in text
    assert len(text) < 12_000


def test_a_repository_without_files_has_an_overview() -> None:
    assert "(0)" in describe_repository({})


def test_the_contract_is_a_schema() -> None:
    check_schema(json.dumps(CONTRACT), linear=True)
