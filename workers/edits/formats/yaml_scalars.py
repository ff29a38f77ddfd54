"""Write values as YAML, quoted whenever any YAML version could read them as another value."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from mulligan.workers.edits.formats.structured_file import float_text

#: The indentation of a block below its key.
INDENT = 2
#: Text that every YAML version reads as itself without quotes, also between brackets.
_PLAIN = re.compile(r"[A-Za-z_/](?:[\w./@+-]| (?=[\w./@+-]))*", re.ASCII)
_WORDS = frozenset(["true", "false", "yes", "no", "on", "off", "y", "n", "null", "nan", "inf"])
_UNPRINTABLE = re.compile(r"[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff\ud800-\udfff]")
_HEADER = re.compile(r"[|>][+-]?\d?[+-]?")


def literals(value: Any, like: str | None, indent: int, newline: str) -> Iterator[str]:
    """Yield a value as text, first in the style of ``like``. ``indent`` is that of block lines."""
    if not isinstance(value, str):
        yield literal(value)
        return
    like = like or ""
    if like.startswith(("|", ">")) or ("\n" in value and not like.startswith(('"', "'"))):
        yield from _block(value, like, indent, newline)
    if like.startswith("'") and "\n" not in value and value.isprintable():
        yield "'" + value.replace("'", "''") + "'"
    if like.startswith('"'):
        yield _quoted(value)
    yield literal(value)
    yield _quoted(value)


def literal(value: Any) -> str:
    """Write a value on one line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return float_text(value)
    if isinstance(value, list):
        return f"[{', '.join(literal(item) for item in value)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(member(str(key), item) for key, item in value.items())}}}"
    return str(value) if _is_plain(str(value)) else _quoted(str(value))


def member(name: str, value: Any, *, quoted: bool = False) -> str:
    """Write ``name: value`` on one line."""
    if not quoted:
        return f"{literal(name)}: {literal(value)}"
    return f"{_quoted(name)}: {_quoted(value) if isinstance(value, str) else literal(value)}"


def _is_plain(value: str) -> bool:
    return bool(_PLAIN.fullmatch(value)) and value.casefold() not in _WORDS


def _quoted(value: str) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _block(value: str, like: str, indent: int, newline: str) -> Iterator[str]:
    """Yield a literal block, if the value can be one."""
    body = value.removesuffix("\n")
    if not body.strip() or body.startswith((" ", "\n")) or body.endswith("\n"):
        return
    header, _, rest = like.partition("\n")
    comment = ""
    if like.startswith(("|", ">")):
        comment = _HEADER.sub("", header.rstrip("\r"), count=1)
        lines = [line for line in rest.split("\n") if line.strip()]
        indent = len(lines[0]) - len(lines[0].lstrip(" ")) if lines else indent
    mark = "|" if value.endswith("\n") else "|-"
    front = " " * indent
    lines = [front + line if line else "" for line in body.split("\n")]
    yield mark + comment + newline + newline.join(lines)
