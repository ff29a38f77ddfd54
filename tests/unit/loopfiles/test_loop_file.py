"""Loop files: their shapes, and every problem of all files at once, with its file and line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mulligan.console.loopfiles.inspect_loop import LoopRules, loop_rules
from mulligan.console.loopfiles.loop_file import (
    lint_loop,
    read_loop,
    read_template,
    without_references,
)
from mulligan.policies.jobs.job import Output
from mulligan.policies.loops.spec import ItemSpec, LoopDocument
from mulligan.tasks.ports.errors import BadInput
from mulligan.tasks.ports.verifiers import Candidate
from mulligan.workers.settings.model import load_settings
from mulligan.workers.verifiers.verifier_registry import VerifierRegistry

ROOT = Path(__file__).resolve().parents[3]
SETTINGS: dict[str, Any] = {
    "runners": {
        "coder": {"kind": "scripted", "answers": ["{}"]},
        "paid": {"kind": "openai", "model": "big", "base_url": "http://127.0.0.1:9/v1"},
    },
    "prices": {"paid": {"prompt": 1, "completion": 2}},
}
LOOP = """\
version: 1
name: parser
specs: [specs/*.yaml]
runner: coder
"""
ITEM = """\
version: 1
items:
  - id: A
    prompt: Do it.
    verifiers: [json.object]
"""


@pytest.fixture(scope="module", name="rules")
def _rules() -> LoopRules:
    return loop_rules(load_settings(**SETTINGS))


def write(folder: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text), encoding="utf-8")
    return folder


def read(
    folder: Path,
    rules: LoopRules,
    parameters: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
) -> LoopDocument:
    values = parameters or {}
    return read_loop(str(folder), parameters=values, environment=environment or {}, rules=rules)


def problems_of(folder: Path, rules: LoopRules, **values: Any) -> list[str]:
    """Return the problems of a loop, without the folder's name."""
    with pytest.raises(BadInput) as caught:
        read(folder, rules, **values)
    return [str(problem).replace(f"{folder}/", "") for problem in caught.value.problems]


# -- shapes ---------------------------------------------------------------------------------------


def test_a_loop_has_the_items_of_all_its_spec_files_in_order(
    tmp_path: Path, rules: LoopRules
) -> None:
    later = ITEM.replace("id: A", "id: B\n    depends_on: [A]")
    write(tmp_path, {"loop.yaml": LOOP, "specs/20.yaml": later, "specs/10.yaml": ITEM})
    for path in (tmp_path, tmp_path / "loop.yaml"):
        loop = read(path, rules)
        assert [item.id for item in loop.items] == ["A", "B"]
        assert (loop.loop.name, loop.loop.specs) == ("parser", ())


def test_a_file_that_two_patterns_match_is_read_once(tmp_path: Path, rules: LoopRules) -> None:
    patterns = LOOP.replace("[specs/*.yaml]", "['*.yaml', a.yaml]")
    write(tmp_path, {"loop.yaml": patterns, "a.yaml": ITEM})
    assert len(read(tmp_path, rules).items) == 1


def test_a_workspace_is_relative_to_the_file_that_names_it(
    tmp_path: Path, rules: LoopRules
) -> None:
    (tmp_path / "specs" / "own").mkdir(parents=True)
    (tmp_path / "shared").mkdir()
    item = ITEM + "    workspace: {path: own}\n"
    other = ITEM.replace("id: A", "id: B")
    loop = LOOP + "workspace: {path: shared}\n"
    write(tmp_path, {"loop.yaml": loop, "specs/1.yaml": item, "specs/2.yaml": other})
    read_in = read(tmp_path, rules)
    workspaces = [read_in.items[0].workspace, read_in.loop.workspace]
    assert [Path(each.path or "") for each in workspaces if each] == [
        tmp_path / "specs" / "own",
        tmp_path / "shared",
    ]


def test_a_loop_and_its_items_may_be_one_document(tmp_path: Path, rules: LoopRules) -> None:
    text = "loop: {name: one, runner: coder}\nstates: {A: passed}\n" + ITEM
    write(tmp_path, {"one.yaml": text})
    loop = read(tmp_path / "one.yaml", rules)
    assert (loop.loop.name, loop.items[0].id, loop.states) == ("one", "A", {"A": "passed"})


# -- problems -------------------------------------------------------------------------------------


def test_every_problem_of_all_files_is_reported_at_once(tmp_path: Path, rules: LoopRules) -> None:
    loop = """\
        version: 1
        nam: parser
        specs: [specs/*.yaml, more/*.yaml]
        runner: codr
        priority: 12
        auto_heal: [skip, skp]
        budget: {itm: {tokens: 1}, day: {tokens: much}}
        """
    first = """\
        version: 1
        items:
          - id: A
            prompt: Do it.
            depends_on: [B, Z1]
            verifiers: [json.object, json.objct]
          - id: B
            depends_on: [A]
            verifiers: [{id: text.match}]
          - 3
        """
    second = """\
        items:
          - id: A
            promt: Do it.
            verifiers: [{id: pytest.subprocess, role: gard}]
          - {id: Z2, prompt: p, verifiers: [json.object], max_attempts: 1}
        states: {Q: passed, A: done}
        """
    broken = "items: [\n"
    write(tmp_path, {"loop.yaml": loop, "specs/1.yaml": first, "specs/2.yaml": second,
                     "specs/3.yaml": broken})  # fmt: skip
    found = problems_of(tmp_path, rules)
    assert found == [
        "loop.yaml:1: name: is required",
        "loop.yaml:2: nam: there is no such field; did you mean 'name'?",
        "loop.yaml:3: specs[1]: no file matches 'more/*.yaml'",
        "loop.yaml:4: runner.profile: no profile 'codr'; did you mean 'coder'?",
        "loop.yaml:5: priority: must be at most 9 (got 12)",
        "loop.yaml:6: auto_heal[1]: there is no such action; did you mean 'skip'?",
        "loop.yaml:7: budget.day.tokens: 'much' is not an amount: use 5000, 200k or 5M",
        "loop.yaml:7: budget.itm: there is no such field; did you mean 'item'?",
        "specs/1.yaml:3: items[0].id: the id A occurs twice",
        "specs/1.yaml:5: items[0].depends_on[1]: A depends on Z1, which does not exist",
        "specs/1.yaml:5: items[0].depends_on: the dependencies form a cycle: A → B → A",
        "specs/1.yaml:6: items[0].verifiers[1].id: unknown verifier 'json.objct'; did you mean"
        " 'json.object'?",
        "specs/1.yaml:7: items[1].prompt: is required",
        "specs/1.yaml:9: items[1].verifiers[0]: nothing to check: set contains, regex, equals,"
        " min_length…",
        "specs/1.yaml:10: items[2]: must be a mapping, such as {id: A-1, prompt: text, verifiers:"
        " [json.object]} (got 3)",
        "specs/2.yaml:2: items[0].prompt: is required",
        "specs/2.yaml:2: items[0].id: the id A occurs twice",
        "specs/2.yaml:3: items[0].promt: there is no such field; did you mean 'prompt'?",
        "specs/2.yaml:4: items[0].verifiers[0].role: must be 'acceptance' or 'guard' (got 'gard')",
        "specs/2.yaml:5: items[1].max_attempts: there is no such field",
        "specs/2.yaml:6: states.A: must be 'passed' or 'skipped' (got 'done')",
        "specs/2.yaml:6: states.Q: there is no item 'Q'",
        "specs/3.yaml:2: broken YAML: expected the node content, but found '<stream end>' (while"
        " parsing a flow node)",
    ]  # fmt: skip


def test_what_submitting_the_job_would_refuse_names_the_field_that_causes_it(
    tmp_path: Path,
) -> None:
    rules = loop_rules(load_settings(**SETTINGS, prompt_cap=20))
    loop = LOOP + "workspace: {path: missing}\nmax_attempts: 3\n"
    item = """\
        items:
          - id: A
            prompt: This prompt is longer than the cap.
            verifiers:
              - json.object
              - {id: command.subprocess, argv: ["true"]}
          - {id: B, prompt: p, runner: {kind: scripted, answers: [x]}, verifiers: [json.object]}
          - {id: C, prompt: p, runner: {kind: external}, verifiers: [json.object]}
        """
    write(tmp_path, {"loop.yaml": loop, "specs/1.yaml": item})
    found = problems_of(tmp_path, rules)
    assert [each.partition(": ")[0] + " " + each.split(": ")[1] for each in found] == [
        "loop.yaml:5 workspace.path",
        "specs/1.yaml:3 items[0].prompt",
        "specs/1.yaml:6 items[0].verifiers[1].argv",
        "specs/1.yaml:7 items[1].runner.kind",
        "specs/1.yaml:8 items[2].runner",
    ]


def test_a_missing_runner_is_reported_once(tmp_path: Path, rules: LoopRules) -> None:
    items = "".join(f"  - {{id: I{n}, prompt: p, verifiers: [json.object]}}\n" for n in range(5))
    loop = LOOP.replace("runner: coder\n", "")
    write(tmp_path, {"loop.yaml": loop, "specs/1.yaml": "items:\n" + items})
    assert problems_of(tmp_path, rules) == [
        "loop.yaml:1: runner: is required, because these items name none: I0, I1, I2 and 2 more"
    ]


def test_money_needs_a_price_for_every_runner(tmp_path: Path, rules: LoopRules) -> None:
    loop = LOOP.replace("runner: coder", "runner: paid")
    loop += "budget:\n  loop: {money: 20}\n  item:\n    money: 1\n"
    files = {"loop.yaml": loop, "specs/1.yaml": ITEM}
    assert read(write(tmp_path, files), rules).loop.budget.loop.money == 20
    write(tmp_path, {"specs/1.yaml": ITEM + "    runner: coder\n"})
    unknown = (
        "the cost of the runner 'coder' is unknown: add a price for it or for its model to [prices]"
        " of mulligan.toml"
    )
    assert problems_of(tmp_path, rules) == [
        f"loop.yaml:6: budget.loop.money: {unknown}",
        f"loop.yaml:8: budget.item.money: {unknown}",
    ]


def test_a_price_of_the_model_does_and_every_fallback_needs_one() -> None:
    runner = {**SETTINGS["runners"]["paid"], "fallbacks": [{"model": "small"}]}
    price = {"prompt": 1, "completion": 1}
    body = {
        "loop": {"name": "a", "runner": "paid", "budget": {"day": {"money": 1}}},
        "items": [{"id": "A", "prompt": "p", "verifiers": ["json.object"]}],
    }
    for prices in ({"big": price, "small": price}, {"paid": price, "small": price}):
        rules = loop_rules(load_settings(runners={"paid": runner}, prices=prices))
        assert read_template(body, templates=None, rules=rules).items
    rules = loop_rules(load_settings(runners={"paid": runner}, prices={"big": price}))
    with pytest.raises(BadInput) as caught:
        read_template(body, templates=None, rules=rules)
    assert [each.field for each in caught.value.problems] == ["loop.budget.day.money"]


def test_each_cycle_is_named_once_beginning_with_its_first_item(
    tmp_path: Path, rules: LoopRules
) -> None:
    graph = {"A": ["C"], "B": ["A"], "C": ["B"], "D": ["D"], "E": ["A"]}
    items = "".join(
        f"  - {{id: {name}, prompt: p, verifiers: [json.object], depends_on: {after}}}\n"
        for name, after in graph.items()
    ).replace("'", "")
    write(tmp_path, {"loop.yaml": LOOP, "specs/1.yaml": "items:\n" + items})
    assert problems_of(tmp_path, rules) == [
        "specs/1.yaml:2: items[0].depends_on: the dependencies form a cycle: A → C → B → A",
        "specs/1.yaml:5: items[3].depends_on: the dependencies form a cycle: D → D",
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("version: 2\nanything: 1\n", "version 2 is newer than this release reads (up to 1)"),
        ("version: -1\nname: a\n", "there is no version -1: use 1"),
        ("[a]\n", "a loop is a mapping with `name:` and `specs:`"),
        ("name: a\nrunner: coder\n", "specs: name the files with the items, such as"),
        ("name: a\nrunner: coder\nspecs: []\n", "specs: name the files with the items, such as"),
        ("name: a\nrunner: coder\nspecs: ['/x/*']\n", "specs[0]: '/x/*' is not a pattern"),
        ("name: a\nrunner: coder\nspecs: ['']\n", "specs[0]: '' is not a pattern"),
        ("name: a\nrunner: coder\nspecs: ['.']\n", "specs[0]: '.' is not a pattern of files"),
        ("name: a\nrunner: coder\nspecs: ['./']\n", "specs[0]: './' is not a pattern"),
        ("name: a\nrunner: coder\nspecs: ['././.']\n", "specs[0]: '././.' is not a pattern"),
        (f"name: a\nrunner: coder\nspecs: ['{'a/' * 2000}']\n", "is not a pattern of files"),
        ("items: []\n", "this is a spec file: name it under `specs:` of a loop.yaml, or add its"),
        ("task_type: a\nprompt: p\n", "this is a job file: run it with `mulligan run "),
        ("loop: {name: a, runner: coder}\nitem: []\n", "item: there is no such field beside `loop"),
    ],
)
def test_a_loop_file_of_another_shape_is_refused(
    text: str, problem: str, tmp_path: Path, rules: LoopRules
) -> None:
    write(tmp_path, {"loop.yaml": text})
    assert problem in problems_of(tmp_path, rules)[0]


def test_a_missing_file_and_a_folder_without_a_loop_are_refused(
    tmp_path: Path, rules: LoopRules
) -> None:
    assert problems_of(tmp_path, rules) == ["loop.yaml: there is no such file"]
    assert problems_of(tmp_path / "x.yaml", rules) == [f"{tmp_path}/x.yaml: there is no such file"]


# -- references -----------------------------------------------------------------------------------


def test_references_are_parameters_and_variables(tmp_path: Path, rules: LoopRules) -> None:
    loop = """\
        parameters: {n: 1, what: {description: what to do}, extra: {required: false}}
        name: ${env:TEAM}-${what}
        specs: ["${env:SPECS:-specs}/*.yaml"]
        runner: ${env:RUNNER:-coder}
        concurrency: ${n}
        weight: ${env:WEIGHT}
        auto_heal: ${env:HEAL}
        budget: {item: {tokens: "${n}k"}}
        """
    item = """\
        items:
          - id: A
            title: "${n}"
            prompt: "${what}${extra} costs $${n}, ${env:HEAL} or ${n}"
            verifiers:
              - id: contract.schema
                schema:
                  maximum: ${n}
                  const: "${n}"
        """
    write(tmp_path, {"loop.yaml": loop, "specs/1.yaml": item})
    environment = {"TEAM": "core", "WEIGHT": "2.5", "HEAL": "true", "RUNNER": ""}
    values = {"n": "4", "what": "count"}
    read_in = read(tmp_path, rules, parameters=values, environment=environment)
    config, only = read_in.loop, read_in.items[0]
    assert (config.name, config.concurrency, config.weight) == ("core-count", 4, 2.5)
    assert (config.auto_heal, config.budget.item.tokens) == (True, 4000)
    assert config.runner is not None
    assert config.runner.profile == "coder"
    assert (only.title, only.prompt) == ("4", "count costs ${n}, true or 4")
    assert only.verifiers[0].options == {"schema": {"maximum": 4, "const": "4"}}


def test_every_missing_reference_is_reported_and_nothing_that_follows_from_it(
    tmp_path: Path, rules: LoopRules
) -> None:
    loop = """\
        parameters:
          needed: {description: how many}
          both: {default: 1, required: true}
          9lives: 1
          typo: {defalt: 1}
        name: ${nam}
        specs: [specs/*.yaml]
        runner: ${env:NO_RUNNER}
        concurrency: ${needed}
        priority: ${typo}
        """
    item = """\
        items:
          - id: A
            prompt: "Use ${HOME:0:3} and ${ nothing"
            verifiers: [json.object]
        """
    write(tmp_path, {"loop.yaml": loop, "specs/1.yaml": item})
    assert problems_of(tmp_path, rules, parameters={"neded": 3}) == [
        "loop.yaml:1: parameters.neded: there is no such parameter; did you mean 'needed'?",
        "loop.yaml:2: parameters.needed: a value is required (how many)",
        "loop.yaml:3: parameters.both: give it a default, or make it required",
        "loop.yaml:4: parameters.9lives: may contain only letters, digits, _ and -, and starts with"
        " a letter or _",
        "loop.yaml:5: parameters.typo.defalt: there is no such field; did you mean 'default'?",
        "loop.yaml:6: name: there is no parameter 'nam'; there are: needed, both, 9lives, typo."
        " Declare it under `parameters:`, or write $${nam} for the text itself",
        "loop.yaml:8: runner: the variable NO_RUNNER is not set; ${env:NO_RUNNER:-default} has a"
        " default",
        "specs/1.yaml:3: items[0].prompt: ${HOME:0:3} is not a reference: use ${NAME}, ${env:NAME}"
        " or ${env:NAME:-default}, and $${ for the text itself",
        "specs/1.yaml:3: items[0].prompt: ${ has no end: write ${NAME}, or $${ for the text itself",
    ]


def test_in_json_a_reference_becomes_a_number_too(tmp_path: Path, rules: LoopRules) -> None:
    text = json.dumps(
        {
            "parameters": {"n": 3},
            "loop": {"name": "a", "runner": "coder", "concurrency": "${n}"},
            "items": [{"id": "A", "prompt": "p", "verifiers": ["json.object"]}],
        }
    )
    write(tmp_path, {"a.json": text})
    assert read(tmp_path / "a.json", rules).loop.concurrency == 3


@pytest.mark.parametrize("name", ["priority", "weight", "concurrency", "max_attempts", "version"])
@pytest.mark.parametrize("value", ["true", "${yes}", "${env:NO}"])
def test_a_boolean_is_no_number(name: str, value: str, tmp_path: Path, rules: LoopRules) -> None:
    text = f"parameters: {{yes: true}}\nname: a\nrunner: coder\nspecs: [a.yaml]\n{name}: {value}\n"
    write(tmp_path, {"loop.yaml": text, "a.yaml": ITEM + "    priority: false\n"})
    found = problems_of(tmp_path, rules, environment={"NO": "false"})
    assert f"loop.yaml:5: {name}: must be a number" in found[0]
    assert "a.yaml:6: items[0].priority: must be a number (got False)" in found[1:]


def test_a_number_may_be_written_as_text(rules: LoopRules) -> None:
    numbers = {"priority": "3", "weight": "2.5", "concurrency": "4"}
    item = {"id": "A", "prompt": "p", "verifiers": ["json.object"], "priority": "2"}
    document = {"loop": {"name": "a", "runner": "coder", **numbers}, "items": [item]}
    made = read_template(document, templates=None, rules=rules)
    assert (made.loop.priority, made.loop.weight, made.loop.concurrency) == (3, 2.5, 4)
    assert made.items[0].priority == 2


# -- over HTTP ------------------------------------------------------------------------------------


def test_a_request_names_a_template_of_the_folder(tmp_path: Path, rules: LoopRules) -> None:
    text = "parameters: {n: null}\nloop: {name: 'l${n}', runner: coder, concurrency: '${n}'}\n"
    write(tmp_path, {"one.yaml": text + ITEM})
    body = {"template": "one", "parameters": {"n": 3}}
    assert read_template(body, templates=tmp_path, rules=rules).loop.name == "l3"


@pytest.mark.parametrize(
    ("body", "problems"),
    [
        ({"template": "on"}, ["template: there is no template 'on'; did you mean 'one'?"]),
        ({"template": "../one"}, ["template: there is no template '../one'; did you mean 'one'?"]),
        ({"template": 3, "parameters": [], "x": 1},
         ["x: there is no such field beside template", "template: must be the name of a template"]),
        ({"template": "one", "parameters": {"n": "-"}},
         ["one.yaml:2: loop.runner: ${env:HOME} is only for files of the command line: use a"
          " parameter",
          "one.yaml:2: loop.name: may contain only letters from A to Z, digits and _.-; it must"
          " start with a letter or a digit (got '-')"]),
        ({"template": "one", "parameters": {"n": {}}},
         ["one.yaml:1: parameters.n: must be text, a number or a boolean",
          "one.yaml:2: loop.runner: ${env:HOME} is only for files of the command line: use a"
          " parameter"]),
        ({"loop": {"name": "a", "runner": "coder", "specs": ["*"]},
          "items": [{"id": "A", "prompt": "${env:HOME}", "verifiers": ["json.object"]}]},
         ["items[0].prompt: ${env:HOME} is only for files of the command line: use a parameter",
          "loop.specs: files are read only by the command line: put the items under `items:`"]),
        (None, ["a loop is a mapping with `name:` and `specs:`"]),
    ],
)  # fmt: skip
def test_a_request_reads_no_file_and_no_variable(
    body: Any, problems: list[str], tmp_path: Path, rules: LoopRules
) -> None:
    text = "parameters: {n: null}\nloop: {name: '${n}', runner: '${env:HOME}'}\n" + ITEM
    write(tmp_path, {"one.yaml": text})
    with pytest.raises(BadInput) as caught:
        read_template(body, templates=tmp_path, rules=rules)
    assert [str(each) for each in caught.value.problems] == problems


@pytest.mark.parametrize(
    "pattern",
    ["../outside.yaml", "../*.yaml", "a/../../outside.yaml", "..", "link.yaml", "linked/*.yaml",
     "**/outside.yaml", "../missing.yaml"],
)  # fmt: skip
def test_a_template_reads_no_file_outside_of_its_folder(
    pattern: str, tmp_path: Path, rules: LoopRules
) -> None:
    """Whether such a file exists is not told either: `../missing.yaml` does not."""
    text = "parameters: {p: null}\nloop: {name: a, runner: coder, specs: ['${p}']}\n"
    write(tmp_path, {"templates/one.yaml": text, "outside.yaml": ITEM})
    templates = tmp_path / "templates"
    (templates / "link.yaml").symlink_to(tmp_path / "outside.yaml")
    (templates / "linked").symlink_to(tmp_path)
    with pytest.raises(BadInput) as caught:
        read_template({"template": "one", "parameters": {"p": pattern}}, templates=templates,
                      rules=rules)  # fmt: skip
    expected = [f"one.yaml:2: loop.specs[0]: no file matches {pattern!r}"]
    assert [str(each) for each in caught.value.problems] == expected


def test_a_template_reads_files_below_its_folder(tmp_path: Path, rules: LoopRules) -> None:
    """Given a folder that is a link, as volumes are, and a file that is a link inside of it."""
    text = "parameters: {p: null}\nloop: {name: a, runner: coder, specs: ['${p}']}\n"
    write(tmp_path, {"real/one.yaml": text, "real/data/items.yaml": ITEM})
    (tmp_path / "templates").symlink_to(tmp_path / "real")
    (tmp_path / "real" / "link.yaml").symlink_to("data/items.yaml")
    for pattern in ("data/*.yaml", "link.yaml"):
        asked = {"template": "one", "parameters": {"p": pattern}}
        made = read_template(asked, templates=tmp_path / "templates", rules=rules)
        assert [item.id for item in made.items] == ["A"]


def test_a_problem_of_a_template_does_not_tell_where_it_is(
    tmp_path: Path, rules: LoopRules
) -> None:
    text = "loop: {name: a, runner: coder, specs: [job.yaml]}\n"
    write(tmp_path, {"one.yaml": text, "job.yaml": "task_type: a\nprompt: p\n"})
    with pytest.raises(BadInput) as caught:
        read_template({"template": "one"}, templates=tmp_path, rules=rules)
    (problem,) = caught.value.problems
    assert str(problem) == "job.yaml: this is a job file: run it with `mulligan run job.yaml`"


def test_without_a_folder_there_are_no_templates(rules: LoopRules) -> None:
    with pytest.raises(BadInput, match="set loop_templates in mulligan"):
        read_template({"template": "one"}, templates=None, rules=rules)


# -- anything at all ------------------------------------------------------------------------------

NAMES = st.sampled_from(
    ["loop", "items", "states", "parameters", "version", "name", "specs", "runner", "budget",
     "verifiers", "id", "prompt", "depends_on", "auto_heal", "workspace", "path", "tests", "day",
     "tests", "loop_config", "test_state_file", "status", "x"]
) | st.text(max_size=4)  # fmt: skip
VALUES = st.sampled_from(
    ["coder", "A", "json.object", "${x}", "${env:X}", "$${", "${", "1k", "specs/*", "\ud800", "**x"]
)
GARBAGE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
    | VALUES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=6),
    max_leaves=30,
)  # fmt: skip


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=GARBAGE)
def test_garbage_is_refused_with_problems(body: Any, tmp_path: Path, rules: LoopRules) -> None:
    with suppress(BadInput):
        loop = read_template(body, templates=None, rules=rules)
        assert LoopDocument.model_validate_json(loop.model_dump_json()) == loop
    (tmp_path / "loop.json").write_text(json.dumps(body))
    (tmp_path / "spec.json").write_text(json.dumps({"name": "a", "specs": ["loop.json"]}))
    for name in ("loop.json", "spec.json"):
        lint_loop(str(tmp_path / name), parameters={}, environment={}, rules=rules)


def test_a_document_that_is_nested_too_deeply_is_refused(rules: LoopRules) -> None:
    deep: Any = {}
    for _ in range(2000):
        deep = {"a": deep}
    body = {"loop": {"name": "a", "runner": "coder"}, "items": [{"id": "A", "x": deep}]}
    with pytest.raises(BadInput, match="is nested too deeply"):
        read_template(body, templates=None, rules=rules)


# -- the examples ---------------------------------------------------------------------------------


def test_the_examples_are_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = ROOT / "examples" / "loops"
    monkeypatch.setenv("MULLIGAN_CONFIG", str(folder / "mulligan.toml"))
    rules = loop_rules(load_settings())
    notes = read(folder / "release-notes", rules)
    assert len(notes.items) == 7
    assert sum(len(item.depends_on) for item in notes.items) == 6
    body = {"template": "translate", "parameters": {"language": "French", "word": "Merci"}}
    made = read_template(body, templates=folder / "templates", rules=rules)
    assert made.loop.name == "translate-French"
    profiles = load_settings().runners
    first, last = ([*_passed([*notes.items, *made.items], made, profiles, n)] for n in (0, -1))
    assert all(last)
    assert first.count(False) == 1, "one item shows a retry"


def _passed(
    items: Sequence[ItemSpec], made: LoopDocument, profiles: Mapping[str, Any], answer: int
) -> Iterator[bool]:
    """Yield whether an item's work would pass with one of the prepared answers."""
    verifiers = VerifierRegistry()
    for item in items:
        runner = item.runner or made.loop.runner
        assert runner is not None
        text = profiles[runner.profile or ""]["answers"][answer]["text"]
        candidate = Candidate(output=Output(text=text), text=text)
        checks = [verifiers.build(each.plain()).verify(candidate) for each in item.verifiers]
        yield all(each.status == "pass" for each in checks)


def test_added_items_of_a_request_read_no_variable_either() -> None:
    with pytest.raises(BadInput, match=r"prompt: \$\{env:HOME\} is only for files"):
        without_references({"id": "a", "prompt": "say ${env:HOME}"})
    assert without_references({"prompt": "say $${env:HOME}"}) == {"prompt": "say ${env:HOME}"}
