"""Git directories that mulligan makes, and where those of users are."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from mulligan.tasks.ports.errors import RepositoryUnavailable

ObjectFormat = Literal["sha1", "sha256"]

_CONFIG = """\
[core]
	repositoryformatversion = {version}
	filemode = true
	bare = {bare}
	logAllRefUpdates = false
	autocrlf = false
	ignorecase = false
	symlinks = true
[gc]
	auto = 0
[user]
	name = mulligan
	email = mulligan@localhost
"""
_SHA256 = "[extensions]\n\tobjectFormat = sha256\n"
#: Files are written and read as they are, whatever a .gitattributes says: this file overrides it.
#: (``-working-tree-encoding`` would be an error.)
_ATTRIBUTES = "* -text -crlf -ident !filter !working-tree-encoding !merge !diff\n"
#: No branch has this name.
_NO_BRANCH = "refs/mulligan/none"
_DEEPEST_ALTERNATE = 5


def make_git_directory(
    directory: Path,
    *,
    object_format: ObjectFormat,
    bare: bool = True,
    raw: bool = True,
    head: str = _NO_BRANCH,
    tip: str | None = None,
    objects: Sequence[Path] = (),
    shallow: Path | None = None,
) -> None:
    """Write an empty git directory. ``raw``: without conversions of line ends and encodings.

    ``objects``: directories of other repositories that it reads objects from. ``shallow``: the file
    of a repository whose history is cut off.
    """
    for name in ("objects/info", "objects/pack", "refs/heads", "info"):
        (directory / name).mkdir(parents=True, exist_ok=True)
    version = 0 if object_format == "sha1" else 1
    text = _CONFIG.format(version=version, bare=str(bare).lower())
    (directory / "config").write_text(text + (_SHA256 if version else ""))
    if objects:
        lines = "".join(f"{_quote(path)}\n" for path in objects)
        (directory / "objects/info/alternates").write_bytes(os.fsencode(lines))
    if raw:
        (directory / "info/attributes").write_text(_ATTRIBUTES)
    if shallow is not None and shallow.exists():
        shutil.copyfile(shallow, directory / "shallow")
    if tip is not None:
        (directory / head).parent.mkdir(parents=True, exist_ok=True)
        (directory / head).write_text(f"{tip}\n")
    (directory / "HEAD").write_text(f"ref: {head}\n")


def make_once(directory: Path, *, object_format: ObjectFormat) -> Path:
    """Make a bare git directory that several processes use, unless it exists."""
    if (directory / "HEAD").exists():
        return directory
    new = directory.with_name(f".{directory.name}.{secrets.token_hex(8)}")
    try:
        make_git_directory(new, object_format=object_format)
        try:
            new.rename(directory)
        except OSError:  # another process was faster
            shutil.rmtree(new, ignore_errors=True)
            if not (directory / "HEAD").exists():
                raise
    except OSError as error:
        raise RepositoryUnavailable(f"{directory}: {error.strerror}") from error
    return directory


def _quote(path: Path) -> str:
    """Return a path as the file of alternates has it. One that begins with # is a comment."""
    text = str(path)
    if '"' not in text and "\n" not in text:
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def find_git_directory(path: Path) -> Path | None:
    """Return the git directory of a repository, of one of its worktrees or of a directory in one.

    None if there is none.
    """
    for folder in (path, *path.parents):
        if _is_git_directory(folder):
            return folder
        inside = folder / ".git"
        if inside.is_file():
            return _linked(inside)
        if _is_git_directory(inside):
            return inside.resolve()
    return None


def _is_git_directory(folder: Path) -> bool:
    names = ("objects", "refs") if not (folder / "commondir").is_file() else ()
    head = folder / "HEAD"
    is_head = head.is_file() or head.is_symlink()
    return is_head and all((folder / name).is_dir() for name in names)


def _linked(file: Path) -> Path | None:
    """Return the git directory that a file called .git names."""
    text = file.read_bytes()[:4096].strip()
    if not text.startswith(b"gitdir:"):
        return None
    found = (file.parent / os.fsdecode(text.removeprefix(b"gitdir:").strip())).resolve()
    return found if _is_git_directory(found) else None


def object_directories(objects: Path) -> tuple[Path, ...]:
    """Return a directory of objects and those that it borrows from."""
    found: dict[Path, None] = {}
    pending = [(objects, 0)]
    while pending:
        folder, depth = pending.pop()
        if folder in found or depth > _DEEPEST_ALTERNATE:
            continue
        found[folder] = None
        for line in _alternates(folder):
            pending.append((Path(os.path.normpath(folder / line)), depth + 1))
    return tuple(found)


def _alternates(objects: Path) -> list[str]:
    try:
        lines = (objects / "info" / "alternates").read_bytes().split(b"\n")
    except OSError:
        return []
    return [os.fsdecode(line) for line in lines if line and line[:1] not in b'#"']
