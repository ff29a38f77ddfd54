"""What a command runner changed in its private copy, as exact and confined bytes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.sandbox.file_tree import (
    Parents,
    TreeNode,
    decode_tree,
    encode_tree,
    read_tree,
    remove,
    require_small,
    write_tree,
)

#: The entry that lists deletions. No tree contains it, because ``.mulligan`` is always excluded.
_MANIFEST = ".mulligan/diff.json"
_FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class TreeDiff:
    """The entries that are new or different, and the names of those that were deleted."""

    changed: dict[str, TreeNode]
    deleted: tuple[str, ...]
    #: Messages about entries that the program left and that cannot be stored.
    refused: tuple[str, ...] = ()

    @property
    def paths(self) -> tuple[str, ...]:
        """Every file or link that is changed or deleted."""
        files = (name for name, node in self.changed.items() if node.kind != "directory")
        return tuple(sorted({*files, *self.deleted}))


def make_diff(before_snapshot: bytes, directory: Path, *, max_bytes: int | None = None) -> bytes:
    """Return the difference between a packed snapshot and the directory."""
    refused: list[str] = []
    before = decode_tree(before_snapshot)
    after = read_tree(directory, max_bytes=max_bytes, refused=refused)
    changed = {name: node for name, node in after.items() if before.get(name) != node}
    replaced = {
        name for name, node in changed.items() if name in before and before[name].kind != node.kind
    }
    manifest = {
        "format": _FORMAT,
        "deleted": sorted((before.keys() - after.keys()) | replaced),
        "refused": refused,
    }
    entry = TreeNode("file", 0o600, json.dumps(manifest, sort_keys=True).encode())
    return encode_tree({**changed, _MANIFEST: entry})


def read_diff(data: bytes) -> TreeDiff:
    """Read the bytes of make_diff, or raise BadInput."""
    tree = decode_tree(data)
    entry = tree.pop(_MANIFEST, None)
    try:
        manifest = json.loads(entry.content) if entry else {}
        if manifest["format"] != _FORMAT:
            raise BadInput.at("diff", f"unknown format {manifest['format']!r}")
        for count, name in enumerate(manifest["deleted"], start=1):
            require_small(str(name), count)
        return TreeDiff(
            changed=tree,
            deleted=tuple(str(name) for name in manifest["deleted"]),
            refused=tuple(str(line) for line in manifest["refused"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput.at("diff", "damaged or not a diff") from error


def apply_diff(directory: Path, data: bytes) -> TreeDiff:
    """Apply a diff to a directory that holds its snapshot, and return it."""
    diff = read_diff(data)
    parents = Parents(directory)
    for name in sorted(diff.deleted, reverse=True):
        path = parents.confine(name)
        # In reverse order a directory's deleted contents come first: what is left in it stays.
        if not path.is_dir() or path.is_symlink() or not any(path.iterdir()):
            remove(path)
    write_tree(diff.changed, directory)
    return diff
