"""run_formatter: run a formatter on a private copy and turn its changes there into an edit's.

An edit names one of the formatters in the configuration; no other is run. ``{path}`` in a
formatter's arguments is replaced by the target, which is appended otherwise.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field

from mulligan.policies.edits.edit import Edit, EditOp
from mulligan.policies.problem import Problem
from mulligan.policies.suggestions import name_hint
from mulligan.policies.value import Value
from mulligan.tasks.ports.appliers import ApplyContext, EditRefused, FileChange, Validation
from mulligan.tasks.ports.errors import VerifierError
from mulligan.workers.edits.operations.payloads import payload_of, validate_payload
from mulligan.workers.edits.tree import confined_paths
from mulligan.workers.edits.tree.confined_paths import FileSnapshot
from mulligan.workers.sandbox.limits import Limits
from mulligan.workers.sandbox.subprocesses import Completed, clean_environment, run

DEFAULT = "ruff"
_SECONDS = 60.0
MAX_FILES = 5_000
MAX_TOTAL = 100_000_000
#: Settings that formatters read: copied from the target's folder and those above it.
_SETTINGS = frozenset(
    {
        "pyproject.toml",
        "ruff.toml",
        ".ruff.toml",
        "setup.cfg",
        "tox.ini",
        ".editorconfig",
        ".style.yapf",
        ".clang-format",
        ".prettierrc",
        ".prettierrc.json",
        ".prettierrc.yaml",
        ".prettierrc.yml",
        ".prettierrc.toml",
        ".prettierignore",
        "rustfmt.toml",
        ".rustfmt.toml",
        "taplo.toml",
        ".taplo.toml",
        "biome.json",
        "package.json",
    }
)
_SKIPPED = frozenset({"node_modules", "__pycache__", "venv"})
_MAX_MESSAGE = 1_000


class RunFormatterPayload(Value):
    #: A formatter of the configuration. None: the only one, or ruff.
    name: Annotated[str, Field(min_length=1, max_length=100)] | None = None


@dataclass(frozen=True)
class RunFormatter:
    """Formats a file, or every file in a folder."""

    op: ClassVar[str] = EditOp.RUN_FORMATTER
    limits: Limits = field(default_factory=Limits)

    def validate(self, edit: Edit, ctx: ApplyContext) -> Validation:
        problems: list[Problem] = []
        name = edit.payload.get("name")
        for check in (
            lambda: _target(edit.target),
            lambda: _formatter(name if isinstance(name, str) else None, ctx.formatters),
        ):
            try:
                check()
            except EditRefused as error:
                problems += error.problems
        return validate_payload(RunFormatterPayload, edit, ctx, *problems)

    def changes(self, edit: Edit, ctx: ApplyContext) -> list[FileChange]:
        payload = payload_of(RunFormatterPayload, edit)
        name, argv = _formatter(payload.name, ctx.formatters)
        target = _target(edit.target)
        files = _read_files(ctx, target)
        with tempfile.TemporaryDirectory(prefix="mulligan-format-") as folder:
            private = Path(folder).resolve()
            copy = private / "tree"
            copy.mkdir()
            for path, data in (*_settings(ctx, target), *((p, f.data) for p, f in files.items())):
                place = copy / path
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(data)
            _check_success(name, _run(argv, target, copy, private, self.limits))
            return list(_collect_changes(name, copy, files, ctx.max_bytes))


def _target(target: str) -> str:
    """Return the target as a path, "." for the whole root."""
    trimmed = target.rstrip("/") or "/"
    return "." if trimmed in (".", "./") else confined_paths.normalize(trimmed)


def available(formatters: Mapping[str, Sequence[str]]) -> dict[str, Sequence[str]]:
    """Return the formatters that an edit may name: the configuration's, and ruff if installed."""
    beside = Path(sys.executable).with_name("ruff")
    ruff = str(beside) if beside.is_file() else shutil.which("ruff")
    return {**({DEFAULT: (ruff, "format", "--no-cache", "--")} if ruff else {}), **formatters}


def _formatter(
    name: str | None, formatters: Mapping[str, Sequence[str]]
) -> tuple[str, Sequence[str]]:
    known = available(formatters)
    default = next(iter(formatters)) if len(formatters) == 1 else DEFAULT
    chosen = default if name is None else name
    if not known.get(chosen):
        problem = "is required" if name is None else f"there is no formatter {name!r}"
        raise EditRefused(f"payload.name: {problem}{name_hint(chosen, known)}")
    return chosen, known[chosen]


def _read_files(ctx: ApplyContext, target: str) -> dict[str, FileSnapshot]:
    """Return the target, or every file below it except links and hidden files."""
    if target == "." or (ctx.root / target).is_dir():
        paths = list(_list_below(ctx.root, "" if target == "." else target))
    else:
        paths = [target]
        confined_paths.read_existing(ctx.root, target, max_bytes=ctx.max_bytes)
    found: dict[str, FileSnapshot] = {}
    total = 0
    for path in paths:
        file = _read_editable(ctx, path)
        if file is not None:
            found[path] = file
            total += len(file.data)
        if len(found) > MAX_FILES or total > MAX_TOTAL:
            raise EditRefused(f"{target}: is too large to format at once; name a part of it")
    return found


def _read_editable(ctx: ApplyContext, path: str) -> FileSnapshot | None:
    """Return a file, or None if it is missing, too large, special or reserved."""
    try:
        return confined_paths.read(ctx.root, path, max_bytes=ctx.max_bytes)
    except EditRefused:
        return None


def _list_below(root: Path, folder: str) -> Iterator[str]:
    with confined_paths.open_parent(root, f"{folder}/any" if folder else "any"):
        pass  # refuses a folder that is a link, or behind one
    for at, folders, names in os.walk(root / folder):
        folders[:] = sorted(n for n in folders if not n.startswith(".") and n not in _SKIPPED)
        for name in sorted(names):
            path = Path(at) / name
            if not name.startswith(".") and not path.is_symlink():
                yield path.relative_to(root).as_posix()


def _settings(ctx: ApplyContext, target: str) -> Iterator[tuple[str, bytes]]:
    parts = [] if target == "." else target.split("/")
    for depth in range(len(parts) + 1):
        for name in sorted(_SETTINGS):
            path = "/".join((*parts[:depth], name))
            file = _read_editable(ctx, path)
            if file is not None:
                yield path, file.data


def _run(argv: Sequence[str], target: str, copy: Path, private: Path, limits: Limits) -> Completed:
    path = f"./{target}" if target.startswith("-") else target  # not an option
    arguments = [part.replace("{path}", path) for part in argv]
    if arguments == list(argv):
        arguments.append(path)
    try:
        return run(
            arguments,
            cwd=copy,
            env=clean_environment(private),
            timeout=_SECONDS,
            limits=limits,
        )
    except VerifierError as error:
        raise EditRefused(f"the formatter cannot be started: {error}") from None


def _check_success(name: str, done: Completed) -> None:
    if done.timed_out:
        raise EditRefused(f"the formatter {name} did not end within {_SECONDS:.0f} s")
    if done.exit_code == 0:
        return
    how = f"signal {done.signal}" if done.exit_code is None else f"exit code {done.exit_code}"
    message = (done.stderr.strip() or done.stdout.strip() or "no message")[:_MAX_MESSAGE]
    raise EditRefused(f"the formatter {name} failed ({how}): {message}")


def _collect_changes(
    name: str, copy: Path, files: Mapping[str, FileSnapshot], max_bytes: int
) -> Iterator[FileChange]:
    """Yield the changes of the copied files. New files, such as caches, are ignored."""
    for path, before in files.items():
        after = confined_paths.read(copy, path, max_bytes=max_bytes)
        if after is None:
            raise EditRefused(f"{path}: the formatter {name} deleted it")
        if after.data != before.data:
            yield FileChange(path=path, before=before.data, after=after.data)
