"""Which operations there are: the built-in ones and plug-ins, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import cast

from mulligan.policies.suggestions import name_hint
from mulligan.tasks.ports.appliers import EditApplier
from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.edits.operations import config_operations as config_ops
from mulligan.workers.edits.operations import exemplar_operations as exemplar_ops
from mulligan.workers.edits.operations import file_operations as code_ops
from mulligan.workers.edits.operations import prompt_operations as prompt_ops
from mulligan.workers.edits.operations import python_operations as python_ops
from mulligan.workers.edits.operations import run_formatter as formatter

#: An entry point of this group names an ``EditApplier``, or a class or function that makes one
#: without arguments; the entry point's name is the operation.
GROUP = "mulligan.appliers"
_MODULES = (config_ops, prompt_ops, exemplar_ops, code_ops, python_ops, formatter)


class EditApplierRegistry:
    """Appliers by operation. A plug-in cannot take the place of a built-in one."""

    def __init__(
        self,
        appliers: Iterable[EditApplier] = (),
        plugins: Callable[[], Iterable[EntryPoint]] = tuple,
    ) -> None:
        """Plug-ins are looked up at first use and loaded only when an edit names one."""
        self._appliers = {str(applier.op): applier for applier in appliers}
        self._find_plugins = plugins

    @cached_property
    def _plugins(self) -> dict[str, EntryPoint]:
        return {point.name: point for point in self._find_plugins()}

    def names(self) -> list[str]:
        """Every operation, sorted."""
        return sorted(self._appliers.keys() | self._plugins.keys())

    def is_supported(self, op: str) -> bool:
        """Whether an operation has an applier."""
        return str(op) in self._appliers or str(op) in self._plugins

    def get(self, op: str) -> EditApplier:
        """The applier of an operation. Raises BadInput if there is none, or it does not load."""
        name = str(op)
        if name not in self._appliers:
            if name not in self._plugins:
                raise BadInput(f"there is no operation {name!r}{name_hint(name, self.names())}")
            self._appliers[name] = _loaded(self._plugins[name])
        return self._appliers[name]


def default_registry() -> EditApplierRegistry:
    """Everything that is built in, and the plug-ins of this installation."""
    return EditApplierRegistry(
        (cast(EditApplier, applier) for module in _MODULES for applier in module.APPLIERS),
        lambda: entry_points(group=GROUP),
    )


def _loaded(point: EntryPoint) -> EditApplier:
    shown = f"the plug-in {point.name} ({point.value})"
    try:
        loaded = point.load()
        applier = loaded() if callable(loaded) else loaded
    except Exception as error:  # a plug-in may fail in any way; the message must name it
        text = f"{shown} cannot be loaded: {type(error).__name__}: {error}"
        raise BadInput(text) from error
    missing = [name for name in ("op", "validate", "changes") if not hasattr(applier, name)]
    if missing:
        raise BadInput(f"{shown} is not an applier: it has no {' and no '.join(missing)}")
    if applier.op != point.name:
        raise BadInput(f"{shown} calls itself {applier.op!r}; the two names have to agree")
    return cast(EditApplier, applier)
