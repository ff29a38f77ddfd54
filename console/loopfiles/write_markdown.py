"""Write the items of a loop as a Markdown checklist, which `read_markdown` reads as the same."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mulligan.console.loopfiles.markdown_lines import WRITTEN, command_verifier, quoted, split_id
from mulligan.console.loopfiles.read_markdown import NO_ID
from mulligan.policies.loops.spec import ItemSpec, ItemVerifier

_BOXES = {"passed": "x", "skipped": "-"}
_RUN = re.compile(r"`+")


def write_markdown(name: str, items: Sequence[ItemSpec], states: Mapping[str, str]) -> str:
    """Return a checklist. ``states``: those of items that have passed or are skipped."""
    lines = [f"# {name}"]
    for item in items:
        lines += ["", *_item_lines(item, _BOXES.get(states.get(item.id, ""), " "))]
    return "\n".join(lines) + "\n"


def _item_lines(item: ItemSpec, box: str) -> Iterator[str]:
    whole = f"`{item.id}`: {item.title}"
    # A title that would be read as something else has a line of its own.
    plain = item.title == item.title.strip(" ") and split_id(whole) == (item.id, item.title)
    yield f"- [{box}] {whole if plain else f'`{item.id}`:'}".rstrip(" ")
    if not plain:
        yield f"  - Title: {json.dumps(item.title)}"
    if item.depends_on:
        yield f"  - Depends on: {', '.join(map(_dependency, item.depends_on))}"
    if item.waits_for:
        yield f"  - Waits for: {', '.join(map(_dependency, item.waits_for))}"
    if item.emits:
        yield f"  - Emits: {', '.join(map(_dependency, item.emits))}"
    if item.priority != ItemSpec.model_fields["priority"].default:
        yield f"  - Priority: {item.priority}"
    yield from _section("Touches", [quoted(each) for each in item.touches])
    yield from _section("Pass criteria", [quoted(each) for each in item.pass_criteria])
    yield from _section("Verifiers", [_verifier(each) for each in item.verifiers])
    other = {
        name: value
        for name, value in item.model_dump(mode="json", exclude_unset=True).items()
        if name not in WRITTEN and value is not None
    }
    if other:
        yield f"  - Fields: {_code(other)}"
    yield from _prompt(item.prompt)


def _dependency(name: str) -> str:
    return f"`{name}`" if name.lower() in NO_ID or name.endswith(".") else name


def _section(title: str, entries: Sequence[str]) -> Iterator[str]:
    if entries:
        yield f"  - {title}:"
        yield from (f"    - {each}" for each in entries)


def _verifier(spec: ItemVerifier) -> str:
    raw = spec.model_dump(mode="json", exclude_unset=True)
    guard = "guard: " if spec.role == "guard" else ""
    plain = {name: value for name, value in raw.items() if name != "role"}
    words = plain.get("args", []) if spec.id == "pytest.subprocess" else plain.get("argv", [])
    head = ["pytest"] if spec.id == "pytest.subprocess" else []
    if all(isinstance(each, str) and each.isprintable() for each in words):
        text = shlex.join([*head, *words])
        if "`" not in text and not text.startswith("{") and command_verifier(text) == plain:
            return f"{guard}`{text}`"
    return f"{guard}{_code(plain)}"


def _code(data: Any) -> str:
    """Return JSON as code; a backtick would end it."""
    text = json.dumps(data).replace("`", "\\u0060")
    return f"`{text}`"


def _prompt(prompt: str) -> Iterator[str]:
    lines = prompt.split("\n")
    if not all(each.isprintable() for each in lines):
        yield f"  - Prompt: {json.dumps(prompt)}"
        return
    longest = max((len(run) for run in _RUN.findall(prompt)), default=0)
    fence = "`" * max(3, longest + 1)
    yield f"  {fence}prompt"
    yield from (f"  {each}" if each else "" for each in lines)
    yield f"  {fence}"
