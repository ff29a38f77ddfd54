"""Classification of exceptions as odd as code in the wild raises them, and of how programs end."""

from __future__ import annotations

import json
import subprocess
from typing import Any, NoReturn

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from mulligan.policies.failures.classify import classify_failure, said_by
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


class Mute:
    """A value that cannot be shown."""

    def __str__(self) -> NoReturn:
        raise RuntimeError("no text")


class MuteError(Exception):
    """An exception that cannot say what happened, and whose status is a request that fails."""

    __str__ = Mute.__str__

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
    | st.binary(max_size=9) | st.builds(Mute) | st.builds(object),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner)
    | st.dictionaries(st.text(max_size=5) | st.integers() | st.builds(Mute), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
CLASSES: tuple[type[BaseException], ...] = (
    Exception, MuteError, KeyError, ImportError, SyntaxError, FileNotFoundError, OSError,
    AssertionError, SystemExit, TimeoutError, RecursionError,
)  # fmt: skip
#: Attributes that structure is read from, and which any class may have set to anything.
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
@example(MuteError, [], {}, {"exit_code": -9, "signal": None})
def test_any_exception_becomes_a_record_that_reads_back(
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
        (KeyError(Mute()), ""),
    ],
)
def test_a_place_is_text_or_it_is_none(error: BaseException, path: str | None) -> None:
    places = [finding.path for finding in classify(error).findings]
    assert places == ([] if path is None else [path])


def test_an_input_that_cannot_be_shown_is_still_a_broken_contract() -> None:
    class Person(BaseModel):
        age: int

    with pytest.raises(ValidationError) as caught:
        Person.model_validate({"age": Mute()})
    record = classify(caught.value)
    assert (record.kind, record.cause) == (FailureKind.SCHEMA_INVALID, "type")
    empty = ValidationError.from_exception_data("Person", [])
    assert classify(empty).kind is FailureKind.SCHEMA_INVALID


def test_an_odd_error_of_a_runner_is_a_failure_like_any_other() -> None:
    """It once killed the attempt, and was told as a lost worker."""
    job = Job.model_validate(
        {"task_type": "t", "prompt": "p", "runner": "small", "verifiers": ["json.object"]}
    )
    odd = with_attributes(MuteError(), {"exit_code": "E42"})
    assert isinstance(odd, Exception)
    verdict = judge_error(job, AttemptPlan(), odd, RetryMemory())
    assert isinstance(verdict.decision, Retry)
    assert verdict.failure is not None
    assert verdict.failure.evidence["exit_code"] == "E42"


def test_a_number_that_python_does_not_print_is_left_out() -> None:
    record = classify(with_attributes(Exception("x"), {"code": 10**5000, "errno": 2**70}))
    assert record.evidence == {"exception": "Exception", "code": "", "errno": str(2**70)}


def test_what_says_nothing_is_called_by_its_class() -> None:
    assert said_by(MuteError()) == "MuteError"
    assert said_by(ValueError()) == "ValueError"
    assert said_by(ValueError("odd")) == "odd"


# -- how programs end -----------------------------------------------------------------------------

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
def test_a_signal_is_one_in_whatever_form_it_comes(payload: Any) -> None:
    record = classify(payload)
    assert (record.kind, record.cause) == (FailureKind.COMMAND_FAILED, "signal")
    assert record.evidence["signal"] == 9
    assert "exit_code" not in record.evidence
    assert record.classification_signature == (
        classify({**KILLED, "signal": 9}).classification_signature
    )


def test_a_verifier_s_is_one_too() -> None:
    result = VerificationResult(
        status=VerificationStatus.FAIL,
        verifier_id="command.subprocess",
        evidence={"exit_code": -11},
    )
    assert (classify(result).cause, classify(result).evidence) == ("signal", {"signal": 11})


@pytest.mark.parametrize(
    ("code", "status"), [(3, 3), (None, 0), ("no such file", 1), (-9, 247), (True, 1), (Mute(), 1)]
)
def test_an_exit_has_the_status_of_its_process(code: Any, status: int) -> None:
    record = classify(SystemExit(code))
    assert (record.kind, record.cause) == (FailureKind.COMMAND_FAILED, "exit")
    assert record.evidence == {"exception": "SystemExit", "exit_code": status}
    assert f"exit code {status}" in reduce_failure_to_repair(record).prompt_suffix
