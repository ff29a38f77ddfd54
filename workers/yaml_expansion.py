"""Whether a YAML document stays small when its aliases and merge keys are written out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # an extra: not every worker has it
    from ruamel.yaml.nodes import Node

#: More values than this are not a document that somebody wrote.
MAX_VALUES = 200_000


class ExpandsTooMuch(ValueError):
    """A few aliases stand for millions of values, or one contains itself."""

    def __init__(self) -> None:
        super().__init__("expands to too much; does an alias contain itself?")


def check_expansion(root: Node | None) -> None:
    """Raise ExpandsTooMuch before anything constructs the values of such a document."""
    _count(root, {})


def _count(node: Node | None, counted: dict[int, int | None]) -> int:
    """Return the values below a node. ``counted`` has None for a node that is being counted."""
    if id(node) in counted:
        known = counted[id(node)]
        if known is None:
            raise ExpandsTooMuch
        return known
    counted[id(node)] = None
    total = 1
    for inner in _inside(node):
        total += _count(inner, counted)
        if total > MAX_VALUES:
            raise ExpandsTooMuch
    counted[id(node)] = total
    return total


def _inside(node: Node | None) -> list[Node]:
    """Return the items of a sequence, or the keys and values of a mapping."""
    value: Any = None if node is None else node.value
    if not isinstance(value, list):
        return []
    return [each for item in value for each in (item if isinstance(item, tuple) else (item,))]
