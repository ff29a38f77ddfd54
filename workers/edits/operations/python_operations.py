"""edit_python: replace a function or a class by name, and leave the rest of the file as it is.

libcst keeps every byte that it does not replace. The new definition gets the indentation and line
endings of the file. Decorators and comments above it stay unless the new code has its own.
"""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar, TypeGuard

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider
from pydantic import Field

from mulligan.policies.edits.edit import Edit, EditOp
from mulligan.policies.suggestions import name_hint
from mulligan.policies.value import Value
from mulligan.tasks.ports.appliers import ApplyContext, EditRefused, FileChange, Validation
from mulligan.workers.edits.operations.payloads import (
    path_problems,
    payload_of,
    validate_payload,
)
from mulligan.workers.edits.tree import confined_paths

Definition = cst.FunctionDef | cst.ClassDef
HAS_DEFINITION = "it has this definition"


class EditPythonPayload(Value):
    #: ``name``, ``Class.method`` or ``Outer.Inner.method``.
    symbol: Annotated[str, Field(pattern=r"^[^\W\d]\w*(\.[^\W\d]\w*)*$", max_length=500)]
    #: The whole new definition, and nothing else.
    code: Annotated[str, Field(min_length=1)]


@dataclass(frozen=True)
class EditPython:
    """Replaces one definition."""

    op: ClassVar[str] = EditOp.EDIT_PYTHON

    def validate(self, edit: Edit, ctx: ApplyContext) -> Validation:
        problems = path_problems(edit.target)
        symbol, code = (edit.payload.get(name) for name in ("symbol", "code"))
        if isinstance(symbol, str) and isinstance(code, str) and code:
            try:
                _definition(symbol, code)
            except EditRefused as error:
                problems += error.problems
        return validate_payload(EditPythonPayload, edit, ctx, *problems)

    def changes(self, edit: Edit, ctx: ApplyContext) -> list[FileChange]:
        payload = payload_of(EditPythonPayload, edit)
        new = _definition(payload.symbol, payload.code)
        path = confined_paths.normalize(edit.target)
        file = confined_paths.read_existing(ctx.root, path, max_bytes=ctx.max_bytes)
        module = _parse(path, file.data)
        old = _find_symbol(path, module, payload.symbol)
        changed = module.deep_replace(old, _keep_decoration(new, old))
        data = changed.bytes if isinstance(changed, cst.Module) else file.data
        problem = _compile_error(data)
        if problem:
            raise EditRefused(f"{path}: would not compile with this definition: {problem}")
        confined_paths.check_size(path, len(data), ctx.max_bytes)
        note = HAS_DEFINITION if data == file.data else ""
        return [FileChange(path=path, before=file.data, after=data, note=note)]


def _definition(symbol: str, code: str) -> Definition:
    """Return the only definition in the code. Raises EditRefused for any other code."""
    name = symbol.rpartition(".")[2]
    if code[:1] in " \t\n\r":
        code = textwrap.dedent(code).lstrip("\r\n")
    try:
        module = cst.parse_module(code)
    except cst.ParserSyntaxError as error:
        raise EditRefused(f"payload.code: is not Python: {_syntax_error(error, code)}") from None
    if len(module.body) == 1 and _defines(module.body[0]) and not _has_comment(module.footer):
        found = module.body[0]
        if found.name.value != name:
            raise EditRefused(f"payload.code: defines {found.name.value}, not {name}")
        return found.with_changes(leading_lines=(*module.header, *found.leading_lines))
    parts = [_describe(statement) for statement in module.body] or ["nothing"]
    raise EditRefused(
        f"payload.code: has to define {name} and nothing else, but has {', '.join(parts[:5])}"
    )


def _defines(node: cst.CSTNode) -> TypeGuard[Definition]:
    return isinstance(node, cst.FunctionDef | cst.ClassDef)


def _describe(statement: cst.CSTNode) -> str:
    if _defines(statement):
        return statement.name.value
    return cst.Module(body=[]).code_for_node(statement).strip().partition("\n")[0][:60]


def _syntax_error(error: cst.ParserSyntaxError, source: str | bytes) -> str:
    """Return Python's own message if it has one, else libcst's."""
    return _compile_error(source) or f"line {error.raw_line}: {error.message}"


def _parse(path: str, data: bytes) -> cst.Module:
    try:
        module = cst.parse_module(data)
    except cst.ParserSyntaxError as error:
        raise EditRefused(f"{path}: is not Python: {_syntax_error(error, data)}") from None
    except (UnicodeDecodeError, SyntaxError, LookupError) as error:
        raise EditRefused(f"{path}: cannot be decoded: {error}") from None
    if module.bytes != data:
        raise EditRefused(
            f"{path}: has characters that would be lost (form feeds); use search_replace"
        )
    return module


def _definitions(body: cst.CSTNode, prefix: str = "") -> Iterator[tuple[str, Definition]]:
    """Yield every definition with its name, including those in classes and under if, try, with."""
    for child in body.children:
        if _defines(child):
            name = prefix + child.name.value
            yield name, child
            if isinstance(child, cst.ClassDef):
                yield from _definitions(child.body, f"{name}.")
        elif not isinstance(child, cst.SimpleStatementLine | cst.BaseExpression):
            yield from _definitions(child, prefix)


def _find_symbol(path: str, module: cst.Module, symbol: str) -> Definition:
    """Return the only definition of a name. Raises EditRefused if there are none or several."""
    known = list(_definitions(module))
    hits = [node for name, node in known if name == symbol]
    if not hits:
        names = [name for name, _ in known]
        raise EditRefused(f"{path}: does not define {symbol!r}{name_hint(symbol, names)}")
    if len(hits) > 1:
        positions = MetadataWrapper(module, unsafe_skip_copy=True).resolve(PositionProvider)
        lines = ", ".join(str(positions[node].start.line) for node in hits)
        raise EditRefused(
            f"{path}: {symbol!r} is defined more than once, in lines {lines}; use search_replace"
        )
    return hits[0]


def _has_comment(lines: object) -> bool:
    return isinstance(lines, list | tuple) and any(line.comment is not None for line in lines)


def _keep_decoration(new: Definition, old: Definition) -> Definition:
    """Return the new definition with the decorators and comments of the old one that it lacks."""
    if not new.decorators:
        new = new.with_changes(
            decorators=old.decorators, lines_after_decorators=old.lines_after_decorators
        )
    above: list[cst.EmptyLine] = list(old.leading_lines)
    if _has_comment(new.leading_lines):
        first = next((n for n, line in enumerate(above) if line.comment is not None), len(above))
        above = above[:first] + list(new.leading_lines)
    return new.with_changes(leading_lines=above)


def _compile_error(source: str | bytes) -> str | None:
    """Return why a source does not compile, or None if it does."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(source, "code", "exec", dont_inherit=True)
    except SyntaxError as error:
        return f"line {error.lineno}: {error.msg}"
    except (ValueError, RecursionError, MemoryError) as error:
        return str(error) or type(error).__name__
    return None


#: Every operation of this module.
APPLIERS = (EditPython(),)
