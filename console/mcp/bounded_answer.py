"""Answers that fit into an agent's context: long texts are cut, and say so."""

from __future__ import annotations

import json

from mulligan.policies.value import Json

#: Characters of one answer: about ten thousand tokens.
ANSWER_LENGTH = 40_000
#: Texts are not cut to fewer characters.
_SHORTEST_TEXT = 100


def bounded_answer(document: Json, *, text_length: int) -> str:
    """Return a document as JSON. Its texts have at most ``text_length`` characters and a note.

    If the whole is too long, all texts are cut further. What is still too long is cut at its end.
    """
    written = _written(document, text_length)
    while len(written) > ANSWER_LENGTH and text_length > _SHORTEST_TEXT:
        text_length = max(_SHORTEST_TEXT, text_length // 2)
        written = _written(document, text_length)
    if len(written) <= ANSWER_LENGTH:
        return written
    missing = len(written) - ANSWER_LENGTH
    return f"{written[:ANSWER_LENGTH]}… [{missing} more characters: ask for fewer rows]"


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
