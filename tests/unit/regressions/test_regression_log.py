"""What a loop remembers of its regressions."""

from __future__ import annotations

from typing import Any

import pytest

from mulligan.policies.regressions.record import (
    MOST_REMEMBERED,
    REGRESSION_STATUSES,
    CommitCheck,
    Regression,
    RegressionLog,
)


def regression(number: int = 1, **fields: Any) -> Regression:
    values = {"item": "a", "runs": 1, "at": 1.5, "good": "g" * 40, "bad": "b" * 40, "seen": "s"}
    return Regression.model_validate({**values, "number": number, **fields})


def test_a_record_is_read_as_it_was_written() -> None:
    check = CommitCheck(number=3, commit="c", reason="asked", items=("a",), job_id="j", at=2.0)
    log = (
        RegressionLog(check=check, full_at=1.0)
        .with_asked("b", "a")
        .with_found(regression(4, difference="-é\n+|", broken=(1, 2)))
    )
    log = log.with_good("c", "a", "b")
    assert RegressionLog.from_text(log.to_text()) == log
    assert log.next_number == 5
    assert RegressionLog().to_text() == "{}"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"found": 3}', '{"found": [{"number": "x"}]}'])
def test_a_damaged_record_is_as_good_as_none(text: str) -> None:
    assert RegressionLog.from_text(text) == RegressionLog()


def test_what_a_later_release_adds_is_left_out() -> None:
    assert RegressionLog.from_text('{"commit": "c", "later": 1}') == RegressionLog(commit="c")


def test_only_so_many_are_remembered_and_open_ones_first() -> None:
    log = RegressionLog().with_found(regression(1), regression(2, status="flake"))
    for number in range(3, MOST_REMEMBERED + 3):
        log = log.with_found(regression(number, status="repaired"))
    assert [each.number for each in log.found] == [1, *range(4, MOST_REMEMBERED + 3)]


def test_what_is_open_or_waits_for_a_person_is_never_forgotten() -> None:
    many = [regression(n, item=f"i{n}") for n in range(1, MOST_REMEMBERED + 4)]
    asked = regression(100, status="escalated", awaits_person=True)
    log = RegressionLog().with_found(*many, asked)
    numbers = [each.number for each in log.found]
    assert numbers == [*range(1, MOST_REMEMBERED + 4), 100]
    flake = log.with_found(regression(101, status="flake"))
    assert [each.number for each in flake.changes_from(log)] == [101], "people are told"
    after = flake.with_found(many[0].changed(steps=1))
    assert [each.number for each in after.found] == numbers


def test_texts_are_cut_and_the_difference_goes_when_it_ends() -> None:
    ended = regression(summary="x" * 5000, difference="-a\n+b").ended("repaired", now=3.0)
    assert (len(ended.summary), ended.difference, ended.ended_at) == (300, "", 3.0)


def test_people_are_told_of_each_new_status_once() -> None:
    one, two = regression(1), regression(2)
    before = RegressionLog().with_found(one, two)
    after = before.with_found(one.changed(steps=1), two.changed(status="reopened"))
    assert [each.number for each in after.changes_from(before)] == [2]
    assert after.changes_from(after) == []


def test_rounds_are_counted_until_a_person_has_dealt_with_the_item() -> None:
    found = [
        regression(1, status="repaired", repairs="a"),
        regression(2, status="escalated"),
        regression(3, status="repaired", repairs="a"),
        regression(4, item="b", status="repaired", repairs="a"),
        regression(5, item="b", status="repaired", repairs="b"),
        regression(6),
    ]
    log = RegressionLog()
    for each in found:
        log = log.with_found(each)
    assert log.rounds == {"a": 3, "b": 2}
    assert log.with_new_rounds("a").rounds == {"b": 2}


def test_rounds_are_not_forgotten_with_what_is_not_remembered() -> None:
    log = RegressionLog()
    for number in range(1, 4):
        opened = regression(number, repairs="a", status="reopened")
        log = log.with_found(opened).with_found(opened.changed(status="repaired"))
    for number in range(4, MOST_REMEMBERED + 9):
        log = log.with_found(regression(number, item="b", status="flake"))
    assert "a" not in {each.item for each in log.found}
    assert log.rounds == {"a": 3}


def test_an_item_is_known_to_be_good_at_one_commit() -> None:
    log = RegressionLog().with_good("c1", "a", "b").with_good("c2", "a").with_good("c2", "a")
    assert log.good == {"c1": ("b",), "c2": ("a",)}
    assert log.known_good == {"a": "c2", "b": "c1"}


def test_what_is_asked_for_adds_up() -> None:
    log = RegressionLog().with_asked("b").with_asked("a", "b").with_asked("*")
    assert log.asked == ("*", "a", "b")


def test_which_are_open() -> None:
    opened = [each for each in REGRESSION_STATUSES if regression(status=each).is_open]
    assert opened == ["bisecting", "confirming", "rolling_back", "reopened"]
