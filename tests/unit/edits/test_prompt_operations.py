"""Edits of prompts and exemplars in every place where an agent may keep them."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from support.edit_changes import an_edit, changes_of, text_after, validation_errors
from support.file_trees import write_files

from mulligan.tasks.ports.appliers import EditRefused

PROMPT = "You are a clerk.\nBe brief.\nSay why.\n"
DIFF = """\
--- a/anything
+++ b/anything
@@ -1,3 +1,3 @@
 You are a clerk.
-Be brief.
+Be exact.
 Say why.
"""
#: The same prompt in every place where an agent may have it.
PLACES: dict[str, dict[str, str | bytes]] = {
    "toml": {"a.toml": f'[agents.clerk]\nsystem_prompt = """\n{PROMPT}""" # end\nx = 1\n'},
    "toml literal": {"a.toml": f"[agents.clerk]\nsystem_prompt = '''\n{PROMPT}'''\nx = 1\n"},
    "toml line": {"a.toml": f"[agents.clerk]\nsystem_prompt = {json.dumps(PROMPT)}\nx = 1\n"},
    "yaml block": {
        "a.yaml": "agents:\n  clerk:\n    system_prompt: |\n      "
        + PROMPT.replace("\n", "\n      ").rstrip()
        + "\n\n    # about x\n    x: 1\n"
    },
    "yaml line": {"a.yaml": f"agents: {{clerk: {{system_prompt: {json.dumps(PROMPT)}, x: 1}}}}\n"},
    "json": {"a.json": json.dumps({"agents": {"clerk": {"system_prompt": PROMPT, "x": 1}}})},
    "agent's file": {"agents/clerk.yml": "system_prompt: " + json.dumps(PROMPT) + "\nx: 1\n"},
    "named file": {
        "a.toml": '[agents.clerk]\nsystem_prompt_file = "texts/clerk.txt"\n',
        "texts/clerk.txt": PROMPT,
    },
    "beside": {
        "agents/clerk.toml": 'system_prompt_file = "../texts/clerk.txt"\n',
        "texts/clerk.txt": PROMPT,
    },
    "prompts": {"a.toml": "[agents.clerk]\n", "prompts/clerk.md": PROMPT},
    "only prompts": {"prompts/clerk.md": PROMPT},
    "crlf": {"prompts/clerk.md": PROMPT.replace("\n", "\r\n")},
}


def prompt_in(name: str, text: str) -> str:
    """Return the prompt in a file."""
    data: Any
    if name.endswith(".toml"):
        data = tomllib.loads(text)
    elif name.endswith((".yaml", ".yml")):
        data = YAML(typ="safe", pure=True).load(text)
    elif name.endswith(".json"):
        data = json.loads(text)
    else:
        return text.replace("\r\n", "\n")
    data = data.get("agents", {"clerk": data})["clerk"]
    assert data["x"] == 1
    return str(data["system_prompt"])


EDITS: list[tuple[str, dict[str, Any], str]] = [
    ("patch_system_prompt", {"diff": DIFF}, PROMPT.replace("brief", "exact")),
    ("patch_system_prompt", {"search": "Be brief.", "replace": 'Be "exact".\nAlways say so.'},
     PROMPT.replace("Be brief.", 'Be "exact".\nAlways say so.')),
    ("replace_system_prompt", {"prompt": "New.\n  Indented: # é\n\nEnd.\n"},
     "New.\n  Indented: # é\n\nEnd.\n"),
]  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("op", "payload", "after"), EDITS)
def test_a_prompt_is_edited_in_its_place(
    tmp_path: Path, place: str, op: str, payload: dict[str, Any], after: str
) -> None:
    root = write_files(tmp_path, PLACES[place])
    edit = an_edit(op, "agents.clerk", agent="clerk", **payload)
    (change,) = changes_of(root, edit)
    assert change.after is not None
    text = change.after.decode()
    assert prompt_in(change.path, text) == after
    before = (root / change.path).read_bytes()
    assert (b"\r\n" in before) == ("\r\n" in text)
    assert "\n" not in text.replace("\r\n", "") or b"\r\n" not in before
    # A second time it is a no-op.
    write_files(tmp_path, {change.path: change.after})
    assert changes_of(root, edit) == []


def test_a_yaml_block_keeps_its_style_and_the_text_after_it(tmp_path: Path) -> None:
    root = write_files(tmp_path, PLACES["yaml block"])
    before = (root / "a.yaml").read_text()
    edit = an_edit("patch_system_prompt", "agents.clerk", agent="clerk", diff=DIFF)
    assert text_after(root, edit) == before.replace("brief", "exact")


def test_a_diff_applies_to_a_prompt_without_a_final_newline(tmp_path: Path) -> None:
    root = write_files(tmp_path, {
        "a.json": json.dumps({"agents": {"clerk": {"system_prompt": PROMPT.rstrip(), "x": 1}}})
    })  # fmt: skip
    edit = an_edit("patch_system_prompt", "agents.clerk", agent="clerk", diff=DIFF)
    after = prompt_in("a.json", text_after(root, edit))
    assert after == PROMPT.rstrip().replace("brief", "exact")


def test_a_file_keeps_its_final_newline(tmp_path: Path) -> None:
    root = write_files(tmp_path, PLACES["crlf"])
    edit = an_edit("replace_system_prompt", "agents.clerk", agent="clerk", prompt="a\nb")
    assert text_after(root, edit) == "a\r\nb\r\n"


REFUSALS: list[tuple[dict[str, str | bytes], str, dict[str, Any], str]] = [
    (PLACES["prompts"], "patch_system_prompt", {"agent": "clerc", "diff": DIFF},
     "no agent 'clerc'; did you mean 'clerk'"),
    (PLACES["prompts"], "patch_system_prompt",
     {"agent": "clerk", "search": "Be kind.", "replace": ""}, "prompts/clerk.md: .*"),
    (PLACES["prompts"], "patch_system_prompt",
     {"agent": "clerk", "diff": DIFF.replace("brief", "loud")}, "Be loud"),
    (PLACES["prompts"], "patch_system_prompt", {"agent": "clerk", "diff": "Be exact."},
     "no unified diff"),
    ({"a.toml": "[agents.clerk]\n"}, "replace_system_prompt", {"agent": "clerk", "prompt": "x"},
     "has no prompt.*prompts/clerk.md does not exist; set create: true"),
    ({"a.toml": '[agents.clerk]\nsystem_prompt = "a"\nsystem_prompt_file = "b"\n'},
     "replace_system_prompt", {"agent": "clerk", "prompt": "x"}, "keep one"),
    ({"a.toml": '[agents.clerk]\nsystem_prompt_file = "gone.md"\n'}, "replace_system_prompt",
     {"agent": "clerk", "prompt": "x"}, "names gone.md, which does not exist"),
    ({"a.toml": '[agents.clerk]\nsystem_prompt_file = "../../etc/passwd"\n'},
     "replace_system_prompt", {"agent": "clerk", "prompt": "x"}, "out of the root"),
]  # fmt: skip


@pytest.mark.parametrize(("files", "op", "payload", "message"), REFUSALS)
def test_refusals_explain_the_problem(
    tmp_path: Path, files: dict[str, str | bytes], op: str, payload: dict[str, Any], message: str
) -> None:
    root = write_files(tmp_path, files)
    with pytest.raises(EditRefused, match=message):
        changes_of(root, an_edit(op, f"agents.{payload['agent']}", **payload))


def test_a_first_prompt_is_created_only_on_demand(tmp_path: Path) -> None:
    root = write_files(tmp_path, {"conf/a.toml": "[agents.clerk]\n"})
    edit = an_edit("replace_system_prompt", "agents.clerk", agent="clerk", prompt="x", create=True)
    (change,) = changes_of(root, edit, config=Path("conf"))
    assert (change.path, change.before, change.after) == ("conf/prompts/clerk.md", None, b"x\n")


@pytest.mark.parametrize(
    "payload", [{}, {"diff": DIFF, "search": "a", "replace": "b"}, {"search": "a"}, {"replace": ""}]
)
def test_a_patch_is_either_a_diff_or_a_replacement(tmp_path: Path, payload: dict[str, Any]) -> None:
    edit = an_edit("patch_system_prompt", "agents.clerk", agent="clerk", **payload)
    assert validation_errors(tmp_path, edit) == ["payload: give either diff, or search and replace"]


# Exemplars

A, B, C = ({"input": name, "output": name.upper()} for name in "abc")
LISTS: dict[str, dict[str, str | bytes]] = {
    "toml array": {
        "a.toml": "[agents.clerk]\nexemplars = [\n  {input = 'a', output = 'A'}, # one\n"
        "  {input = 'b', output = 'B'}, # two\n]\n"
    },
    "toml tables": {
        "a.toml": "[[agents.clerk.exemplars]]\ninput = 'a'\noutput = 'A' # one\n\n"
        "[[agents.clerk.exemplars]]\ninput = 'b'\noutput = 'B' # two\n"
    },
    "yaml": {
        "a.yaml": "agents:\n  clerk:\n    exemplars:\n    - input: a\n      output: A # one\n"
        "    - {input: b, output: B} # two\n"
    },
    "json": {"a.json": json.dumps({"agents": {"clerk": {"exemplars": [A, B]}}}, indent=2)},
    "json file": {
        "a.toml": "[agents.clerk]\nexemplars_file = 'shots/clerk.json'\n",
        "shots/clerk.json": json.dumps([A, B]),
    },
    "lines": {
        "a.toml": "[agents.clerk]\nexemplars_file = 'shots/clerk.jsonl'\n",
        "shots/clerk.jsonl": f"{json.dumps(A)}\n\n{json.dumps(B)}\n",
    },
}


def exemplars_in(name: str, text: str) -> Any:
    if name.endswith(".toml"):
        return tomllib.loads(text)["agents"]["clerk"]["exemplars"]
    if name.endswith(".yaml"):
        return YAML(typ="safe", pure=True).load(text)["agents"]["clerk"]["exemplars"]
    if name.endswith(".jsonl"):
        return [json.loads(line) for line in text.split("\n") if line]
    data = json.loads(text)
    return data if isinstance(data, list) else data["agents"]["clerk"]["exemplars"]


@pytest.mark.parametrize("place", LISTS)
@pytest.mark.parametrize(
    ("payload", "after"),
    [
        ({"add": C}, [A, B, C]),
        ({"add": [C, A]}, [A, B, C]),  # no duplicates
        ({"remove": 0}, [B]),
        ({"remove": [A]}, [B]),
        ({"remove": [1, A], "add": [C]}, [C]),
        ({"replace": {"at": 0, "with": C}}, [C, B]),
        ({"replace": [{"at": 1, "with": C}], "remove": [0], "add": [A]}, [C, A]),
    ],
)
def test_exemplars_are_added_removed_and_replaced(
    tmp_path: Path, place: str, payload: dict[str, Any], after: list[Any]
) -> None:
    root = write_files(tmp_path, LISTS[place])
    edit = an_edit("edit_few_shot_exemplars", "agents.clerk", agent="clerk", **payload)
    assert validation_errors(root, edit) == []
    (change,) = changes_of(root, edit)
    assert change.after is not None
    assert exemplars_in(change.path, change.after.decode()) == after


def test_comments_of_other_exemplars_stay(tmp_path: Path) -> None:
    for place in ("toml array", "toml tables", "yaml"):
        root = write_files(tmp_path / place, LISTS[place])
        edit = an_edit("edit_few_shot_exemplars", "agents.clerk", agent="clerk", remove=0, add=C)
        text = text_after(root, edit)
        assert "# two" in text
        assert "# one" not in text


def test_adding_existing_exemplars_is_a_no_op(tmp_path: Path) -> None:
    root = write_files(tmp_path, LISTS["json"])
    for payload in ({"add": A}, {"replace": {"at": 1, "with": B}}):
        edit = an_edit("edit_few_shot_exemplars", "agents.clerk", agent="clerk", **payload)
        assert changes_of(root, edit) == []


def test_an_agent_gets_its_first_exemplars(tmp_path: Path) -> None:
    root = write_files(tmp_path, {"a.toml": "[agents.clerk]\nx = 1\n"})
    edit = an_edit("edit_few_shot_exemplars", "agents.clerk", agent="clerk", add=[A, B])
    assert exemplars_in("a.toml", text_after(root, edit)) == [A, B]


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ({"remove": 2}, "no exemplar 2; it has 0 to 1"),
        ({"remove": -1}, "no exemplar -1"),
        ({"remove": C}, "has no exemplar"),
        ({"remove": [0, A]}, "named twice"),
        ({"remove": 0, "replace": {"at": 0, "with": C}}, "named twice"),
        ({"add": "a text"}, "exemplars are tables of input, output, but"),
        ({"add": {"input": "c", "outptu": "C"}}, "retype: true allows it"),
    ],
)
def test_exemplars_that_do_not_fit_are_refused(
    tmp_path: Path, payload: dict[str, Any], message: str
) -> None:
    root = write_files(tmp_path, LISTS["yaml"])
    edit = an_edit("edit_few_shot_exemplars", "agents.clerk", agent="clerk", **payload)
    with pytest.raises(EditRefused, match=message):
        changes_of(root, edit)


def test_an_edit_of_exemplars_needs_an_action(tmp_path: Path) -> None:
    edit = an_edit("edit_few_shot_exemplars", "agents.clerk", agent="clerk", ad=[A])
    assert any("did you mean 'add'" in line for line in validation_errors(tmp_path, edit))
    edit = an_edit("edit_few_shot_exemplars", "agents.clerk", agent="clerk")
    assert validation_errors(tmp_path, edit) == ["payload: give add, remove or replace"]
