"""The shadow repository: contents and history of the files that edits touch, and of no others.

It is a bare git repository in mulligan's home, without index and working tree, so it cannot affect
the user's repositories, whatever the root is or contains. Git runs without the user's and the
system's configuration, attributes and hooks. Contents are written and synced without git, as an
edit needs them. Commits are made from the journal, several at a time if necessary. Repeating them
gives the same commits, so nothing is lost if a process dies before it records them.
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
from urllib.parse import quote

from mulligan.workers.edits.tree.journal import Image, Operation, TreeFault, sync_folder

#: The whole history; its tip is the last operation.
TREE_REF = "refs/heads/tree"
_TIMEOUT_SECONDS = 300
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
    """Return git's hash of a content."""
    header = b"blob %d\0" % len(data)
    return hashlib.sha1(header + data, usedforsecurity=False).hexdigest()


def session_ref(session_id: str) -> str:
    return f"refs/mulligan/sessions/{_quote_id(session_id)}"


def edit_ref(session_id: str, edit_id: str) -> str:
    # Plans use the same edit ids, so the session is part of the name.
    return f"refs/mulligan/edits/{_quote_id(session_id)}/{_quote_id(edit_id)}"


class ShadowRepository:
    """The contents and commits of one tree."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def prepare(self) -> None:
        """Create the repository if it does not exist. Only for the holder of the tree's lock."""
        if self.folder.exists():
            return
        for stale in self.folder.parent.glob("new-*"):
            shutil.rmtree(stale)
        new = Path(tempfile.mkdtemp(prefix="new-", dir=self.folder.parent))
        options = ["--quiet", "--bare", "--template=", "--object-format=sha1"]
        self._git("init", *options, str(new))
        (new / "config").write_text(_CONFIG)
        (new / "HEAD").write_text(f"ref: {TREE_REF}\n")
        new.rename(self.folder)
        sync_folder(self.folder.parent)

    # -- contents ------------------------------------------------------------------------------

    def store(self, contents: Iterable[bytes]) -> None:
        """Store and sync contents."""
        try:
            for folder in {self._store(data) for data in contents}:
                if folder is not None:
                    sync_folder(folder)
        except OSError as error:
            raise TreeFault(f"{self.folder}: {error.strerror or error}") from error

    def _store(self, data: bytes) -> Path | None:
        """Write a content as a git object. Return its folder, or None if it is there already."""
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
        """Return stored contents by hash. Raises TreeFault if one is missing."""
        names = sorted(set(blobs))
        if not names:
            return {}
        out = self._git("cat-file", "--batch", stdin="".join(f"{b}\n" for b in names).encode())
        found: dict[str, bytes] = {}
        at = 0
        for blob in names:
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
        self, earlier: Sequence[Operation], operations: Sequence[Operation], *, tip: str | None
    ) -> dict[int, str]:
        """Commit each operation on top of the earlier ones. Return the commits by number.

        The parent of each commit has the files as they were found. If the history has them
        otherwise, a commit records them first."""
        tracked: dict[str, tuple[str, str] | None] = {}
        for operation in earlier:
            tracked |= {step.path: _entry(step.after) for step in operation.files}
        stream: list[bytes] = [b"feature done\n", *_reset(TREE_REF, tip)]
        for operation in operations:
            found = {step.path: _entry(step.before) for step in operation.files}
            if tip is None or any(tracked.get(p) != entry for p, entry in found.items()):
                stream.append(_commit(f"As found before: {operation.title}\n", operation, found))
            tip = TREE_REF
            after = {step.path: _entry(step.after) for step in operation.files}
            stream.append(_commit(_message(operation), operation, after))
            stream += _refs(operation)
            tracked |= after
        stream += [b"get-mark :%d\n" % operation.number for operation in operations]
        stream.append(b"done\n")
        try:
            out = self._git(*_IMPORT, stdin=b"".join(stream))
        except TreeFault:
            self._remove_stale_locks()
            out = self._git(*_IMPORT, stdin=b"".join(stream))
        return dict(zip((o.number for o in operations), out.decode().split(), strict=True))

    def _remove_stale_locks(self) -> None:
        """Remove the ref locks of a killed git. Under the tree's lock, no other git runs here."""
        for lock in self.folder.rglob("*.lock"):
            lock.unlink(missing_ok=True)

    # -- merging -------------------------------------------------------------------------------

    def merge(self, ours: bytes, base: bytes, theirs: bytes) -> bytes | list[Lines]:
        """Return the three-way merge, or the conflicting lines of ``ours`` (none if a side is
        binary)."""
        if any(b"\0" in side for side in (ours, base, theirs)):
            return []
        with tempfile.TemporaryDirectory(prefix="merge-", dir=self.folder.parent) as name:
            folder = Path(name)
            for side, data in (("ours", ours), ("base", base), ("theirs", theirs)):
                (folder / side).write_bytes(data)
            result = self._run(["merge-file", "-p", "-q", "ours", "base", "theirs"], cwd=folder)
            if result.returncode == 0:
                return result.stdout
            if result.returncode > 127:
                return []
            mine, other = (self._hunks(folder, "base", side) for side in ("ours", "theirs"))
        return [
            new for old, new in mine if any(old[0] <= o[1] and o[0] <= old[1] for o, _ in other)
        ]

    def _hunks(self, folder: Path, old: str, new: str) -> list[tuple[Lines, Lines]]:
        """Return the first and last line of each change, in the old and in the new file."""
        options = ["--no-index", "--unified=0", "--text", "--no-ext-diff", "--no-textconv"]
        result = self._run(["diff", *options, old, new], cwd=folder)
        found = []
        for match in _HUNK.finditer(result.stdout):
            a, b, c, d = (1 if group is None else int(group) for group in match.groups())
            # Git's merge needs a line between two changes: adjacent ones conflict.
            found.append(((a if b else a + 1, a + b if b else a + 1), (c, max(c, c + d - 1))))
        return found

    # -- git -----------------------------------------------------------------------------------

    def _git(self, *arguments: str, stdin: bytes = b"") -> bytes:
        result = self._run(arguments, stdin=stdin)
        if result.returncode:
            lines = result.stderr.decode("utf-8", "replace").strip().splitlines()
            reason = lines[0] if lines else "no reason given"
            raise TreeFault(f"{self.folder}: git {arguments[0]} failed: {reason}")
        return result.stdout

    def _run(
        self, arguments: Sequence[str], *, stdin: bytes = b"", cwd: Path | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        try:
            return subprocess.run(
                ["git", *arguments],
                cwd=cwd or self.folder.parent,
                env=self._environment(arguments[0]),
                input=stdin,
                capture_output=True,
                timeout=_TIMEOUT_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise TreeFault(f"{self.folder}: git {arguments[0]}: {error}") from error

    def _environment(self, command: str) -> dict[str, str]:
        """Return an environment without the user's configuration, repository and language."""
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


def _quote_id(name: str) -> str:
    """Return an id as a part of a ref name. Git accepts neither "a..b" nor "a.lock"."""
    return quote(name, safe="").replace(".", "%2E")


def _entry(image: Image | None) -> tuple[str, str] | None:
    """Return git's mode and hash of a file."""
    if image is None:
        return None
    return ("100755" if image.mode & 0o100 else "100644", image.blob)


def _commit(
    message: str, operation: Operation, files: Mapping[str, tuple[str, str] | None]
) -> bytes:
    text = message.encode()
    head = b"commit %s\nmark :%d\ncommitter %s %d +0000\ndata %d\n%s\n" % (
        TREE_REF.encode(),
        operation.number,
        _IDENTITY,
        int(operation.at),
        len(text),
        text,
    )
    deleted = [b"D %s\n" % _quote_path(path) for path, entry in files.items() if entry is None]
    written = [
        b"M %s %s %s\n" % (entry[0].encode(), entry[1].encode(), _quote_path(path))
        for path, entry in files.items()
        if entry is not None
    ]
    return b"".join([head, *deleted, *written, b"\n"])


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
    """Return the commands that set the refs of an edit and of its session to its commit."""
    if operation.kind != "edit" or operation.session_id is None or operation.edit_id is None:
        return []
    names = (session_ref(operation.session_id), edit_ref(operation.session_id, operation.edit_id))
    return [line for name in names for line in _reset(name, f":{operation.number}")]


def _reset(ref: str, target: str | None) -> list[bytes]:
    return [] if target is None else [f"reset {ref}\nfrom {target}\n\n".encode()]


def _quote_path(path: str) -> bytes:
    """Return a path of any bytes, quoted for fast-import."""
    quoted = b"".join(
        bytes([b]) if 32 <= b < 127 and b not in b'"\\' else b"\\%03o" % b
        for b in os.fsencode(path)
    )
    return b'"' + quoted + b'"'
