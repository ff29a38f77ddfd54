"""Answers for agents are never longer than their limit, and say what is missing."""

from __future__ import annotations

import json

from mulligan.console.mcp.bounded_answer import ANSWER_LENGTH, bounded_answer, bounded_lines

_NOTE_LENGTH = 100


def test_a_short_answer_is_left_as_it_is() -> None:
    document = {"prompt": "é" * 100, "rows": [{"n": 1, "at": None}]}
    assert json.loads(bounded_answer(document, text_length=100)) == document


def test_a_long_text_is_cut_with_a_note() -> None:
    written = bounded_answer({"rows": [{"answer": "x" * 150}]}, text_length=100)
    assert json.loads(written) == {"rows": [{"answer": "x" * 100 + "… [50 more characters]"}]}


def test_many_long_texts_are_cut_further() -> None:
    """Given 50 texts that fit one by one, all of them are shortened until the whole fits."""
    written = bounded_answer([{"answer": "x" * 20_000}] * 50, text_length=20_000)
    assert len(written) <= ANSWER_LENGTH
    rows = json.loads(written)
    assert len(rows) == 50
    assert all(row["answer"].endswith(" more characters]") for row in rows)


def test_rows_that_do_not_fit_are_left_out() -> None:
    rows = {"tests": [{"id": "x" * 50}] * 2000, "cursor": "next"}
    answer = json.loads(bounded_answer(rows, text_length=1000))
    assert len(answer["tests"]) == 500
    assert answer["left_out"] == "the answer was too long: ask again with limit=500"
    assert answer["cursor"] is None  # it would pass over what is left out


def test_what_is_no_list_is_cut_at_the_end() -> None:
    written = bounded_answer({f"n{n}": "x" * 50 for n in range(2000)}, text_length=1000)
    assert ANSWER_LENGTH < len(written) <= ANSWER_LENGTH + _NOTE_LENGTH
    assert written.endswith("more characters]")


def test_lines_that_do_not_fit_are_counted() -> None:
    lines = [f"items[{n}]: is wrong" for n in range(10_000)]
    *kept, note = bounded_lines("\n".join(lines)).split("\n")
    assert kept == lines[: len(kept)]
    assert note == f"… [{10_000 - len(kept)} more lines]"
    assert ANSWER_LENGTH - 100 < sum(len(each) + 1 for each in kept) <= ANSWER_LENGTH


def test_lines_that_fit_are_left_as_they_are() -> None:
    text = "a\n\nb\n" + "x" * (ANSWER_LENGTH - 5)
    assert bounded_lines(text) == text


def test_a_line_that_is_too_long_is_cut() -> None:
    cut = "x" * ANSWER_LENGTH + "… [2 more characters]"
    assert bounded_lines("x" * (ANSWER_LENGTH + 2)) == cut
    assert bounded_lines("x" * (ANSWER_LENGTH + 2) + "\na\nb") == f"{cut}\n… [2 more lines]"
