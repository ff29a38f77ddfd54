"""Merge two commits without a checkout, and describe what conflicts."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from mulligan.tasks.ports.errors import RepositoryUnavailable
from mulligan.tasks.ports.repositories import ConflictingFile, MergedTree
from mulligan.workers.repositories.git_command import Git
from mulligan.workers.repositories.object_reading import blobs_at, display_path

_MOST_FILES = 20
_MOST_CHARACTERS = 4000
_LINES_AROUND = 3
_LARGEST_TEXT = 4 << 20
_USAGE = 129
#: The start, the middle and the end of a conflict.
_START, _END = re.compile(r"<{7} "), re.compile(r">{7} ")
#: Synthetic commits are the same ones each time.
_FIXED = {"GIT_AUTHOR_DATE": "1000000000 +0000", "GIT_COMMITTER_DATE": "1000000000 +0000"}


def merge_commits(git: Git, ours: str, theirs: str) -> MergedTree:
    """Merge two commits with the common ancestor that git finds."""
    result = git.run(
        "merge-tree",
        "--write-tree",
        "-z",
        "--messages",
        "--allow-unrelated-histories",
        ours,
        theirs,
    )
    if result.code == _USAGE:
        raise RepositoryUnavailable(f"{git.name}: git 2.38 or later is needed for merging")
    if result.code not in (0, 1):
        raise git.failed("merge-tree", result)
    tree, _, rest = result.out.partition(b"\0")
    merged = tree.decode().strip()
    if result.code == 0:
        return MergedTree(tree=merged)
    names = {ours: "the branch", theirs: "the work"}
    return MergedTree(tree=merged, conflicts=_conflicts(git, merged, rest, names))


def merge_on_base(git: Git, ours: str, theirs: str, base: str) -> MergedTree:
    """Merge two commits or trees as if ``base`` were their common ancestor.

    ``merge-tree --merge-base`` came with git 2.40. Two commits with one parent do the same.
    """
    common = _commit(git, base)
    return merge_commits(git, _commit(git, ours, common), _commit(git, theirs, common))


def _commit(git: Git, tree: str, *parents: str) -> str:
    options = [part for parent in parents for part in ("-p", parent)]
    fixed = git.having(**_FIXED)
    return fixed.read("commit-tree", f"{tree}^{{tree}}", *options, "-m", "mulligan: a side").text


def _conflicts(
    git: Git, tree: str, rest: bytes, names: Mapping[str, str]
) -> tuple[ConflictingFile, ...]:
    """Read the part of git's answer after the tree: the conflicting entries, and the messages."""
    entries, _, messages = rest.partition(b"\0\0") if rest[:1] != b"\0" else (b"", b"", rest[1:])
    paths = dict.fromkeys(each.partition(b"\t")[2] for each in entries.split(b"\0") if each)
    said = defaultdict(list)
    for about, kind, text in _messages(messages):
        for path in about:
            paths.setdefault(path)
            said[path].append((kind, text))
    conflicting = list(paths)
    contents = blobs_at(git, tree, conflicting[:_MOST_FILES], max_bytes=_LARGEST_TEXT)
    found = []
    for path in conflicting[:_MOST_FILES]:
        hunks = _hunks(contents.get(path))
        if not hunks:
            kinds = [text for kind, text in said[path] if kind.startswith("CONFLICT")]
            hunks = "\n".join(text.strip() for text in kinds)
        for commit, name in names.items():
            hunks = hunks.replace(commit, name)
        found.append(ConflictingFile(path=display_path(path), hunks=hunks[:_MOST_CHARACTERS]))
    if len(conflicting) > _MOST_FILES:
        more = f"… and {len(conflicting) - _MOST_FILES} more files"
        found.append(ConflictingFile(path=more))
    return tuple(found)


def _messages(data: bytes) -> Iterator[tuple[Sequence[bytes], str, str]]:
    """Yield the paths, the kind and the text of each message about a conflict."""
    parts = data.split(b"\0")
    at = 0
    while at < len(parts) and parts[at].isdigit():
        count = int(parts[at])
        paths = parts[at + 1 : at + 1 + count]
        kind, text = parts[at + 1 + count : at + 3 + count]
        at += count + 3
        if kind.startswith(b"CONFLICT"):
            yield paths, kind.decode(), text.decode("utf-8", "replace")


def _hunks(content: bytes | None) -> str:
    """Return the conflicting parts of a text, with some lines around them."""
    if content is None or b"\0" in content:
        return ""
    lines = content.decode("utf-8", "replace").splitlines()
    wanted: set[int] = set()
    start = None
    for number, line in enumerate(lines):
        if start is None and _START.match(line):
            start = number
        elif start is not None and _END.match(line):
            wanted.update(range(max(0, start - _LINES_AROUND), number + _LINES_AROUND + 1))
            start = None
    found, last = [], -1
    for number in sorted(each for each in wanted if each < len(lines)):
        if number != last + 1:
            found.append(f"@@ line {number + 1} @@")
        found.append(lines[number])
        last = number
    return "\n".join(found)
