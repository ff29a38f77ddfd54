"""YAML files: ruamel's nodes give the place of each value; a splice leaves the rest unchanged.

ruamel's own round trip would reflow long lines, move comments and normalise indentation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from mulligan.tasks.ports.appliers import EditRefused
from mulligan.workers.edits.formats.bracketed import Bracketed
from mulligan.workers.edits.formats.structured_file import (
    Span,
    Splice,
    StructuredFile,
    UnreadableFile,
    Where,
    apply_splices,
)
from mulligan.workers.edits.formats.yaml_scalars import INDENT, literal, literals, member

_ALIAS = re.compile(r"\s*(\*[^\s,\]}]+)")
#: An anchor or a tag in front of a value.
_PROPERTIES = re.compile(r"(?:[&!]\S*\s+)*")


class YamlFile(StructuredFile):
    def parse(self, text: str) -> Any:
        try:
            return YAML(typ="safe", pure=True).load(text)
        except (YAMLError, ValueError, RecursionError, TypeError) as error:
            raise UnreadableFile(f"is not YAML of one document: {_first_line(error)}") from None

    def _setting(self, where: Where, value: Any) -> Iterator[str]:
        if not self._owns(where):
            yield from self._inserting(where, value)
            return
        span = self._span(where)
        node = self._node(where)
        if not isinstance(node, ScalarNode) and not node.flow_style:
            span = Span(self._value_start(where), span.end)
        present = self.text[span.start : span.end]
        properties = _PROPERTIES.match(present)
        kept = properties[0] if properties else ""
        lead = " " if self.text[span.start - 1 : span.start] == ":" else ""
        for text in literals(
            value, present.removeprefix(kept), self._column(where) + INDENT, self.newline
        ):
            for front in dict.fromkeys((kept, "")):
                yield apply_splices(self.text, [Splice(span.start, span.end, lead + front + text)])

    def _inserting(self, where: Where, value: Any) -> Iterator[str]:
        table = self._node(where[:-1])
        name = str(where[-1])
        if table.flow_style:
            like = self.text[table.start_mark.index :][1:2]
            quoted = like in ('"', "'")
            yield self._bracketed(table).append(member(name, value, quoted=quoted))
            return
        column = table.value[0][0].start_mark.column
        for text in literals(value, None, column + INDENT, self.newline):
            line = f"{literal(name)}: {text}"
            for key, node in reversed(table.value):
                if self._simple(key, node):
                    place = self._line_end(self._value_span(key, node).end)
                    new = self.newline + " " * column + line
                    yield apply_splices(self.text, [Splice(place, place, new)])
                    break
            first = table.value[0][0].start_mark.index
            yield apply_splices(
                self.text, [Splice(first, first, line + self.newline + " " * column)]
            )

    def _appending(self, where: Where, value: Any) -> Iterator[str]:
        node = self._node(where)
        items = [self._item_span(node, item) for item in node.value]
        like = self.text[items[-1].start : items[-1].end] if items else None
        if node.flow_style:
            for text in literals(value, like, 0, self.newline):
                yield self._bracketed(node).append(text)
            return
        column = node.start_mark.column
        gap = self.text[node.start_mark.index + 1 : items[0].start]
        gap = " " if "\n" in gap else gap
        place = self._line_end(items[-1].end)
        inner = column + 1 + len(gap)
        block = isinstance(node.value[-1], MappingNode) and not node.value[-1].flow_style
        for text in self._item_texts(value, like, inner, block=block):
            line = self.newline + " " * column + "-" + gap + text
            yield apply_splices(self.text, [Splice(place, place, line)])

    def _removing(self, where: Where, index: int) -> Iterator[str]:
        node = self._node(where)
        if node.flow_style:
            yield self._bracketed(node).remove(index)
            return
        items = [self._item_span(node, item) for item in node.value]
        if len(items) == 1:
            start = self._value_start(where)
            lead = " " if where and isinstance(where[-1], str) else ""
            yield apply_splices(self.text, [Splice(start, items[0].end, lead + "[]")])
            return
        floor = items[index - 1].end if index else node.start_mark.index
        dash = self.text.rfind("-", floor, items[index].start)
        if index == 0:
            dash = node.start_mark.index
        start = self.text.rfind("\n", 0, dash) + 1
        stop = self.text.find("\n", items[index].end) + 1 or len(self.text)
        if index == len(items) - 1 and stop == len(self.text) and not self.text.endswith("\n"):
            start -= len(self.newline)
        yield apply_splices(self.text, [Splice(start, stop)])

    def _item_texts(
        self, value: Any, like: str | None, column: int, *, block: bool
    ) -> Iterator[str]:
        """Yield texts for an item of a block list; a table gets several lines if ``block``."""
        if block and isinstance(value, dict) and value:
            lines = [
                f"{literal(str(key))}: {next(literals(item, None, column + INDENT, self.newline))}"
                for key, item in value.items()
            ]
            yield (self.newline + " " * column).join(lines)
        yield from literals(value, like, column + INDENT, self.newline)

    @cached_property
    def _root(self) -> Any:
        return YAML(typ="safe", pure=True).compose(self.text)

    def _pair(self, where: Where) -> tuple[Node | None, Node] | None:
        """Return the node at a path, with its key's node if it is a member of a table. Return None
        if it comes from a merge key or does not exist."""
        key, node = None, self._root
        for step in where:
            if isinstance(node, SequenceNode):
                key, node = None, node.value[int(step)]
                continue
            pairs = [pair for pair in node.value if pair[0].value == step]
            if not pairs:
                return None
            key, node = pairs[-1]
        return key, node

    def _owns(self, where: Where) -> bool:
        return self._pair(where) is not None

    def _node(self, where: Where) -> Any:
        return self._existing_pair(where)[1]

    def _existing_pair(self, where: Where) -> tuple[Node | None, Any]:
        found = self._pair(where)
        if found is None:
            raise EditRefused(f"{self.name}: {where[-1]} comes from a merge key; edit its source")
        return found

    def _span(self, where: Where) -> Span:
        key, node = self._existing_pair(where)
        if key is not None:
            return self._value_span(key, node)
        if not where:
            return Span(node.start_mark.index, self._end(node))
        return self._item_span(self._node(where[:-1]), node)

    def _value_span(self, key: Node, node: Node) -> Span:
        colon = self._after_colon(key)
        if node.start_mark.index < key.end_mark.index:
            alias = _ALIAS.match(self.text, colon)
            return Span(alias.start(1), alias.end(1)) if alias else Span(colon, colon)
        if isinstance(node, ScalarNode) and node.start_mark.index == node.end_mark.index:
            return Span(colon, colon)
        return Span(node.start_mark.index, self._end(node))

    def _after_colon(self, key: Node) -> int:
        colon = self.text.find(":", key.end_mark.index)
        if colon < 0:
            raise EditRefused(f"{self.name}: the key {key.value} has no value")
        return colon + 1

    def _item_span(self, parent: Node, node: Node) -> Span:
        if node.start_mark.index < parent.start_mark.index:
            raise EditRefused(f"{self.name}: the list has an alias; edit the file as a text")
        return Span(node.start_mark.index, self._end(node))

    def _end(self, node: Any) -> int:
        """Return the position after the last visible character of a value. ruamel's end mark of a
        block comes after the blank lines and comments that follow it."""
        if isinstance(node, ScalarNode):
            text = self.text[node.start_mark.index : node.end_mark.index]
            visible = text.rstrip() if node.style in ("|", ">") else text
            return int(node.start_mark.index) + len(visible)
        if node.flow_style or not node.value:
            return int(node.end_mark.index)
        last = node.value[-1]
        if isinstance(last, tuple):
            return self._value_span(*last).end
        return self._item_span(node, last).end

    def _value_start(self, where: Where) -> int:
        """Return the position after a member's colon, or the start of an item or the document."""
        found = self._pair(where)
        if found is not None and found[0] is not None:
            return self._after_colon(found[0])
        return self._span(where).start

    def _column(self, where: Where) -> int:
        """Return the column of the key or the item."""
        found = self._pair(where)
        node = None if found is None else found[0] or found[1]
        return 0 if node is None else int(node.start_mark.column)

    def _simple(self, key: Node, node: Any) -> bool:
        """Return whether a member ends with its line, so that a new line may follow."""
        if node.start_mark.index < key.end_mark.index:
            return True
        if isinstance(node, ScalarNode):
            return node.style not in ("|", ">")
        return bool(node.flow_style)

    def _line_end(self, at: int) -> int:
        end = self.text.find("\n", at)
        if end < 0:
            return len(self.text)
        return end - 1 if self.text[end - 1] == "\r" else end

    def _bracketed(self, node: Any) -> Bracketed:
        text = self.text[node.start_mark.index : node.end_mark.index]
        properties = _PROPERTIES.match(text)
        front = properties.end() if properties else 0
        if isinstance(node, MappingNode):
            items = [
                Span(key.start_mark.index, self._value_span(key, value).end)
                for key, value in node.value
            ]
        else:
            items = [self._item_span(node, item) for item in node.value]
        return Bracketed(
            text=self.text,
            start=node.start_mark.index + front,
            end=node.end_mark.index,
            items=items,
            newline=self.newline,
        )


def _first_line(error: Exception) -> str:
    problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
    mark = getattr(error, "problem_mark", None)
    return f"line {mark.line + 1}: {problem}" if mark is not None else str(problem)
