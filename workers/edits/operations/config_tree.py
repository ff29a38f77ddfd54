"""The configuration tree: which file defines a model, an agent, a tool or a route.

Every TOML, YAML and JSON file in the configuration folder, or one folder below it, is part of it:

    models.<name>            a table of parameters
    agents.<name>            class, tools, params (or parameters directly), system_prompt or
                             system_prompt_file, exemplars or exemplars_file
    tools.<name>             a table with a description
    routing.<query class>    a model's name (or routing.models.<query class>)

A file of the folders models, agents and tools whose top level is not such a section is itself the
table of the name that the file has. prompts/<agent>.md is the prompt of an agent that has no other.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any, Literal

from mulligan.policies.suggestions import name_hint
from mulligan.tasks.ports.appliers import ApplyContext, EditRefused, FileChange
from mulligan.workers.edits.formats.json_file import JsonFile
from mulligan.workers.edits.formats.structured_file import StructuredFile, Unreadable, Where
from mulligan.workers.edits.formats.toml_file import TomlFile
from mulligan.workers.edits.formats.yaml_file import YamlFile
from mulligan.workers.edits.tree import confined_paths as confine

Section = Literal["models", "agents", "tools", "routing"]
#: What a thing of each section is called.
KINDS: dict[Section, str] = {
    "models": "model",
    "agents": "agent",
    "tools": "tool",
    "routing": "query class",
}
FORMATS: dict[str, type[StructuredFile]] = {
    ".toml": TomlFile,
    ".yaml": YamlFile,
    ".yml": YamlFile,
    ".json": JsonFile,
}
#: A larger file is data, not configuration, and takes a round-trip parser many seconds.
MAX_CONFIG = 300_000
#: More files than this are not read.
MAX_FILES = 1_000
PROMPTS = "prompts"
#: Folders of which each file may be one thing.
_FOLDERS = ("models", "agents", "tools")
#: A YAML file that is one flow table: comments, directives and markers, then a bracket.
_BRACKET = re.compile(rb"(?:\xef\xbb\xbf)?(?:[ \t]*(?:[#%-][^\n]*)?\r?\n)*(?:---)?\s*\{")


@dataclass(frozen=True, kw_only=True)
class ConfigPlace:
    """A table or value of the tree: the file, what was read, and where it stands in it."""

    path: str
    before: bytes
    document: StructuredFile
    where: Where

    @property
    def value(self) -> Any:
        return self.document.at(self.where)

    @property
    def shown(self) -> str:
        inside = ".".join(str(step) for step in self.where)
        return f"{self.path} ({inside})" if inside else self.path

    def inside(self, *steps: str) -> ConfigPlace:
        return replace(self, where=(*self.where, *steps))

    def changed(self, document: StructuredFile, note: str = "") -> list[FileChange]:
        """The change of its file to another text. The same text is a no-op, with its reason."""
        return [FileChange(path=self.path, before=self.before, after=document.bytes(), note=note)]


@dataclass(frozen=True, kw_only=True)
class _File:
    """A file that may be part of the tree, read but not parsed."""

    #: Relative to the root.
    path: str
    #: The folder inside the configuration folder, or "".
    folder: str
    data: bytes

    @property
    def stem(self) -> str:
        return PurePosixPath(self.path).stem


class ConfigTree:
    """Reads the tree once, as it is now; files are parsed when a name is looked for in them."""

    def __init__(self, ctx: ApplyContext) -> None:
        self._ctx = ctx
        self._unreadable: dict[str, str] = {}
        self._documents: dict[str, StructuredFile | None] = {}

    @property
    def folder(self) -> str:
        """The configuration folder relative to the root, "" for the root itself."""
        text = self._ctx.config.as_posix()
        return "" if text in (".", "") else confine.normal(text)

    def names(self, section: Section) -> list[str]:
        """Every name of a section, sorted."""
        return sorted({name for name, _ in self._entries(section)})

    def has(self, section: Section, name: str) -> bool:
        return any(found == name for found, _ in self._entries(section))

    def find(self, section: Section, name: str) -> ConfigPlace:
        """The one place that defines a name. Raises EditRefused if there are none or several."""
        places = [place for found, place in self._entries(section) if found == name]
        if not places:
            raise EditRefused(self._missing(section, name))
        if len(places) > 1:
            where = " and ".join(place.shown for place in places)
            raise EditRefused(
                f"the {KINDS[section]} {name!r} is ambiguous: it is defined in {where}; keep one"
            )
        return places[0]

    def table(self, section: Section, name: str) -> ConfigPlace:
        """The same for what has to be a table."""
        place = self.find(section, name)
        if not isinstance(place.value, dict):
            raise EditRefused(f"{place.shown}: is not a table")
        return place

    def routing(self) -> list[ConfigPlace]:
        """The tables in which a new query class could be put, one for each file that has one."""
        found = [place for _, place in self._sections("routing")]
        return [p.inside("models") if _inner(p) is not None else p for p in found]

    def joined(self, *parts: str) -> str:
        """A path inside the configuration folder, relative to the root."""
        return "/".join(part for part in (self.folder, *parts) if part)

    def prompts(self) -> list[str]:
        """The agents that have a file in the folder of prompts."""
        names = self._listed(PROMPTS, files=True)
        return [name.removesuffix(".md") for name in names if name.endswith(".md")]

    def exists(self, path: str) -> bool:
        return confine.read(self._ctx.root, path, max_bytes=self._ctx.max_bytes) is not None

    def existing(self, path: str) -> bytes:
        """A file that has to be there. Raises EditRefused."""
        return confine.existing(self._ctx.root, path, max_bytes=self._ctx.max_bytes).data

    def document(
        self, path: str, formats: Mapping[str, type[StructuredFile]] = FORMATS
    ) -> ConfigPlace | None:
        """A structured file by its path, None if it does not exist. Raises EditRefused."""
        kind = formats.get(PurePosixPath(path).suffix.lower())
        seen = confine.read(self._ctx.root, path, max_bytes=self._limit)
        if seen is None:
            return None
        if kind is None:
            raise EditRefused(f"{path}: is none of {', '.join(formats)}")
        try:
            document = kind.read(path, seen.data)
        except Unreadable as error:
            raise EditRefused(f"{path}: {error}") from None
        return ConfigPlace(path=path, before=seen.data, document=document, where=())

    @property
    def _limit(self) -> int:
        return min(self._ctx.max_bytes, MAX_CONFIG)

    def _missing(self, section: Section, name: str) -> str:
        text = f"there is no {KINDS[section]} {name!r}{name_hint(name, self.names(section))}"
        if not self._files:
            text += f" (no TOML, YAML or JSON file is in {self.folder or 'the root'})"
        if self._unreadable:
            told = "; ".join(why for _, why in sorted(self._unreadable.items())[:3])
            text += f" (not read: {told})"
        return text

    def _entries(self, section: Section) -> Iterator[tuple[str, ConfigPlace]]:
        """Every name of a section with its place."""
        for file, place in self._sections(section):
            if not place.where:
                yield file.stem, place
            elif section == "routing":
                yield from _routes(place)
            else:
                yield from ((name, place.inside(name)) for name in _strings(place.value))

    def _sections(self, section: Section) -> Iterator[tuple[_File, ConfigPlace]]:
        """The tables of a section, and files that are a table of it (with no ``where``)."""
        for file in self._files:
            if not _may_hold(file, section):
                continue
            document = self._parsed(file)
            if document is None or not isinstance(document.data, dict):
                continue
            where = _section(document.data, section, file.folder)
            if where is not None:
                yield (
                    file,
                    ConfigPlace(path=file.path, before=file.data, document=document, where=where),
                )

    def _parsed(self, file: _File) -> StructuredFile | None:
        if file.path not in self._documents:
            kind = FORMATS[PurePosixPath(file.path).suffix.lower()]
            try:
                self._documents[file.path] = kind.read(file.path, file.data)
            except Unreadable as error:
                self._unreadable[file.path] = f"{file.path}: {error}"
                self._documents[file.path] = None
        return self._documents[file.path]

    @cached_property
    def _files(self) -> list[_File]:
        found = list(self._read("", self._listed("", files=True)))
        for folder in self._listed("", files=False):
            found += self._read(folder, self._listed(folder, files=True))
            if len(found) > MAX_FILES:
                raise EditRefused(
                    f"{self.folder or 'the root'}: has more than {MAX_FILES} TOML, YAML and JSON"
                    " files; name the configuration folder"
                )
        return found

    def _read(self, folder: str, names: list[str]) -> Iterator[_File]:
        for name in names:
            if PurePosixPath(name).suffix.lower() not in FORMATS:
                continue
            path = self.joined(folder, name)
            try:
                seen = confine.read(self._ctx.root, path, max_bytes=self._limit)
            except EditRefused as error:
                self._unreadable[path] = str(error)
                continue
            if seen is not None:
                yield _File(path=path, folder=folder, data=seen.data)

    def _listed(self, folder: str, *, files: bool) -> list[str]:
        """The files, or the folders, in a folder of the tree, sorted; hidden ones and links not."""
        wanted = stat.S_ISREG if files else stat.S_ISDIR
        with confine.opened_folder(self._ctx.root, self.joined(folder, "any")) as opened:
            if opened is None:
                return []
            names = [item.name for item in os.scandir(opened) if not item.name.startswith(".")]
            modes = {name: confine.kind_at(opened, name, name) for name in names}
        return sorted(name for name, mode in modes.items() if mode is not None and wanted(mode))


def _may_hold(file: _File, section: Section) -> bool:
    """Whether a file is worth parsing for a section. Most files of a tree say nothing of it."""
    if file.folder == section:
        return True
    if not file.path.endswith((".yaml", ".yml")):
        return section.encode() in file.data
    # Slow to parse, and often large (lock files, API descriptions): the key stands at a line's
    # start, or the whole file is between brackets.
    key = rb"^[\"']?" + section.encode() + rb"[\"']?[ \t]*:"
    return bool(_BRACKET.match(file.data) or re.search(key, file.data, re.MULTILINE))


def _section(data: Mapping[str, Any], section: Section, folder: str) -> Where | None:
    """Where a file has a section: under its name, or all of it by the folder that it is in."""
    is_one_thing = folder in _FOLDERS and not isinstance(data.get(folder), dict)
    if is_one_thing:
        return () if folder == section else None
    return (section,) if isinstance(data.get(section), dict) else None


def _inner(place: ConfigPlace) -> Mapping[str, Any] | None:
    inner = place.value.get("models")
    return inner if isinstance(inner, dict) else None


def _routes(place: ConfigPlace) -> Iterator[tuple[str, ConfigPlace]]:
    """Query classes: members that are names, directly and in a table ``models``."""
    for name in _strings(place.value):
        if isinstance(place.value[name], str):
            yield name, place.inside(name)
    for name in _strings(_inner(place) or {}):
        yield name, place.inside("models", name)


def _strings(table: Mapping[Any, Any]) -> list[str]:
    return [name for name in table if isinstance(name, str)]
