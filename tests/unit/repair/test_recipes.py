"""The sentences of every recipe, read mechanically: with nothing known, and with everything."""

from __future__ import annotations

import re

import pytest

from mulligan.policies.failures.failure import FailureKind, FailureRecord, Finding
from mulligan.policies.repair.instruction import corrections_of, reduce_failure_to_repair
from mulligan.policies.repair.recipes import FORMAT_EXAMPLES, RECIPES
from mulligan.workers.verifiers.contract_schema import Contract

CAUSES = [
    (kind, cause) for kind in FailureKind for cause in (None, "truncated", *RECIPES.get(kind, {}))
]
#: What each code's findings carry; other codes carry what ``type`` does.
VALUES: dict[str | None, tuple[object, object]] = {
    "enum": (["red", "blue"], "rot"),
    "format": ("date", "tomorrow"),
    "forbidden": (None, "sorry"),
    "pattern": ("^(bug|feature)$", "It is a bug"),
    "choice": (["bug", "feature"], "It is a bug"),
    "too_long": (3, 9),
    "too_short": (9, 3),
    "minimum": (3, 1),
    "uniqueItems": (True, [1, 1]),
}


def record(
    kind: FailureKind,
    cause: str | None,
    *findings: Finding,
    verifier_id: str | None = None,
    **evidence: object,
) -> FailureRecord:
    message = findings[0].message if findings else f"{kind} without a message"
    return FailureRecord(
        kind=kind,
        cause=cause,
        classification_signature="v1:a",
        coarse_signature="v1:b",
        message=message,
        source="verify" if verifier_id else "task",
        verifier_id=verifier_id,
        findings=findings,
        evidence=evidence,
    )


def full(cause: str | None) -> Finding:
    expected, actual = VALUES.get(cause, ("integer", "31"))
    return Finding(
        message="the result is not what it should be.",
        code=cause,
        path="$.items[0].age",
        schema_path="/properties/items/items/age",
        expected=expected,
        actual=actual,
    )


def empty_and_full(kind: FailureKind, cause: str | None) -> list[FailureRecord]:
    bare = Finding(message="", code=cause)
    return [
        record(kind, cause),
        record(kind, cause, bare),
        record(kind, cause, bare, verifier_id="acme.lint"),
        record(kind, cause, bare.model_copy(update={"path": "$"}), verifier_id="contract.schema"),
        record(kind, cause, full(cause), verifier_id="contract.schema"),
        record(kind, cause, full(cause), verifier_id="a", argv=["make", "x"], exit_code=2,
               stderr_tail="first\nno rule.\n"),
        record(kind, cause, argv=["make"], signal=11, stderr_tail=" \n"),
        record(kind, cause, failed=[{"nodeid": None, "exception": None, "assertion": None}]),
    ]  # fmt: skip


def assert_reads_well(text: str) -> None:
    assert text == text.strip()
    assert text.endswith(".")
    assert text[0].isupper() or text[0] in "$`", text
    for wrong in ("{place", "{message", "{expected", "{actual", "null", "None", "  ", "..", '""',
                  "()", "[]", "``.", ": .", " .", " ,", "the answer must be the answer",
                  " at the answer", "in the answer ("):  # fmt: skip
        assert wrong not in text, f"{wrong!r} in {text!r}"
    assert not re.search(r"\[[^\]]*\|", text), text
    sentences = re.split(r"(?<=\.) (?=[A-Z])", text)
    assert len(sentences) == len(set(sentences)), text


@pytest.mark.parametrize(("kind", "cause"), CAUSES)
def test_every_recipe_reads_well(kind: FailureKind, cause: str | None) -> None:
    for known in empty_and_full(kind, cause):
        instruction = reduce_failure_to_repair(known)
        assert_reads_well(instruction.prompt_suffix)
        assert_reads_well(instruction.minimal_next_step)
        for correction in corrections_of(known):
            if correction.requirement:
                assert_reads_well(correction.requirement)


@pytest.mark.parametrize(("kind", "cause"), CAUSES)
def test_a_requirement_has_nothing_of_the_answer(kind: FailureKind, cause: str | None) -> None:
    if cause == "forbidden":
        return  # it names what the check forbids
    known = record(kind, cause, full(cause).model_copy(update={"actual": "MINE", "message": "ODD"}))
    (correction,) = corrections_of(known)
    assert "MINE" not in correction.requirement
    assert "ODD" not in correction.requirement


def test_the_examples_of_formats_have_their_formats() -> None:
    for name, example in FORMAT_EXAMPLES.items():
        contract = Contract.of({"type": "string", "format": name})
        assert contract.errors(example, 100) == []
        assert contract.errors("no such format", 100) != []
