"""Documents that would take too much time, memory or space are refused with a few problems."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mulligan.console.http.loop_body import read_items_body
from mulligan.console.loopfiles.inspect_loop import LoopRules, loop_rules
from mulligan.console.loopfiles.loop_file import (
    lint_loop,
    read_specs,
    read_template,
    without_references,
)
from mulligan.policies.jobs.job import Job
from mulligan.policies.problem import MOST_FOUND, MOST_REPORTED, Problem, first_problems
from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.settings.model import load_settings
from mulligan.workers.yaml_expansion import MAX_VALUES

ITEM: dict[str, Any] = {"id": "A", "prompt": "p", "verifiers": ["json.object"]}
RUNNERS = {"coder": {"kind": "scripted", "answers": ["{}"]}}
AT_LEAST = f"and at least {MOST_FOUND - MOST_REPORTED} more problems"
#: Characters of all problems together: what a person may scroll through.
LONGEST_ANSWER = 200_000


@pytest.fixture(scope="module", name="rules")
def _rules() -> LoopRules:
    return loop_rules(load_settings(runners=RUNNERS))


def body(*items: Any, **fields: Any) -> dict[str, Any]:
    return {"loop": {"name": "a", "runner": "coder"}, "items": list(items) or [ITEM], **fields}


def refused(document: Any, rules: LoopRules, templates: Path | None = None) -> list[str]:
    with pytest.raises(BadInput) as caught:
        read_template(document, templates=templates, rules=rules)
    found = [str(each) for each in caught.value.problems]
    assert sum(map(len, found)) < LONGEST_ANSWER
    return found


# -- references ------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["${" * 20_000, "${x}" * 20_000, "${ $" * 20_000, "${}" * 20_000])
def test_a_text_full_of_references_has_a_few_problems(text: str, rules: LoopRules) -> None:
    found = refused(body({**ITEM, "prompt": text}), rules)
    assert 1 <= len(found) <= 20
    assert all(each.startswith("items[0].prompt: ") for each in found)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("${a ${b}", "${ has no end"),
        ("${a $${b}", "${ has no end"),
        ("${a$b}", "${a$b} is not a reference"),
        ("${a{b}", "${a{b} is not a reference"),
    ],
)
def test_a_reference_ends_before_the_next_one(text: str, problem: str, rules: LoopRules) -> None:
    document = body({**ITEM, "prompt": text}, parameters={"b": "x"})
    assert problem in refused(document, rules)[0]


def test_a_default_may_have_dollars_and_any_length(tmp_path: Path) -> None:
    file = tmp_path / "spec.yaml"
    default = "$5 { $ " + "long " * 1000
    item = {**ITEM, "prompt": f"Pay ${{env:PRICE:-{default}}}."}
    file.write_text(f"items: [{item}]")
    (only,) = read_specs(str(file), environment={}).items
    assert only.prompt == f"Pay {default}."


@pytest.mark.parametrize(
    "prompts",
    [
        ["${p}" * 300],
        ["${p} and ${p}"] * 150,
        ["${p}"] * 300,
    ],
)
def test_references_cannot_expand_without_end(prompts: list[str], rules: LoopRules) -> None:
    """Given a parameter of 100,000 characters, the document may refer to it 200 times."""
    items = [{**ITEM, "id": f"A{n}", "prompt": text} for n, text in enumerate(prompts)]
    (problem,) = refused(body(*items, parameters={"p": "x" * 100_000}), rules)
    assert problem.endswith("prompt: the references stand for more than 20,000,000 characters")


def test_references_of_a_template_cannot_expand_without_end(
    tmp_path: Path, rules: LoopRules
) -> None:
    text = '{parameters: {p: null}, loop: {name: a, runner: coder}, items: [{id: A, prompt: "'
    (tmp_path / "one.yaml").write_text(text + "${p}" * 300 + '", verifiers: [json.object]}]}')
    asked = {"template": "one", "parameters": {"p": "x" * 100_000}}
    (problem,) = refused(asked, rules, tmp_path)
    assert problem.startswith("one.yaml:1: items[0].prompt: the references stand for more than")


def test_added_items_have_the_same_limits() -> None:
    with pytest.raises(BadInput) as caught:
        without_references({"items": [{"prompt": "${x}"} for _ in range(5000)]})
    assert len(caught.value.problems) == MOST_REPORTED + 1
    assert caught.value.problems[-1].message == AT_LEAST


def test_a_request_has_as_many_values_as_a_file_may_have(rules: LoopRules) -> None:
    document = body({**ITEM, "touches": ["x"] * MAX_VALUES})
    assert refused(document, rules) == [f"has more than {MAX_VALUES:,} values"]


# -- problems --------------------------------------------------------------------------------------


def test_the_first_problems_are_reported_and_the_others_counted() -> None:
    problems = [Problem(f"wrong {n}") for n in range(MOST_REPORTED + 2)]
    assert first_problems(problems[:MOST_REPORTED]) == problems[:MOST_REPORTED]
    assert str(first_problems(problems[:-1])[-1]) == "and 1 more problem"
    assert str(first_problems([*problems, *problems])[-1]) == "and 2 more problems"


def test_the_search_for_problems_stops() -> None:
    def endless() -> Iterator[Problem]:
        number = 0
        while True:
            yield Problem(f"wrong {number}")
            number += 1

    found = first_problems(endless())
    assert (len(found), str(found[-1])) == (MOST_REPORTED + 1, AT_LEAST)


def test_a_problem_does_not_repeat_a_long_document() -> None:
    (found,) = first_problems([Problem("x" * 10_000, ("y" * 10_000, 3))])
    assert len(str(found)) < 3000


WRONG: dict[str, dict[str, Any]] = {
    "unknown fields": body(**{f"field{n}": 1 for n in range(2000)}),
    "unknown fields of the loop": body(loop={"name": "a", **{f"f{n}": 1 for n in range(2000)}}),
    "unknown fields of an item": body({**ITEM, **{f"field{n}": 1 for n in range(2000)}}),
    "malformed items": body(*[3] * 2000),
    "malformed verifiers": body(
        *({**ITEM, "id": f"A{n}", "verifiers": [{"di": 1}] * 20} for n in range(100))
    ),
    "unknown verifiers": body(
        *({**ITEM, "id": f"A{n}", "verifiers": ["json.objct"] * 20} for n in range(100))
    ),
    "unknown dependencies": body(
        *({**ITEM, "id": f"A{n}", "depends_on": [f"B{n}"] * 20} for n in range(100))
    ),
    "unknown states": body(states={f"B{n}": "passed" for n in range(2000)}),
    "malformed states": body(states={f"B{n}": 3 for n in range(2000)}),
    "unknown references": body(*({**ITEM, "id": f"A{n}", "title": "${x}"} for n in range(2000))),
    "malformed patterns": body(loop={"name": "a", "specs": [3] * 2000}),
    "long keys": body({**ITEM, "x" * 100_000: [{"${": "${x}"} for _ in range(2000)]}),
}


@pytest.mark.parametrize("document", WRONG.values(), ids=WRONG)
def test_a_loop_that_is_wrong_everywhere_has_the_first_problems(
    document: dict[str, Any], rules: LoopRules
) -> None:
    found = refused(document, rules)
    assert (len(found), found[-1]) == (MOST_REPORTED + 1, AT_LEAST)


def test_items_beyond_the_last_problem_are_not_checked() -> None:
    """Given 5,000 items with 50 problems each, 20 of them are checked."""
    checked: list[Job] = []

    def check(job: Job) -> list[Problem]:
        checked.append(job)
        return [Problem.at(("verifiers", n), "is unknown") for n in range(50)]

    items = [{**ITEM, "id": f"A{n}"} for n in range(5000)]
    found = refused(body(*items), LoopRules(check=check, priced=lambda _: True))
    assert len(found) == MOST_REPORTED + 1
    assert len(checked) == MOST_FOUND // 50


def test_a_problem_of_the_loop_counts_once_for_all_items(rules: LoopRules) -> None:
    items = [{**ITEM, "id": f"A{n}"} for n in range(2000)]
    found = refused(body(*items, loop={"name": "a", "runner": "codr"}), rules)
    assert len(found) == 1
    assert "codr" in found[0]


def test_parameters_are_limited(tmp_path: Path, rules: LoopRules) -> None:
    many = {f"p{n}": 1 for n in range(2000)}
    found = refused(body(parameters=many), rules)
    assert found == ["parameters: there may be 200 parameters, not 2000"]
    (tmp_path / "one.yaml").write_text(f"{{parameters: {{a: 1}}, items: [{ITEM}], loop: {{}}}}")
    found = refused({"template": "one", "parameters": many}, rules, tmp_path)
    assert (len(found), found[-1]) == (MOST_REPORTED + 1, AT_LEAST)
    found = refused({"template": "one", **many}, rules, tmp_path)
    assert (len(found), found[-1]) == (MOST_REPORTED + 1, AT_LEAST)


def test_the_command_line_has_the_same_limit(tmp_path: Path, rules: LoopRules) -> None:
    loop = tmp_path / "loop.yaml"
    loop.write_text("name: a\nrunner: coder\nspecs: [spec.yaml]\n")
    item = "{id: A, prompt: p, verifiers: [json.objct], typo: 1}"
    spec = tmp_path / "spec.yaml"
    spec.write_text("items:\n" + f"  - {item}\n" * MOST_FOUND)
    _, found = lint_loop(str(loop), parameters={}, environment={}, rules=rules)
    assert len(found) == MOST_REPORTED + 1
    assert str(found[0]).startswith(f"{spec}:2: items[0].typo: there is no such field")
    assert found[-1].message == AT_LEAST
    with pytest.raises(BadInput) as caught:
        read_specs(str(spec), environment={})
    assert len(caught.value.problems) == MOST_REPORTED + 1


def test_malformed_items_that_are_added_have_the_first_problems() -> None:
    with pytest.raises(BadInput) as caught:
        read_items_body({"items": [{**ITEM, "id": "-", "typo": 1} for _ in range(900)]})
    assert len(caught.value.problems) == MOST_REPORTED + 1
    assert caught.value.problems[-1].message == AT_LEAST
