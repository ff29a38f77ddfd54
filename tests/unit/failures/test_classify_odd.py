"""Classification of malformed exceptions and of exit codes and signals."""

from __future__ import annotations

import json
import subprocess
from typing import Any, NoReturn

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from mulligan.policies.failures.classify import classify_failure, message_of
from mulligan.policies.failures.failure import (
    FailureKind,
    FailureRecord,
    VerificationResult,
    VerificationStatus,
    failure_record_from_dict,
    failure_record_to_dict,
)
from mulligan.policies.failures.memory import RetryMemory
from mulligan.policies.jobs.job import AttemptPlan, Job
from mulligan.policies.repair.instruction import reduce_failure_to_repair
from mulligan.policies.repair.retry import Retry
from mulligan.policies.repair.verdict import judge_error


class Unprintable:
    """A value whose text cannot be read."""

    def __str__(self) -> NoReturn:
        raise RuntimeError("no text")


class UnprintableError(Exception):
    """An exception whose text and status cannot be read."""

    __str__ = Unprintable.__str__

    @property
    def status(self) -> NoReturn:
        raise OSError("not connected")


def classify(payload: object) -> FailureRecord:
    return classify_failure(payload, source="task")


def with_attributes(error: BaseException, attributes: dict[str, object]) -> BaseException:
    for name, value in attributes.items():
        setattr(error, name, value)
    return error


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9)
    | st.binary(max_size=9) | st.builds(Unprintable) | st.builds(object),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner)
    | st.dictionaries(st.text(max_size=5) | st.integers() | st.builds(Unprintable), inner),
    max_leaves=6,
)  # fmt: skip
CLASSES: tuple[type[BaseException], ...] = (
    Exception, UnprintableError, KeyError, ImportError, SyntaxError, FileNotFoundError, OSError,
    AssertionError, SystemExit, TimeoutError, RecursionError,
)  # fmt: skip
#: Attributes that classification reads, and that any class may set to any value.
NAMES = ("exit_code", "returncode", "signal", "argv", "cmd", "stderr", "stdout", "status_code",
         "http_status", "code", "provider", "retry_after", "evidence", "msg")  # fmt: skip


@settings(deadline=None, max_examples=300)
@given(
    st.sampled_from(CLASSES),
    st.lists(VALUES, max_size=1),
    st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=4),
    st.dictionaries(st.sampled_from(["exit_code", "kind", "status", "failed", "timed_out"]), VALUES,
                    max_size=3),
)  # fmt: skip
@example(Exception, [], {"exit_code": "E42"}, {})
@example(Exception, [], {"returncode": [1]}, {})
@example(UnprintableError, [], {}, {"exit_code": -9, "signal": None})
def test_any_exception_becomes_a_record_that_survives_json(
    kind: type[BaseException],
    args: list[object],
    attributes: dict[str, object],
    evidence: dict[str, object],
) -> None:
    error = with_attributes(kind(*args), {"evidence": evidence, **attributes})
    record = classify(error)
    assert record.message
    assert reduce_failure_to_repair(record).prompt_suffix
    stored = json.dumps(failure_record_to_dict(record), allow_nan=False)
    assert failure_record_from_dict(json.loads(stored)) == record


@pytest.mark.parametrize(
    ("error", "path"),
    [
        (ImportError("no", name=5), None),  # type: ignore[arg-type]
        (FileNotFoundError(2, "no", 7), None),
        (SyntaxError("bad", (b"m.py", 3, 1, "x")), None),  # type: ignore[arg-type]
        (KeyError(Unprintable()), ""),
    ],
)
def test_a_place_that_is_not_text_is_left_out(error: BaseException, path: str | None) -> None:
    places = [finding.path for finding in classify(error).findings]
    assert places == ([] if path is None else [path])


def test_an_unprintable_input_still_breaks_the_contract() -> None:
    class Person(BaseModel):
        age: int

    with pytest.raises(ValidationError) as caught:
        Person.model_validate({"age": Unprintable()})
    record = classify(caught.value)
    assert (record.kind, record.cause) == (FailureKind.SCHEMA_INVALID, "type")
    empty = ValidationError.from_exception_data("Person", [])
    assert classify(empty).kind is FailureKind.SCHEMA_INVALID


def test_a_malformed_error_of_a_runner_is_an_ordinary_failure() -> None:
    """It once killed the attempt and was reported as a lost worker."""
    job = Job.model_validate(
        {"task_type": "t", "prompt": "p", "runner": "small", "verifiers": ["json.object"]}
    )
    error = with_attributes(UnprintableError(), {"exit_code": "E42"})
    assert isinstance(error, Exception)
    verdict = judge_error(job, AttemptPlan(), error, RetryMemory())
    assert isinstance(verdict.decision, Retry)
    assert verdict.failure is not None
    assert verdict.failure.evidence["exit_code"] == "E42"


def test_a_number_too_long_to_print_is_left_out() -> None:
    record = classify(with_attributes(Exception("x"), {"code": 10**5000, "errno": 2**70}))
    assert record.evidence == {"exception": "Exception", "code": "", "errno": str(2**70)}


def test_an_exception_without_text_is_named_by_its_class() -> None:
    assert message_of(UnprintableError()) == "UnprintableError"
    assert message_of(ValueError()) == "ValueError"
    assert message_of(ValueError("odd")) == "odd"


# -- exit codes and signals -----------------------------------------------------------------------

KILLED = {"argv": ["make"]}


@pytest.mark.parametrize(
    "payload",
    [
        {**KILLED, "exit_code": -9},
        {**KILLED, "returncode": -9},
        {**KILLED, "evidence": {"exit_code": -9, "signal": None}},
        {**KILLED, "signal": 9},
        subprocess.CalledProcessError(-9, ["make"]),
    ],
)
def test_a_signal_is_recognised_in_every_form(payload: Any) -> None:
    record = classify(payload)
    assert (record.kind, record.cause) == (FailureKind.COMMAND_FAILED, "signal")
    assert record.evidence["signal"] == 9
    assert "exit_code" not in record.evidence
    assert record.classification_signature == (
        classify({**KILLED, "signal": 9}).classification_signature
    )


def test_a_signal_in_the_evidence_of_a_verifier_is_recognised() -> None:
    result = VerificationResult(
        status=VerificationStatus.FAIL,
        verifier_id="command.subprocess",
        evidence={"exit_code": -11},
    )
    assert (classify(result).cause, classify(result).evidence) == ("signal", {"signal": 11})


@pytest.mark.parametrize(
    ("code", "status"),
    [(3, 3), (None, 0), ("no such file", 1), (-9, 247), (True, 1), (Unprintable(), 1)],
)
def test_system_exit_has_the_exit_status_of_its_process(code: Any, status: int) -> None:
    record = classify(SystemExit(code))
    assert (record.kind, record.cause) == (FailureKind.COMMAND_FAILED, "exit")
    assert record.evidence == {"exception": "SystemExit", "exit_code": status}
    assert f"exit code {status}" in reduce_failure_to_repair(record).prompt_suffix
