"""Answers that fit into an agent's context: long texts are cut, and say so."""

from __future__ import annotations

import json
from itertools import accumulate, takewhile

from mulligan.policies.value import Json

#: Characters of one answer: about ten thousand tokens.
ANSWER_LENGTH = 40_000
#: Texts are not cut to fewer characters.
_SHORTEST_TEXT = 100


def bounded_answer(document: Json, *, text_length: int) -> str:
    """Return a document as JSON. Its texts have at most ``text_length`` characters and a note.

    If the whole is too long, all texts are cut further, and then rows of its list are left out.
    """
    written = _written(document, text_length)
    while len(written) > ANSWER_LENGTH and text_length > _SHORTEST_TEXT:
        text_length = max(_SHORTEST_TEXT, text_length // 2)
        written = _written(document, text_length)
    while len(written) > ANSWER_LENGTH and (shorter := _with_fewer_rows(document)) is not None:
        document = shorter
        written = _written(document, text_length)
    if len(written) <= ANSWER_LENGTH:
        return written
    missing = len(written) - ANSWER_LENGTH
    return f"{written[:ANSWER_LENGTH]}… [{missing} more characters]"


def bounded_lines(text: str) -> str:
    """Return a text of at most about ANSWER_LENGTH characters: whole lines, and how many more."""
    if len(text) <= ANSWER_LENGTH:
        return text
    lines = text.split("\n")
    ends = accumulate(len(each) + 1 for each in lines)
    kept = sum(1 for _ in takewhile(lambda end: end <= ANSWER_LENGTH, ends))
    if kept == 0:  # one line is longer than that
        kept, lines[0] = 1, str(_cut(lines[0], ANSWER_LENGTH))
    left = len(lines) - kept
    return "\n".join([*lines[:kept], *([f"… [{left} more lines]"] if left else [])])


def _with_fewer_rows(document: Json) -> Json | None:
    """Return a document with half of its longest list; None if it has no list to shorten.

    Where the next page begins would pass over what is left out, so the agent has to ask again.
    """
    rows = document.items() if isinstance(document, dict) else ()
    lists = {k: v for k, v in rows if isinstance(v, list) and len(v) > 1}
    if not lists:
        return None
    name = max(lists, key=lambda each: len(lists[each]))
    kept = lists[name][: len(lists[name]) // 2]
    note = f"the answer was too long: ask again with limit={len(kept)}"
    places = dict.fromkeys({"cursor", "last"} & document.keys())
    return {**document, "left_out": note, name: kept, **places}


def _written(document: Json, text_length: int) -> str:
    return json.dumps(_cut(document, text_length), ensure_ascii=False)


def _cut(value: Json, length: int) -> Json:
    if isinstance(value, str) and len(value) > length:
        return f"{value[:length]}… [{len(value) - length} more characters]"
    if isinstance(value, list):
        return [_cut(each, length) for each in value]
    if isinstance(value, dict):
        return {name: _cut(each, length) for name, each in value.items()}
    return value
