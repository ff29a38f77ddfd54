"""Read a Markdown checklist as the items of a loop. What is not understood is named by its line.

An item is an entry with a box, or a heading that begins with an id. It depends on the items that
are nested in it. Another heading begins a group, which becomes a spec file of its own.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from mulligan.console.loopfiles.markdown_lines import (
    WRITTEN,
    Line,
    command_verifier,
    is_command,
    read_lines,
    split_id,
    unquoted,
)
from mulligan.policies.loops.draft import slug
from mulligan.policies.loops.spec import MOST_ITEMS, ItemSpec
from mulligan.policies.nesting import too_deep
from mulligan.tasks.ports.errors import BadInput

Raw = dict[str, Any]
_MOST_NOTES = 200
_LONGEST_ID = 60
#: Characters of an entry that goes on over several lines, and verifiers made of an item's texts.
_LONGEST_ENTRY, _MOST_DERIVED = 20_000, 50
_STATES = {"x": "passed", "X": "passed", "-": "skipped"}
#: The words before a colon, and the field that they stand for.
_KEYS = {
    "depends on": "depends_on", "depends_on": "depends_on", "dependencies": "depends_on",
    "touches": "touches", "files": "touches", "pass criteria": "pass_criteria",
    "acceptance criteria": "pass_criteria", "criteria": "pass_criteria", "title": "title",
    "prompt": "prompt", "verifiers": "verifiers", "verifier": "verifiers", "tests": "verifiers",
    "verified by": "verifiers", "emits": "emits",
    "waits for": "waits_for", "status": "status", "priority": "priority", "fields": "fields",
}  # fmt: skip
_LISTS = frozenset({"depends_on", "touches", "pass_criteria", "verifiers", "emits",
                    "waits_for"})  # fmt: skip
_KEY = re.compile(r"(?:\*\*|__)?([A-Za-z][A-Za-z_ ]{2,20}?)(?:\*\*|__)? ?:(?:\*\*|__)? *(.*)\Z")
_DEPENDENCY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}(?:/[A-Za-z0-9][A-Za-z0-9_.-]{0,79})?")
#: An id in backticks, or any other word; and the words between ids, or for none of them.
_WORD = re.compile(rf"`({_DEPENDENCY.pattern})`|([^\s,]+)")
NO_ID = frozenset({"and", "none", "-", "–", "—"})
_CODE = re.compile(r"`([^`]+)`")


@dataclass
class ReadItem:
    """An item as it is read."""

    line: int
    #: Where it begins; -1 for a heading, which contains everything below it.
    indent: int
    id: str
    title: str
    group: int
    level: int = 0
    state: str = ""
    texts: list[str] = field(default_factory=list)
    fields: Raw = field(default_factory=dict)
    #: The field that a list of entries belongs to, and how far they are indented at least.
    section: str = ""
    section_indent: int = 0


@dataclass
class Checklist:
    """The items of a Markdown text, its groups, and what was not understood."""

    name: str = ""
    items: list[ReadItem] = field(default_factory=list)
    groups: list[str] = field(default_factory=lambda: [""])
    #: What was left out or derived, by line.
    notes: list[str] = field(default_factory=list)

    def note(self, line: int, message: str) -> None:
        if len(self.notes) < _MOST_NOTES:
            self.notes.append(f"line {line}: {message}")
        elif len(self.notes) == _MOST_NOTES:
            self.notes.append("what more was not understood is not listed")

    def specs(self) -> Iterator[tuple[str, Raw]]:
        """Yield the title and the spec of each group that has items."""
        # They are read in the order of their groups.
        for number, items in groupby(self.items, key=lambda each: each.group):
            found = [*items]
            states = {each.id: each.state for each in found if each.state}
            raw: Raw = {"version": 1, "items": [_raw_item(each) for each in found]}
            yield self.groups[number], {**raw, **({"states": states} if states else {})}


def read_markdown(text: str) -> Checklist:
    """Return the items of a checklist. Raises BadInput if there are none, or too many."""
    found, stack = Checklist(), list[ReadItem]()
    for line in read_lines(text):
        _read_line(found, stack, line)
        if len(found.items) > MOST_ITEMS:
            raise BadInput(f"a loop may have {MOST_ITEMS} items; this checklist has more")
    if not found.items:
        raise BadInput("has no items: they are entries with a box (- [ ]) or headings with an id")
    _name_items(found)
    for each in found.items:
        _derive_verifiers(found, each)
    return found


# -- lines -----------------------------------------------------------------------------------------


def _read_line(found: Checklist, stack: list[ReadItem], line: Line) -> None:
    if line.kind == "heading":
        _read_heading(found, stack, line)
        return
    if line.kind in ("box", "bullet"):
        while stack and stack[-1].indent >= line.indent:
            stack.pop()
    item = stack[-1] if stack else None
    if item is not None and item.section:
        if line.indent >= item.section_indent and _read_in_section(found, item, line):
            return
        item.section = ""
    if line.kind == "box":
        _begin_item(found, stack, line)
    elif item is None or (line.kind in ("text", "fence") and line.indent <= item.indent):
        stack.clear()
        found.note(line.number, "is not part of an item: left out")
    else:
        _read_inside(found, item, line)


def _read_in_section(found: Checklist, item: ReadItem, line: Line) -> bool:
    """Read an entry of a list of an item, or a further line of one. Return whether it is that."""
    if line.kind in ("box", "bullet"):
        _add_entry(found, item, item.section, line.text, line)
        return True
    entries = item.fields.get(item.section)
    if line.kind == "text" and entries and line.indent > item.section_indent:
        if not isinstance(entries[-1], str):
            found.note(line.number, "is not part of a command: left out")
        elif len(entries[-1]) + len(line.text) >= _LONGEST_ENTRY:
            found.note(line.number, "makes the entry too long: left out")
        else:
            entries[-1] += f" {line.text}"
        return True
    return False


def _read_heading(found: Checklist, stack: list[ReadItem], line: Line) -> None:
    level = len(line.mark)
    above = next((each for each in stack if each.indent < 0), None)
    stack.clear()
    name, title = split_id(line.text)
    if name:
        item = ReadItem(line.number, -1, name, title, len(found.groups) - 1, level)
        found.items.append(item)
        stack.append(item)
        return
    key = _KEYS.get(line.text.strip(" :*").lower())
    if above is not None and level > above.level and key in _LISTS:
        above.section, above.section_indent = key, 0
        stack.append(above)
    elif level == 1 and not found.name and not found.items:
        found.name = line.text
    else:
        found.groups.append(line.text)


def _begin_item(found: Checklist, stack: list[ReadItem], line: Line) -> None:
    name, title = split_id(line.text)
    parent = stack[-1] if stack else None
    item = ReadItem(line.number, line.indent, name, title, len(found.groups) - 1)
    item.state = _STATES.get(line.mark, "")
    if parent is not None:
        parent.fields.setdefault("nested", []).append(item)
    found.items.append(item)
    stack.append(item)


def _read_inside(found: Checklist, item: ReadItem, line: Line) -> None:
    """Read a line that belongs to an item: a field, or a part of its text."""
    if line.kind == "fence":
        if line.mark == "prompt":
            item.fields["prompt"] = line.text
        else:
            item.texts.append(f"```{line.mark}\n{line.text}\n```")
        return
    match = _KEY.match(line.text)
    key = _KEYS.get(match[1].strip().lower()) if match else None
    if match is None or key is None:
        item.texts.append(f"- {line.text}" if line.kind == "bullet" else line.text)
        return
    if key in _LISTS:
        _read_list(found, item, key, match[2], line)
    else:
        _read_value(found, item, key, match[2], line)


def _read_list(found: Checklist, item: ReadItem, key: str, rest: str, line: Line) -> None:
    if rest:
        parts = [rest] if key in ("pass_criteria", "verifiers") else rest.split(",")
        for part in parts:
            _add_entry(found, item, key, part, line)
        return
    item.section = key
    item.section_indent = line.indent + (1 if line.kind == "bullet" else 0)


def _read_value(found: Checklist, item: ReadItem, key: str, rest: str, line: Line) -> None:
    text = unquoted(rest)
    if key == "status":
        known = {"passed": "passed", "done": "passed", "skipped": "skipped"}
        item.state = known.get(text.lower(), item.state)
    elif key == "title":
        item.title = text
    elif key == "priority" and text.isascii() and text.isdigit() and len(text) == 1:
        item.fields["priority"] = int(text)
    elif key == "prompt":
        item.fields["prompt"] = text
    elif key == "fields" and isinstance(values := _json(text), dict):
        others = ItemSpec.model_fields.keys() - WRITTEN
        item.fields.update({name: each for name, each in values.items() if name in others})
        for name in sorted(values.keys() - others):
            found.note(line.number, f"{name} is none of these fields: left out")
    else:
        found.note(line.number, f"is no {key}: left out")


def _add_entry(found: Checklist, item: ReadItem, key: str, text: str, line: Line) -> None:
    text = text.strip(" ")
    if key == "verifiers":
        verifier = _verifier(text)
        if verifier is None:
            found.note(line.number, "is no command of a verifier: left out")
            return
        item.fields.setdefault(key, []).append(verifier)
    elif key in ("depends_on", "emits", "waits_for"):
        what = "id of an item" if key == "depends_on" else "name of an event"
        for marked, bare in _WORD.findall(text):
            name = marked or bare.strip("`.*")
            if marked or (_DEPENDENCY.fullmatch(name) and name.lower() not in NO_ID):
                item.fields.setdefault(key, []).append(name)
            elif name and name.lower() not in NO_ID:
                found.note(line.number, f"{name[:80]!r} is no {what}: left out")
    elif value := unquoted(text):
        item.fields.setdefault(key, []).append(value)


def _verifier(text: str) -> Raw | None:
    guard = text.lower().startswith("guard:")
    command = unquoted(text[len("guard:") :].strip(" ") if guard else text)
    if command.startswith("{"):
        raw = _json(command)
        found = raw if isinstance(raw, dict) else None
    else:
        found = command_verifier(command)
    return {**found, "role": "guard"} if found is not None and guard else found


def _json(text: str) -> Any:
    if too_deep(text):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


# -- items -----------------------------------------------------------------------------------------


def _name_items(found: Checklist) -> None:
    """Give ids to the items without one, and let each depend on those that are nested in it."""
    used = {each.id for each in found.items if each.id}
    numbers = Counter[str]()
    for item in found.items:
        if not item.id:
            name = base = slug(item.title, "item")[:_LONGEST_ID]
            while name in used or not numbers[base]:
                numbers[base] += 1
                name = base if numbers[base] == 1 else f"{base}-{numbers[base]}"
            used.add(name)
            item.id = name
    for item in found.items:
        nested: Sequence[ReadItem] = item.fields.pop("nested", ())
        known = item.fields.get("depends_on", [])
        more = [each.id for each in nested if each.id not in known]
        if more:
            item.fields["depends_on"] = [*known, *more]


def _derive_verifiers(found: Checklist, item: ReadItem) -> None:
    """Make verifiers of the commands in criteria and texts, unless the item names its verifiers."""
    if "verifiers" in item.fields:
        return
    criteria = item.fields.get("pass_criteria", [])
    made: dict[str, Raw] = {}
    texts = [*criteria, item.title, *item.texts]
    for code in dict.fromkeys(each[1] for text in texts for each in _CODE.finditer(text)):
        verifier = command_verifier(code) if is_command(code) else None
        if verifier is None or (key := json.dumps(verifier)) in made:
            continue
        if len(made) == _MOST_DERIVED:
            found.note(item.line, f"{item.id} has more commands: they became no verifiers")
            break
        made[key] = verifier
        found.note(item.line, f"{code[:80]!r} became a verifier of {item.id}")
    if made:
        item.fields["verifiers"] = [*made.values()]


def _raw_item(item: ReadItem) -> Raw:
    text = "\n".join(item.texts)
    prompt = item.fields.get("prompt") or "\n\n".join(filter(None, (item.title, text))) or item.id
    head: Raw = {"id": item.id, **({"title": item.title} if item.title else {}), "prompt": prompt}
    return {**head, **{name: each for name, each in item.fields.items() if name != "prompt"}}
