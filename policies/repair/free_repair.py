"""Repairs that cost no tokens: JSON from fences and prose, JSON syntax, code from fences.

Each step is recorded as a coercion, which the score penalises. Nothing is invented: a text without
JSON, an ambiguous one or a truncated one is left unchanged, for a corrected retry.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import json_repair

from mulligan.policies.nesting import MAX_DEPTH, TOKEN, too_deep
from mulligan.policies.value import Json, Value

Coercion = Literal["fence", "prose", "json_repair"]
Shape = Literal["empty", "truncated", "fence", "prose", "not_object", "object"]

#: Longer texts are not repaired: json_repair takes more than linear time.
MAX_REPAIR = 64 * 1024
#: Texts up to this length are repaired in a quarter of a second, whatever is in them.
MAX_QUICK_REPAIR = 1024
#: Restarts of the search for JSON in prose after a bracket that is never closed.
MAX_RESTARTS = 4
#: A text with more bracketed pieces is prose about brackets.
MAX_SPANS = 100


#: What a defect of json_repair that an answer reaches may raise. Not Exception: that is also how
#: Celery's soft time limit ends a task.
_DEFECTS = (
    ArithmeticError, AssertionError, AttributeError, LookupError, NameError, RuntimeError,
    TypeError, ValueError,
)  # fmt: skip

#: Repairs the syntax of a JSON text; returns None if that is impossible or takes too long.
RepairSyntax = Callable[[str], str | None]


def repair_syntax(text: str) -> str | None:
    """Return valid JSON with the same meaning, or None. It may take minutes: see RepairSyntax."""
    try:
        return json_repair.repair_json(text, skip_json_loads=True)
    except _DEFECTS:
        return None


def quick_repair(text: str) -> str | None:
    """Repair only what is short."""
    return repair_syntax(text) if len(text) <= MAX_QUICK_REPAIR else None


class JsonExtraction(Value):
    """The JSON found in an answer."""

    #: The JSON text, if any; otherwise the unchanged answer.
    text: str
    value: Json = None
    #: The repairs, in order; empty if the answer was valid JSON.
    coercions: tuple[Coercion, ...] = ()
    #: The shape of the value, if one was found (``object``, ``not_object``); otherwise of the
    #: answer, where ``object`` means JSON with a syntax error and nothing around it.
    shape: Shape
    #: Why the answer is not JSON; None if a value was found.
    decoder_message: str | None = None

    @property
    def parsed(self) -> bool:
        return self.decoder_message is None


class _Block(NamedTuple):
    """A fenced block."""

    content: str
    #: Whether there is no other text.
    alone: bool


class _Span(NamedTuple):
    """A bracketed piece of a text. One that is never closed reaches to the end."""

    text: str
    closed: bool
    #: Whether it is alone on its lines, like an answer and unlike a footnote.
    apart: bool


class _Refused(ValueError):
    """A text that must not be repaired, because any value from it would be invented."""


def extract_json(
    text: str, *, truncated: bool, repair: RepairSyntax = quick_repair
) -> JsonExtraction:
    """Find the one JSON value of an answer: the whole text, in a fence, in prose, or repaired."""
    body = text.strip("\ufeff \t\r\n")
    if not body:
        return JsonExtraction(text=text, shape="empty", decoder_message="Empty text")
    try:
        return _found(body, _loads(body), ())
    except _Refused as error:
        return JsonExtraction(text=text, shape=_shape(body, truncated), decoder_message=str(error))
    except ValueError as error:
        reason = str(error)
    if any(bracket in body for bracket in "{["):
        try:
            found = (
                _in_fence(body)
                or _in_prose(body)
                or (None if truncated else _repaired(body, repair))
            )
        except _Refused as error:
            found, reason = None, str(error)
        if found:
            return found
    return JsonExtraction(text=text, shape=_shape(body, truncated), decoder_message=reason)


def strip_code_fence(text: str, *, markdown: bool = False) -> tuple[str, tuple[Coercion, ...]]:
    """Return the largest fenced block of an answer that becomes a file, and what was removed.

    The fence's language tag is removed, too; a text without a fence is returned unchanged. Fences
    are part of Markdown: from such a file, only one around all of it is removed.
    """
    blocks = list(_blocks(text))
    if not blocks or (markdown and not blocks[0].alone):
        return text, ()
    return _largest(blocks)


# -- strict JSON ----------------------------------------------------------------------------------


def _loads(text: str) -> Json:
    """Parse strict JSON: no NaN, no infinite numbers, no contradicting keys, no deep nesting."""
    if too_deep(text):
        raise _Refused(f"Nested more than {MAX_DEPTH} levels deep")
    return json.loads(
        text,
        parse_constant=_no_constant,
        parse_float=_finite,
        parse_int=_short,
        object_pairs_hook=_unique,
    )


def _no_constant(name: str) -> Json:
    raise _Refused(f"{name} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise _Refused("Number out of range")
    return number


def _short(text: str) -> int:
    # Longer ones take quadratic time, and Python's error advises changing its settings.
    if len(text) > 1000:
        raise _Refused("Number out of range")
    return int(text)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build the object. A key may be repeated with an equal value, not with a different one."""
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result and result[key] != value:
            raise _Refused(f"Key {key[:80]!r} has two different values")
        result[key] = value
    return result


def _found(text: str, value: Json, coercions: tuple[Coercion, ...]) -> JsonExtraction:
    shape: Shape = "object" if isinstance(value, dict) else "not_object"
    return JsonExtraction(text=text, value=value, coercions=coercions, shape=shape)


def _shape(body: str, truncated: bool) -> Shape:
    if truncated:
        return "truncated"
    if any(True for _ in _blocks(body)):
        return "fence"
    return "object" if _is_json_like(body) else "prose"


# -- fences ---------------------------------------------------------------------------------------

_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})(.*)$")
_ONE_LINE = re.compile(r"^`{3,}(?:json)?([^`\n]+)`{3,}$", re.IGNORECASE)


def _blocks(text: str) -> Iterator[_Block]:
    """Yield Markdown's fenced blocks; one that is never closed reaches to the end."""
    inside: list[str] | None = None
    fence, outside, contents = "", False, list[str]()
    for line in text.replace("\r\n", "\n").split("\n"):
        match = _FENCE.match(line)
        if inside is None and match and "`" not in match[2]:
            fence, inside = match[1], []
        elif inside is None:
            outside = outside or bool(line.strip())
        elif match and match[1].startswith(fence) and not match[2].strip():
            contents.append(_joined(inside))
            inside = None
        else:
            inside.append(line)
    if inside is not None:
        contents.append(_joined(inside).rstrip().removesuffix(fence).rstrip() + "\n")
    for content in contents:
        yield _Block(content, alone=not outside and len(contents) == 1)


def _joined(lines: list[str]) -> str:
    return "\n".join(lines) + "\n" if lines else ""


def _json_blocks(body: str) -> list[_Block]:
    if one_line := _ONE_LINE.match(body):
        return [_Block(one_line[1], alone=True)]
    return list(_blocks(body))


def _largest(blocks: list[_Block]) -> tuple[str, tuple[Coercion, ...]]:
    largest = max(blocks, key=lambda block: len(block.content))
    return largest.content, ("fence",) if largest.alone else ("fence", "prose")


def _in_fence(body: str) -> JsonExtraction | None:
    blocks = _json_blocks(body)
    values = [
        (block.content.strip(), value)
        for block in blocks
        for value in _parsed(block.content)
        if isinstance(value, dict | list)
    ]
    if not values:
        return None
    text, value = _single(values)
    alone = any(block.alone for block in blocks)
    return _found(text, value, ("fence",) if alone else ("fence", "prose"))


def _parsed(text: str) -> list[Json]:
    """Return a list with the value of a text, or an empty list: None is a value, too."""
    try:
        return [_loads(text)]
    except _Refused:
        raise
    except ValueError:
        return []


def _single(values: list[tuple[str, Json]]) -> tuple[str, Json]:
    """Return the intended value: the only object, or the only array if there is no object."""
    objects = [pair for pair in values if isinstance(pair[1], dict)] or values
    if any(value != objects[0][1] for _, value in objects):
        raise _Refused("Several different JSON values")
    return objects[0]


# -- prose ----------------------------------------------------------------------------------------

#: The start of an object or an array. Other brackets are part of the prose.
_OBJECT = re.compile(r"\{\s*(?:\}|[\"'“]|[A-Za-z_]\w{0,100}\s{0,10}:)")
_ARRAY = re.compile(r"\[\s*(?:[\]\"'“\[{]|-?\d|(?:true|false|null)\b)")


def _in_prose(body: str) -> JsonExtraction | None:
    values: list[tuple[str, Json]] = []
    broken = 0
    for span in _spans(body):
        parsed = _parsed(span.text) if span.closed else []
        if not parsed:
            broken += _is_answer(span)
        elif isinstance(parsed[0], dict) or span.apart:
            values.append((span.text, parsed[0]))
    if broken + bool(values) > 1:
        raise _Refused("Several different JSON values")
    if not values:
        return None
    text, value = _single(values)
    return _found(text, value, ("prose",))


def _is_answer(span: _Span) -> bool:
    """Whether a piece is meant as the answer. An array inside prose does not count."""
    return bool(_OBJECT.match(span.text) or (_ARRAY.match(span.text) and span.apart))


def _is_json_like(text: str) -> bool:
    return bool(_OBJECT.match(text) or _ARRAY.match(text))


def _spans(text: str) -> Iterator[_Span]:
    """Yield the outermost bracketed pieces, in a bounded number of passes over the text."""
    position = found = 0
    for _ in range(1 + MAX_RESTARTS):
        start = None
        for opening, closing in _balanced(text, position):
            start, position = (opening, position) if closing is None else (None, closing)
            if closing is not None:
                yield _Span(
                    text[opening:closing], closed=True, apart=_apart(text, opening, closing)
                )
            found += 1
            if found > MAX_SPANS:
                raise _Refused("Too many brackets")
        if start is None:
            return
        if _is_json_like(text[start : start + 200]):
            # An object that was cut off. The values inside it are not the answer.
            yield _Span(text[start:], closed=False, apart=_apart(text, start, len(text)))
            return
        position = start + 1


def _balanced(text: str, position: int) -> Iterator[tuple[int, int | None]]:
    """Yield the start and end of each outermost pair of brackets; the last may have no end.

    Quotes count only inside brackets: prose has apostrophes and quotations.
    """
    depth = start = 0
    while match := (TOKEN if depth else _BRACKET).search(text, position):
        position = match.end()
        if match.group() in ("{", "["):
            start = start if depth else match.start()
            depth += 1
        elif match.group() in ("}", "]") and depth:
            depth -= 1
            if depth == 0:
                yield start, position
    if depth:
        yield start, None


_BRACKET = re.compile(r"[\[\]{}]")


def _apart(text: str, start: int, end: int) -> bool:
    before = text[max(0, start - 100) : start].rpartition("\n")[2]
    after = text[end : end + 100].partition("\n")[0]
    return not before.strip() and not after.strip()


# -- syntax errors --------------------------------------------------------------------------------

#: Places for which json_repair would invent a value: a key without a value, an ellipsis, a
#: constant that JSON does not have.
_GAP = re.compile(
    r":\s*(?:[,}\]]|-?(?:NaN|Infinity)\b)|[,\[{:]\s*(?:\.\.\.|…)|(?:\.\.\.|…)\s*[\]}]"
)


def _repaired(body: str, repair: RepairSyntax) -> JsonExtraction | None:
    """Repair the text and parse it; None if that would invent a value."""
    candidate, coercions = _candidate(body)
    if not _is_json_like(candidate) or len(candidate) > MAX_REPAIR or _GAP.search(candidate):
        return None
    repaired = repair(candidate)
    if repaired is None:
        return None
    try:
        value = _loads(repaired)
    except (ValueError, RecursionError):
        return None
    expected = dict if candidate.startswith("{") else list
    if not isinstance(value, expected) or not value:
        return None
    return _found(_readable(value, repaired), value, (*coercions, "json_repair"))


def _candidate(body: str) -> tuple[str, tuple[Coercion, ...]]:
    """Return the part of the text that is meant to be JSON, and what was removed around it."""
    if blocks := _json_blocks(body):
        content, coercions = _largest(blocks)
        return content.strip(), coercions
    likely = {span.text for span in _spans(body) if _is_answer(span)}
    if len(likely) != 1:
        return "", ()
    inner = likely.pop()
    return inner, ("prose",) if inner != body else ()


def _readable(value: Json, repaired: str) -> str:
    """Write the value without escapes, unless it could not be stored as UTF-8."""
    text = json.dumps(value, ensure_ascii=False)
    return repaired if any("\ud800" <= char <= "\udfff" for char in text) else text
