"""The ledger's Lua scripts, each with the shared definitions that it uses, and no others.

Redis runs a script's whole text on every call. Building the functions that a script could call
takes longer than most scripts themselves, so each one is built when it is first called: shared
functions are fields of the table `F`, whose `__index` builds them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha1
from importlib import resources

#: Definitions that scripts share, in this order.
_SHARED = (
    "prelude.lua", "prelude_quarantine.lua", "waiting.lua", "rates.lua", "gate.lua", "loops.lua",
    "coordination.lua",
)  # fmt: skip
#: Where a definition begins; it ends where the next one or a comment begins in the first column.
_BEGINNING = re.compile(r"local function (?P<function>\w+)|local (?P<values>\w+(?:, \w+)*)")
#: Comments and texts contain no names, and the field of a table is none.
_NAME = re.compile(
    r"--[^\n]*|'(?:\\.|[^'\\\n])*'|\"(?:\\.|[^\"\\\n])*\"|(?<!\.)\.\s*[A-Za-z_]\w*"
    r"|(?P<name>[A-Za-z_]\w*)"
)


@dataclass(frozen=True)
class Script:
    text: str
    sha: str


@dataclass(frozen=True)
class Definition:
    """A function or some values that scripts share."""

    text: str
    names: frozenset[str]
    is_function: bool

    @cached_property
    def uses(self) -> frozenset[str]:
        return names_in(self.text)


def names_in(text: str) -> frozenset[str]:
    """Return all names that a text of Lua may refer to; too many rather than too few."""
    return frozenset(found["name"] for found in _NAME.finditer(text) if found["name"])


def definitions_in(text: str) -> list[Definition]:
    """Split a file of definitions.

    Raises ValueError for a statement that defines nothing, because it would never be used.
    """
    blocks: list[list[str]] = []
    for line in text.splitlines():
        if line.startswith(("--", "local ", "function ")):
            blocks.append([])
        if blocks:
            blocks[-1].append(line)
    return [_definition("\n".join(block)) for block in blocks if not block[0].startswith("--")]


def _definition(text: str) -> Definition:
    found = _BEGINNING.match(text)
    strays = [line for line in text.splitlines()[1:] if re.match(r"(?!end\b)\w", line)]
    if not found or strays:
        raise ValueError(f"not a definition: {strays[0] if strays else text}")
    names = found["function"] or found["values"]
    return Definition(text, frozenset(names.split(", ")), bool(found["function"]))


def assemble(script: str, shared: Sequence[Definition]) -> str:
    """Return a script after those of the shared definitions that it needs, in their order."""
    needed: set[Definition] = set()
    names = set(names_in(script))
    while more := {d for d in shared if d not in needed and d.names & names}:
        needed |= more
        names.update(*(definition.uses for definition in more))
    functions = [d for d in shared if d in needed and d.is_function]
    values = [d.text for d in shared if d in needed and not d.is_function]
    shared_names = frozenset(name for d in functions for name in d.names)
    return "\n".join([*values, *_builder(functions, shared_names), _qualify(script, shared_names)])


def _qualify(text: str, functions: Collection[str]) -> str:
    """Name shared functions as fields of `F`; a variable of the same name is a syntax error."""
    return _NAME.sub(lambda found: ("F." if found["name"] in functions else "") + found[0], text)


def _builder(functions: Sequence[Definition], names: Collection[str]) -> list[str]:
    if not functions:
        return []
    lines = ["local F = setmetatable({}, { __index = function(F, name)", "local built"]
    for number, definition in enumerate(functions):
        (name,) = definition.names
        test = f"{'elseif' if number else 'if'} name == '{name}' then built = function"
        lines.append(test + _qualify(definition.text.removeprefix(f"local function {name}"), names))
    return [*lines, "end", "F[name] = built", "return built", "end })"]


def _load_scripts() -> dict[str, Script]:
    folder = resources.files("mulligan.workers.ledger.lua")
    shared = [d for name in _SHARED for d in definitions_in((folder / name).read_text())]
    scripts = {}
    for file in folder.iterdir():
        if file.name.endswith(".lua") and file.name not in _SHARED:
            text = assemble(file.read_text(), shared)
            sha = sha1(text.encode(), usedforsecurity=False).hexdigest()
            scripts[file.name.removesuffix(".lua")] = Script(text, sha)
    return scripts


SCRIPTS = _load_scripts()
