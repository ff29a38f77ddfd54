"""A job's workspace: packed once, unpacked privately for every attempt."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from mulligan.policies.jobs.job import Workspace
from mulligan.policies.repair.free_repair import Coercion, strip_code_fence
from mulligan.tasks.ports.blobs import BlobStore
from mulligan.tasks.ports.errors import BadInput, VerifierError
from mulligan.tasks.ports.repositories import ChangedFile
from mulligan.workers.sandbox.file_tree import (
    Tree,
    TreeRefused,
    decode_tree,
    encode_tree,
    read_tree,
    write_tree,
)
from mulligan.workers.sandbox.private import private_directory
from mulligan.workers.sandbox.protection import Protection

#: The largest snapshot of a path that was never submitted (``mulligan verify``).
_MAX_LOCAL_BYTES = 20 << 20
#: Files may have this many times the packed cap before they are packed.
_UNPACKED_FACTOR = 10
#: Suffixes of files in which a code fence is content.
_MARKDOWN = frozenset({".md", ".markdown", ".mdx", ".qmd"})


@dataclass(frozen=True)
class PrivateCopy:
    """A private directory with a workspace's files in it."""

    directory: Path
    #: The packed workspace; empty if there is none.
    snapshot: bytes


class GitTrees(Protocol):
    """Reads workspaces that are git repositories. A blob store may do that, too."""

    def snapshot(self, workspace: Workspace) -> bytes:
        """Return a packed workspace."""

    def tree(self, git: str, commit: str) -> Tree:
        """Return the files of a commit."""

    def changes(self, git: str, old: str, new: str) -> Sequence[ChangedFile]:
        """Return the files that differ between two commits."""

    def prepare(self, workspace: Workspace, work: Path, *, keep: bool) -> None:
        """Run the commands that prepare a checkout, or take what they made before.

        ``keep``: whether what they make is kept for others. Not if an agent changed the checkout.
        """


def git_trees(blobs: BlobStore | None) -> GitTrees:
    """Return what reads git repositories here, or raise VerifierError."""
    trees: GitTrees | None = getattr(blobs, "trees", None)
    if trees is None:
        raise VerifierError("the workspace is a git repository, which cannot be read here")
    return trees


def content_address(data: bytes) -> str:
    """Return the name of the data in a blob store."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def pack(path: Path, *, max_bytes: int) -> bytes:
    """Pack a directory as deterministic bytes; BadInput if it is missing, unsafe or too large."""
    if not path.is_dir():
        what = "is not a directory" if path.exists() else "does not exist"
        raise BadInput.at("workspace.path", f"{path} {what}")
    try:
        data = encode_tree(read_tree(path, max_bytes=max_bytes * _UNPACKED_FACTOR))
    except TreeRefused as error:
        raise BadInput.at("workspace.path", str(error)) from error
    if len(data) > max_bytes:
        message = (
            f"{path} is {len(data)} bytes when packed, {max_bytes} are allowed; leave out what the"
            " job does not need"
        )
        raise BadInput.at("workspace.path", message, "too_long")
    return data


def unpack(data: bytes, into: Path) -> None:
    """Unpack into an existing or new directory; raise BadInput for anything unsafe."""
    tree = decode_tree(data)
    into.mkdir(parents=True, exist_ok=True)
    write_tree(tree, into)


def snapshot_of(workspace: Workspace, blobs: BlobStore | None) -> bytes:
    """Return the packed workspace from the blob store, or pack a path that was never submitted."""
    if workspace.git is not None:
        return git_trees(blobs).snapshot(workspace)
    if workspace.snapshot is not None:
        if blobs is None:
            raise VerifierError("the workspace is a snapshot and there is no blob store to read it")
        return blobs.get(workspace.snapshot)
    return pack(Path(workspace.path or ""), max_bytes=_MAX_LOCAL_BYTES)


@contextlib.contextmanager
def private_copy(
    workspace: Workspace | None, blobs: BlobStore | None, *, root: Path | None = None
) -> Iterator[PrivateCopy]:
    """Unpack the workspace into a private directory, which is empty without a workspace."""
    snapshot = snapshot_of(workspace, blobs) if workspace is not None else b""
    with private_directory(root) as directory:
        if workspace is not None:
            unpack(snapshot, directory)
            if workspace.setup is not None:
                git_trees(blobs).prepare(workspace, directory, keep=True)
        yield PrivateCopy(directory, snapshot)


def output_path(directory: Path, workspace: Workspace) -> Path | None:
    """Return the path of the answer's file, or None if the answer does not become a file.

    Raise BadInput if the path leaves the directory, by its text or through a link, or cannot be
    a file.
    """
    name = workspace.output_file
    if name is None:
        return None
    try:
        target, problem = _find_output(directory.resolve(), name)
    except OSError as error:
        problem = f"{name} cannot be a file: {error.strerror}"
    except RuntimeError:  # what pathlib raises before Python 3.13
        problem = f"{name} goes through links that lead to themselves"
    if problem:
        raise BadInput.at("workspace.output_file", problem)
    return target


def _find_output(root: Path, name: str) -> tuple[Path, str]:
    """Return the path of a file in root, and why it cannot be one."""
    target = (root / name).resolve()
    if not target.is_relative_to(root) or target == root:
        return target, f"{name} leaves the workspace"
    if target.is_dir():
        return target, f"{name} is a directory; name a file in it"
    for above in target.relative_to(root).parents:
        if (root / above).exists() and not (root / above).is_dir():
            return target, f"{name}: {above} is a file, not a directory"
    return target, ""


def place_answer(directory: Path, workspace: Workspace, text: str) -> tuple[Coercion, ...]:
    """Write the answer to the output file without its code fence; return the free repairs.

    Raise BadInput if it cannot be written (``output_path``).
    """
    target = output_path(directory, workspace)
    if target is None:
        return ()
    code, coercions = strip_code_fence(text, markdown=target.suffix.lower() in _MARKDOWN)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(code.encode("utf-8", "replace"))
    return coercions


def restore_protected(directory: Path, workspace: Workspace, snapshot: bytes) -> list[str]:
    """Restore protected tests and configuration from the snapshot; return what had changed.

    Call it after the answer and any diff are written and before anything runs.
    """
    return Protection(workspace.protect).restore(directory, decode_tree(snapshot))
