"""``edits.plan`` tries a model's plan on a copy; its mistakes go into the next prompt."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.doubles import fake_blobs
from support.jobs import failure_of

from mulligan.policies.failures.failure import VerificationResult
from mulligan.policies.jobs.job import Output, VerifierSpec, Workspace
from mulligan.tasks.ports.errors import BadInput
from mulligan.tasks.ports.verifiers import Candidate
from mulligan.testing import InMemoryStack, assert_repaired
from mulligan.workers.sandbox.workspace import pack
from mulligan.workers.verifiers.verifier_registry import VerifierRegistry

Verify = Callable[..., VerificationResult]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    root.mkdir()
    (root / "a.txt").write_text("one\ntwo\nthree\n")
    return root


@pytest.fixture
def verify(root: Path) -> Verify:
    """``verify(text, max_edits=3)`` returns the verifier's result for an answer."""
    blobs = fake_blobs()
    workspace = Workspace(snapshot=blobs.put(pack(root, max_bytes=1_000_000)))

    def verify_answer(answer: str, **options: Any) -> VerificationResult:
        spec = VerifierSpec.model_validate({"id": "edits.plan", **options})
        verifier = VerifierRegistry().build(spec, blobs=blobs)
        output = Output(text=answer)
        return verifier.verify(Candidate(output=output, text=answer, workspace=workspace))

    return verify_answer


def replace(name: str, search: str, text: str) -> dict[str, Any]:
    payload = {"search": search, "replace": text}
    return {"id": name, "op": "search_replace", "target": "a.txt", "payload": payload}


def test_edits_are_tried_in_order_without_changing_the_tree(verify: Verify, root: Path) -> None:
    answer = json.dumps({"edits": [replace("e1", "two", "2"), replace("e2", "2\n", "zwei\n")]})
    found = verify(answer)
    assert (found.status, found.errors) == ("pass", ())
    assert (root / "a.txt").read_text() == "one\ntwo\nthree\n"


def test_an_edit_that_does_not_apply_shows_the_nearest_lines(verify: Verify) -> None:
    answer = json.dumps({"edits": [replace("e1", "two", "2"), replace("e2", "tree", "3")]})
    found = verify(answer)
    assert found.status == "fail"
    assert found.score == 50.0
    assert found.evidence == {
        "kind": "missing_context", "edits": 2, "applied": 1, "refused": ["search_replace"],
    }  # fmt: skip
    (error,) = found.errors
    assert error.path == "edits[1] (e2) a.txt"
    assert error.code == "does_not_apply"
    assert "Nearest lines: 3: 'three'" in error.message


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ("I would rather not.", "not_a_plan"),
        ("", "not_a_plan"),
        ('{"edits": []}', "schema"),
        ('{"edits": [{"id": "e1", "op": "write_file"}]}', "schema"),
    ],
)
def test_an_invalid_plan_is_schema_invalid(verify: Verify, answer: str, code: str) -> None:
    found = verify(answer)
    assert (found.status, found.evidence["kind"]) == ("fail", "schema_invalid")
    assert found.errors[0].code == code


def test_a_plan_may_be_fenced_yaml_and_a_no_op_is_a_warning(verify: Verify) -> None:
    found = verify(
        "Here it is:\n\n```yaml\nedits:\n"
        "  - {id: e1, op: write_file, target: b.txt, payload: {content: new}}\n"
        "  - {id: e2, op: search_replace, target: a.txt, payload: {search: one, replace: one}}\n"
        "```\n"
    )
    assert found.status == "pass"
    assert any("edits[1] (e2) a.txt" in warning for warning in found.warnings)


def test_options_limit_a_plan(verify: Verify) -> None:
    answer = json.dumps({"edits": [replace("e1", "two", "2"), replace("e2", "one", "1")]})
    found = verify(answer, operations=["patch_file"])
    assert [error.code for error in found.errors] == ["operation"] * 2
    assert "use one of: patch_file" in found.errors[0].message
    assert "at most 1 are allowed" in verify(answer, max_edits=1).errors[0].message
    escape = json.dumps({"edits": [{"id": "e", "op": "write_file", "target": "../x",
                                    "payload": {"content": ""}}]})  # fmt: skip
    assert verify(escape).status == "fail"
    with pytest.raises(BadInput, match="config"):
        verify(answer, config="../outside")


def test_a_corrected_prompt_leads_to_a_valid_plan(
    root: Path, mulligan_stack: InMemoryStack
) -> None:
    wrong = json.dumps({"edits": [replace("e1", "tree", "3")]})
    right = json.dumps({"edits": [replace("e1", "three", "3")]})
    job = {
        "task_type": "tidy",
        "prompt": "Replace the third word.",
        "workspace": {"path": str(root)},
        "verifiers": ["edits.plan"],
    }
    result = mulligan_stack.run(job, answers=[wrong, right])
    assert_repaired(result, attempts=2)
    first, second = result.attempts
    assert failure_of(first).kind == "missing_context"
    assert "Nearest lines: 3: 'three'" in str(second.plan.prompt)
