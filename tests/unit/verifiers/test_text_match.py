"""text.match: each rule, the words of its finding, and examples for patterns."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import pytest

from mulligan.policies.failures.failure import Finding
from mulligan.policies.jobs.job import Output
from mulligan.tasks.ports.errors import BadInput, VerifierError
from mulligan.tasks.ports.verifiers import Candidate
from mulligan.workers.verifiers.bounded_regex import BoundedRegex
from mulligan.workers.verifiers.pattern_examples import examples_of, fixed_texts
from mulligan.workers.verifiers.text_match import SEARCHED_CHARACTERS, TextMatch

CATASTROPHIC = r"(x+x+)+y(?!z)"


def findings(text: str, *, finish_reason: str = "stop", **options: Any) -> tuple[Finding, ...]:
    verifier = TextMatch(TextMatch.Options.model_validate(options))
    output = Output(text=text, finish_reason=finish_reason)
    return verifier.verify(Candidate(output=output, text=text)).errors


def match(text: str, **options: Any) -> list[str | None]:
    return [finding.code for finding in findings(text, **options)]


def only(text: str, **options: Any) -> Finding:
    (finding,) = findings(text, **options)
    return finding


# -- rules ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "good", "bad", "code"),
    [
        ({"contains": "cat"}, "a cat", "a dog", "missing"),
        ({"contains": ["cat", "dog"]}, "cat dog", "cat", "missing"),
        ({"contains": "CAT", "ignore_case": True}, "a cat", "a dog", "missing"),
        ({"not_contains": "TODO"}, "done", "TODO: all", "forbidden"),
        ({"not_contains": "todo", "ignore_case": True}, "done", "TODO", "forbidden"),
        ({"regex": r"^\d{3}$"}, "123", "12", "pattern"),
        ({"regex": "é+"}, "café", "cafe", "pattern"),
        ({"regex": "hello", "ignore_case": True}, "HELLO", "bye", "missing"),
        ({"regex": "^(bug|feature)$"}, "bug", "a bug", "choice"),
        ({"regex": "^bug$|^feature$"}, "bug", "a bug", "choice"),
        ({"regex": r"^\s*(?:yes|no)\s*$"}, " yes\n", "maybe", "choice"),
        ({"regex": "^[1-5]$"}, "5", "6", "choice"),
        ({"regex": "^yes$"}, "yes", "no", "equality"),
        ({"not_regex": r"\bI\b"}, "You", "what I say", "forbidden_pattern"),
        ({"not_regex": "(?i)lorem ipsum"}, "You", "a Lorem Ipsum b", "forbidden"),
        ({"not_regex": "^yes$"}, "no", "yes", "forbidden_pattern"),
        ({"equals": "yes"}, "yes\n", "yes!", "equality"),
        ({"equals": "YES", "ignore_case": True}, "yes", "no", "equality"),
        ({"choice": ["yes", "no"]}, " no\n", "maybe", "choice"),
        ({"choice": ["yes", "no"], "ignore_case": True}, "NO", "maybe", "choice"),
        ({"choice": "yes"}, "yes", "maybe", "equality"),
        ({"min_length": 3}, "abc", "ab", "too_short"),
        ({"max_length": 3}, "abc", "abcd", "too_long"),
    ],
)
def test_each_option(options: dict[str, Any], good: str, bad: str, code: str) -> None:
    assert match(good, **options) == []
    assert match(bad, **options) == [code]


def test_every_broken_rule_is_reported() -> None:
    codes = match("I", contains=["cat", "dog"], not_regex="I", min_length=5)
    assert codes == ["too_short", "missing", "missing", "forbidden"]


def test_an_answer_that_was_cut_at_the_token_cap_is_still_too_long() -> None:
    finding = only("x" * 50, max_length=20, finish_reason="length")
    assert (finding.code, finding.expected, finding.actual) == ("too_long", 20, 50)


# -- words ----------------------------------------------------------------------------------------


def test_a_pattern_comes_with_an_example_that_matches() -> None:
    finding = only("about 12", regex=r"^\d{3}$")
    assert finding.message == (
        r'the answer does not match the pattern ^\d{3}$; an answer that does: "111"'
    )
    assert (finding.expected, finding.actual, finding.example) == (r"^\d{3}$", "about 12", "111")


def test_an_alternation_is_a_choice_and_not_a_pattern() -> None:
    finding = only("It is a bug.", regex="^(bug|feature)$")
    assert finding.message == (
        'the answer must be exactly one of "bug", "feature"; it is "It is a bug."'
    )
    assert (finding.expected, finding.example) == (["bug", "feature"], None)


def test_the_other_findings_in_words() -> None:
    assert only("", equals="yes").message == 'the answer must be exactly "yes"; it is empty'
    assert only("a", contains="b").message == 'the answer does not contain "b"'
    assert only("a", not_contains="a").message == 'the answer contains "a", which is not allowed'
    found = only("First.\nI say so.\n", not_regex=r"\bI\b")
    assert found.message == r'the answer must not match the pattern \bI\b; this does: "I say so."'
    assert (found.expected, found.actual) == (r"\bI\b", "I say so.")


def test_long_answers_are_cut_in_findings() -> None:
    for options in ({"equals": "y"}, {"regex": r"^\d+$"}, {"not_regex": "x+"}):
        finding = only("x" * 100_000, **options)
        assert len(str(finding.actual)) == 120
        assert len(finding.message) < 400


def test_the_jobs_own_example_is_used_and_must_pass() -> None:
    assert only("x", regex=r"^\d+$", example="42").example == "42"
    with pytest.raises(BadInput, match="example: does not pass: the answer does not match"):
        match("x", regex=r"^\d+$", example="forty-two")


def test_an_example_breaks_no_other_rule() -> None:
    """Given a pattern whose simplest example is forbidden, then another or none is given."""
    assert only("?", regex=r"^\w*a*$").example == "aa"
    assert findings("?", regex="^[a-z]+$", not_contains="a")[0].example is None
    assert findings("?", regex="^[a-z]{9}$", max_length=5)[0].example is None


# -- examples -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "example"),
    [
        (r"^\d{4}-\d{2}-\d{2}$", "1111-11-11"),
        (r"^[A-Z]{3}-\d+$", "AAA-1"),
        (r"^(?=.*\d)(?=.*[A-Z]).{8,}$", "aA1-aA1-"),
        (r"\b(bug|feature)\b", "bug"),
        (r"^(?:[01]\d|2[0-3]):[0-5]\d$", "11:11"),
        (r"^https?://\S+$", "http://h"),
        (r"^[\w.+-]+@[\w-]+\.[\w.]+$", "a@c.e"),
        (r"(?m)^Answer: (yes|no)$", "Answer: yes"),
        (r"(a)\1", "aa"),
        (r"(?<name>b+)", "b"),
        (r"^(?!foo)\w+$", "a"),
        (r"[^a-z]", "A"),
        (r"^[a-z]*$", "a"),
        (r"x{3,}?", "xxx"),
    ],
)
def test_examples_are_simple_and_match(pattern: str, example: str) -> None:
    found = examples_of(pattern)
    assert found[0] == example
    assert all(BoundedRegex(pattern).found_in(each) for each in found)


@pytest.mark.parametrize(
    "pattern",
    [
        r"^\p{L}+$",
        r"\d(?<=3)",
        "^$",
        "a{1000}",
        "((a{50}){50}){50}",
        "(" * 900 + "a" + ")" * 900,
        "[[:alpha:]]",
    ],
)
def test_a_pattern_without_a_cheap_example_has_none(pattern: str) -> None:
    assert examples_of(pattern) == ()
    assert fixed_texts(pattern) is None


@pytest.mark.parametrize(
    "pattern",
    [
        "^bug|feature$",
        "(?m)^(a|b)$",
        "^(a|b|)$",
        r"^\d$",
        "[^a]",
        r"^\S*@\S*$",
        r"^[\s\d]*x$",
        r"name\s*:",
    ],
)
def test_only_a_list_of_texts_is_a_choice(pattern: str) -> None:
    assert fixed_texts(pattern) is None


# -- hostile input --------------------------------------------------------------------------------


def test_the_message_about_a_long_choice_is_short() -> None:
    verifier = TextMatch(TextMatch.Options(choice=tuple(f"c{n}" for n in range(10_000))))
    found = verifier.verify(Candidate(text="no", output=Output(text="no")))
    assert len(found.summary) < 500
    assert '"c49" and 9,950 others; it is "no"' in found.summary


def test_a_text_that_is_too_long_to_search_fails() -> None:
    """Forbidden text cannot hide after the part that is searched."""
    text = "x" * SEARCHED_CHARACTERS + "TODO"
    assert match(text, not_regex="TODO") == ["too_long"]
    assert match(text, not_regex="TODO", max_length=5) == ["too_long"]
    assert match(text, not_contains="TODO") == ["forbidden"]


def test_a_lone_surrogate_does_not_break_the_search() -> None:
    assert match("a\ud800b", regex="a.b") == []
    assert only("a\ud800b", equals="a").actual == "a?b"


@pytest.mark.parametrize("pattern", ["[", "(", "a{2,1}", r"foo\Z", "x" * 3000])
def test_a_pattern_that_does_not_compile_is_refused(pattern: str) -> None:
    with pytest.raises(BadInput, match="regex: "):
        match("text", regex=pattern)


def test_a_costly_pattern_ends_without_a_verdict() -> None:
    with pytest.raises(VerifierError, match="too costly"):
        match("x" * 5000, regex=CATASTROPHIC)


def test_an_example_of_a_costly_pattern_is_cheap() -> None:
    assert examples_of(CATASTROPHIC) == ("xxy", "xxxxxxxxy")


@pytest.mark.parametrize(
    "pattern",
    [
        r"(?:(?:(?:(?:^){200}){200}){200}){200}c",
        r"(?:(?:(?:(?:\b){200}){200}){200}){200}c",
        "[a" * 200_000,
    ],
)
def test_a_pattern_that_would_take_long_to_write_out_has_no_example(pattern: str) -> None:
    started = perf_counter()
    assert examples_of(pattern) == ()
    assert fixed_texts(pattern) is None
    assert perf_counter() - started < 1


def test_a_pattern_with_exponential_backtracking_is_decided() -> None:
    assert match("a" * 5000 + "!", regex="^(a+)+$") == ["pattern"]
