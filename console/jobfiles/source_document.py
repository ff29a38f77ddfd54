"""Read YAML and JSON files: plain data with the line of every value, or one clear error."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.constructor import SafeConstructor
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError

from mulligan.policies.nesting import too_deep
from mulligan.policies.problem import FieldPath, Problem
from mulligan.policies.value import shortened
from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.yaml_expansion import MAX_VALUES, ExpandsTooMuch, check_expansion

STDIN = "-"
#: A larger file was probably named by mistake.
MAX_BYTES = 10_000_000
#: Bits of a whole number of about 1,000 digits. Longer ones cannot be written as JSON.
_MAX_BITS = 3_300


@dataclass(frozen=True)
class FileProblem(Problem):
    """A problem at its place in a file."""

    file: str = ""
    line: int | None = None

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{place}: {super().__str__()}"


@dataclass(frozen=True)
class SourceDocument:
    """A file and its data."""

    #: The file's name in messages.
    name: str
    #: The folder to which its paths are relative.
    folder: Path
    data: Any
    root: Node | None


class _Constructor(SafeConstructor):
    """Builds plain data only: a date stays a text."""


_Constructor.add_constructor("tag:yaml.org,2002:timestamp", SafeConstructor.construct_yaml_str)


def read_document(path: str, *, if_empty: str = "") -> SourceDocument:
    """Read a file or stdin, or raise BadInput with the file and the line.

    ``if_empty``: what to do about an empty file.
    """
    name = "<stdin>" if path == STDIN else path
    folder = Path.cwd() if path == STDIN else Path(path).resolve().parent
    return parse_document(read_text(path, name), name=name, folder=folder, if_empty=if_empty)


def parse_document(text: str, *, name: str, folder: Path, if_empty: str = "") -> SourceDocument:
    """Read YAML or JSON, or raise BadInput with the line. ``name``: what it is called there."""
    if not text.strip():
        raise _bad(name, f"is empty{if_empty}")
    try:
        data, root = _parse(text, name)
        _check(data, root, name)
    except RecursionError:
        raise _bad(name, "is nested too deeply") from None
    return SourceDocument(name, folder, data, root)


def _bad(file: str, message: str, line: int | None = None) -> BadInput:
    return BadInput(FileProblem(message, file=file, line=line))


def read_text(path: str, name: str) -> str:
    """Read a UTF-8 text file of at most MAX_BYTES."""
    try:
        data = _read_bytes(path)
    except FileNotFoundError:
        raise _bad(name, "there is no such file") from None
    except IsADirectoryError:
        raise _bad(name, "is a directory; name a file in it") from None
    except OSError as error:
        raise _bad(name, f"cannot be read: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise _bad(name, f"is over {MAX_BYTES // 1_000_000} MB; is it the right file?")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        message = f"is not UTF-8 (byte 0x{data[error.start]:02x}); save it as UTF-8"
        raise _bad(name, message, line) from None


def _read_bytes(path: str) -> bytes:
    if path == STDIN:
        return sys.stdin.buffer.read(MAX_BYTES + 1)
    with Path(path).open("rb") as file:
        return file.read(MAX_BYTES + 1)


def _parse(text: str, name: str) -> tuple[Any, Node | None]:
    """Parse JSON as JSON: YAML reads it too but does not join surrogate pairs."""
    if name.endswith(".json"):
        return _json(text, name), _nodes(text)
    if text.lstrip()[:1] in ("{", "["):
        try:
            return _loads(text), _nodes(text)
        except ValueError:
            pass
    return _yaml(text, name)


def _loads(text: str) -> Any:
    if too_deep(text):
        raise RecursionError  # as YAML's parser does
    return json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse)


def _json(text: str, name: str) -> Any:
    try:
        return _loads(text)
    except json.JSONDecodeError as error:
        raise _bad(name, f"broken JSON: {error.msg}", error.lineno) from None
    except ValueError as error:
        raise _bad(name, f"{error}") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"{key}: is given twice")
        found[key] = value
    return found


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _nodes(text: str) -> Node | None:
    """Return the nodes of a JSON file, for line numbers only."""
    try:
        root: Node | None = YAML(typ="safe", pure=True).compose(text)
    except YAMLError:
        return None
    return root


def _yaml(text: str, name: str) -> tuple[Any, Node | None]:
    yaml = YAML(typ="safe", pure=True)
    yaml.Constructor = _Constructor
    try:
        root = yaml.compose(text)
        check_expansion(root)
        return (None if root is None else yaml.constructor.construct_document(root)), root
    except ExpandsTooMuch as error:
        raise _bad(name, str(error)) from None
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        message = f"broken YAML: the character {error.character!r} is not allowed"
        raise _bad(name, message, line) from None
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise _bad(name, _explain(error), mark.line + 1 if mark else 1) from None
    except (YAMLError, ValueError) as error:
        raise _bad(name, f"broken YAML: {' '.join(str(error).split())}") from None


def _explain(error: MarkedYAMLError) -> str:
    problem = str(error.problem or error)
    if "duplicate key" in problem:
        return f"{problem.split(' with value')[0].removeprefix('found ')}: give it once"
    if "another document" in problem:
        return "a second document begins here; put the jobs under one `jobs:`"
    if "'\\t'" in problem:
        return "broken YAML: a tab; indent with spaces"
    if "could not determine a constructor" in problem:
        return f"broken YAML: {problem.removeprefix('could not determine a constructor for ')}"
    context = f" ({error.context})" if error.context else ""
    return f"broken YAML: {problem}{context}"


def _check(data: Any, root: Node | None, name: str) -> None:
    """Refuse values that JSON cannot express, and data that is too large or contains itself."""
    waiting: list[tuple[tuple[str | int, ...], Any]] = [((), data)]
    count = 0
    while waiting:
        path, value = waiting.pop()
        count += 1
        if count > MAX_VALUES or len(path) > 100:
            raise _bad(name, "expands to too much; does an alias contain itself?")
        if isinstance(value, dict):
            for key in value:
                if not isinstance(key, str):
                    raise _bad(name, f"the key {key!r} is not text", line_of(root, path)[0])
            waiting += [((*path, key), item) for key, item in value.items()]
        elif isinstance(value, list):
            waiting += [((*path, index), item) for index, item in enumerate(value)]
        elif not _plain(value):
            shown = "so long a number" if isinstance(value, int) else shortened(repr(value), 80)
            raise _bad(name, f"{shown} cannot be kept as JSON", line_of(root, path)[0])


def _plain(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, int):
        return value.bit_length() <= _MAX_BITS
    return value is None or isinstance(value, str)


def is_quoted(root: Node | None, path: FieldPath) -> bool:
    """Whether the value at a path is a text in quotes or in a block."""
    node = root
    for part in path:
        found = _below(node, part)
        if found is None:
            return False
        node = found[1]
    return isinstance(node, ScalarNode) and node.style is not None


def line_of(root: Node | None, path: FieldPath) -> tuple[int, bool]:
    """Return the line of the value at a path, or of its nearest parent; and whether it exists."""
    node, line = root, 1
    if node is not None:
        line = node.start_mark.line + 1
    for part in path:
        found = _below(node, part)
        if found is None:
            return line, False
        line, node = found
    return line, root is not None


def _below(node: Node | None, part: str | int) -> tuple[int, Node] | None:
    if isinstance(node, MappingNode):
        for key, value in node.value:
            if key.value == part:
                return key.start_mark.line + 1, value
    if isinstance(node, SequenceNode) and isinstance(part, int) and part < len(node.value):
        item = node.value[part]
        return item.start_mark.line + 1, item
    return None
