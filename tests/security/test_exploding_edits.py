"""Edits that would crash or stall the process that applies them are refused, one by one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from mulligan.policies.edits.edit import Edit, EditOutcome, EditPlan, EditRiskTier, tier_of
from mulligan.policies.edits.fit import MisfitHunk, apply_hunks
from mulligan.policies.edits.parse_diff import parse
from mulligan.policies.edits.search_replace import replace_text
from mulligan.policies.edits.session import EditSession, diff_of, records_of
from mulligan.tasks.ports.appliers import FileChange
from mulligan.workers.edits.execute_edits import EditContext, execute_edits
from mulligan.workers.edits.operations import killable_applier
from mulligan.workers.edits.sessions import bounded_diff as bounded_diff_module
from mulligan.workers.edits.sessions.bounded_diff import bounded_diff


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Check that a block that took minutes, or never ended, ends."""
    started = time.monotonic()
    yield
    assert time.monotonic() - started < seconds


def run(root: Path, *edits: Edit, mode: str = "auto") -> list[EditOutcome]:
    context = EditContext(root=root, home=root.parent / "home")
    return execute_edits(edits=edits, ctx=context, autonomy_mode=mode)


def an_edit(edit_id: str, op: str, target: str, **payload: Any) -> Edit:
    return Edit(id=edit_id, op=op, target=target, payload=payload)


def refusal(outcome: EditOutcome) -> str:
    assert outcome.status == "rejected_by_gate", outcome
    return str(outcome.error)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree, and limits that are reached soon."""
    monkeypatch.setattr(killable_applier, "SECONDS", 3.0)
    monkeypatch.setattr(killable_applier, "MEMORY_BYTES", 512 << 20)
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "app.py").write_text("def f():\n    return 1\n\n\ndef g():\n    return 2\n")
    return tree


DEEP = {
    "parentheses": "(" * 5_000 + "1" + ")" * 5_000,
    "attributes": "a" + ".b" * 20_000,
}


@pytest.mark.parametrize("kind", DEEP)
def test_nested_python_ends_an_edit_and_not_its_process(root: Path, kind: str) -> None:
    before = (root / "app.py").read_bytes()
    code = f"def f():\n    return {DEEP[kind]}\n"
    deep, fine = run(
        root,
        an_edit("deep", "edit_python", "app.py", symbol="f", code=code),
        an_edit("fine", "edit_python", "app.py", symbol="g", code="def g():\n    return 3\n"),
    )
    assert refusal(deep)
    assert fine.status == "applied"
    assert (root / "app.py").read_bytes() == before.replace(b"return 2", b"return 3")


def test_nested_python_in_a_file_ends_an_edit_and_not_its_process(root: Path) -> None:
    (root / "deep.py").write_text(f"x = {DEEP['parentheses']}\n\n\ndef f():\n    pass\n")
    code = "def f():\n    return 1\n"
    (outcome,) = run(root, an_edit("e", "edit_python", "deep.py", symbol="f", code=code))
    assert refusal(outcome)


def test_hundreds_of_misfitting_hunks_are_refused_at_once() -> None:
    text = "".join(f"line number {n} of the file\n" for n in range(20_000))
    diff = "--- a/f\n+++ b/f\n" + "".join(
        f"@@ -{n},2 +{n},2 @@\n misfit {n}\n-removed {n}\n+added {n}\n" for n in range(1, 401)
    )
    (patch,) = parse(diff).files
    with within(10), pytest.raises(MisfitHunk) as caught:
        apply_hunks(text, patch.hunks)
    assert len(caught.value.problems) == 400
    assert "Nearest lines" in caught.value.problems[0]


def test_a_diff_that_fits_nearly_everywhere_is_stopped(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mulligan.workers.edits.operations.git_patch.SECONDS", 1.0)
    (root / "a.txt").write_text("a\n" * 200_000)
    diff = "--- a/a.txt\n+++ b/a.txt\n@@ -1,3 +1,3 @@\n" + " a\n" * 100_000 + "-b\n+c\n"
    with within(30):
        (outcome,) = run(root, an_edit("e", "patch_file", "a.txt", diff=diff))
    assert "takes longer than 1 s" in refusal(outcome)


@pytest.mark.parametrize(
    ("text", "search"), [("a\n" * 200_000, "a"), ("a" * 200_000, "a" * 100_000)]
)
def test_a_search_text_that_occurs_everywhere_is_refused_at_once(text: str, search: str) -> None:
    with within(10), pytest.raises(MisfitHunk, match="occurs at least 1000 times"):
        replace_text(text, search, "b")


LAUGHS = "a: &a [x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
    for before, name in zip("abcdefghi", "bcdefghij", strict=True)
)
CONFIGS = {
    "aliases.yaml": LAUGHS + "models: {small: {temperature: 0.5, all: *j}}\n",
    "nested.yaml": "models: {small: {temperature: " + "[" * 5_000 + "]" * 5_000 + "}}\n",
    "nested.toml": "[models.small]\ntemperature = 0.5\nx = " + "[" * 20_000 + "]" * 20_000 + "\n",
    "nested.json": '{"models": {"small": {"temperature": ' + "[" * 50_000 + "]" * 50_000 + "}}}",
    "numbers.toml": "[models.small]\ntemperature = 0.5\nx = " + "9" * 100_000 + "\n",
    "numbers.json": '{"models": {"small": {"temperature": ' + "9" * 100_000 + "}}}",
    "keys.toml": "[models.small]\ntemperature = 0.5\n[" + ".".join(["a"] * 20_000) + "]\n",
    "cyclic.yaml": "models: &m {small: {temperature: 0.5, again: *m}}\n",
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_configuration_that_explodes_is_refused(root: Path, name: str) -> None:
    (root / name).write_text(CONFIGS[name])
    payload = {"model": "small", "param": "temperature", "value": 0.2}
    with within(30):
        (outcome,) = run(root, an_edit("e", "set_model_param", "models.small", **payload))
    assert refusal(outcome)
    assert (root / name).read_text() == CONFIGS[name]


DIFFS = {
    "a count of 5,000 digits": f"--- a/f\n+++ b/f\n@@ -1,{'9' * 5_000} +1 @@\n-a\n+b\n",
    "a header of many words": "diff --git "
    + " ".join(f"a/{n}" for n in range(100_000))
    + "\n--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n",
    "a name that is half a pair": '--- "a/\ud800"\n+++ "b/\ud800"\n@@ -1 +1 @@\n-a\n+b\n',
    "signatures": "--- a/f\n+++ b/f\n@@ -1 +1 @@\n" + "-- \n" * 50_000,
    "five megabytes": "--- a/f\n+++ b/f\n@@ -1 +1 @@\n" + "-a\n" * 1_600_000,
    "no diff": "\0" * 100_000,
}


@pytest.mark.parametrize("kind", DIFFS)
def test_the_tier_of_any_diff_is_found_soon(kind: str) -> None:
    with within(10):
        tier = tier_of(Edit(id="e", op="patch_file", target="f", payload={"diff": DIFFS[kind]}))
    assert tier is (EditRiskTier.REVIEW if kind == "five megabytes" else EditRiskTier.AUTO)


def test_a_binary_patch_that_unpacks_to_terabytes_is_refused(root: Path) -> None:
    diff = (
        "diff --git a/b.bin b/b.bin\nindex 0000000..1111111 100644\nGIT binary patch\n"
        "delta 20\nccmZQzVPIfjWMXDvWo2UnVn7HK0RR9100000\n\ndelta 0\n\n"
    )
    (root / "b.bin").write_bytes(b"\0\1")
    with within(30):
        (outcome,) = run(root, an_edit("e", "patch_file", "b.bin", diff=diff))
    assert refusal(outcome)


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("levels", [90, 150, 197, 240, 800, 5_000])
def test_every_plan_that_is_accepted_can_be_stored_and_read(levels: int) -> None:
    edit = Edit(id="e", op="write_file", target="f", payload={"content": nested(levels)})
    if levels > 90:
        with pytest.raises(ValidationError, match="nested too deeply"):
            EditPlan(edits=(edit,))
        return
    plan = EditPlan(edits=(edit,))
    now = datetime.now(UTC)
    session = EditSession.model_validate(
        {"id": "s", "host": "h", "root": "/", "mode": "auto", "records": records_of(plan.edits)}
        | {"created_at": now, "updated_at": now}
    )
    assert EditSession.model_validate_json(session.model_dump_json()) == session


def test_a_file_whose_name_is_not_unicode_can_be_edited_and_stored(root: Path) -> None:
    diff = '--- /dev/null\n+++ "b/\\377.txt"\n@@ -0,0 +1 @@\n+a\n'
    now = datetime.now(UTC)
    edit = an_edit("e", "patch_file", ".", diff=diff)
    (outcome,) = run(root, edit)
    assert outcome.status == "applied"
    assert (root / "\udcff.txt").read_text() == "a\n"
    (again,) = run(root, an_edit("f", "search_replace", "ÿ.txt", search="b", replace="c"))
    assert refusal(again)
    session = EditSession(
        id="s", host="h", root="/", mode="auto", records=records_of([edit]),
        created_at=now, updated_at=now,
    )  # fmt: skip
    diff = diff_of("\udcff.txt", None, b"a\n")
    stored = session.decided(0, again).recorded(0, diff=session.fitting(diff))
    assert EditSession.model_validate_json(stored.model_dump_json()) == stored


@pytest.mark.parametrize("op", ["write_file", "search_replace", "patch_file", "edit_python"])
def test_half_a_surrogate_pair_is_refused(root: Path, op: str) -> None:
    texts = {
        "write_file": {"content": "\ud800"},
        "search_replace": {"search": "return 1", "replace": "\ud800"},
        "patch_file": {"diff": "--- a/app.py\n+++ b/app.py\n@@ -1 +1 @@\n-def f():\n+\ud800\n"},
        "edit_python": {"symbol": "f", "code": "def f():\n    return '\ud800'\n"},
    }
    before = (root / "app.py").read_bytes()
    (outcome,) = run(root, an_edit("e", op, "app.py", **texts[op]))
    assert refusal(outcome)
    assert (root / "app.py").read_bytes() == before


def test_a_diff_for_people_takes_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_diff_module, "_SECONDS", 1.0)
    before = "".join(f"line {n}\n" for n in range(30_000))
    after = "".join(f"line {n}\n" if n % 2 else f"other {n}\n" for n in range(30_000))
    change = FileChange(path="f", before=before.encode(), after=after.encode())
    with within(20):
        diff = bounded_diff([change], {})
    assert diff.startswith("--- a/f\n+++ b/f\n@@ -1,29999 +1,29999 @@\n-line 0\n")
    assert diff.count("\n+") == 30_000
