"""The configuration tree: which file defines a model, an agent, a tool or a route.

It consists of all TOML, YAML and JSON files in the configuration folder and one folder below it:

    models.<name>            a table of parameters
    agents.<name>            class, tools, params (or parameters directly), system_prompt or
                             system_prompt_file, exemplars or exemplars_file
    tools.<name>             a table with a description
    routing.<query class>    a model's name (or routing.models.<query class>)

A file in the folders models, agents and tools whose top level is not such a section is itself the
table of the entry with the file's name. prompts/<agent>.md is the prompt of an agent without one.
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
from mulligan.workers.edits.formats.structured_file import StructuredFile, UnreadableFile, Where
from mulligan.workers.edits.formats.toml_file import TomlFile
from mulligan.workers.edits.formats.yaml_file import YamlFile
from mulligan.workers.edits.tree import confined_paths

Section = Literal["models", "agents", "tools", "routing"]
#: The word for an entry of each section.
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
#: In bytes. A larger file is data, not configuration, and takes a parser many seconds.
MAX_CONFIG = 300_000
MAX_FILES = 1_000
PROMPTS = "prompts"
#: Folders in which each file may be one entry.
_FOLDERS = ("models", "agents", "tools")
#: The start of a YAML file that is one flow table: comments, directives, markers, then a bracket.
_BRACKET = re.compile(rb"(?:\xef\xbb\xbf)?(?:[ \t]*(?:[#%-][^\n]*)?\r?\n)*(?:---)?\s*\{")


@dataclass(frozen=True, kw_only=True)
class ConfigPlace:
    """A table or value of the tree: its file, the content of that, and the path inside it."""

    path: str
    before: bytes
    document: StructuredFile
    where: Where

    @property
    def value(self) -> Any:
        return self.document.at(self.where)

    @property
    def label(self) -> str:
        inside = ".".join(str(step) for step in self.where)
        return f"{self.path} ({inside})" if inside else self.path

    def inside(self, *steps: str) -> ConfigPlace:
        return replace(self, where=(*self.where, *steps))

    def changed(self, document: StructuredFile, note: str = "") -> list[FileChange]:
        """Return the change of the file. ``note`` says why an unchanged document is a no-op."""
        return [FileChange(path=self.path, before=self.before, after=document.bytes(), note=note)]


@dataclass(frozen=True, kw_only=True)
class _UnparsedFile:
    """A file that may be part of the tree."""

    #: Relative to the root.
    path: str
    #: The folder inside the configuration folder, or "".
    folder: str
    data: bytes

    @property
    def stem(self) -> str:
        return PurePosixPath(self.path).stem


class ConfigTree:
    """Reads every file of the tree once, and parses it when a name is looked up in it."""

    def __init__(self, ctx: ApplyContext) -> None:
        self._ctx = ctx
        self._unreadable: dict[str, str] = {}
        self._documents: dict[str, StructuredFile | None] = {}

    @property
    def folder(self) -> str:
        """The configuration folder relative to the root, "" for the root itself."""
        text = self._ctx.config.as_posix()
        return "" if text in (".", "") else confined_paths.normalize(text)

    def names(self, section: Section) -> list[str]:
        """Return every name in a section, sorted."""
        return sorted({name for name, _ in self._entries(section)})

    def has(self, section: Section, name: str) -> bool:
        return any(found == name for found, _ in self._entries(section))

    def find(self, section: Section, name: str) -> ConfigPlace:
        """Return the only place that defines a name. Raises EditRefused unless there is one."""
        places = [place for found, place in self._entries(section) if found == name]
        if not places:
            raise EditRefused(self._missing(section, name))
        if len(places) > 1:
            where = " and ".join(place.label for place in places)
            raise EditRefused(
                f"the {KINDS[section]} {name!r} is ambiguous: it is defined in {where}; keep one"
            )
        return places[0]

    def table(self, section: Section, name: str) -> ConfigPlace:
        """Return the only table that defines a name. Raises EditRefused."""
        place = self.find(section, name)
        if not isinstance(place.value, dict):
            raise EditRefused(f"{place.label}: is not a table")
        return place

    def routing(self) -> list[ConfigPlace]:
        """Return the tables that may get a new query class, one for each file that has one."""
        found = [place for _, place in self._sections("routing")]
        return [p.inside("models") if _inner_models(p) is not None else p for p in found]

    def joined(self, *parts: str) -> str:
        """Return a path inside the configuration folder, relative to the root."""
        return "/".join(part for part in (self.folder, *parts) if part)

    def prompts(self) -> list[str]:
        """Return the agents that have a file in prompts/."""
        names = self._list_folder(PROMPTS, files=True)
        return [name.removesuffix(".md") for name in names if name.endswith(".md")]

    def exists(self, path: str) -> bool:
        return confined_paths.read(self._ctx.root, path, max_bytes=self._ctx.max_bytes) is not None

    def existing(self, path: str) -> bytes:
        """Return the content of a file. Raises EditRefused if it does not exist."""
        return confined_paths.read_existing(
            self._ctx.root, path, max_bytes=self._ctx.max_bytes
        ).data

    def document(
        self, path: str, formats: Mapping[str, type[StructuredFile]] = FORMATS
    ) -> ConfigPlace | None:
        """Return a structured file, or None if it does not exist. Raises EditRefused."""
        kind = formats.get(PurePosixPath(path).suffix.lower())
        file = confined_paths.read(self._ctx.root, path, max_bytes=self._max_bytes)
        if file is None:
            return None
        if kind is None:
            raise EditRefused(f"{path}: has none of the known formats ({', '.join(formats)})")
        try:
            document = kind.read(path, file.data)
        except UnreadableFile as error:
            raise EditRefused(f"{path}: {error}") from None
        return ConfigPlace(path=path, before=file.data, document=document, where=())

    @property
    def _max_bytes(self) -> int:
        return min(self._ctx.max_bytes, MAX_CONFIG)

    def _missing(self, section: Section, name: str) -> str:
        text = f"there is no {KINDS[section]} {name!r}{name_hint(name, self.names(section))}"
        if not self._files:
            text += f" (no TOML, YAML or JSON file is in {self.folder or 'the root'})"
        if self._unreadable:
            reasons = "; ".join(reason for _, reason in sorted(self._unreadable.items())[:3])
            text += f" (not read: {reasons})"
        return text

    def _entries(self, section: Section) -> Iterator[tuple[str, ConfigPlace]]:
        """Yield every name in a section with its place."""
        for file, place in self._sections(section):
            if not place.where:
                yield file.stem, place
            elif section == "routing":
                yield from _routes(place)
            else:
                yield from ((name, place.inside(name)) for name in _strings(place.value))

    def _sections(self, section: Section) -> Iterator[tuple[_UnparsedFile, ConfigPlace]]:
        """Yield the tables of a section, and files that are an entry of it (with no ``where``)."""
        for file in self._files:
            document = self._parse(file) if _may_contain(file, section) else None
            if document is None or not isinstance(document.data, dict):
                continue
            where = _section_path(document.data, section, file.folder)
            if where is not None:
                yield (
                    file,
                    ConfigPlace(path=file.path, before=file.data, document=document, where=where),
                )

    def _parse(self, file: _UnparsedFile) -> StructuredFile | None:
        if file.path not in self._documents:
            kind = FORMATS[PurePosixPath(file.path).suffix.lower()]
            try:
                self._documents[file.path] = kind.read(file.path, file.data)
            except UnreadableFile as error:
                self._unreadable[file.path] = f"{file.path}: {error}"
                self._documents[file.path] = None
        return self._documents[file.path]

    @cached_property
    def _files(self) -> list[_UnparsedFile]:
        found: list[_UnparsedFile] = []
        for folder in ("", *self._list_folder("", files=False)):
            found += self._read_folder(folder)
            if len(found) > MAX_FILES:
                raise EditRefused(
                    f"{self.folder or 'the root'}: has more than {MAX_FILES} TOML, YAML and JSON"
                    " files; name the configuration folder"
                )
        return found

    def _read_folder(self, folder: str) -> Iterator[_UnparsedFile]:
        for name in self._list_folder(folder, files=True):
            if PurePosixPath(name).suffix.lower() not in FORMATS:
                continue
            path = self.joined(folder, name)
            try:
                file = confined_paths.read(self._ctx.root, path, max_bytes=self._max_bytes)
            except EditRefused as error:
                self._unreadable[path] = str(error)
                continue
            if file is not None:
                yield _UnparsedFile(path=path, folder=folder, data=file.data)

    def _list_folder(self, folder: str, *, files: bool) -> list[str]:
        """Return the files, or the folders, in a folder, sorted, without hidden ones and links."""
        is_kind = stat.S_ISREG if files else stat.S_ISDIR
        with confined_paths.open_parent(self._ctx.root, self.joined(folder, "any")) as opened:
            if opened is None:
                return []
            names = [item.name for item in os.scandir(opened) if not item.name.startswith(".")]
            modes = {name: confined_paths.mode_at(opened, name, name) for name in names}
        return sorted(name for name, mode in modes.items() if mode is not None and is_kind(mode))


def _may_contain(file: _UnparsedFile, section: Section) -> bool:
    """Return whether a file is worth parsing for a section; most files do not contain it."""
    if file.folder == section:
        return True
    if not file.path.endswith((".yaml", ".yml")):
        return section.encode() in file.data
    # YAML is slow to parse and often large (lock files, API descriptions). The key is at the start
    # of a line, unless the whole file is between brackets.
    key = rb"^[\"']?" + section.encode() + rb"[\"']?[ \t]*:"
    return bool(_BRACKET.match(file.data) or re.search(key, file.data, re.MULTILINE))


def _section_path(data: Mapping[str, Any], section: Section, folder: str) -> Where | None:
    """Return a section's path in a file: its name, or () if its folder makes the file an entry."""
    is_one_entry = folder in _FOLDERS and not isinstance(data.get(folder), dict)
    if is_one_entry:
        return () if folder == section else None
    return (section,) if isinstance(data.get(section), dict) else None


def _inner_models(place: ConfigPlace) -> Mapping[str, Any] | None:
    inner = place.value.get("models")
    return inner if isinstance(inner, dict) else None


def _routes(place: ConfigPlace) -> Iterator[tuple[str, ConfigPlace]]:
    """Yield query classes: members that name a model, directly or in a table ``models``."""
    for name in _strings(place.value):
        if isinstance(place.value[name], str):
            yield name, place.inside(name)
    for name in _strings(_inner_models(place) or {}):
        yield name, place.inside("models", name)


def _strings(table: Mapping[Any, Any]) -> list[str]:
    return [name for name in table if isinstance(name, str)]
