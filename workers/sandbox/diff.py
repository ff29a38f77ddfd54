"""What a command runner changed in its private copy, as bytes: exact, binary-safe, confined."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.sandbox.file_tree import (
    TreeNode,
    confined,
    decode_tree,
    encode_tree,
    read_tree,
    remove,
    write_tree,
)

#: The entry that lists what is gone. No tree has it: ``.mulligan`` is excluded from all of them.
_MANIFEST = ".mulligan/diff.json"
_FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class TreeDiff:
    """Entries that are new or different, and the names of those that are gone."""

    changed: dict[str, TreeNode]
    deleted: tuple[str, ...]
    #: What the program left behind that cannot be carried over, in words.
    refused: tuple[str, ...] = ()

    @property
    def paths(self) -> tuple[str, ...]:
        """Every file or link that is touched."""
        files = (name for name, node in self.changed.items() if node.kind != "directory")
        return tuple(sorted({*files, *self.deleted}))


def make_diff(before_snapshot: bytes, directory: Path, *, max_bytes: int | None = None) -> bytes:
    """The difference between a packed snapshot and what the directory holds now."""
    refused: list[str] = []
    before = decode_tree(before_snapshot)
    after = read_tree(directory, max_bytes=max_bytes, refused=refused)
    changed = {name: node for name, node in after.items() if before.get(name) != node}
    replaced = {name for name in changed if name in before and _replaced(before[name], after[name])}
    manifest = {
        "format": _FORMAT,
        "deleted": sorted((before.keys() - after.keys()) | replaced),
        "refused": refused,
    }
    entry = TreeNode("file", 0o600, json.dumps(manifest, sort_keys=True).encode())
    return encode_tree({**changed, _MANIFEST: entry})


def _replaced(old: TreeNode, new: TreeNode) -> bool:
    return old.kind != new.kind


def read_diff(data: bytes) -> TreeDiff:
    """The diff in the bytes of make_diff, or BadInput."""
    tree = decode_tree(data)
    entry = tree.pop(_MANIFEST, None)
    try:
        manifest = json.loads(entry.content) if entry else {}
        if manifest["format"] != _FORMAT:
            raise BadInput.at("diff", f"format {manifest['format']!r} is not known")
        return TreeDiff(
            changed=tree,
            deleted=tuple(str(name) for name in manifest["deleted"]),
            refused=tuple(str(line) for line in manifest["refused"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput.at("diff", "damaged or not a diff") from error


def apply_diff(directory: Path, data: bytes) -> TreeDiff:
    """Apply a diff to a directory that holds its snapshot; says what was applied."""
    diff = read_diff(data)
    for name in sorted(diff.deleted, reverse=True):
        _delete(confined(directory, name))
    write_tree(diff.changed, directory)
    return diff


def _delete(path: Path) -> None:
    """Remove one entry. Its former contents are listed before it, so a directory is empty."""
    if path.is_dir() and not path.is_symlink():
        if not os.listdir(path):  # noqa: PTH208 - only whether there is anything
            path.rmdir()
        return
    remove(path)
