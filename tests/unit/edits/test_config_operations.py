"""Edits of configuration: a name is found in any file, and only its value changes."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from support.edit_changes import an_edit, changes_of, text_after, validation_errors
from support.file_trees import write_files

from mulligan.tasks.ports.appliers import EditRefused

TOML = """\
# The fleet
[models.small]          # cheap
temperature = 0.7       # keep me
max_tokens = 400
name = "gpt-4.1-mini"
stop = ["END"]
streaming = true

[models."gpt-4.1"]
temperature = 0.1

[routing]
math = "small"
code = 'small'  # for now

[tools.search]
description = "Finds pages"
[tools.calc]

[agents.coder]
class = "SimpleAgent"
model = "small"
tools = [
    "search", # the web
    "calc",
]
[agents.coder.params]
max_turns = 5

[agents.clerk]
class = 'Clerk'
tools = []
patience = 2
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_files(tmp_path, {"fleet.toml": TOML})


CHANGES: list[tuple[str, str, dict[str, Any], str, str]] = [
    # op, target, payload, old text, new text
    ("set_model_param", "models.small", {"model": "small", "param": "temperature", "value": 0.2},
     "= 0.7 ", "= 0.2 "),
    # a float stays a float and an integer an integer if no digits are lost
    ("set_model_param", "models.small", {"model": "small", "param": "temperature", "value": 1},
     "= 0.7 ", "= 1.0 "),
    ("set_model_param", "models.small", {"model": "small", "param": "max_tokens", "value": 500.0},
     "= 400", "= 500"),
    ("set_model_param", "models.small", {"model": "small", "param": "max_tokens", "value": 0.5},
     "= 400", "= 0.5"),
    # strings are always quoted
    ("set_model_param", "models.small", {"model": "small", "param": "name", "value": 'a"b]\n[c]'},
     '"gpt-4.1-mini"', '"""\na"b]\n[c]"""'),
    ("set_model_param", "small", {"model": "small", "param": "stop", "value": ["A", "B"]},
     '["END"]', '["A", "B"]'),
    ("set_model_param", "models.small", {"model": "small", "param": "streaming", "value": False},
     "= true", "= false"),
    ("set_model_param", "models.small",
     {"model": "small", "param": "max_tokens", "value": "many", "retype": True},
     "= 400", '= "many"'),
    ("set_model_param", "models.small",
     {"model": "small", "param": "top_p", "value": 0.9, "create": True},
     "streaming = true\n", "streaming = true\ntop_p = 0.9\n"),
    # a name with a dot in it
    ("set_model_param", "models.gpt-4.1",
     {"model": "gpt-4.1", "param": "temperature", "value": 0.3},
     "= 0.1", "= 0.3"),
    ("set_model_for_query_class", "routing.code", {"query_class": "code", "model": "gpt-4.1"},
     "'small'  #", "'gpt-4.1'  #"),
    ("set_model_for_query_class", "routing.chat",
     {"query_class": "chat", "model": "small", "create": True},
     "# for now\n", "# for now\nchat = \"small\"\n"),
    ("set_agent_param", "agents.coder", {"agent": "coder", "param": "max_turns", "value": 9},
     "max_turns = 5", "max_turns = 9"),
    ("set_agent_param", "agents.coder", {"agent": "coder", "param": "model", "value": "gpt-4.1"},
     'model = "small"', 'model = "gpt-4.1"'),
    ("set_agent_param", "agents.clerk", {"agent": "clerk", "param": "patience", "value": 3},
     "patience = 2", "patience = 3"),
    ("set_agent_param", "agents.coder",
     {"agent": "coder", "param": "depth", "value": 3, "create": True},
     "max_turns = 5\n", "max_turns = 5\ndepth = 3\n"),
    ("add_tool_to_agent", "agents.clerk", {"agent": "clerk", "tool": "calc"},
     "tools = []", 'tools = ["calc"]'),
    ("remove_tool_from_agent", "agents.coder", {"agent": "coder", "tool": "search"},
     '    "search", # the web\n', ""),
    ("remove_tool_from_agent", "agents.coder.tools", {"agent": "coder", "tool": "calc"},
     '    "calc",\n', ""),
    ("edit_tool_description", "tools.search", {"tool": "search", "description": 'Says "hi"'},
     '"Finds pages"', r'"Says \"hi\""'),
    ("edit_tool_description", "tools.calc", {"tool": "calc", "description": "Sums"},
     "[tools.calc]\n", '[tools.calc]\ndescription = "Sums"\n'),
    ("set_agent_class", "agents.coder", {"agent": "coder", "class_name": "Planner"},
     '"SimpleAgent"', '"Planner"'),
    ("set_agent_class", "agents.clerk", {"agent": "clerk", "class": "Planner"},
     "'Clerk'", "'Planner'"),
]  # fmt: skip


@pytest.mark.parametrize(("op", "target", "payload", "old", "new"), CHANGES)
def test_only_the_value_changes(
    root: Path, op: str, target: str, payload: dict[str, Any], old: str, new: str
) -> None:
    assert TOML.count(old) == 1
    assert text_after(root, an_edit(op, target, **payload)) == TOML.replace(old, new)


NO_OPS: list[tuple[str, str, dict[str, Any]]] = [
    ("set_model_param", "models.small", {"model": "small", "param": "temperature", "value": 0.7}),
    ("set_model_param", "models.small", {"model": "small", "param": "max_tokens", "value": 400.0}),
    ("set_model_for_query_class", "routing.math", {"query_class": "math", "model": "small"}),
    ("set_agent_class", "agents.clerk", {"agent": "clerk", "class_name": "Clerk"}),
    ("add_tool_to_agent", "agents.coder", {"agent": "coder", "tool": "calc"}),
    ("remove_tool_from_agent", "agents.clerk", {"agent": "clerk", "tool": "calc"}),
    ("edit_tool_description", "tools.search", {"tool": "search", "description": "Finds pages"}),
]


@pytest.mark.parametrize(("op", "target", "payload"), NO_OPS)
def test_an_edit_to_the_present_value_is_a_no_op(
    root: Path, op: str, target: str, payload: dict[str, Any]
) -> None:
    assert changes_of(root, an_edit(op, target, **payload)) == []


REFUSALS: list[tuple[str, str, dict[str, Any], str]] = [
    ("set_model_param", "models.smal", {"model": "smal", "param": "temperature", "value": 1},
     "no model 'smal'; did you mean 'small'"),
    ("set_model_param", "models.small", {"model": "small", "param": "temprature", "value": 1},
     "no parameter 'temprature'; did you mean 'temperature'"),
    ("set_model_param", "models.small", {"model": "small", "param": "temperature", "value": "hot"},
     r"is a number \(0.7\), but 'hot' is not"),
    ("set_model_param", "models.small", {"model": "small", "param": "max_tokens", "value": True},
     "is a number"),
    ("set_model_param", "models.small", {"model": "small", "param": "streaming", "value": 1},
     "is true or false"),
    ("set_model_param", "models.small", {"model": "small", "param": "stop", "value": [1]},
     "is a list of a text"),
    ("set_model_param", "models.small", {"model": "small", "param": "stop", "value": None},
     "is a list"),
    ("set_model_param", "models.small",
     {"model": "small", "param": "name", "value": None, "retype": True}, "TOML has no value"),
    ("set_agent_param", "agents.coder", {"agent": "coder", "param": "max_turn", "value": 1},
     "did you mean 'max_turns'"),
    ("set_model_for_query_class", "routing.maths", {"query_class": "maths", "model": "small"},
     "no query class 'maths'; did you mean 'math'"),
    ("set_model_for_query_class", "routing.math", {"query_class": "math", "model": "gpt4.1"},
     "no model 'gpt4.1'; did you mean 'gpt-4.1'"),
    ("add_tool_to_agent", "agents.coder", {"agent": "coder", "tool": "serch"},
     "no tool 'serch'; did you mean 'search'"),
    ("add_tool_to_agent", "agents.codr", {"agent": "codr", "tool": "search"},
     "did you mean 'coder'"),
    ("remove_tool_from_agent", "agents.coder", {"agent": "coder", "tool": "clac"},
     "did you mean 'calc'"),
    ("edit_tool_description", "tools.xyz", {"tool": "xyz", "description": "d"},
     "there are: calc, search"),
]  # fmt: skip


@pytest.mark.parametrize(("op", "target", "payload", "message"), REFUSALS)
def test_refusals_suggest_a_correction(
    root: Path, op: str, target: str, payload: dict[str, Any], message: str
) -> None:
    with pytest.raises(EditRefused, match=message):
        changes_of(root, an_edit(op, target, **payload))


def test_every_mistake_in_a_payload_is_reported_at_once(root: Path) -> None:
    edit = an_edit("set_model_param", "models.big", model="small", parm="x", value=1, create="yes")
    errors = validation_errors(root, edit)
    assert errors[0].startswith("target: is 'models.big', but payload.model is 'small'")
    assert "payload.param: is required" in errors
    assert any("payload.parm" in line and "did you mean 'param'" in line for line in errors)
    assert any(line.startswith("payload.create") for line in errors)


def test_a_value_is_required(root: Path) -> None:
    edit = an_edit("set_model_param", "models.small", model="small", param="temperature")
    assert validation_errors(root, edit) == ["payload.value: is required"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "\ud800"])
def test_a_value_that_no_file_can_hold_is_invalid(root: Path, value: object) -> None:
    edit = an_edit("set_model_param", "models.small", model="small", param="name", value=value)
    assert any("cannot be written to a file" in line for line in validation_errors(root, edit))
    with pytest.raises(EditRefused):
        changes_of(root, edit)


@pytest.mark.parametrize(
    ("param", "op"),
    [("class", "set_agent_class"), ("tools", "add_tool"), ("system_prompt", "replace_system")],
)
def test_a_guarded_field_cannot_be_set_as_a_parameter(root: Path, param: str, op: str) -> None:
    """set_agent_param needs no review, so it may only change fields that need none."""
    edit = an_edit("set_agent_param", "agents.coder", agent="coder", param=param, value="x",
                   create=True, retype=True)  # fmt: skip
    assert any(
        "is not a parameter" in line and op in line for line in validation_errors(root, edit)
    )
    with pytest.raises(EditRefused):
        changes_of(root, edit)


def test_class_and_class_name_exclude_each_other(root: Path) -> None:
    edit = an_edit(
        "set_agent_class", "agents.coder", agent="coder", **{"class": "A", "class_name": "B"}
    )
    assert validation_errors(root, edit) == ["payload: give class or class_name, not both"]


def test_training_is_refused_with_an_alternative(root: Path) -> None:
    edit = an_edit("lora_finetune", "models.small", model="small")
    (reason,) = validation_errors(root, edit)
    assert "set_model_for_query_class" in reason
    with pytest.raises(EditRefused):
        changes_of(root, edit)


# The tree


def test_each_edit_changes_the_one_file_that_defines_the_name(tmp_path: Path) -> None:
    root = write_files(tmp_path, {
        "conf/models.yaml": "models:\n  small: {temperature: 0.7} # c\n",
        "conf/fleet.json": '{"agents": {"a": {"tools": ["t"]}}, "tools": {"t": {}, "u": {}}}',
        "conf/agents/clerk.toml": 'class = "Clerk"\n[params]\nturns = 1\n',
        "conf/models/big.json": '{"temperature": 1}',
        "conf/routing.toml":
            '[routing]\ntimeout = 3\ndefault = "small"\n[routing.models]\nmath = "small"\n',
    })  # fmt: skip

    def after(op: str, target: str, **payload: Any) -> tuple[str, str]:
        (change,) = changes_of(root, an_edit(op, target, **payload), config=Path("conf"))
        assert change.after is not None
        return change.path, change.after.decode()

    param = "temperature"
    assert after("set_model_param", "models.small", model="small", param=param, value=0) == (
        "conf/models.yaml", "models:\n  small: {temperature: 0.0} # c\n",
    )  # fmt: skip
    assert after("set_model_param", "models.big", model="big", param=param, value=2) == (
        "conf/models/big.json", '{"temperature": 2}',
    )  # fmt: skip
    assert after("add_tool_to_agent", "agents.a", agent="a", tool="u") == (
        "conf/fleet.json",
        '{"agents": {"a": {"tools": ["t", "u"]}}, "tools": {"t": {}, "u": {}}}',
    )
    assert after("add_tool_to_agent", "agents.clerk", agent="clerk", tool="u") == (
        "conf/agents/clerk.toml",
        'class = "Clerk"\ntools = ["u"]\n[params]\nturns = 1\n',
    )
    path, text = after("set_model_for_query_class", "routing.math", query_class="math", model="big")
    assert tomllib.loads(text)["routing"]["models"] == {"math": "big"}
    path, text = after(
        "set_model_for_query_class", "routing.x", query_class="x", model="big", create=True
    )
    assert tomllib.loads(text)["routing"]["models"] == {"math": "small", "x": "big"}
    path, text = after(
        "set_model_for_query_class", "routing.default", query_class="default", model="big"
    )
    assert (path, tomllib.loads(text)["routing"]["default"]) == ("conf/routing.toml", "big")


def test_a_name_that_is_defined_twice_is_ambiguous(tmp_path: Path) -> None:
    root = write_files(tmp_path, {
        "a.toml": "[models.small]\nx = 1\n", "b/c.yaml": "models: {small: {x: 1}}\n"
    })  # fmt: skip
    edit = an_edit("set_model_param", "models.small", model="small", param="x", value=2)
    with pytest.raises(EditRefused, match=r"a.toml \(models.small\) and b/c.yaml"):
        changes_of(root, edit)


def test_files_that_are_not_configuration_are_ignored(tmp_path: Path) -> None:
    root = write_files(tmp_path, {
        "a.toml": "[models.small]\nx = 1\n",
        "broken.json": '{"models": {"small": ',
        "many.yaml": "models: 1\n---\nmodels: 2\n",
        "binary.json": b"models\xff\xfe",
        ".hidden.toml": "[models.small]\nx = 1\n",
        ".git/config.toml": "[models.small]\nx = 1\n",
        "too/deep/a.toml": "[models.small]\nx = 1\n",
        "large.json": '{"models": {"small": {}}, "pad": "' + "x" * 1_000_000 + '"}',
    })  # fmt: skip
    (root / "link.toml").symlink_to("a.toml")
    edit = an_edit("set_model_param", "models.small", model="small", param="x", value=2)
    assert text_after(root, edit) == "[models.small]\nx = 2\n"
    missing = an_edit("set_model_param", "models.big", model="big", param="x", value=2)
    with pytest.raises(EditRefused, match=r"not read: .*broken.json: is not JSON"):
        changes_of(root, missing)


def test_a_configuration_folder_outside_the_root_is_refused(tmp_path: Path) -> None:
    root = write_files(tmp_path / "root", {"a.toml": "[models.small]\nx = 1\n"})
    write_files(tmp_path / "other", {"b.toml": "[models.other]\nx = 1\n"})
    (root / "conf").symlink_to(tmp_path / "other")
    edit = an_edit("set_model_param", "models.other", model="other", param="x", value=2)
    for config in ("../other", "conf", "/etc"):
        with pytest.raises(EditRefused):
            changes_of(root, edit, config=Path(config))


@pytest.mark.parametrize(
    "tools",
    ['[]', '["a"]', '["a",]', '[ "a", "b" ]', '[\n  "a",\n  "b"\n]', '[\n  "a", # x, y\n]',
     "[\n  # none\n]", "['''a''', \"b\\\"]\"]"],
)  # fmt: skip
def test_tools_are_added_to_and_removed_from_any_list(tmp_path: Path, tools: str) -> None:
    """There is never ``[, "new"]`` or a comma too many."""
    text = f"[agents.x]\ntools = {tools} # end\n[tools.new]\n"
    root = write_files(tmp_path, {"a.toml": text})
    before = tomllib.loads(text)["agents"]["x"]["tools"]
    more = text_after(root, an_edit("add_tool_to_agent", "agents.x", agent="x", tool="new"))
    assert tomllib.loads(more)["agents"]["x"]["tools"] == [*before, "new"]
    write_files(tmp_path, {"a.toml": more})
    less = text_after(root, an_edit("remove_tool_from_agent", "agents.x", agent="x", tool="new"))
    assert tomllib.loads(less) == tomllib.loads(text)
    for tool in before:
        write_files(tmp_path, {"a.toml": less})
        edit = an_edit("remove_tool_from_agent", "agents.x", agent="x", tool=tool)
        less = text_after(root, edit)
    assert tomllib.loads(less)["agents"]["x"]["tools"] == []
    assert less.count("#") == text.count("#") - text.count("# x, y")
