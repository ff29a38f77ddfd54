"""Apply a diff that git refused, file by file, with the tolerances of ``policies.edits.fit``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mulligan.policies.edits.fit import FittedHunks, MisfitHunk, apply_hunks
from mulligan.policies.edits.patch import FilePatch, ParsedDiff, strip_prefix
from mulligan.policies.problem import Problem
from mulligan.tasks.ports.appliers import EditRefused, FileChange
from mulligan.workers.edits.tree import confined_paths
from mulligan.workers.edits.tree.confined_paths import FileSnapshot

APPLIED = "already applied"
#: The names in outcomes of what is tolerated in a diff itself.
FENCE = "code fence"
HEADERS = "file headers"
COUNTS = "line counts in hunk headers"
NUMBERS = "line numbers in hunk headers"


@dataclass
class PatchTree:
    """The files inside a root, each read once, with the changes of a diff so far."""

    root: Path
    max_bytes: int
    _on_disk: dict[str, FileSnapshot | None] = field(default_factory=dict)
    _changed: dict[str, bytes | None] = field(default_factory=dict)
    _modes: dict[str, int] = field(default_factory=dict)
    _notes: dict[str, list[str]] = field(default_factory=dict)

    def readable(self, paths: Iterable[str]) -> dict[str, FileSnapshot]:
        """Return those of the paths that are regular files which an edit may touch."""
        found = {}
        for path in paths:
            try:
                name = confined_paths.normalize(path)
                file = self.on_disk(name)
            except EditRefused:
                continue  # perhaps not a file of the diff; if it is one, applying it is refused
            if file is not None:
                found[name] = file
        return found

    def on_disk(self, path: str) -> FileSnapshot | None:
        if path not in self._on_disk:
            self._on_disk[path] = confined_paths.read(self.root, path, max_bytes=self.max_bytes)
        return self._on_disk[path]

    def content(self, path: str) -> bytes | None:
        """Return a file with the changes so far."""
        if path in self._changed:
            return self._changed[path]
        file = self.on_disk(path)
        return None if file is None else file.data

    def exists(self, path: str) -> bool:
        try:
            return self.content(confined_paths.normalize(path)) is not None
        except EditRefused:
            return False

    def set(self, path: str, data: bytes | None, notes: Iterable[str] = ()) -> None:
        """Change the content of a file; None deletes it."""
        self._changed[path] = data
        known = self._notes.setdefault(path, [])
        known.extend(note for note in notes if note not in known)

    def set_executable(self, path: str, source: str, executable: bool | None) -> None:
        """Make a file executable or not; None copies the mode of its source."""
        origin, target = self.on_disk(source), self.on_disk(path)
        base = origin.mode if origin is not None else 0o644
        mode = base if executable is None else base | 0o111 if executable else base & ~0o111
        if mode != (target.mode if target is not None else 0o644):
            self._modes[path] = mode

    def changes(self) -> list[FileChange]:
        return [
            FileChange(
                path=path,
                before=None if (file := self.on_disk(path)) is None else file.data,
                after=data,
                mode=self._modes.get(path),
                note="; ".join(self._notes.get(path, ())),
            )
            for path, data in sorted(self._changed.items())
        ]


@dataclass(frozen=True, kw_only=True)
class _ResolvedPatch:
    """A file patch whose names are paths of the tree."""

    patch: FilePatch
    source: str | None
    path: str
    notes: tuple[str, ...]


def apply_tolerant(diff: ParsedDiff, only: str | None, tree: PatchTree) -> list[FileChange]:
    """Return the changes of a diff, each hunk placed by its content. Raises EditRefused."""
    problems: list[Problem | str] = []
    applied: list[str] = []
    for patch in diff.files:
        try:
            one = _resolve(patch, only, tree, fenced=diff.fenced)
            if _apply(one, tree):
                applied.append(one.path)
        except MisfitHunk as error:
            problems += [f"{one.path}: {problem}" for problem in error.problems]
        except EditRefused as error:
            problems += error.problems
    if len(applied) == len(diff.files):
        return [_unchanged(path, tree) for path in sorted(set(applied))]
    problems += [f"{path}: its part of the diff is {APPLIED}" for path in applied]
    if problems:
        raise EditRefused(*problems)
    return tree.changes()


def _unchanged(path: str, tree: PatchTree) -> FileChange:
    file = tree.on_disk(path)
    data = None if file is None else file.data
    return FileChange(path=path, before=data, after=data, note=APPLIED)


def _apply(one: _ResolvedPatch, tree: PatchTree) -> bool:
    """Apply the changes of one file. Return True if the file already has them."""
    patch, source = one.patch, one.source
    if patch.binary:
        raise EditRefused(f"{one.path}: the binary patch does not fit; it has to fit exactly")
    if source is None or _creates(one, tree):
        return _create(one, tree)
    if patch.new is None:
        return _delete(one, tree)
    if patch.renamed or patch.copied:
        return _move(one, source, tree)
    return _modify(one, source, tree)


def _creates(one: _ResolvedPatch, tree: PatchTree) -> bool:
    """Return whether a patch creates a file without a header for that: the file does not exist,
    and no hunk expects lines."""
    patch, hunks = one.patch, one.patch.hunks
    if patch.renamed or patch.copied:
        return False
    return bool(hunks) and not tree.exists(one.path) and not any(hunk.old for hunk in hunks)


def _create(one: _ResolvedPatch, tree: PatchTree) -> bool:
    hunks = one.patch.hunks
    if any(hunk.old for hunk in hunks):
        raise EditRefused(
            f"{one.path}: the diff creates this file, but has context or removed lines"
        )
    data = _encode("".join(line for hunk in hunks for line in hunk.new))
    current = tree.content(one.path)
    if current is not None and _lines(current) == _lines(data):
        return True
    if current is not None:
        raise EditRefused(f"{one.path}: the diff creates it, but it exists with other content")
    tree.set(one.path, data, one.notes)
    tree.set_executable(one.path, one.path, one.patch.executable)
    return False


def _delete(one: _ResolvedPatch, tree: PatchTree) -> bool:
    current = tree.content(one.path)
    if current is None:
        return True
    fitted = apply_hunks(_decode(current), one.patch.hunks)
    if fitted.text:
        raise EditRefused(
            f"{one.path}: the diff deletes it, but does not have all of its lines; give every line"
        )
    tree.set(one.path, None, _notes(one, fitted))
    return False


def _move(one: _ResolvedPatch, source: str, tree: PatchTree) -> bool:
    current = tree.content(source)
    if current is None and tree.exists(one.path):
        fitted = apply_hunks(_decode(tree.content(one.path) or b""), one.patch.hunks)
        if fitted.applied:
            return True
    if current is None:
        raise _missing(source, tree)
    if tree.exists(one.path):
        raise EditRefused(f"{one.path}: already exists, so {source} cannot become it")
    fitted = apply_hunks(_decode(current), one.patch.hunks)
    tree.set(one.path, _encode(fitted.text), _notes(one, fitted))
    tree.set_executable(one.path, source, one.patch.executable)
    if one.patch.renamed:
        tree.set(source, None)
    return False


def _modify(one: _ResolvedPatch, path: str, tree: PatchTree) -> bool:
    current = tree.content(path)
    if current is None:
        raise _missing(path, tree)
    fitted = apply_hunks(_decode(current), one.patch.hunks)
    file = tree.on_disk(path)
    executable = one.patch.executable
    new_mode = executable is not None and file is not None and executable != file.executable
    if fitted.applied and not new_mode:
        return True
    tree.set(path, _encode(fitted.text), _notes(one, fitted))
    tree.set_executable(path, path, executable)
    return False


def _missing(path: str, tree: PatchTree) -> EditRefused:
    return EditRefused(f"{path}: does not exist{confined_paths.did_you_mean(tree.root, path)}")


def _notes(one: _ResolvedPatch, fitted: FittedHunks) -> tuple[str, ...]:
    """Return the names of the tolerances used."""
    return (*one.notes, *fitted.tolerances) or (NUMBERS,)


def _resolve(
    patch: FilePatch, only: str | None, tree: PatchTree, *, fenced: bool
) -> _ResolvedPatch:
    """Find the paths that a file patch is about, and the tolerances that its headers needed."""
    notes: tuple[str, ...] = (FENCE,) if fenced else ()
    if not all(hunk.counts_right for hunk in patch.hunks):
        notes += (COUNTS,)
    if only is not None:
        return _resolve_target(patch, only, tree, notes)
    if patch.names_no_file:
        raise EditRefused("the diff names no file: give '--- a/FILE' and '+++ b/FILE' lines")
    old = None if patch.old is None else _header_path(patch.old, tree)
    new = None if patch.new is None else _header_path(patch.new, tree)
    if old and new and old != new and not (patch.renamed or patch.copied):
        old = new = _existing_of(old, new, tree)
        notes += (HEADERS,)
    if any(name and name == found for name, found in ((patch.old, old), (patch.new, new))):
        notes += (HEADERS,)
    return _ResolvedPatch(patch=patch, source=old, path=new or old or "", notes=notes)


def _header_path(name: str, tree: PatchTree) -> str:
    """Return the path in a header: without git's prefix, unless only the whole name is a file."""
    short = strip_prefix(name)
    chosen = name if short != name and tree.exists(name) and not tree.exists(short) else short
    return confined_paths.normalize(chosen)


def _existing_of(old: str, new: str, tree: PatchTree) -> str:
    existing = [path for path in (old, new) if tree.exists(path)]
    if len(existing) != 1:
        raise EditRefused(
            f"the diff names {old} and {new} without a rename: use one name, or 'rename from' and"
            " 'rename to'"
        )
    return existing[0]


def _resolve_target(
    patch: FilePatch, only: str, tree: PatchTree, notes: tuple[str, ...]
) -> _ResolvedPatch:
    """Resolve a file patch that may touch nothing but the target."""
    if patch.renamed or patch.copied:
        raise EditRefused(
            f"{only}: the diff touches {patch.old} and {patch.new}, but the edit's target is one"
            " file; give target '.' for a diff over several files"
        )
    names = [name for name in (patch.old, patch.new) if name is not None]
    if not patch.names_no_file:
        for name in names:
            if not _names_target(name, only, tree):
                raise EditRefused(
                    f"{only}: is the edit's target, but the diff is of {strip_prefix(name)}; give"
                    " target '.' for a diff over several files"
                )
    if patch.names_no_file or any(strip_prefix(name) != only or name == only for name in names):
        notes += (HEADERS,)
    source = None if patch.old is None else only
    return _ResolvedPatch(patch=patch, source=source, path=only, notes=notes)


def _names_target(name: str, only: str, tree: PatchTree) -> bool:
    """Return whether a header names the target, perhaps with leading folders too few or too many.
    The name of another existing file does not count."""
    short = strip_prefix(name).removeprefix("./").strip("/")
    if short == only:
        return True
    similar = name == only or only.endswith(f"/{short}") or short.endswith(f"/{only}")
    return similar and not tree.exists(short)


def _lines(data: bytes) -> Sequence[bytes]:
    return [line.rstrip() for line in data.rstrip().split(b"\n")]


def _decode(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
