"""The registry of edit operations."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import ClassVar

import pytest

from mulligan.policies.edits.edit import Edit, EditOp
from mulligan.tasks.ports.appliers import ApplyContext, FileChange, Validation
from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.edits.applier_registry import GROUP, EditApplierRegistry, default_registry


class Touch:
    """A plug-in."""

    op: ClassVar[str] = "touch"

    def validate(self, edit: Edit, ctx: ApplyContext) -> Validation:
        return Validation(ok=True)

    def changes(self, edit: Edit, ctx: ApplyContext) -> list[FileChange]:
        return [FileChange(path=edit.target, before=None, after=b"")]


class Nothing:
    op: ClassVar[str] = "nothing"


class Impostor(Touch):
    op: ClassVar[str] = "write_file"


def point(name: str, value: str) -> EntryPoint:
    return EntryPoint(name=name, value=value, group=GROUP)


@pytest.mark.parametrize("op", EditOp)
def test_every_built_in_operation_has_an_applier(op: EditOp) -> None:
    registry = default_registry()
    assert registry.is_supported(op)
    assert registry.get(op).op == op
    assert registry.get(op.value) is registry.get(op)


def test_an_unknown_operation_is_not_supported() -> None:
    registry = default_registry()
    assert not registry.is_supported("set_model_params")
    with pytest.raises(BadInput, match="did you mean 'set_model_param'"):
        registry.get("set_model_params")


def test_an_empty_registry_supports_nothing() -> None:
    assert not EditApplierRegistry().is_supported(EditOp.WRITE_FILE)


def test_a_plug_in_is_loaded_when_an_edit_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EntryPoint, "load", lambda self: {"Touch": Touch}[self.value])
    registry = EditApplierRegistry((), lambda: [point("touch", "Touch"), point("bad", "Gone")])
    assert registry.names() == ["bad", "touch"]
    assert registry.is_supported("touch")
    assert registry.get("touch") is registry.get("touch")
    with pytest.raises(BadInput, match=r"the plug-in bad .Gone. cannot be loaded: KeyError"):
        registry.get("bad")


@pytest.mark.parametrize(
    ("loaded", "message"),
    [(Nothing, "no validate and no changes"), (Touch, "has the operation 'touch'")],
)
def test_a_plug_in_that_is_not_an_applier_is_refused(
    monkeypatch: pytest.MonkeyPatch, loaded: type, message: str
) -> None:
    monkeypatch.setattr(EntryPoint, "load", lambda self: loaded)
    registry = EditApplierRegistry((), lambda: [point("nothing", "somewhere:Thing")])
    with pytest.raises(BadInput, match=message):
        registry.get("nothing")


def test_a_plug_in_never_replaces_a_built_in_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EntryPoint, "load", lambda self: Impostor)
    built_in = default_registry().get("write_file")
    registry = EditApplierRegistry([built_in], lambda: [point("write_file", "Impostor")])
    assert registry.get("write_file") is built_in
