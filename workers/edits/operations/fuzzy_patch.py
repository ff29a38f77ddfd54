"""The files of a diff that git refused, one by one, by the ladder of ``policies.edits.fit``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mulligan.policies.edits.fit import FittedHunks, MisfitHunk, apply_hunks
from mulligan.policies.edits.patch import FilePatch, ParsedDiff, stripped
from mulligan.policies.problem import Problem
from mulligan.tasks.ports.appliers import EditRefused, FileChange
from mulligan.workers.edits.tree import confined_paths as confine
from mulligan.workers.edits.tree.confined_paths import SeenFile

APPLIED = "already applied"
#: What the ladder forgives in a diff itself, as outcomes call it.
FENCE = "code fence"
HEADERS = "file headers"
COUNTS = "line counts in hunk headers"
NUMBERS = "line numbers in hunk headers"


@dataclass
class PatchTree:
    """The files inside a root, each read once, and what a diff makes of them so far."""

    root: Path
    max_bytes: int
    _read: dict[str, SeenFile | None] = field(default_factory=dict)
    _now: dict[str, bytes | None] = field(default_factory=dict)
    _modes: dict[str, int] = field(default_factory=dict)
    _notes: dict[str, list[str]] = field(default_factory=dict)

    def readable(self, paths: Iterable[str]) -> dict[str, SeenFile]:
        """Those of the paths that are regular files which an edit may touch."""
        found = {}
        for path in paths:
            try:
                name = confine.normal(path)
                seen = self.seen(name)
            except EditRefused:
                continue  # named by chance; if the diff means it, git or the ladder refuses
            if seen is not None:
                found[name] = seen
        return found

    def seen(self, path: str) -> SeenFile | None:
        """A file as it is on the disk."""
        if path not in self._read:
            self._read[path] = confine.read(self.root, path, max_bytes=self.max_bytes)
        return self._read[path]

    def content(self, path: str) -> bytes | None:
        """A file as the diff has left it so far."""
        if path in self._now:
            return self._now[path]
        seen = self.seen(path)
        return None if seen is None else seen.data

    def exists(self, path: str) -> bool:
        try:
            return self.content(confine.normal(path)) is not None
        except EditRefused:
            return False

    def set(self, path: str, data: bytes | None, notes: Iterable[str] = ()) -> None:
        """Let a file have this content."""
        self._now[path] = data
        known = self._notes.setdefault(path, [])
        known.extend(note for note in notes if note not in known)

    def set_executable(self, path: str, source: str, executable: bool | None) -> None:
        """Let a file be executable or not; None: as its source is."""
        origin, here = self.seen(source), self.seen(path)
        base = origin.mode if origin is not None else 0o644
        wanted = base if executable is None else base | 0o111 if executable else base & ~0o111
        if wanted != (here.mode if here is not None else 0o644):
            self._modes[path] = wanted

    def changes(self) -> list[FileChange]:
        """Everything that the diff altered."""
        return [
            FileChange(
                path=path,
                before=None if (seen := self.seen(path)) is None else seen.data,
                after=data,
                mode=self._modes.get(path),
                note="; ".join(self._notes.get(path, ())),
            )
            for path, data in sorted(self._now.items())
        ]


@dataclass(frozen=True, kw_only=True)
class _Resolved:
    """A file patch whose names are paths of the tree."""

    patch: FilePatch
    source: str | None
    path: str
    notes: tuple[str, ...]


def apply_tolerant(diff: ParsedDiff, only: str | None, tree: PatchTree) -> list[FileChange]:
    """The changes that a diff makes, each hunk placed by its content. Raises EditRefused."""
    problems: list[Problem | str] = []
    applied: list[str] = []
    resolved: list[_Resolved] = []
    for patch in diff.files:
        try:
            one = _resolve(patch, only, tree, fenced=diff.fenced)
            resolved.append(one)
            if _take(one, tree):
                applied.append(one.path)
        except MisfitHunk as error:
            problems += [f"{one.path}: {problem}" for problem in error.problems]
        except EditRefused as error:
            problems += error.problems
    if not problems and len(applied) == len(resolved):
        return [_untouched(path, tree) for path in sorted(set(applied))]
    problems += [f"{path}: its part of the diff is {APPLIED}" for path in applied]
    if problems:
        raise EditRefused(*problems)
    return tree.changes()


def _untouched(path: str, tree: PatchTree) -> FileChange:
    seen = tree.seen(path)
    data = None if seen is None else seen.data
    return FileChange(path=path, before=data, after=data, note=APPLIED)


def _take(one: _Resolved, tree: PatchTree) -> bool:
    """Let the tree have one file's changes. True: it already had them."""
    patch, source = one.patch, one.source
    if patch.binary:
        raise EditRefused(f"{one.path}: a binary patch fits exactly or not at all")
    if source is None or _creates(one, tree):
        return _create(one, tree)
    if patch.new is None:
        return _delete(one, tree)
    if patch.renamed or patch.copied:
        return _move(one, source, tree)
    return _modify(one, source, tree)


def _creates(one: _Resolved, tree: PatchTree) -> bool:
    """Whether it adds a file without saying so: the file is not there, and nothing is expected."""
    patch, hunks = one.patch, one.patch.hunks
    if patch.renamed or patch.copied:
        return False
    return bool(hunks) and not tree.exists(one.path) and not any(hunk.old for hunk in hunks)


def _create(one: _Resolved, tree: PatchTree) -> bool:
    hunks = one.patch.hunks
    if any(hunk.old for hunk in hunks):
        raise EditRefused(f"{one.path}: the diff creates it, but has lines that must be there")
    data = _encoded("".join(line for hunk in hunks for line in hunk.new))
    there = tree.content(one.path)
    if there is not None and _lines(there) == _lines(data):
        return True
    if there is not None:
        raise EditRefused(f"{one.path}: the diff creates it, but it exists with other content")
    tree.set(one.path, data, one.notes)
    tree.set_executable(one.path, one.path, one.patch.executable)
    return False


def _delete(one: _Resolved, tree: PatchTree) -> bool:
    there = tree.content(one.path)
    if there is None:
        return True
    fitted = apply_hunks(_decoded(there), one.patch.hunks)
    if fitted.text:
        raise EditRefused(
            f"{one.path}: the diff deletes it, but names fewer lines than it has; nothing is lost"
            " that the diff does not name"
        )
    tree.set(one.path, None, _said(one, fitted))
    return False


def _move(one: _Resolved, source: str, tree: PatchTree) -> bool:
    there = tree.content(source)
    if there is None and tree.exists(one.path):
        fitted = apply_hunks(_decoded(tree.content(one.path) or b""), one.patch.hunks)
        if fitted.applied:
            return True
    if there is None:
        raise EditRefused(f"{source}: does not exist{confine.did_you_mean(tree.root, source)}")
    if tree.exists(one.path):
        raise EditRefused(f"{one.path}: exists already, and {source} shall become it")
    fitted = apply_hunks(_decoded(there), one.patch.hunks)
    tree.set(one.path, _encoded(fitted.text), _said(one, fitted))
    tree.set_executable(one.path, source, one.patch.executable)
    if one.patch.renamed:
        tree.set(source, None)
    return False


def _modify(one: _Resolved, path: str, tree: PatchTree) -> bool:
    there = tree.content(path)
    if there is None:
        raise EditRefused(f"{path}: does not exist{confine.did_you_mean(tree.root, path)}")
    fitted = apply_hunks(_decoded(there), one.patch.hunks)
    seen = tree.seen(path)
    wanted = one.patch.executable
    moded = wanted is not None and seen is not None and wanted != seen.executable
    if fitted.applied and not moded:
        return True
    tree.set(path, _encoded(fitted.text), _said(one, fitted))
    tree.set_executable(path, path, wanted)
    return False


def _said(one: _Resolved, fitted: FittedHunks) -> tuple[str, ...]:
    """What was forgiven, each rung by its name."""
    notes = (*one.notes, *fitted.tolerances)
    return notes or (NUMBERS,)


def _resolve(patch: FilePatch, only: str | None, tree: PatchTree, *, fenced: bool) -> _Resolved:
    """The paths that a file patch means, and what its headers needed to be forgiven."""
    notes: tuple[str, ...] = (FENCE,) if fenced else ()
    if not all(hunk.counts_right for hunk in patch.hunks):
        notes += (COUNTS,)
    if only is not None:
        return _for_target(patch, only, tree, notes)
    if patch.placeholder:
        raise EditRefused("the diff names no file: give '--- a/FILE' and '+++ b/FILE' lines")
    old = None if patch.old is None else _read_name(patch.old, tree)
    new = None if patch.new is None else _read_name(patch.new, tree)
    if old and new and old != new and not (patch.renamed or patch.copied):
        old = new = _one_of(old, new, tree)
        notes += (HEADERS,)
    path = new or old or ""
    odd = any(name and name == found for name, found in ((patch.old, old), (patch.new, new)))
    return _Resolved(
        patch=patch, source=old, path=path, notes=(*notes, *((HEADERS,) if odd else ()))
    )


def _read_name(name: str, tree: PatchTree) -> str:
    """A header's name as a path: without git's prefix, unless only the whole name is a file."""
    short = stripped(name)
    chosen = name if short != name and tree.exists(name) and not tree.exists(short) else short
    return confine.normal(chosen)


def _one_of(old: str, new: str, tree: PatchTree) -> str:
    there = [path for path in (old, new) if tree.exists(path)]
    if len(there) != 1:
        raise EditRefused(
            f"the diff is of {old} and of {new} and does not say that one becomes the other: use"
            " one name, or 'rename from' and 'rename to'"
        )
    return there[0]


def _for_target(patch: FilePatch, only: str, tree: PatchTree, notes: tuple[str, ...]) -> _Resolved:
    """A file patch that may touch nothing but the target."""
    if patch.renamed or patch.copied:
        raise EditRefused(
            f"{only}: the diff touches {patch.old} and {patch.new}, the edit's target is one file;"
            " give target '.' for a diff over several"
        )
    names = [name for name in (patch.old, patch.new) if name is not None]
    if not patch.placeholder:
        for name in names:
            if not _means(name, only, tree):
                raise EditRefused(
                    f"{only}: is the edit's target, but the diff is of {stripped(name)}; give"
                    " target '.' for a diff over several files"
                )
    if patch.placeholder or any(stripped(name) != only or name == only for name in names):
        notes += (HEADERS,)
    source = None if patch.old is None else only
    return _Resolved(patch=patch, source=source, path=only, notes=notes)


def _means(name: str, only: str, tree: PatchTree) -> bool:
    """Whether a header's name is the target's, with folders missing or to spare in front; not if
    it is the name of another file."""
    short = stripped(name).removeprefix("./").strip("/")
    if short == only:
        return True
    alike = name == only or only.endswith(f"/{short}") or short.endswith(f"/{only}")
    return alike and not tree.exists(short)


def _lines(data: bytes) -> Sequence[bytes]:
    return [line.rstrip() for line in data.rstrip().split(b"\n")]


def _decoded(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
