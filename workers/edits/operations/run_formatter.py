"""run_formatter: a formatter works on a private copy; what it changed there becomes changes.

Only formatters that configuration names are run; an edit chooses one by its name. ``{path}`` in
its arguments stands for the target, which is put at the end otherwise.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field

from mulligan.policies.edits.edit import Edit, EditOp
from mulligan.policies.problem import Problem
from mulligan.policies.suggestions import name_hint
from mulligan.policies.value import Value
from mulligan.tasks.ports.appliers import ApplyContext, EditRefused, FileChange, Validation
from mulligan.tasks.ports.errors import VerifierError
from mulligan.workers.edits.operations.payloads import payload_of, validated
from mulligan.workers.edits.tree import confined_paths as confine
from mulligan.workers.edits.tree.confined_paths import SeenFile
from mulligan.workers.sandbox.subprocesses import Completed, Limits, clean_environment, run

DEFAULT = "ruff"
_SECONDS = 60.0
MAX_FILES = 5_000
MAX_TOTAL = 100_000_000
#: What formatters read besides the files: copied from the target's folder and those above it.
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
_MESSAGE = 1_000


class RunFormatterPayload(Value):
    #: One of those that configuration names; not given: the only one, or ruff.
    name: Annotated[str, Field(min_length=1, max_length=100)] | None = None


@dataclass(frozen=True)
class RunFormatter:
    """Formats a file, or every file in a folder."""

    op: ClassVar[str] = EditOp.RUN_FORMATTER

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
        return validated(RunFormatterPayload, edit, ctx, *problems)

    def changes(self, edit: Edit, ctx: ApplyContext) -> list[FileChange]:
        payload = payload_of(RunFormatterPayload, edit)
        name, argv = _formatter(payload.name, ctx.formatters)
        target = _target(edit.target)
        files = _read(ctx, target)
        with tempfile.TemporaryDirectory(prefix="mulligan-format-") as folder:
            private = Path(folder).resolve()
            copy = private / "tree"
            copy.mkdir()
            for path, data in (*_settings(ctx, target), *((p, f.data) for p, f in files.items())):
                _put(copy, path, data)
            _refuse_failure(name, _run(argv, target, copy, private))
            return list(_harvest(name, copy, files, ctx.max_bytes))


def _target(target: str) -> str:
    """The target as a path, "." for the whole root."""
    trimmed = target.rstrip("/") or "/"
    return "." if trimmed in (".", "./") else confine.normal(trimmed)


def available(formatters: Mapping[str, Sequence[str]]) -> dict[str, Sequence[str]]:
    """The formatters that an edit may name: configuration's, and ruff if it is installed."""
    beside = Path(sys.executable).with_name("ruff")
    ruff = str(beside) if beside.is_file() else shutil.which("ruff")
    own: dict[str, Sequence[str]] = {DEFAULT: (ruff, "format", "--no-cache", "--")} if ruff else {}
    return {**own, **formatters}


def _formatter(
    name: str | None, formatters: Mapping[str, Sequence[str]]
) -> tuple[str, Sequence[str]]:
    known = available(formatters)
    required = name is None
    if name is None:
        name = next(iter(formatters)) if len(formatters) == 1 else DEFAULT
    if name not in known or not known[name]:
        problem = "is required" if required else f"there is no formatter {name!r}"
        hint = name_hint(name, known)
        raise EditRefused(f"payload.name: {problem}{hint}")
    return name, known[name]


def _read(ctx: ApplyContext, target: str) -> dict[str, SeenFile]:
    """The target, or every file below it. Links and hidden files are not its files."""
    if target == "." or (ctx.root / target).is_dir():
        paths = list(_below(ctx.root, "" if target == "." else target))
    else:
        paths = [target]
        confine.existing(ctx.root, target, max_bytes=ctx.max_bytes)
    found: dict[str, SeenFile] = {}
    total = 0
    for path in paths:
        seen = _regular(ctx, path)
        if seen is not None:
            found[path] = seen
            total += len(seen.data)
        if len(found) > MAX_FILES or total > MAX_TOTAL:
            raise EditRefused(f"{target}: holds too much to be formatted at once; name a part")
    return found


def _regular(ctx: ApplyContext, path: str) -> SeenFile | None:
    """A file that may be edited; None for what is too large, special or reserved."""
    try:
        return confine.read(ctx.root, path, max_bytes=ctx.max_bytes)
    except EditRefused:
        return None


def _below(root: Path, folder: str) -> Iterator[str]:
    with confine.opened_folder(root, f"{folder}/any" if folder else "any"):
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
            seen = _regular(ctx, path)
            if seen is not None:
                yield path, seen.data


def _put(copy: Path, path: str, data: bytes) -> None:
    place = copy / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(data)


def _run(argv: Sequence[str], target: str, copy: Path, private: Path) -> Completed:
    path = f"./{target}" if target.startswith("-") else target  # never taken for an option
    given = [part.replace("{path}", path) for part in argv]
    if given == list(argv):
        given.append(path)
    try:
        return run(
            given,
            cwd=copy,
            env=clean_environment(private),
            timeout=_SECONDS,
            limits=Limits(),
        )
    except VerifierError as error:
        raise EditRefused(f"the formatter cannot be started: {error}") from None


def _refuse_failure(name: str, done: Completed) -> None:
    if done.timed_out:
        raise EditRefused(f"the formatter {name} did not end within {_SECONDS:.0f} s")
    if done.exit_code == 0:
        return
    how = f"signal {done.signal}" if done.exit_code is None else f"exit code {done.exit_code}"
    said = (done.stderr.strip() or done.stdout.strip() or "no message")[:_MESSAGE]
    raise EditRefused(f"the formatter {name} failed ({how}): {said}")


def _harvest(
    name: str, copy: Path, files: Mapping[str, SeenFile], max_bytes: int
) -> Iterator[FileChange]:
    """What it changed. New files, such as caches, are not taken over."""
    for path, before in files.items():
        after = confine.read(copy, path, max_bytes=max_bytes)
        if after is None:
            raise EditRefused(f"{path}: the formatter {name} deleted it")
        if after.data != before.data:
            yield FileChange(path=path, before=before.data, after=after.data)


#: Every operation of this module.
APPLIERS = (RunFormatter(),)
