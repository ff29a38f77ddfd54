"""Read objects of a repository: commits, trees, contents and differences."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from mulligan.tasks.ports.repositories import BranchCommit, ChangedFile
from mulligan.workers.repositories.git_command import Git

MOST_COMMITS = 10_000
_FORMAT = "%H%n%T%n%P%n%ct%n%B"
_KINDS: dict[str, Literal["added", "changed", "deleted"]] = {"A": "added", "D": "deleted"}


def display_path(path: bytes) -> str:
    """Return a path as text that can be stored and shown; what is no UTF-8 is escaped."""
    return path.decode("utf-8", "backslashreplace")


def present(git: Git, ids: Iterable[str]) -> dict[str, str]:
    """Return the kinds of those objects that exist: commit, tree, tag or blob."""
    wanted = "".join(f"{each}\n" for each in ids)
    lines = git.read("cat-file", "--batch-check", stdin=wanted.encode()).lines
    return {name: kind for name, kind, *_ in map(str.split, lines) if kind != "missing"}


def tree_entries(git: Git, tree: str) -> Iterator[tuple[bytes, str, str]]:
    """Yield the path, the mode and the id of all that is in a tree, except directories."""
    for entry in git.read("ls-tree", "-r", "-z", "--full-tree", tree).out.split(b"\0"):
        if entry:
            meta, _, path = entry.partition(b"\t")
            mode, _, oid = meta.decode().split()
            yield path, mode, oid


def blobs_at(git: Git, tree: str, paths: Sequence[bytes], *, max_bytes: int) -> dict[bytes, bytes]:
    """Return the contents of some files of a tree, without missing and too large ones."""
    if not paths:
        return {}
    names = [os.fsdecode(path) for path in paths]
    out = git.read("ls-tree", "-l", "-z", "--full-tree", "--", tree, *names).out
    found: dict[bytes, str] = {}
    for entry in out.split(b"\0"):
        meta, _, path = entry.partition(b"\t")
        _, kind, oid, size = meta.decode().split() if entry else ("", "", "", "")
        if kind == "blob" and int(size) <= max_bytes:
            found[path] = oid
    contents = _contents(git, list(dict.fromkeys(found.values())))
    return {path: contents[oid] for path, oid in found.items()}


def _contents(git: Git, ids: Sequence[str]) -> dict[str, bytes]:
    """Return contents that exist, by id."""
    out = git.read("cat-file", "--batch", stdin="".join(f"{each}\n" for each in ids).encode()).out
    found, at = {}, 0
    for oid in ids:
        end = out.index(b"\n", at)
        size = int(out[at:end].split()[2])
        found[oid] = out[end + 1 : end + 1 + size]
        at = end + size + 2
    return found


def first_parents(git: Git, tip: str, until: str | None) -> list[BranchCommit]:
    """Return the commits from a tip on, by first parents."""
    options = [f"--max-count={MOST_COMMITS}", "--first-parent", "-z", f"--format={_FORMAT}"]
    bounds = [tip] if until is None else [tip, f"^{until}"]
    out = git.read("log", *options, "--no-show-signature", *bounds, "--").out
    return [_commit(record) for record in out.split(b"\0") if record.strip()]


def commits(git: Git, ids: str) -> list[BranchCommit]:
    """Return some commits, one id on each line."""
    options = ["--no-walk=unsorted", "--stdin", "-z", f"--format={_FORMAT}"]
    out = git.read("log", *options, "--no-show-signature", stdin=ids.encode()).out
    return [_commit(record) for record in out.split(b"\0") if record.strip()]


def files_of(git: Git, commit: str) -> dict[str, bytes]:
    """Return the files of a small tree of our own."""
    ids = {path: oid for path, _, oid in tree_entries(git, f"{commit}^{{tree}}")}
    contents = _contents(git, list(dict.fromkeys(ids.values())))
    return {display_path(path): contents[oid] for path, oid in ids.items()}


def _commit(record: bytes) -> BranchCommit:
    commit, tree, parents, at, message = record.decode("utf-8", "replace").split("\n", 4)
    return BranchCommit(
        commit=commit,
        tree=tree,
        parents=tuple(parents.split()),
        at=float(at),
        subject=message.partition("\n")[0],
        trailers=read_trailers(message),
    )


def read_trailers(message: str) -> dict[str, str]:
    """Return the trailers of a commit's message: its last paragraph, if all of it is trailers."""
    paragraphs = [part for part in message.strip().split("\n\n") if part.strip()]
    if len(paragraphs) < 2:
        return {}
    found = {}
    for line in paragraphs[-1].splitlines():
        name, colon, value = line.partition(":")
        if not colon or not name or not all(c.isalnum() or c == "-" for c in name):
            return {}
        found[name] = value.strip()
    return found


def file_changes(git: Git, old: str, new: str) -> list[ChangedFile]:
    """Return the files that differ between two commits or trees."""
    options = ["-r", "-z", "--raw", "--numstat", "--no-renames", "--no-ext-diff", "--no-textconv"]
    parts = iter(git.read("diff-tree", *options, old, new).out.split(b"\0"))
    kinds: dict[bytes, str] = {}
    links: dict[bytes, str] = {}
    lines: dict[bytes, tuple[int | None, int | None]] = {}
    for part in parts:
        if part.startswith(b":"):
            path = next(parts)
            _, mode, _, oid, kinds[path] = part.decode().split()
            if mode == "120000":
                links[path] = oid
        elif part:
            added, removed, path = part.split(b"\t", 2)
            lines[path] = (_count(added), _count(removed))
    targets = _contents(git, list(dict.fromkeys(links.values()))) if links else {}
    return [
        ChangedFile(
            path=display_path(path),
            kind=_KINDS.get(kind, "changed"),
            added=lines.get(path, (None, None))[0],
            removed=lines.get(path, (None, None))[1],
            link=display_path(targets[links[path]]) if path in links else None,
        )
        for path, kind in kinds.items()
    ]


def _count(number: bytes) -> int | None:
    return None if number == b"-" else int(number)


def diff_text(git: Git, old: str, new: str, *, max_bytes: int) -> str:
    """Return the difference between two commits or trees, cut at a length."""
    options = ["-r", "-p", "-M", "--no-color", "--no-ext-diff", "--no-textconv"]
    start, is_all = git.read_start("diff-tree", *options, old, new, max_bytes=max_bytes)
    text = start.decode("utf-8", "replace")
    return text if is_all else f"{text}\n… (cut at {max_bytes} bytes)\n"
