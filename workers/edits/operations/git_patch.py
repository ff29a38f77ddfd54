"""Diffs become changes: as ``git apply`` would apply them, or by the ladder where git refuses or
reads less than what is there.

git works on a private copy of the files that the diff names, with no configuration, attributes or
hooks of anybody, and never sees the real tree. Outside of a repository it applies where it stands;
GIT_CEILING_DIRECTORIES keeps it from finding one around the temporary folder, in whose
subdirectories it would exit 0 and change nothing.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mulligan.policies.edits import patch as diffs
from mulligan.policies.edits.patch import ParsedDiff, PatchError
from mulligan.tasks.ports.appliers import EditRefused, FileChange
from mulligan.workers.edits.operations.fuzzy_patch import PatchTree, apply_tolerant
from mulligan.workers.edits.tree import confined_paths as confine
from mulligan.workers.edits.tree import write_changes as writing
from mulligan.workers.edits.tree.confined_paths import SeenFile

NO_PREFIX = "names without a/ and b/"
#: What git may use of the processor; it waits for nothing else.
_SECONDS = 60
#: A diff may hold a delta that unpacks to terabytes; git gets this much address space, in KiB.
_MEMORY = 2_000_000
_APPLY = f'ulimit -v {_MEMORY} && ulimit -t {_SECONDS} && exec git apply --whitespace=nowarn "$@"'


@dataclass(frozen=True, kw_only=True)
class GitRefusal:
    """Why git did not apply a diff."""

    text: str


def patched(root: Path, target: str, diff: str, *, max_bytes: int) -> list[FileChange]:
    """The changes that a diff makes inside the root. ``target`` is the one file that it may touch,
    or "." for any number of them. Raises EditRefused if it does not fit as a whole."""
    _refuse_unfit(diff, target, max_bytes)
    only = None if target == "." else confine.normal(target)
    tree = PatchTree(root=root, max_bytes=max_bytes)
    read = _parsed(diff, target)
    copied = tree.readable(read.names)
    refusal = GitRefusal(text="")
    for strip in _readings(root, read):
        done = _git_applied(diffs.unfenced(diff), copied, strip, max_bytes)
        if isinstance(done, GitRefusal):
            refusal = refusal if refusal.text else done
        elif _as_read(done, read) and (only is None or {change.path for change in done} <= {only}):
            kept = _with_modes(done, read, copied)
            return _noted(_checked(root, kept, max_bytes), strip)
    return _checked(root, _by_ladder(read, only, tree, refusal), max_bytes)


def _parsed(diff: str, target: str) -> ParsedDiff:
    try:
        return diffs.parse(diff)
    except PatchError as error:
        raise EditRefused(f"{'the diff' if target == '.' else target}: {error}") from None


def _as_read(changes: Sequence[FileChange], read: ParsedDiff) -> bool:
    """Whether git touched no other files, and deleted none, than those of which we read that."""
    touched = {change.path for change in changes}
    gone = {change.path for change in changes if change.after is None}
    return touched <= read.names and gone <= read.vanishing


def _refuse_unfit(diff: str, target: str, max_bytes: int) -> None:
    if not diff.strip():
        raise EditRefused(f"{target}: the diff is empty")
    try:
        size = len(diff.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:
        raise EditRefused(f"{target}: the diff is not Unicode text") from None
    confine.refuse_large("the diff", size, max_bytes)
    special = diffs.special_mode(diff)
    if special is not None:
        what = "symbolic link" if special == "120000" else "submodule"
        raise EditRefused(f"{target}: the diff touches a {what}; edits change regular files only")


def _readings(root: Path, read: ParsedDiff) -> list[int | None]:
    """How many leading folders git shall take off names: its own way first (None). git is not asked
    if a hunk header miscounts: where it states too little, git drops the rest and says nothing.

    A diff that only creates files and names them without a/ and b/ fits in either reading; where
    the first folder exists, git's own would put the file beside it instead of into it."""
    if not read.counts_right:
        return []
    names = [name for file in read.files for name in (file.old, file.new) if name is not None]
    bare = [name for name in names if not name.startswith(diffs.PREFIXES)]
    if not bare:
        return [None]
    creates = all(file.old is None for file in read.files)
    inside = all((root / name.partition("/")[0]).is_dir() for name in bare if "/" in name)
    return [0] if creates and inside else [None, 0]


def _git_applied(
    diff: str, copied: Mapping[str, SeenFile], strip: int | None, max_bytes: int
) -> list[FileChange] | GitRefusal:
    """What ``git apply`` makes of the copies of these files."""
    with tempfile.TemporaryDirectory(prefix="mulligan-patch-") as name:
        private = Path(name).resolve()
        files = private / "tree"
        files.mkdir()
        for path, seen in copied.items():
            _copy(files, path, seen)
        failure = _run_git(private, files, diff, strip)
        return _harvest(files, copied, max_bytes) if failure is None else failure


def _copy(files: Path, path: str, seen: SeenFile) -> None:
    place = files / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(seen.data)
    place.chmod(0o755 if seen.executable else 0o644)


def _run_git(private: Path, files: Path, diff: str, strip: int | None) -> GitRefusal | None:
    options = [] if strip is None else [f"-p{strip}"]
    raw = diff.encode("utf-8", "surrogateescape")
    ran = subprocess.run(
        ["sh", "-c", _APPLY, "git-apply", *options, "-"],
        cwd=files,
        env=_environment(private),
        input=raw if raw.endswith(b"\n") else raw + b"\n",
        capture_output=True,
        check=False,
    )
    if ran.returncode == 0:
        return None
    said = ran.stderr.decode("utf-8", "replace").splitlines()
    text = next((line for line in said if line.startswith("error")), "")
    return GitRefusal(text=text or f"error: it ended with {ran.returncode}")


def _environment(private: Path) -> dict[str, str]:
    """Nothing of the user's: no configuration, no repository, no language."""
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(private),
        "XDG_CONFIG_HOME": str(private),
        "LC_ALL": "C",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_CEILING_DIRECTORIES": str(private),
    }


def _harvest(files: Path, copied: Mapping[str, SeenFile], max_bytes: int) -> list[FileChange]:
    """The difference between the copies as they were and as git left them."""
    after: dict[str, SeenFile] = {}
    for path in _listed(files):
        seen = confine.read(files, path, max_bytes=max_bytes)
        if seen is not None:
            after[path] = seen
    changes = [_change(path, copied.get(path), after.get(path)) for path in {*copied, *after}]
    return sorted((change for change in changes if not change.unchanged), key=lambda c: c.path)


def _listed(files: Path) -> Iterable[str]:
    for folder, _, names in os.walk(files):
        for name in names:
            yield str((Path(folder) / name).relative_to(files))


def _change(path: str, before: SeenFile | None, after: SeenFile | None) -> FileChange:
    mode = None
    if after is not None and before is None:
        mode = 0o755 if after.executable else None
    elif after is not None and before is not None and after.executable != before.executable:
        mode = before.mode | 0o111 if after.executable else before.mode & ~0o111
    return FileChange(
        path=path,
        before=None if before is None else before.data,
        after=None if after is None else after.data,
        mode=mode,
    )


def _checked(root: Path, changes: list[FileChange], max_bytes: int) -> list[FileChange]:
    """The changes, if the real tree can take them."""
    writing.check(root, changes, max_bytes=max_bytes)
    return changes


def _with_modes(
    changes: list[FileChange], read: ParsedDiff, copied: Mapping[str, SeenFile]
) -> list[FileChange]:
    """A renamed or copied file keeps the permission bits of its source: git knows only whether it
    is executable, and a private file would become a public one."""
    moved = {diffs.stripped(f.new or ""): f for f in read.files if f.renamed or f.copied}
    found = []
    for change in changes:
        file = moved.get(change.path)
        source = copied.get(diffs.stripped(file.old or "")) if file is not None else None
        if source is not None and change.before is None:
            executable = change.mode is not None
            bits = source.mode | 0o111 if executable else source.mode & ~0o111
            wanted = source.mode if executable == source.executable else bits
            change = replace(change, mode=None if wanted == writing.NEW_FILE else wanted)
        found.append(change)
    return found


def _noted(changes: list[FileChange], strip: int | None) -> list[FileChange]:
    return changes if strip is None else [replace(change, note=NO_PREFIX) for change in changes]


def _by_ladder(
    read: ParsedDiff, only: str | None, tree: PatchTree, refusal: GitRefusal
) -> list[FileChange]:
    """What git refused, by the ladder; its refusal has git's word for it too."""
    try:
        return apply_tolerant(read, only, tree)
    except EditRefused as error:
        said = refusal.text.removeprefix("error: ")
        raise EditRefused(*error.problems, *([f"git apply says: {said}"] if said else [])) from None
