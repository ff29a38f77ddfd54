"""The plug-in for users' tests, used as a user would."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mulligan.policies.edit import Edit
from mulligan.policies.failure import VerificationResult, VerificationStatus
from mulligan.policies.job import Output
from mulligan.tasks.edit_ports import ApplyContext, Change, Validation
from mulligan.tasks.ports import Candidate, Request
from mulligan.testing import (
    NO_MODELS,
    InMemoryStack,
    assert_repaired,
    check_applier,
    check_runner,
    check_verifier,
)
from mulligan.workers.edits.registry import default_registry
from mulligan.workers.runners.scripted import ScriptedRunner
from mulligan.workers.verifiers.json_object import JsonObject

SCHEMA = {"type": "object", "required": ["age"], "properties": {"age": {"type": "integer"}}}


def test_a_wrong_answer_is_repaired_in_memory(mulligan_stack: InMemoryStack) -> None:
    verifiers = ["json.object", {"id": "contract.schema", "schema": SCHEMA}]
    job = mulligan_stack.run(
        {"prompt": "Extract the age.", "verifiers": verifiers},
        answers=['{"age": "31"}', '{"age": 31}'],
    )
    assert_repaired(job, by="constrained", attempts=2)


def test_what_needed_no_repair_or_failed_is_not_called_repaired(
    mulligan_stack: InMemoryStack,
) -> None:
    with pytest.raises(AssertionError, match="needed no repair"):
        assert_repaired(mulligan_stack.run("Say {}", answers=["{}"]))
    with pytest.raises(AssertionError, match="escalated"):
        assert_repaired(mulligan_stack.run("Say {}", answers=["nonsense"]))


def test_a_test_calls_no_model_unless_it_asks_to(mulligan_stack: InMemoryStack) -> None:
    assert os.environ[NO_MODELS]
    runner = {"kind": "openai", "base_url": "http://127.0.0.1:9/v1", "model": "m"}
    job = mulligan_stack.run({"prompt": "Say {}", "runner": runner})
    assert job.state == "escalated"
    assert "real_models" in (job.detail or "")


@pytest.mark.real_models
def test_a_test_may_ask_to() -> None:
    assert NO_MODELS not in os.environ


class Fickle:
    """Fails differently each time: a plug-in that would never be stopped as a repetition."""

    slow = False
    count = 0

    def verify(self, candidate: Candidate) -> VerificationResult:
        self.count += 1
        good = candidate.text == "good"
        return VerificationResult(
            status=VerificationStatus.PASS if good else VerificationStatus.FAIL,
            verifier_id="fickle",
            summary="no",
            evidence={"kind": "test_failed", "failed": [{"nodeid": f"test_{self.count}"}]},
        )


def test_the_contract_of_a_verifier() -> None:
    check_verifier(JsonObject(), good="{}", bad="nonsense")
    with pytest.raises(AssertionError, match="refuses the good answer"):
        check_verifier(JsonObject(), good="nonsense", bad="nonsense")
    with pytest.raises(AssertionError, match="same signature"):
        check_verifier(Fickle(), good="good", bad="bad")


class Nameless:
    provider = ""

    def answer(self, request: Request) -> Output:
        return Output(text="hello")


def test_the_contract_of_a_runner() -> None:
    runner = ScriptedRunner.from_options({"answers": ["hello"]})
    assert check_runner(runner).text == "hello"
    with pytest.raises(AssertionError, match="provider"):
        check_runner(Nameless())


class Greedy:
    """Writes by itself, and appends once more each time."""

    op = "greedy"

    def __init__(self, *, writes: bool) -> None:
        self.writes = writes

    def validate(self, edit: Edit, ctx: ApplyContext) -> Validation:
        return Validation(ok=True)

    def changes(self, edit: Edit, ctx: ApplyContext) -> list[Change]:
        path = ctx.root / edit.target
        before = path.read_bytes()
        if self.writes:
            path.write_bytes(before + b"!")
        return [Change(path=edit.target, before=before, after=before + b"!")]


def test_the_contract_of_an_applier(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n")
    edit = Edit(
        id="e", op="search_replace", target="a.txt", payload={"search": "one", "replace": "two"}
    )
    applier = default_registry().get("search_replace")
    check_applier(applier, edit, root=tmp_path, expect={"a.txt": b"two\n"})
    greedy = edit.model_copy(update={"op": "greedy"})
    expect = {"a.txt": b"two\n!"}
    with pytest.raises(AssertionError, match="must only read"):
        check_applier(Greedy(writes=True), greedy, root=tmp_path, expect=expect)
    (tmp_path / "a.txt").write_text("two\n")
    with pytest.raises(AssertionError, match="done twice"):
        check_applier(Greedy(writes=False), greedy, root=tmp_path, expect=expect)
