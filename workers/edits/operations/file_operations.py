"""The operations on files as such: write, patch, search and replace, rename, delete."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, TypeVar

from pydantic import Field, ValidationError
from pydantic_core import ErrorDetails

from mulligan.policies.edits.edit import Edit, EditOp
from mulligan.policies.edits.fit import MisfitHunk
from mulligan.policies.edits.search_replace import replaced
from mulligan.policies.value import Value
from mulligan.tasks.ports.appliers import ApplyContext, EditRefused, FileChange, Validation
from mulligan.workers.edits.operations.fuzzy_patch import APPLIED
from mulligan.workers.edits.operations.git_patch import patched
from mulligan.workers.edits.tree import confined_paths as confine


class WriteFilePayload(Value):
    content: str
    #: None keeps what the file has; a new file is not executable.
    executable: bool | None = None


class PatchFilePayload(Value):
    #: A unified diff.
    diff: Annotated[str, Field(min_length=1)]


class SearchReplacePayload(Value):
    search: Annotated[str, Field(min_length=1)]
    replace: str
    #: How often the search text has to occur. Not given: once.
    count: Annotated[int, Field(ge=1)] | Literal["all"] | None = None


class RenameFilePayload(Value):
    #: The new path, relative to the root. It must not exist.
    to: Annotated[str, Field(min_length=1)]


class DeleteFilePayload(Value):
    #: The SHA-256 of the content that is meant, in hexadecimal.
    expect: Annotated[str, Field(pattern=r"^[0-9a-fA-F]{64}$")] | None = None


_Payload = TypeVar("_Payload", bound=Value)


def _payload(model: type[_Payload], edit: Edit) -> _Payload:
    """An edit's payload as this operation takes it, or EditRefused with one line per error."""
    try:
        return model.model_validate(edit.payload)
    except ValidationError as error:
        lines = (_explained(item, list(model.model_fields)) for item in error.errors())
        raise EditRefused(*lines) from None


def _explained(item: ErrorDetails, names: list[str]) -> str:
    place = ".".join(str(part) for part in ("payload", *item["loc"][:1]))
    if item["type"] == "extra_forbidden":
        return f"{place}: there is no such field; there are {', '.join(names)}"
    return f"{place}: is required" if item["type"] == "missing" else f"{place}: {item['msg']}"


def _validated(model: type[Value], edit: Edit, ctx: ApplyContext, *paths: str) -> Validation:
    """Whether payload and paths have the right form, and no text is over the cap."""
    try:
        _payload(model, edit)
        for name, text in edit.payload.items():
            confine.refuse_large(f"payload.{name}", len(str(text)), ctx.max_bytes)
        for path in paths:
            confine.parts_of(path)
    except EditRefused as error:
        return Validation(ok=False, reason=str(error))
    return Validation(ok=True)


@dataclass(frozen=True)
class WriteFile:
    """Gives a file a content, new or not."""

    op: ClassVar[str] = EditOp.WRITE_FILE

    def validate(self, edit: Edit, ctx: ApplyContext) -> Validation:
        return _validated(WriteFilePayload, edit, ctx, edit.target)

    def changes(self, edit: Edit, ctx: ApplyContext) -> list[FileChange]:
        payload = _payload(WriteFilePayload, edit)
        path = confine.normal(edit.target)
        try:
            data = payload.content.encode()
        except UnicodeEncodeError:
            raise EditRefused(f"{path}: the content is not Unicode text") from None
        confine.refuse_large(path, len(data), ctx.max_bytes)
        seen = confine.read(ctx.root, path, max_bytes=ctx.max_bytes)
        before = 0o644 if seen is None else seen.mode
        mode = _mode(before, payload.executable)
        there = None if seen is None else seen.data
        note = "it has this content" if there == data and mode is None else ""
        return [FileChange(path=path, before=there, after=data, mode=mode, note=note)]


def _mode(before: int, executable: bool | None) -> int | None:
    """The permission bits, if they change."""
    if executable is None:
        return None
    # Who may read it may run it.
    wanted = before | (before & 0o444) >> 2 if executable else before & ~0o111
    return None if wanted == before else wanted


@dataclass(frozen=True)
class PatchFile:
    """Applies a unified diff: to its target alone, or with target "." to several files."""

    op: ClassVar[str] = EditOp.PATCH_FILE

    def validate(self, edit: Edit, ctx: ApplyContext) -> Validation:
        paths = () if edit.target == "." else (edit.target,)
        return _validated(PatchFilePayload, edit, ctx, *paths)

    def changes(self, edit: Edit, ctx: ApplyContext) -> list[FileChange]:
        payload = _payload(PatchFilePayload, edit)
        return patched(ctx.root, edit.target, payload.diff, max_bytes=ctx.max_bytes)


@dataclass(frozen=True)
class SearchReplace:
    """Replaces a text that occurs exactly once, or as often as ``count`` says."""

    op: ClassVar[str] = EditOp.SEARCH_REPLACE

    def validate(self, edit: Edit, ctx: ApplyContext) -> Validation:
        return _validated(SearchReplacePayload, edit, ctx, edit.target)

    def changes(self, edit: Edit, ctx: ApplyContext) -> list[FileChange]:
        payload = _payload(SearchReplacePayload, edit)
        path = confine.normal(edit.target)
        seen = confine.existing(ctx.root, path, max_bytes=ctx.max_bytes)
        text = seen.data.decode("utf-8", "surrogateescape")
        try:
            done = replaced(text, payload.search, payload.replace, payload.count)
            data = done.text.encode("utf-8", "surrogateescape")
        except MisfitHunk as error:
            raise EditRefused(*(f"{path}: {problem}" for problem in error.problems)) from None
        except UnicodeEncodeError:
            raise EditRefused(f"{path}: the replacement is not Unicode text") from None
        confine.refuse_large(path, len(data), ctx.max_bytes)
        note = APPLIED if done.applied else "; ".join(done.tolerances)
        return [FileChange(path=path, before=seen.data, after=data, note=note)]


@dataclass(frozen=True)
class RenameFile:
    """Moves a file to a path where there is none."""

    op: ClassVar[str] = EditOp.RENAME_FILE

    def validate(self, edit: Edit, ctx: ApplyContext) -> Validation:
        to = edit.payload.get("to")
        return _validated(
            RenameFilePayload, edit, ctx, edit.target, *([to] if isinstance(to, str) else [])
        )

    def changes(self, edit: Edit, ctx: ApplyContext) -> list[FileChange]:
        payload = _payload(RenameFilePayload, edit)
        path, to = confine.normal(edit.target), confine.normal(payload.to)
        seen = confine.existing(ctx.root, path, max_bytes=ctx.max_bytes)
        if path == to:
            return [
                FileChange(path=path, before=seen.data, after=seen.data, note="it has this name")
            ]
        if confine.read(ctx.root, to, max_bytes=ctx.max_bytes) is not None:
            raise EditRefused(f"{to}: exists already; a rename never overwrites")
        mode = None if seen.mode == 0o644 else seen.mode
        return [
            FileChange(path=path, before=seen.data, after=None),
            FileChange(path=to, before=None, after=seen.data, mode=mode),
        ]


@dataclass(frozen=True)
class DeleteFile:
    """Deletes a file, if ``expect`` is given only with that content."""

    op: ClassVar[str] = EditOp.DELETE_FILE

    def validate(self, edit: Edit, ctx: ApplyContext) -> Validation:
        return _validated(DeleteFilePayload, edit, ctx, edit.target)

    def changes(self, edit: Edit, ctx: ApplyContext) -> list[FileChange]:
        payload = _payload(DeleteFilePayload, edit)
        path = confine.normal(edit.target)
        seen = confine.existing(ctx.root, path, max_bytes=ctx.max_bytes)
        is_ = hashlib.sha256(seen.data).hexdigest()
        if payload.expect is not None and payload.expect.lower() != is_:
            raise EditRefused(f"{path}: its SHA-256 is {is_}, not {payload.expect.lower()}")
        return [FileChange(path=path, before=seen.data, after=None)]


#: Every operation of this module.
APPLIERS = (WriteFile(), PatchFile(), SearchReplace(), RenameFile(), DeleteFile())
