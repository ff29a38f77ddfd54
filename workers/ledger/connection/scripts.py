"""The ledger's Lua scripts, each with the shared definitions that it uses, and no others.

Redis runs a script's whole text on every call, so each definition costs time even if nothing calls
it: all of them together cost more than most scripts themselves.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha1
from importlib import resources

#: Definitions that scripts share, in this order.
_SHARED = ("prelude.lua", "prelude_quarantine.lua", "waiting.lua", "gate.lua")
#: Where a definition begins; it ends where the next one or a comment begins in the first column.
_BEGINNING = re.compile(r"(?:local )?function (?P<function>\w+)|local (?P<values>\w+(?:, \w+)*)")
#: Comments and texts contain no names, and the field of a table is none.
_NO_NAMES = re.compile(
    r"--[^\n]*|'(?:\\.|[^'\\\n])*'|\"(?:\\.|[^\"\\\n])*\"|(?<!\.)\.\s*[A-Za-z_]\w*"
)


@dataclass(frozen=True)
class Script:
    text: str
    sha: str


@dataclass(frozen=True)
class Definition:
    """A function or some values that scripts share. Declaring a name before defines it, too."""

    text: str
    names: frozenset[str]

    @cached_property
    def uses(self) -> frozenset[str]:
        return names_in(self.text)


def names_in(text: str) -> frozenset[str]:
    """Return all names that a text of Lua may refer to; too many rather than too few."""
    return frozenset(re.findall(r"[A-Za-z_]\w*", _NO_NAMES.sub(" ", text)))


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
    return Definition(text, frozenset(names.split(", ")))


def assemble(script: str, shared: Sequence[Definition]) -> str:
    """Return a script after those of the shared definitions that it needs, in their order."""
    needed: set[Definition] = set()
    names = set(names_in(script))
    while more := {d for d in shared if d not in needed and d.names & names}:
        needed |= more
        names.update(*(definition.uses for definition in more))
    return "\n".join([*(d.text for d in shared if d in needed), script])


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
