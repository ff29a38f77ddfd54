"""Turn a diff into changes: by ``git apply``, or by tolerant matching where git refuses it or would
drop lines.

git works on a private copy of the files that the diff names, without the user's configuration,
attributes or hooks, and never sees the real tree. GIT_CEILING_DIRECTORIES keeps it from finding a
repository around the temporary folder: inside one, it would exit 0 and change nothing.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from mulligan.policies.edits.parse_diff import parse, special_mode, strip_fences
from mulligan.policies.edits.patch import PREFIXES, ParsedDiff, PatchError, strip_prefix
from mulligan.tasks.ports.appliers import EditRefused, FileChange
from mulligan.tasks.ports.errors import TooCostly
from mulligan.workers.edits.operations.fuzzy_patch import PatchTree, apply_tolerant
from mulligan.workers.edits.operations.killable_applier import MEMORY_BYTES, SECONDS
from mulligan.workers.edits.tree import confined_paths, write_changes
from mulligan.workers.edits.tree.confined_paths import FileSnapshot
from mulligan.workers.killable.pool import call_killable

NO_PREFIX = "names without a/ and b/"
_CPU_SECONDS = 20
#: git waits for nothing, so that its own time is close to the processor's.
_SECONDS = 60
#: Address space in KiB: a diff may contain a delta that unpacks to terabytes.
_MEMORY = 2_000_000
_LIMITS = f"ulimit -v {_MEMORY} && ulimit -t {_CPU_SECONDS}"
_APPLY = f'{_LIMITS} && exec git apply --whitespace=nowarn "$@"'


def compute_patch(root: Path, target: str, diff: str, *, max_bytes: int) -> list[FileChange]:
    """Return the changes that a diff makes inside the root. ``target`` is the one file that it may
    touch, or "." for any number of files. Raises EditRefused unless the whole diff fits."""
    parsed = _parse(diff, target, max_bytes)
    only = None if target == "." else confined_paths.normalize(target)
    tree = PatchTree(root=root, max_bytes=max_bytes)
    copied = tree.readable(parsed.paths)
    changes, refusal = _apply_by_git(root, diff, parsed, copied, only, max_bytes)
    if changes is None:
        changes = _apply_tolerantly(parsed, only, tree, refusal)
    write_changes.check(root, changes, max_bytes=max_bytes)
    return changes


def _apply_by_git(
    root: Path,
    diff: str,
    parsed: ParsedDiff,
    copied: Mapping[str, FileSnapshot],
    only: str | None,
    max_bytes: int,
) -> tuple[list[FileChange] | None, str]:
    """Return the changes that git made, or None and git's first refusal."""
    refusal = ""
    for strip in _strip_options(root, parsed):
        done = _git_apply(strip_fences(diff), copied, strip, max_bytes)
        if isinstance(done, str):
            refusal = refusal or done
        elif _matches(done, parsed) and (
            only is None or {change.path for change in done} <= {only}
        ):
            kept = _keep_modes(done, parsed, copied)
            note = "" if strip is None else NO_PREFIX
            return [replace(change, note=note) for change in kept], ""
    return None, refusal


def _matches(changes: Sequence[FileChange], parsed: ParsedDiff) -> bool:
    """Return whether git touched and deleted only files that we, too, read in the diff."""
    touched = {change.path for change in changes}
    deleted = {change.path for change in changes if change.after is None}
    return touched <= parsed.paths and deleted <= parsed.removed_paths


def _parse(diff: str, target: str, max_bytes: int) -> ParsedDiff:
    if not diff.strip():
        raise EditRefused(f"{target}: the diff is empty")
    try:
        size = len(diff.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:
        raise EditRefused(f"{target}: the diff is not Unicode text") from None
    confined_paths.check_size("the diff", size, max_bytes)
    special = special_mode(diff)
    if special is not None:
        what = "symbolic link" if special == "120000" else "submodule"
        raise EditRefused(f"{target}: the diff touches a {what}; edits change regular files only")
    try:
        return parse(diff)
    except PatchError as error:
        raise EditRefused(f"{'the diff' if target == '.' else target}: {error}") from None


def _strip_options(root: Path, parsed: ParsedDiff) -> list[int | None]:
    """Return how many leading folders git may strip from names, in order; None is git's default.
    Return nothing if a hunk header miscounts: git would silently drop the lines beyond the count.

    A diff that only creates files and names them without a/ and b/ fits with either; where the
    first folder exists, git's default would put the file beside it instead of into it."""
    if not parsed.counts_right:
        return []
    names = [name for file in parsed.files for name in (file.old, file.new) if name is not None]
    bare = [name for name in names if not name.startswith(PREFIXES)]
    if not bare:
        return [None]
    creates = all(file.old is None for file in parsed.files)
    inside = all((root / name.partition("/")[0]).is_dir() for name in bare if "/" in name)
    return [0] if creates and inside else [None, 0]


def _git_apply(
    diff: str, copied: Mapping[str, FileSnapshot], strip: int | None, max_bytes: int
) -> list[FileChange] | str:
    """Return the changes that ``git apply`` makes in copies of these files, or its refusal."""
    with tempfile.TemporaryDirectory(prefix="mulligan-patch-") as name:
        private = Path(name).resolve()
        files = private / "tree"
        files.mkdir()
        for path, file in copied.items():
            place = files / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(file.data)
            place.chmod(0o755 if file.executable else 0o644)
        refusal = _run_git(private, files, diff, strip)
        return refusal or _collect_changes(files, copied, max_bytes)


def _run_git(private: Path, files: Path, diff: str, strip: int | None) -> str:
    """Return git's error message, or nothing if it applied the diff."""
    options = [] if strip is None else [f"-p{strip}"]
    raw = diff.encode("utf-8", "surrogateescape")
    try:
        ran = subprocess.run(
            ["sh", "-c", _APPLY, "git-apply", *options, "-"],
            cwd=files,
            env=_environment(private),
            input=raw if raw.endswith(b"\n") else raw + b"\n",
            capture_output=True,
            check=False,
            timeout=_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return f"it did not end within {_SECONDS} s"
    if ran.returncode == 0:
        return ""
    messages = ran.stderr.decode("utf-8", "replace").splitlines()
    errors = [line.removeprefix("error: ") for line in messages if line.startswith("error")]
    return errors[0] if errors else f"exit status {ran.returncode}"


def _environment(private: Path) -> dict[str, str]:
    """Return variables that hide the user's configuration, repositories and language."""
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


def _collect_changes(
    files: Path, copied: Mapping[str, FileSnapshot], max_bytes: int
) -> list[FileChange]:
    """Return the difference between the copies before and after git ran."""
    left = {str(path.relative_to(files)) for path in files.rglob("*") if not path.is_dir()}
    after = {path: confined_paths.read(files, path, max_bytes=max_bytes) for path in left}
    changes = [_change(path, copied.get(path), after.get(path)) for path in {*copied, *left}]
    return sorted((change for change in changes if not change.unchanged), key=lambda c: c.path)


def _change(path: str, before: FileSnapshot | None, after: FileSnapshot | None) -> FileChange:
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


def _keep_modes(
    changes: list[FileChange], parsed: ParsedDiff, copied: Mapping[str, FileSnapshot]
) -> list[FileChange]:
    """Give renamed and copied files the permission bits of their source: git knows only whether a
    file is executable, and would make a private file public."""
    moved = {strip_prefix(f.new or ""): f for f in parsed.files if f.renamed or f.copied}
    result = []
    for change in changes:
        file = moved.get(change.path)
        source = copied.get(strip_prefix(file.old or "")) if file is not None else None
        if source is not None and change.before is None:
            executable = change.mode is not None
            bits = source.mode | 0o111 if executable else source.mode & ~0o111
            mode = source.mode if executable == source.executable else bits
            change = replace(change, mode=None if mode == write_changes.NEW_FILE_MODE else mode)
        result.append(change)
    return result


def _apply_tolerantly(
    parsed: ParsedDiff, only: str | None, tree: PatchTree, refusal: str
) -> list[FileChange]:
    """Apply a diff without git. A refusal also quotes git's."""
    try:
        return call_killable(
            apply_tolerant, parsed, only, tree, seconds=SECONDS, memory_bytes=MEMORY_BYTES,
            what=f"{only or 'the diff'}: this edit",
        )  # fmt: skip
    except (EditRefused, TooCostly) as failure:
        error = EditRefused(str(failure)) if isinstance(failure, TooCostly) else failure
        git = [f"git apply says: {refusal}"] if refusal else []
        raise EditRefused(*error.problems, *git) from None
