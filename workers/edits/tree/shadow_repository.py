"""The shadow repository: contents and history of the files that edits touch, and of no others.

It is a bare git repository in mulligan's home. It has no index and no working tree, so nothing in
it can reach the user's own repositories, whatever the root is or holds; and git runs without
anybody's configuration, attributes or hooks. Contents are stored as an edit needs them, by us and
synced; commits are made from the journal, many at a time if need be. Making them again gives the
same commits, so nothing is lost if a process dies before it noted them down.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
import subprocess
import tempfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from mulligan.workers.edits.tree.journal import Image, Operation, TreeFault, sync_folder

#: The whole history, the last operation at its tip.
TREE = "refs/heads/tree"
_SECONDS = 300
_IMPORT = ("fast-import", "--quiet", "--done", "--force")
_IDENTITY = b"mulligan <mulligan@localhost>"
_CONFIG = f"""\
[core]
	repositoryformatversion = 0
	filemode = true
	bare = true
	hooksPath = {os.devnull}
	autocrlf = false
	logAllRefUpdates = false
	filesRefLockTimeout = 1000
	fsync = objects
	fsyncMethod = batch
[gc]
	auto = 0
[commit]
	gpgsign = false
[user]
	name = mulligan
	email = mulligan@localhost
"""
_HUNK = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")

Lines = tuple[int, int]


def blob_id(data: bytes) -> str:
    """The name that git gives to a content."""
    header = b"blob %d\0" % len(data)
    return hashlib.sha1(header + data, usedforsecurity=False).hexdigest()


def session_ref(session_id: str) -> str:
    return f"refs/mulligan/sessions/{_quoted(session_id)}"


def edit_ref(session_id: str, edit_id: str) -> str:
    """Plans number their edits alike, so an edit is one of its session."""
    return f"refs/mulligan/edits/{_quoted(session_id)}/{_quoted(edit_id)}"


class ShadowRepository:
    """One per tree."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def prepare(self) -> None:
        """Make it if it is not there. Only for the holder of the tree's lock."""
        if self.folder.exists():
            return
        for stale in self.folder.parent.glob("new-*"):
            shutil.rmtree(stale)
        new = Path(tempfile.mkdtemp(prefix="new-", dir=self.folder.parent))
        options = ["--quiet", "--bare", "--template=", "--object-format=sha1"]
        self._git("init", *options, str(new))
        (new / "config").write_text(_CONFIG)
        (new / "HEAD").write_text(f"ref: {TREE}\n")
        new.rename(self.folder)
        sync_folder(self.folder.parent)

    # -- contents ------------------------------------------------------------------------------

    def store(self, contents: Iterable[bytes]) -> None:
        """Store contents; they are safe when this returns."""
        try:
            for folder in {self._store(data) for data in contents}:
                if folder is not None:
                    sync_folder(folder)
        except OSError as error:
            raise TreeFault(f"{self.folder}: {error.strerror or error}") from error

    def _store(self, data: bytes) -> Path | None:
        """Write git's own form of a content, unless it is there. The folder that it went into."""
        name = blob_id(data)
        place = self.folder / "objects" / name[:2] / name[2:]
        if place.exists():
            return None
        if not place.parent.exists():
            place.parent.mkdir(exist_ok=True)
            sync_folder(place.parent.parent)
        temporary = place.with_name(f"tmp_obj_{secrets.token_hex(8)}")
        with temporary.open("xb") as file:
            file.write(zlib.compress(b"blob %d\0" % len(data) + data, level=1))
            file.flush()
            os.fchmod(file.fileno(), 0o444)
            os.fsync(file.fileno())
        temporary.rename(place)
        return place.parent

    def contents(self, blobs: Iterable[str]) -> dict[str, bytes]:
        """Stored contents by name. Raises TreeFault if one is missing."""
        wanted = sorted(set(blobs))
        if not wanted:
            return {}
        out = self._git("cat-file", "--batch", given="".join(f"{b}\n" for b in wanted).encode())
        found: dict[str, bytes] = {}
        at = 0
        for blob in wanted:
            end = out.index(b"\n", at)
            header = out[at:end].split()
            if len(header) != 3 or header[1] != b"blob":
                raise TreeFault(f"{self.folder}: the content {blob} is missing")
            size = int(header[2])
            found[blob] = out[end + 1 : end + 1 + size]
            at = end + size + 2
        return found

    # -- commits -------------------------------------------------------------------------------

    def commit(
        self, before: Sequence[Operation], operations: Sequence[Operation], *, tip: str | None
    ) -> dict[int, str]:
        """Make a commit of each operation, upon those before. The parent of each holds its files as
        they were found; where the history does not say so, a commit records that first."""
        tracked: dict[str, tuple[str, str] | None] = {}
        for operation in before:
            tracked |= {step.path: _entry(step.after) for step in operation.files}
        stream: list[bytes] = [b"feature done\n", *_reset(TREE, tip)]
        for operation in operations:
            found = {step.path: _entry(step.before) for step in operation.files}
            if tip is None or any(tracked.get(p) != entry for p, entry in found.items()):
                stream.append(_commit(f"As found before: {operation.title}\n", operation, found))
            tip = TREE
            after = {step.path: _entry(step.after) for step in operation.files}
            stream.append(_commit(_message(operation), operation, after))
            stream += _refs(operation)
            tracked |= after
        stream += [b"get-mark :%d\n" % operation.number for operation in operations]
        stream.append(b"done\n")
        given = b"".join(stream)
        try:
            out = self._git(*_IMPORT, given=given)
        except TreeFault:
            self._remove_stale_locks()
            out = self._git(*_IMPORT, given=given)
        return dict(zip((o.number for o in operations), out.decode().split(), strict=True))

    def _remove_stale_locks(self) -> None:
        """A git that was killed leaves the locks of its refs; under the tree's lock no other git
        can be at work here."""
        for lock in self.folder.rglob("*.lock"):
            lock.unlink(missing_ok=True)

    def diff(self, commit: str) -> bytes:
        """What an operation changed."""
        options = ("--format=", "--patch", "--binary", "--no-ext-diff", "--no-textconv")
        return self._git("show", *options, "--end-of-options", commit)

    # -- merging -------------------------------------------------------------------------------

    def merged(self, ours: bytes, base: bytes, theirs: bytes) -> bytes | list[Lines]:
        """The three-way merge, or the lines of ``ours`` that are in its way (none if
        it is binary)."""
        if any(b"\0" in side for side in (ours, base, theirs)):
            return []
        with tempfile.TemporaryDirectory(prefix="merge-", dir=self.folder.parent) as name:
            folder = Path(name)
            for side, data in (("ours", ours), ("base", base), ("theirs", theirs)):
                (folder / side).write_bytes(data)
            ran = self._run(["merge-file", "-p", "-q", "ours", "base", "theirs"], cwd=folder)
            if ran.returncode == 0:
                return ran.stdout
            if ran.returncode > 127:
                return []
            mine, other = (self._hunks(folder, "base", side) for side in ("ours", "theirs"))
        return [
            new for old, new in mine if any(old[0] <= o[1] and o[0] <= old[1] for o, _ in other)
        ]

    def _hunks(self, folder: Path, old: str, new: str) -> list[tuple[Lines, Lines]]:
        """Changed lines: from where to where in the old file, and in the new one."""
        options = ["--no-index", "--unified=0", "--text", "--no-ext-diff", "--no-textconv"]
        ran = self._run(["diff", *options, old, new], cwd=folder)
        found = []
        for match in _HUNK.finditer(ran.stdout):
            a, b, c, d = (1 if group is None else int(group) for group in match.groups())
            # Git's merge wants a line between two changes: neighbours are in each other's way.
            found.append(((a if b else a + 1, a + b if b else a + 1), (c, max(c, c + d - 1))))
        return found

    # -- git -----------------------------------------------------------------------------------

    def _git(self, *arguments: str, given: bytes = b"") -> bytes:
        ran = self._run(list(arguments), given=given)
        if ran.returncode:
            said = ran.stderr.decode("utf-8", "replace").strip().splitlines() or ["no reason given"]
            raise TreeFault(f"{self.folder}: git {arguments[0]} failed: {said[0]}")
        return ran.stdout

    def _run(
        self, arguments: Sequence[str], *, given: bytes = b"", cwd: Path | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        try:
            return subprocess.run(
                ["git", *arguments],
                cwd=cwd or self.folder.parent,
                env=self._environment(arguments[0]),
                input=given,
                capture_output=True,
                timeout=_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise TreeFault(f"{self.folder}: git {arguments[0]}: {error}") from error

    def _environment(self, command: str) -> dict[str, str]:
        """Nothing of the user's: no configuration, no repository, no language."""
        place = str(self.folder)
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": place,
            "XDG_CONFIG_HOME": place,
            "LC_ALL": "C",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_TERMINAL_PROMPT": "0",
        } | ({} if command == "init" else {"GIT_DIR": place})


def _quoted(name: str) -> str:
    """An id as a part of a ref's name: git takes neither "a..b" nor "a.lock"."""
    return re.sub(r"[^A-Za-z0-9_-]", _escaped, name)


def _escaped(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match[0].encode())


def _entry(image: Image | None) -> tuple[str, str] | None:
    """A file as git knows it."""
    if image is None:
        return None
    return ("100755" if image.mode & 0o100 else "100644", image.blob)


def _commit(
    message: str, operation: Operation, files: Mapping[str, tuple[str, str] | None]
) -> bytes:
    text = message.encode()
    head = b"commit %s\nmark :%d\ncommitter %s %d +0000\ndata %d\n%s\n" % (
        TREE.encode(),
        operation.number,
        _IDENTITY,
        int(operation.at),
        len(text),
        text,
    )
    gone = [b"D %s\n" % _path(path) for path, entry in files.items() if entry is None]
    there = [
        b"M %s %s %s\n" % (entry[0].encode(), entry[1].encode(), _path(path))
        for path, entry in files.items()
        if entry is not None
    ]
    return b"".join([head, *gone, *there, b"\n"])


def _message(operation: Operation) -> str:
    trailers = {
        "Edit-ID": operation.edit_id,
        "Session-ID": operation.session_id,
        "Risk-Tier": operation.tier,
        "Checkpoint": operation.number,
        "Rolls-Back": ", ".join(str(number) for number in operation.undoes),
    }
    lines = [f"{name}: {value}" for name, value in trailers.items() if value]
    return "\n".join([operation.title, "", *lines, ""])


def _refs(operation: Operation) -> list[bytes]:
    """An edit is the tip of its session and has a name of its own."""
    if operation.kind != "edit" or operation.session_id is None or operation.edit_id is None:
        return []
    names = (
        session_ref(operation.session_id),
        edit_ref(operation.session_id, operation.edit_id),
    )
    mark = f":{operation.number}"
    return [line for name in names for line in _reset(name, mark)]


def _reset(ref: str, target: str | None) -> list[bytes]:
    return [] if target is None else [f"reset {ref}\nfrom {target}\n\n".encode()]


def _path(path: str) -> bytes:
    """A name as fast-import reads it, whatever bytes are in it."""
    plain = b"".join(
        bytes([b]) if 32 <= b < 127 and b not in b'"\\' else b"\\%03o" % b
        for b in os.fsencode(path)
    )
    return b'"' + plain + b'"'
