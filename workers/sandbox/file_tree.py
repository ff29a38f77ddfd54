"""A directory as a value: read it, write it, encode it as deterministic bytes and decode it.

Reading, writing and decoding refuse a path that leaves its root, by its text or through a
symbolic link.
"""

from __future__ import annotations

import errno
import io
import os
import posixpath
import shutil
import stat
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from mulligan.policies.jobs.job import escapes
from mulligan.tasks.ports.errors import BadInput

#: Never part of a workspace: version control, environments, caches and our own files.
EXCLUDED = frozenset(
    {".git", ".hg", ".svn", ".venv", ".tox", ".nox", "__pycache__", ".mulligan", ".mypy_cache",
     ".pytest_cache", ".ruff_cache", ".hypothesis", ".DS_Store"}
)  # fmt: skip

#: A deeper path costs more at every call that uses it.
MAX_DEPTH = 100
MAX_ENTRIES = 50_000

Kind = Literal["file", "directory", "link"]


@dataclass(frozen=True, slots=True)
class TreeNode:
    """One entry of a tree; a link's content is its target."""

    kind: Kind
    mode: int
    content: bytes = b""


#: Entries by path relative to the root, with forward slashes.
Tree = Mapping[str, TreeNode]


class TreeRefused(BadInput):
    """An entry that cannot be part of a tree."""


def read_tree(
    root: Path, *, max_bytes: int | None = None, refused: list[str] | None = None
) -> dict[str, TreeNode]:
    """Return all entries under root except EXCLUDED ones.

    A device, a link that leaves the root, or an unreadable file or directory adds a message to
    ``refused`` or, without that list, raises TreeRefused. So do too many entries or levels, with
    and without the list. More than max_bytes of content raises BadInput.
    """

    def refuse(error: TreeRefused) -> None:
        if refused is None:
            raise error
        refused.append(str(error))

    tree: dict[str, TreeNode] = {}
    left = max_bytes
    for name in _walk(root, refuse):
        try:
            node = _read_node(root / name, name, left)
        except _TooLarge:
            message = (
                f"more than the {max_bytes} bytes of files that are allowed; leave out what the job"
                " does not need"
            )
            raise BadInput.at("workspace", message, "too_long") from None
        except TreeRefused as error:
            refuse(error)
            continue
        if left is not None:
            left -= len(node.content)
        tree[name] = node
    return tree


def _walk(root: Path, refuse: Callable[[TreeRefused], None]) -> Iterator[str]:
    """Yield the path of every entry, a directory before its entries."""
    pending, count = [""], 0
    while pending:
        directory = pending.pop()
        below: list[str] = []
        try:
            with os.scandir(root / directory) as entries:
                for entry in entries:
                    if entry.name in EXCLUDED:
                        continue
                    name = posixpath.join(directory, entry.name)
                    count += 1
                    require_small(name, count)
                    below.append(name)
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(name)
        except OSError as error:
            message = f"workspace: {directory or 'it'} cannot be read: {error.strerror}"
            if not directory:
                raise TreeRefused(message) from error
            refuse(TreeRefused(message))
        yield from sorted(below)


def require_small(name: str, count: int) -> None:
    """Refuse a path with too many levels, and the entry that is one too many."""
    if name.count("/") >= MAX_DEPTH:
        start = "/".join(name.split("/")[:3])
        raise TreeRefused(f"workspace: {start}/… is more than {MAX_DEPTH} levels deep")
    if count > MAX_ENTRIES:
        raise TreeRefused(f"workspace: more than {MAX_ENTRIES} files, directories and links")


class _TooLarge(Exception):
    """A file with more bytes than may be read."""


def _read_node(path: Path, name: str, most: int | None) -> TreeNode:
    try:
        status = path.lstat()
        mode = stat.S_IMODE(status.st_mode) & 0o777
        if stat.S_ISLNK(status.st_mode):
            target = str(path.readlink())
            _require_inside(name, target)
            return TreeNode("link", 0o777, os.fsencode(target))
        if stat.S_ISDIR(status.st_mode):
            return TreeNode("directory", mode)
        if stat.S_ISREG(status.st_mode):
            return TreeNode("file", mode, _read_file(path, most))
    except OSError as error:
        raise TreeRefused(f"workspace: {name} cannot be read: {error.strerror}") from error
    raise TreeRefused(f"workspace: {name} is neither a file, a directory nor a link")


def _read_file(path: Path, most: int | None) -> bytes:
    try:
        return read_file(path, max_bytes=most)
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise _TooLarge from error
        raise


def read_file(path: Path, *, max_bytes: int | None = None) -> bytes:
    """Return the content of a file that a program may have exchanged for something else.

    Raise OSError if it is no regular file or too large: a sparse file can have any size. Opening a
    pipe must not wait for a writer.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:  # noqa: PTH123 - pathlib cannot refuse a link
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        if max_bytes is not None and status.st_size > max_bytes:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        return file.read(status.st_size)


def leaves_tree(name: str, target: str) -> bool:
    """Whether the target of a link is absolute, leaves the root or has ``..`` after a name.

    The name may be a link itself (``x -> .``), and then ``x/..`` is not what it seems. A link's
    own parents are always real directories.
    """
    parts = PurePosixPath(target).parts
    steps = [part != ".." for part in parts]
    climbs = steps.count(False)
    too_high = climbs > len(PurePosixPath(name).parts) - 1
    return target.startswith("/") or too_high or steps != sorted(steps)


def _require_inside(name: str, target: str) -> None:
    if leaves_tree(name, target):
        raise TreeRefused(f"workspace: the link {name} -> {target} leaves the workspace")


def encode_tree(tree: Tree) -> bytes:
    """Return deterministic bytes: sorted, without times and owners, compressed."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in sorted(tree):
            info, node = tarfile.TarInfo(name), tree[name]
            info.mode = node.mode
            match node.kind:
                case "directory":
                    info.type = tarfile.DIRTYPE
                    archive.addfile(info)
                case "link":
                    info.type, info.linkname = tarfile.SYMTYPE, os.fsdecode(node.content)
                    archive.addfile(info)
                case "file":
                    info.size = len(node.content)
                    archive.addfile(info, io.BytesIO(node.content))
    return zlib.compress(buffer.getvalue(), 6)


def decode_tree(data: bytes, *, max_bytes: int = 1 << 30) -> dict[str, TreeNode]:
    """Read the bytes of encode_tree; raise BadInput for anything unsafe in them."""
    inflater = zlib.decompressobj()
    try:
        raw = inflater.decompress(data, max_bytes)
        if inflater.unconsumed_tail or not inflater.eof:
            raise BadInput.at("archive", f"larger than {max_bytes} bytes, or cut off")
        with tarfile.open(fileobj=io.BytesIO(raw), mode="r:") as archive:
            tree = {}
            for count, member in enumerate(archive, start=1):
                require_small(member.name, count)
                tree[member.name] = _decode_node(archive, member)
            return tree
    except (zlib.error, tarfile.TarError) as error:
        raise BadInput.at("archive", f"damaged: {error}") from error


def _decode_node(archive: tarfile.TarFile, member: tarfile.TarInfo) -> TreeNode:
    if escapes(member.name):
        raise TreeRefused(f"archive: {member.name!r} leaves its root")
    if posixpath.normpath(member.name) != member.name:
        raise TreeRefused(f"archive: {member.name!r} is not a plain path")
    mode = member.mode & 0o777
    if member.isdir():
        return TreeNode("directory", mode)
    if member.issym():
        _require_inside(member.name, member.linkname)
        return TreeNode("link", 0o777, os.fsencode(member.linkname))
    # A sparse entry says itself how large it becomes.
    content = archive.extractfile(member) if member.isreg() and not member.issparse() else None
    if content is not None:
        return TreeNode("file", mode, content.read())
    raise TreeRefused(f"archive: {member.name!r} is neither a file, a directory nor a link")


def write_tree(tree: Tree, root: Path) -> None:
    """Write every entry under root, replacing what is there; other entries stay.

    Links are written last, so that no file is written through one, and directory modes after
    that, so that a read-only directory can still be filled.
    """
    _require_directories(tree)
    order = {"directory": 0, "file": 1, "link": 2}
    entries = sorted(tree.items(), key=lambda item: (order[item[1].kind], item[0]))
    parents = Parents(root)
    for name, node in entries:
        path = parents.confine(name)
        if path.is_symlink() or (path.exists() and (path.is_dir() != (node.kind == "directory"))):
            remove(path)
            parents.forget()
        _write_node(path, node)
    for name, node in reversed(entries):
        if node.kind == "directory":
            (root / name).chmod(node.mode)


def _require_directories(tree: Tree) -> None:
    """Refuse an entry below a file or a link of the same tree."""
    seen: set[str] = set()
    for name in tree:
        parent = posixpath.dirname(name)
        while parent and parent not in seen:
            seen.add(parent)
            if parent in tree and tree[parent].kind != "directory":
                raise TreeRefused(f"{name!r} goes through the {tree[parent].kind} {parent}")
            parent = posixpath.dirname(parent)


def _write_node(path: Path, node: TreeNode) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    match node.kind:
        case "directory":
            path.mkdir(exist_ok=True)
            path.chmod(node.mode | 0o700)
        case "file":
            path.unlink(missing_ok=True)
            with path.open("xb") as file:  # never through a link that appears meanwhile
                file.write(node.content)
            path.chmod(node.mode)
        case "link":
            path.unlink(missing_ok=True)
            path.symlink_to(os.fsdecode(node.content))


def remove(path: Path) -> None:
    """Remove a file, a link or a whole directory, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


class Parents:
    """The directories of a root, each of which is checked once: checking all parents of every
    entry of a deep tree takes minutes."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._checked: set[str] = set()

    def confine(self, name: str) -> Path:
        """Return an entry's path; raise TreeRefused unless its parents are directories in root."""
        if escapes(name):
            raise TreeRefused(f"{name!r} leaves the workspace")
        unchecked, parent = [], posixpath.dirname(name)
        while parent and parent not in self._checked:
            unchecked.append(parent)
            parent = posixpath.dirname(parent)
        for each in reversed(unchecked):
            path = self._root / each
            if path.is_symlink():
                raise TreeRefused(f"{name!r} goes through the link {each}")
            if path.is_file():
                raise TreeRefused(f"{name!r} goes through the file {each}")
            self._checked.add(each)
        return self._root / name

    def forget(self) -> None:
        """Check again, because something was removed and a link may take its place."""
        self._checked.clear()
