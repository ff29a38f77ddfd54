"""Signatures: equal for the same failure on any worker, different for different failures."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.policies.failures.classify import classify_failure
from mulligan.policies.failures.failure import (
    FailureKind,
    FailureRecord,
    Finding,
    VerificationResult,
)
from mulligan.policies.failures.mask import MASKS, MAX_INPUT, Level, mask, mask_assertion
from mulligan.policies.failures.signature import (
    decoder_class,
    explain_signature,
    sign,
    signature_parts,
    signatures,
)
from mulligan.policies.jobs.job import Output
from mulligan.tasks.ports.verifiers import Candidate
from mulligan.workers.verifiers.text_match import TextMatch

NUMBER = st.integers(min_value=1, max_value=99_999)
WORD = st.from_regex(r"[a-z]{1,12}", fullmatch=True)


def failed(verifier_id: str, **fields: Any) -> FailureRecord:
    result = VerificationResult.model_validate(
        {"status": "fail", "verifier_id": verifier_id, **fields}
    )
    return classify_failure(result, source="verify")


def pytest_failure(**test: Any) -> FailureRecord:
    entry = {
        "nodeid": "test_bitcount.py::test_zero",
        "exception": "AssertionError",
        "frame": "test_bitcount.py:7: test_zero",
        "assertion": "assert 2 == 0",
        **test,
    }
    evidence = {"exit_code": 1, "timed_out": False, "passed": 2, "collected": 3, "failed": [entry]}
    return failed("pytest.subprocess", summary="1 failed in 0.02s", evidence=evidence)


def command_failure(**evidence: Any) -> FailureRecord:
    facts = {"argv": ["make", "check"], "exit_code": 2, "stderr_tail": "boom", **evidence}
    return failed("command.subprocess", summary="exit 2", evidence=facts)


def schema_failure(*findings: dict[str, Any], contract: str = "c0ffee") -> FailureRecord:
    return failed("contract.schema", evidence={"contract": contract}, errors=list(findings))


AGE = {
    "message": '"31" is not an integer',
    "code": "type",
    "path": "$.people[0].age",
    "schema_path": "/properties/people/items/properties/age/type",
    "expected": "integer",
    "actual": "31",
}


@pytest.mark.parametrize(
    ("level", "text", "masked"),
    [
        (Level.PLACE, "\x1b[1;31mred\x1b[0m", "red"),
        (Level.PLACE, "/usr/lib/python3/site-packages/requests/api.py", "<site>/requests/api.py"),
        (Level.PLACE, "open('/tmp/tmpab12cd34/a/out.json')", "open('<tmp>/out.json')"),
        (Level.PLACE, "/var/folders/x1/T/run-8/out.json", "<tmp>/out.json"),
        (Level.PLACE, "in /tmp/tmpab12cd34", "in <tmp>"),
        (Level.PLACE, "/home/ada/project/a.py", "<home>/project/a.py"),
        (Level.PLACE, "/root/project/a.py", "<home>/project/a.py"),
        (Level.PLACE, "<Foo object at 0x7f3a>", "<Foo object at <addr>>"),
        (Level.PLACE, "id 123e4567-e89b-12d3-a456-426614174000", "id <uuid>"),
        (Level.PLACE, "pid 4711 died", "pid <pid> died"),
        (Level.PLACE, "a/b.py:12:5: oops", "a/b.py: oops"),
        # operands are not places: the compared values stay
        (Level.PLACE, "assert 2 == 0", "assert 2 == 0"),
        (Level.PLACE, "assert '12:30:45' == '5s'", "assert '12:30:45' == '5s'"),
        (Level.NOISE, "commit 3f2a9bc1d0", "commit <hash>"),
        (Level.NOISE, "2024-05-06T07:08:09.123Z up", "<date> up"),
        (Level.NOISE, "in 0.03s and 12 ms", "in <time> and <time>"),
        (Level.NOISE, "10.0.0.1:8080 refused", "<ip> refused"),
        (Level.NOISE, "on port 8080, localhost:9090", "on port <port>, localhost:<port>"),
        (Level.NOISE, 'File "x", line 3, column 9', 'File "x", line <n>, column <n>'),
        (Level.NOISE, "<stdin>:3:1", "<stdin>:<n>"),
        (Level.NOISE, "got 17 of 4.5e3", "got <n> of <n>"),
        # names keep their digits
        (Level.NOISE, "utf8 test_2 python3", "utf8 test_2 python3"),
        (Level.NOISE, "'x' undeclared", "'x' undeclared"),
        (Level.OPERAND, "'x' undeclared", "<value> undeclared"),
    ],
)
def test_a_mask_hides_what_differs_between_runs(level: Level, text: str, masked: str) -> None:
    assert mask(text, level) == masked


def test_the_path_of_a_workspace_is_masked() -> None:
    assert mask("/srv/w/7/a.py:3", roots=["/srv/w/7/", ""]) == "<workspace>/a.py"


@pytest.mark.parametrize("row", MASKS, ids=lambda row: str(row.name))
@pytest.mark.parametrize(
    "seed",
    ["/", "/tmp", "/a", "0", "0x", "a:", "1.", "'", '"', "\x1b[", "-0000", "deadbeef", "12:"],
)
def test_no_mask_takes_quadratic_time(row: Any, seed: str) -> None:
    text = seed * (MAX_INPUT // len(seed))
    started = time.process_time()
    row.pattern.sub(row.replacement, text)
    # A linear mask takes about a millisecond, a quadratic one over 8 KiB a second.
    assert time.process_time() - started < 0.2


def test_a_long_text_is_cut_before_it_is_masked() -> None:
    assert len(mask("x" * 10 * MAX_INPUT)) == MAX_INPUT


@pytest.mark.parametrize(
    ("line", "strict", "coarse"),
    [
        ("assert 2 == 0", "assert 2 == 0", "assert … == …"),
        ("assert 2 == 0\n +  where 2 = f(0)", "assert 2 == 0", "assert … == …"),
        ("E   assert 'a' in ['b']", "assert 'a' in ['b']", "assert … in …"),
        ("assert 'a == b' != 'c'", "assert 'a == b' != 'c'", "assert … != …"),
        ("AssertionError: 2 != 0", "AssertionError: 2 != 0", "AssertionError: … != …"),
        ("assert is_even(3)", "assert is_even(3)", "assert …"),
        ("ValueError: bad 'x' 3", "ValueError: bad 'x' 3", "ValueError: bad <value> <n>"),
        ("assert <A at 0x7f> == 1", "assert <A at <addr>> == 1", "assert … == …"),
    ],
)
def test_assertions_keep_operands_only_in_strict_signatures(
    line: str, strict: str, coarse: str
) -> None:
    assert mask_assertion(line, coarse=False) == strict
    assert mask_assertion(line, coarse=True) == coarse


def test_a_signature_is_versioned_and_short() -> None:
    record = schema_failure(AGE)
    for signature in (record.classification_signature, record.coarse_signature):
        version, _, digest = signature.partition(":")
        assert version == "v2"
        assert len(digest) >= 16
        assert int(digest, 16)


# -- stable ---------------------------------------------------------------------------------------


@given(line=NUMBER, pid=NUMBER, address=NUMBER, folder=WORD, millis=NUMBER, user=WORD)
def test_a_test_failure_is_the_same_on_every_run_and_worker(
    line: int, pid: int, address: int, folder: str, millis: int, user: str
) -> None:
    here = pytest_failure(
        frame=f"/home/{user}/w/test_bitcount.py:{line}: test_zero",
        assertion=f"assert <A at 0x{address:x}> == '/tmp/{folder}/x/out' in pid {pid}\n + where 1",
    )
    there = pytest_failure(
        frame="/home/ada/w/test_bitcount.py:1: test_zero",
        assertion="assert <A at 0x1> == '/tmp/q/x/out' in pid 1",
    )
    assert here.classification_signature == there.classification_signature
    assert here.coarse_signature == there.coarse_signature


@given(line=NUMBER, pid=NUMBER, address=NUMBER, folder=WORD, millis=NUMBER, port=NUMBER)
def test_a_command_failure_is_the_same_on_every_run_and_worker(
    line: int, pid: int, address: int, folder: str, millis: int, port: int
) -> None:
    def failure(line: int, pid: int, address: int, folder: str, millis: int) -> FailureRecord:
        stderr = (
            f"/tmp/{folder}/w/main.c:{line}:{line}: error\n"
            f"[pid {pid}] at 0x{address:x} line {line}, took {millis / 1000}s on port {port}\n"
        )
        argv = [f"/opt/{folder}/bin/make", f"--directory=/tmp/{folder}/w", f"--port={port}"]
        return command_failure(argv=argv, stderr_tail=stderr)

    one = failure(line, pid, address, folder, millis)
    other = failure(1, 1, 1, "q", 1)
    assert one.classification_signature == other.classification_signature


@given(st.permutations(["kind", "exit_code", "argv", "stderr_tail", "signal"]))
def test_the_order_of_keys_does_not_matter(names: list[str]) -> None:
    facts = {
        "kind": "command_failed",
        "exit_code": 3,
        "argv": ["a"],
        "stderr_tail": "b",
        "signal": None,
    }
    shuffled = {name: facts[name] for name in names}
    record = classify_failure(shuffled, source="task")
    assert record.classification_signature == (
        classify_failure(facts, source="task").classification_signature
    )


@given(st.permutations(range(4)))
def test_the_order_of_findings_does_not_matter(order: list[int]) -> None:
    findings = [{**AGE, "path": f"$.f{i}"} for i in range(4)]
    one, other = schema_failure(*findings), schema_failure(*(findings[i] for i in order))
    assert one.classification_signature == other.classification_signature


@given(value=st.text(max_size=20), index=NUMBER)
def test_values_and_indexes_do_not_change_a_schema_signature(value: str, index: int) -> None:
    other = {**AGE, "actual": value, "message": value, "path": f"$.people[{index}].age"}
    assert schema_failure(AGE).classification_signature == (
        schema_failure(other).classification_signature
    )


@given(line=NUMBER, column=NUMBER, char=NUMBER)
def test_the_position_of_a_json_error_does_not_change_its_class(
    line: int, column: int, char: int
) -> None:
    message = f"Expecting ',' delimiter: line {line} column {column} (char {char})"
    assert decoder_class(message) == "Expecting ',' delimiter"


@given(st.integers(min_value=1, max_value=50), st.sampled_from(["task", "verify", "graph"]))
def test_attempt_source_and_node_do_not_change_a_signature(attempt: int, source: Any) -> None:
    payload = {"kind": "tool_error", "status": 503, "provider": "p"}
    one = classify_failure(payload, source="task")
    other = classify_failure(payload, source=source, attempt=attempt, node_id="n")
    assert one.classification_signature == other.classification_signature


def test_the_output_before_a_timeout_does_not_change_a_signature() -> None:
    one = command_failure(timed_out=True, exit_code=None, stderr_tail="at step a")
    other = command_failure(timed_out=True, exit_code=None, stderr_tail="at step b")
    assert one.classification_signature == other.classification_signature


def test_request_ids_do_not_change_the_signature_of_a_tool_error() -> None:
    payload = {"status": 500, "provider": "p", "message": "request req_8f1 failed"}
    one = classify_failure(payload, source="task")
    other = classify_failure({**payload, "message": "request req_9a2 failed"}, source="task")
    assert one.classification_signature == other.classification_signature


# -- different ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "same_coarse"),
    [
        # another test id
        (pytest_failure(), pytest_failure(nodeid="test_bitcount.py::test_one"), False),
        (pytest_failure(nodeid="t.py::t[1]"), pytest_failure(nodeid="t.py::t[2]"), False),
        # another exception, another crash frame
        (pytest_failure(), pytest_failure(exception="TypeError"), False),
        (pytest_failure(), pytest_failure(frame="bitcount.py:3: helper"), False),
        # other operands: progress, but the same kind of failure
        (pytest_failure(), pytest_failure(assertion="assert 1 == 0"), True),
        (pytest_failure(), pytest_failure(assertion="assert [1, 2] == 'x y'"), True),
        # another comparison
        (pytest_failure(), pytest_failure(assertion="assert 2 in 0"), False),
        # forged results are another failure than the same tests failing
        (
            failed("pytest.subprocess", evidence={"failed": [{"nodeid": "a"}]}),
            failed(
                "pytest.subprocess",
                evidence={"failed": [{"nodeid": "a"}]},
                errors=[{"message": "m", "code": "forged"}],
            ),
            False,
        ),
        # another place, keyword or contract
        (schema_failure(AGE), schema_failure({**AGE, "path": "$.people[0].name"}), False),
        (schema_failure(AGE), schema_failure({**AGE, "schema_path": "/other"}), False),
        (schema_failure(AGE), schema_failure({**AGE, "code": "minimum"}), False),
        (schema_failure(AGE), schema_failure(AGE, contract="decade"), True),
        (schema_failure(AGE), schema_failure(AGE, {**AGE, "path": "$.x"}), False),
        # another end of the command
        (command_failure(), command_failure(exit_code=3), False),
        (command_failure(), command_failure(exit_code=None, signal=9), False),
        (command_failure(), command_failure(argv=["make", "test"]), False),
        (command_failure(), command_failure(stderr_tail="bang"), False),
        # other operands in the output of a command: progress, too
        (
            command_failure(stderr_tail="AssertionError: 2 != 0"),
            command_failure(stderr_tail="AssertionError: 1 != 0"),
            True,
        ),
    ],
)
def test_different_failures_have_different_signatures(
    one: FailureRecord, other: FailureRecord, same_coarse: bool
) -> None:
    assert one.classification_signature != other.classification_signature
    assert (one.coarse_signature == other.coarse_signature) is same_coarse


def complaint(message: str, **fields: Any) -> FailureRecord:
    """Return the failure of a check whose finding has a code and no place."""
    finding = {"message": message, "code": "by_hand", **fields.pop("finding", {})}
    return failed("own.check", evidence={"kind": "reasoning_error"}, errors=[finding], **fields)


@pytest.mark.parametrize("kind", list(FailureKind))
def test_a_finding_without_a_place_is_signed_by_its_message(kind: FailureKind) -> None:
    """Whatever its kind. The position or the duration in a message changes nothing."""

    def failure(message: str) -> FailureRecord:
        finding = {"message": message, "code": "style"}
        return failed("plug.in", evidence={"kind": kind.value}, errors=[finding])

    texts = ("the tone is rude", "the date is missing", "two rows contradict each other")
    assert len({failure(text).classification_signature for text in texts}) == 3
    assert len({failure(text).coarse_signature for text in texts}) == 3
    one, other = failure("odd at line 3, after 0.2 s"), failure("odd at line 9, after 1.7 s")
    assert one.classification_signature == other.classification_signature


def text_failure(**finding: Any) -> FailureRecord:
    return failed("text.match", errors=[{"message": "", "code": "missing", **finding}])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"expected": "Paris"}, {"expected": "a total"}),
        ({"message": "nothing matches the pattern"}, {"message": "a text is missing"}),
        ({"code": "forbidden", "actual": "TODO"}, {"code": "forbidden", "actual": "sorry"}),
    ],
)
def test_unrelated_failures_of_text_match_share_no_group(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    assert text_failure(**one).coarse_signature != text_failure(**other).coarse_signature


def test_the_quoted_answer_is_not_part_of_a_complaint() -> None:
    one, other = (
        text_failure(message=f"the answer is {text!r}, not 'yes'", expected="yes", actual=text)
        for text in ("perhaps", "maybe")
    )
    assert one.classification_signature == other.classification_signature


def test_a_text_that_does_not_match_is_one_failure_whatever_it_says() -> None:
    verifier = TextMatch(TextMatch.Options(regex="^[A-Z]{3}$", choice="ABC"))
    one, other = (
        classify_failure(
            verifier.verify(Candidate(output=Output(text=text), text=text)), source="verify"
        )
        for text in ('It "is"\nABC.', "I think:\tABC")
    )
    assert one.classification_signature == other.classification_signature


@pytest.mark.parametrize(
    ("one", "other"),
    [
        # the verifier's score
        (complaint("some rows are bad", score=40), complaint("some rows are bad", score=55.5)),
        # the number of findings
        (
            schema_failure(*({**AGE, "path": f"$.people[{n}].age"} for n in range(30))),
            schema_failure(*({**AGE, "path": f"$.people[{n}].age"} for n in range(3))),
        ),
        (schema_failure({**AGE, "count": 30}), schema_failure({**AGE, "count": 3})),
        # the number of errors in a message and in the output of a command
        (complaint("12 rows are wrong"), complaint("3 rows are wrong")),
        (complaint("3 of 10 names are missing"), complaint("1 of 10 names are missing")),
        (
            command_failure(stderr_tail="Found 12 errors in 3 files."),
            command_failure(stderr_tail="Found 2 errors in 3 files."),
        ),
        (
            command_failure(stderr_tail="Errors: 12 (checked 3 files in 0.3 s)"),
            command_failure(stderr_tail="Errors: 2 (checked 4 files in 0.2 s)"),
        ),
    ],
)
def test_progress_changes_only_the_strict_signature(
    one: FailureRecord, other: FailureRecord
) -> None:
    assert one.classification_signature != other.classification_signature
    assert one.coarse_signature == other.coarse_signature
    assert explain_signature(one).matches


def test_the_number_of_an_attempt_is_not_a_number_of_errors() -> None:
    one, other = (complaint(f"attempt {n} failed: no verb") for n in (1, 2))
    assert one.classification_signature == other.classification_signature


@given(st.lists(NUMBER, min_size=2, max_size=2, unique=True))
def test_operands_change_only_the_strict_signature(operands: list[int]) -> None:
    one, other = (pytest_failure(assertion=f"assert {n} == 0") for n in operands)
    assert one.classification_signature != other.classification_signature
    assert one.coarse_signature == other.coarse_signature


@given(st.lists(st.integers(1, 255), min_size=2, max_size=2, unique=True))
def test_exit_codes_change_the_signature(codes: list[int]) -> None:
    one, other = (command_failure(exit_code=code) for code in codes)
    assert one.classification_signature != other.classification_signature


@given(st.sampled_from(list(FailureKind)), st.sampled_from(list(FailureKind)))
def test_kind_and_verifier_change_the_signature(one: FailureKind, other: FailureKind) -> None:
    assert (sign(one, "v", {}) == sign(other, "v", {})) is (one is other)
    assert sign(one, "v", {}) != sign(one, "w", {})


@given(
    st.sampled_from(list(FailureKind)),
    st.dictionaries(st.sampled_from(["failed", "argv", "shape", "code", "status", "reason"]),
                    st.none() | st.text(max_size=5) | st.lists(st.text(max_size=3), max_size=2)),
    st.text(max_size=50),
)  # fmt: skip
def test_any_evidence_can_be_signed(
    kind: FailureKind, evidence: dict[str, Any], message: str
) -> None:
    findings = [Finding(message=message)] if len(message) % 2 else []
    assert signatures(kind, None, findings, evidence, message) == (
        signatures(kind, None, findings, evidence, message)
    )


# -- text as a last resort, and explanations ------------------------------------------------------


def test_the_message_is_signed_only_without_structure() -> None:
    text = signature_parts(FailureKind.UNKNOWN, [], {}, "odd thing 17")
    assert text.basis == "text"
    assert text.strict == {"text": "odd thing <n>"}
    structure = signature_parts(FailureKind.TOOL_ERROR, [], {"status": 500}, "odd thing 17")
    assert structure.basis == "structure"
    assert structure.strict == {"status": 500}


def test_an_exception_with_only_a_class_is_signed_with_its_message() -> None:
    one, other = (classify_failure(OSError(text), source="task") for text in ("disk full", "loop"))
    assert one.classification_signature != other.classification_signature


def test_an_explanation_shows_the_parts_of_both_signatures() -> None:
    record = pytest_failure()
    explanation = explain_signature(record)
    assert explanation.matches
    assert explanation.strict_signature == record.classification_signature
    assert explanation.coarse_signature == record.coarse_signature
    assert explanation.masked == ("tests",)
    assert explanation.as_dict()["basis"] == "structure"
    text = explanation.as_text()
    assert "assert 2 == 0" in text
    assert "assert … == …" in text
    assert record.classification_signature in text


def test_an_explanation_mentions_another_signature_version() -> None:
    record = pytest_failure().model_copy(update={"classification_signature": "v0:old"})
    explanation = explain_signature(record)
    assert not explanation.matches
    assert "another version" in explanation.as_text()


def test_an_explanation_mentions_that_nothing_is_masked() -> None:
    record = failed("json.object", evidence={"shape": "prose", "truncated": False, "decoder": "x"})
    assert "the same parts" in explain_signature(record).as_text()
