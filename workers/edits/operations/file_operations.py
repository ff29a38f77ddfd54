"""The operations on whole files: write, patch, search and replace, rename, delete."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator

from mulligan.policies.edits.edit import Edit, EditOp
from mulligan.policies.edits.fit import MisfitHunk
from mulligan.policies.edits.search_replace import replace_text
from mulligan.policies.value import Value
from mulligan.tasks.ports.appliers import ApplyContext, EditRefused, FileChange, Validation
from mulligan.workers.edits.operations.fuzzy_patch import APPLIED
from mulligan.workers.edits.operations.git_patch import compute_patch
from mulligan.workers.edits.operations.payloads import path_problems, payload_of, validate_payload
from mulligan.workers.edits.tree import confined_paths


class WriteFilePayload(Value):
    content: str
    #: None keeps the mode of the file; a new file is not executable.
    executable: bool | None = None


class PatchFilePayload(Value):
    #: A unified diff.
    diff: Annotated[str, Field(min_length=1)]


class SearchReplacePayload(Value):
    search: Annotated[str, Field(min_length=1)]
    replace: str
    #: How often the search text has to occur. None: once.
    count: int | Literal["all"] | None = None

    @field_validator("count", mode="before")
    @classmethod
    def _check_count(cls, count: Any) -> Any:
        if count in (None, "all") or (str(count).isdecimal() and int(count) >= 1):
            return count
        raise ValueError("give 'all' or a number from 1")


class RenameFilePayload(Value):
    #: The new path, relative to the root; no file may exist there.
    to: Annotated[str, Field(min_length=1)]


class DeleteFilePayload(Value):
    #: The SHA-256 that the content must have, in hexadecimal.
    expect: Annotated[str, Field(pattern=r"^[0-9a-fA-F]{64}$")] | None = None


@dataclass(frozen=True)
class WriteFile:
    """Writes a whole file, new or not."""

    op: ClassVar[str] = EditOp.WRITE_FILE

    def validate(self, edit: Edit, ctx: ApplyContext) -> Validation:
        return validate_payload(WriteFilePayload, edit, ctx, *path_problems(edit.target))

    def changes(self, edit: Edit, ctx: ApplyContext) -> list[FileChange]:
        payload = payload_of(WriteFilePayload, edit)
        path = confined_paths.normalize(edit.target)
        try:
            data = payload.content.encode()
        except UnicodeEncodeError:
            raise EditRefused(f"{path}: the content is not Unicode text") from None
        confined_paths.check_size(path, len(data), ctx.max_bytes)
        file = confined_paths.read(ctx.root, path, max_bytes=ctx.max_bytes)
        mode = _changed_mode(0o644 if file is None else file.mode, payload.executable)
        before = None if file is None else file.data
        note = "it has this content" if before == data and mode is None else ""
        return [FileChange(path=path, before=before, after=data, mode=mode, note=note)]


def _changed_mode(before: int, executable: bool | None) -> int | None:
    """Return the new permission bits, or None if they stay."""
    if executable is None:
        return None
    # Everyone who may read the file may run it.
    after = before | (before & 0o444) >> 2 if executable else before & ~0o111
    return None if after == before else after


@dataclass(frozen=True)
class PatchFile:
    """Applies a unified diff: to its target alone, or with target "." to several files."""

    op: ClassVar[str] = EditOp.PATCH_FILE

    def validate(self, edit: Edit, ctx: ApplyContext) -> Validation:
        problems = [] if edit.target == "." else path_problems(edit.target)
        return validate_payload(PatchFilePayload, edit, ctx, *problems)

    def changes(self, edit: Edit, ctx: ApplyContext) -> list[FileChange]:
        payload = payload_of(PatchFilePayload, edit)
        return compute_patch(ctx.root, edit.target, payload.diff, max_bytes=ctx.max_bytes)


@dataclass(frozen=True)
class SearchReplace:
    """Replaces a text that occurs exactly once, or ``count`` times."""

    op: ClassVar[str] = EditOp.SEARCH_REPLACE

    def validate(self, edit: Edit, ctx: ApplyContext) -> Validation:
        return validate_payload(SearchReplacePayload, edit, ctx, *path_problems(edit.target))

    def changes(self, edit: Edit, ctx: ApplyContext) -> list[FileChange]:
        payload = payload_of(SearchReplacePayload, edit)
        path = confined_paths.normalize(edit.target)
        file = confined_paths.read_existing(ctx.root, path, max_bytes=ctx.max_bytes)
        text = file.data.decode("utf-8", "surrogateescape")
        try:
            done = replace_text(text, payload.search, payload.replace, payload.count)
            data = done.text.encode("utf-8", "surrogateescape")
        except MisfitHunk as error:
            raise EditRefused(*(f"{path}: {problem}" for problem in error.problems)) from None
        except UnicodeEncodeError:
            raise EditRefused(f"{path}: the replacement is not Unicode text") from None
        confined_paths.check_size(path, len(data), ctx.max_bytes)
        note = APPLIED if done.applied else "; ".join(done.tolerances)
        return [FileChange(path=path, before=file.data, after=data, note=note)]


@dataclass(frozen=True)
class RenameFile:
    """Moves a file to a free path."""

    op: ClassVar[str] = EditOp.RENAME_FILE

    def validate(self, edit: Edit, ctx: ApplyContext) -> Validation:
        to = edit.payload.get("to")
        problems = path_problems(edit.target, *([to] if isinstance(to, str) else []))
        return validate_payload(RenameFilePayload, edit, ctx, *problems)

    def changes(self, edit: Edit, ctx: ApplyContext) -> list[FileChange]:
        payload = payload_of(RenameFilePayload, edit)
        path, to = confined_paths.normalize(edit.target), confined_paths.normalize(payload.to)
        file = confined_paths.read_existing(ctx.root, path, max_bytes=ctx.max_bytes)
        if path == to:
            note = "it has this name"
            return [FileChange(path=path, before=file.data, after=file.data, note=note)]
        if confined_paths.read(ctx.root, to, max_bytes=ctx.max_bytes) is not None:
            raise EditRefused(f"{to}: already exists; a rename never overwrites")
        mode = None if file.mode == 0o644 else file.mode
        return [
            FileChange(path=path, before=file.data, after=None),
            FileChange(path=to, before=None, after=file.data, mode=mode),
        ]


@dataclass(frozen=True)
class DeleteFile:
    """Deletes a file; with ``expect``, only if it has that content."""

    op: ClassVar[str] = EditOp.DELETE_FILE

    def validate(self, edit: Edit, ctx: ApplyContext) -> Validation:
        return validate_payload(DeleteFilePayload, edit, ctx, *path_problems(edit.target))

    def changes(self, edit: Edit, ctx: ApplyContext) -> list[FileChange]:
        payload = payload_of(DeleteFilePayload, edit)
        path = confined_paths.normalize(edit.target)
        file = confined_paths.read_existing(ctx.root, path, max_bytes=ctx.max_bytes)
        actual = hashlib.sha256(file.data).hexdigest()
        if payload.expect is not None and payload.expect.lower() != actual:
            raise EditRefused(f"{path}: its SHA-256 is {actual}, not {payload.expect.lower()}")
        return [FileChange(path=path, before=file.data, after=None)]


#: Every operation of this module.
APPLIERS = (WriteFile(), PatchFile(), SearchReplace(), RenameFile(), DeleteFile())
