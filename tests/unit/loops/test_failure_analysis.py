"""Analysing why an item failed."""

from __future__ import annotations

import pytest

from mulligan.policies.loops.analysis import AttemptFacts, analyse
from mulligan.policies.loops.heal_record import HealRecord


def attempts(*failures: str, scores: tuple[float, ...] = ()) -> list[AttemptFacts]:
    rows = zip(failures, scores or (40.0,) * len(failures), strict=True)
    return [
        AttemptFacts(
            number=number, failure=f"test_failed.{name}", signature=f"s:{name}", score=score
        )
        for number, (name, score) in enumerate(rows, 1)
    ]


@pytest.mark.parametrize(
    ("failures", "scores", "pattern", "summary"),
    [
        ("aaa", (), "same", "All 3 attempts failed in the same way: test_failed.a."),
        ("a", (), "same", "Its only attempt failed: test_failed.a."),
        ("aba", (), "alternates", "Two failures take turns in 3 attempts: test_failed.a,"),
        # the last three are no better than the best before them
        ("abcd", (55, 40, 40, 50), "no_improvement", "The score does not rise in 4 attempts: 55,"),
        ("abc", (10, 20, 30), "different", "Each of 3 attempts failed in its own way: test"),
    ],
)
def test_the_pattern_of_the_attempts(
    failures: str, scores: tuple[float, ...], pattern: str, summary: str
) -> None:
    found = analyse("A", "max_attempts", attempts(*failures, scores=scores))
    assert found.pattern == pattern
    assert found.summary.startswith(summary)


def test_what_ended_before_an_answer_has_its_own_patterns() -> None:
    assert analyse("A", "worker_lost ×3", attempts("a")).pattern == "lost"
    found = analyse("A", "setup_failed: npm ci: exit code 1", [])
    assert found.pattern == "blocked"
    assert found.summary == (
        "It ended before an answer could be checked: setup_failed: npm ci: exit code 1."
    )


def test_the_text_names_differences_and_what_was_tried() -> None:
    heal = HealRecord(
        number=1, at=0, item="A", action="change_strategy", reason="", parameter="fresh context",
        outcome="failed",
    )  # fmt: skip
    facts = [
        AttemptFacts(number=1, failure="x", signature="1", score=10, worker="agent@a"),
        AttemptFacts(number=2, failure="y", signature="2", score=30, technique="re_read"),
    ]
    found = analyse("A", "max_attempts", facts, [heal])
    assert found.differences == ("score (10, 30)", "failure (x, y)")
    assert found.tried == ("re_read", "change_strategy (fresh context)")
    assert "Tried so far: re_read, change_strategy (fresh context)." in found.text


def test_a_hostile_message_is_one_short_line() -> None:
    facts = [AttemptFacts(number=1, failure="x", signature="1", message="a\n\x1b[31m" + "b" * 5000)]
    found = analyse("A", "max_attempts", facts)
    assert len(found.summary) < 300
    assert "\n" not in found.summary
    assert "\x1b" not in found.summary
