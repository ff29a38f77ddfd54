"""Version 0: a `loop_config` with its `test-state.json` is read, and imported as version 1."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mulligan.console.jobfiles.source_document import read_document
from mulligan.console.loopfiles.import_seed import import_seed
from mulligan.console.loopfiles.inspect_loop import LoopRules, loop_rules
from mulligan.console.loopfiles.loop_file import lint_loop, read_loop
from mulligan.console.loopfiles.migrations import migrate
from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.settings.model import load_settings

CONFIG = {
    "name": "loop-1-critical-path",
    "specs_dir": "specs",
    "test_state_file": "test-state.json",
    "model": "claude-opus-4-5-20251101",
    "max_attempts": 3,
    "priority": 1,
    "auto_heal": False,
}
TESTS: dict[str, dict[str, Any]] = {
    "CP-SPEC-001": {"status": "passed", "attempts": 1, "description": "Parse ${x}.\nAll of it."},
    "CP-SPEC-002": {"status": "blocked", "attempts": 3, "title": "Print", "notes": "flaky",
                    "dependsOn": ["CP-SPEC-001"], "passCriteria": "prints"},
    "CP-SPEC-003": {"status": "skipped", "name": "Sum", "dependencies": None, "priority": 2},
}  # fmt: skip


@pytest.fixture(scope="module", name="rules")
def _rules() -> LoopRules:
    runner = {"kind": "scripted", "answers": ["{}"]}
    return loop_rules(load_settings(runners={"claude-opus-4-5-20251101": runner}))


def write(folder: Path, config: Any = CONFIG, tests: Any = TESTS) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "test-state.json").write_text(json.dumps({"tests": tests, "updated": "today"}))
    (folder / "loop_config.json").write_text(json.dumps(config))
    return str(folder / "loop_config.json")


def test_importing_writes_what_is_known_and_lint_names_the_rest(
    tmp_path: Path, rules: LoopRules
) -> None:
    to = tmp_path / "new"
    written = import_seed(write(tmp_path / "old"), to)
    assert written == [to / "loop.yaml", to / "specs" / "test-state.yaml"]
    assert written[0].read_text().startswith("# Imported from loop_config.json.\n")
    assert "give each item `verifiers`" in written[1].read_text()
    _, found = lint_loop(str(to), parameters={}, environment={}, rules=rules)
    assert [str(each).replace(f"{to}/", "") for each in found] == [
        "specs/test-state.yaml:6: items[0].verifiers: is required",
        "specs/test-state.yaml:10: items[1].verifiers: is required",
        "specs/test-state.yaml:17: items[2].verifiers: is required",
    ]


def test_an_imported_loop_runs_as_soon_as_its_items_have_verifiers(
    tmp_path: Path, rules: LoopRules
) -> None:
    checked = {name: {**test, "verifiers": ["json.object"]} for name, test in TESTS.items()}
    to = tmp_path / "new"
    import_seed(write(tmp_path / "old", tests=checked), to)
    loop = read_loop(str(to), parameters={}, environment={}, rules=rules)
    assert (loop.loop.name, loop.loop.priority) == ("loop-1-critical-path", 1)
    assert loop.states == {"CP-SPEC-001": "passed", "CP-SPEC-003": "skipped"}
    first, second, third = loop.items
    assert first.prompt == "Parse ${x}.\nAll of it."
    assert (second.title, second.depends_on) == ("Print", ("CP-SPEC-001",))
    assert second.pass_criteria == ("prints",)
    assert (third.prompt, third.depends_on, third.priority) == ("Sum", (), 2)


def test_files_of_version_0_are_read_where_they_are(tmp_path: Path, rules: LoopRules) -> None:
    checked = [{"id": name, **test, "verifiers": ["json.object"]} for name, test in TESTS.items()]
    path = write(tmp_path, config={"loop_config": CONFIG}, tests=checked)
    loop = read_loop(path, parameters={}, environment={}, rules=rules)
    assert [item.id for item in loop.items] == list(TESTS)


def test_a_state_file_alone_is_imported_under_the_name_of_its_folder(tmp_path: Path) -> None:
    write(tmp_path / "old")
    loop, _ = import_seed(str(tmp_path / "old" / "test-state.json"), tmp_path / "new")
    assert read_document(str(loop)).data["name"] == "old"


def test_a_path_of_another_host_means_the_file_beside_the_configuration(tmp_path: Path) -> None:
    config = {**CONFIG, "test_state_file": "/home/ada/loop/test-state.json"}
    assert len(import_seed(write(tmp_path / "old", config=config), tmp_path / "new")) == 2


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    source = write(tmp_path / "old")
    import_seed(source, tmp_path / "new")
    (tmp_path / "new" / "loop.yaml").unlink()
    with pytest.raises(BadInput, match=r"test-state.yaml exists; nothing was written"):
        import_seed(source, tmp_path / "new")
    assert not (tmp_path / "new" / "loop.yaml").exists()


@pytest.mark.parametrize("text", ["[]", "{}", '{"jobs": []}', "", "{"])
def test_another_file_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(BadInput, match=r"x\.json"):
        import_seed(str(tmp_path / "x.json"), tmp_path / "new")


def test_the_current_version_is_left_as_it_is() -> None:
    assert migrate({"version": 1, "tests": 3}, "spec") == ({"version": 1, "tests": 3}, [])


TEXT = st.text(st.characters(blacklist_categories=("Cs", "Cc")) | st.sampled_from("\n\t $"))


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(prompt=TEXT.filter(bool))
def test_every_text_survives_the_import(prompt: str, tmp_path: Path, rules: LoopRules) -> None:
    test = {"id": "A", "prompt": prompt, "verifiers": ["json.object"]}
    source = write(tmp_path / "old", tests=[test])
    for old in (tmp_path / "new" / "loop.yaml", tmp_path / "new" / "specs" / "test-state.yaml"):
        old.unlink(missing_ok=True)
    import_seed(source, tmp_path / "new")
    loop = read_loop(str(tmp_path / "new"), parameters={}, environment={}, rules=rules)
    assert loop.items[0].prompt == prompt
