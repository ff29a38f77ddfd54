"""The edit operations by name: built-in ones and plug-ins."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points

from mulligan.policies.suggestions import name_hint
from mulligan.tasks.ports.appliers import EditApplier
from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.edits.operations import config_operations as config_ops
from mulligan.workers.edits.operations import exemplar_operations as exemplar_ops
from mulligan.workers.edits.operations import file_operations as code_ops
from mulligan.workers.edits.operations import prompt_operations as prompt_ops
from mulligan.workers.edits.operations import python_operations as python_ops
from mulligan.workers.edits.operations.killable_applier import KillableApplier
from mulligan.workers.edits.operations.run_formatter import RunFormatter
from mulligan.workers.edits.operations.writing_applier import WritingApplier, as_applier
from mulligan.workers.sandbox.limits import Limits

#: Entry points of this group are named after an operation. Each refers to an applier, or to a class
#: or function without arguments that returns one.
GROUP = "mulligan.appliers"
_MODULES = (config_ops, prompt_ops, exemplar_ops, code_ops, python_ops)
#: The operations that parse no text.
_IN_THIS_PROCESS = (
    code_ops.WriteFile,
    code_ops.PatchFile,
    code_ops.RenameFile,
    code_ops.DeleteFile,
)


Applier = EditApplier | WritingApplier


class EditApplierRegistry:
    """Appliers by operation. A plug-in cannot replace a built-in one."""

    def __init__(
        self,
        appliers: Iterable[Applier] = (),
        plugins: Callable[[], Iterable[EntryPoint]] = tuple,
    ) -> None:
        """Plug-ins are found at first use and loaded only when an edit names one."""
        self._appliers: dict[str, EditApplier] = {}
        self._find_plugins = plugins
        for applier in appliers:
            self.register(applier)

    def register(self, applier: Applier | type) -> None:
        """Add an applier, or a class of one: it computes changes, or writes files itself
        (``validate``, ``apply``, ``rollback``). Raises BadInput if its operation has one."""
        added = as_applier(applier)
        if str(added.op) in self._appliers:
            raise BadInput(f"the operation {str(added.op)!r} has an applier already")
        self._appliers[str(added.op)] = added

    @cached_property
    def _plugins(self) -> dict[str, EntryPoint]:
        return {point.name: point for point in self._find_plugins()}

    def names(self) -> list[str]:
        """Return every operation, sorted."""
        return sorted(self._appliers.keys() | self._plugins.keys())

    def is_supported(self, op: str) -> bool:
        """Return whether an operation has an applier."""
        return str(op) in self._appliers or str(op) in self._plugins

    def get(self, op: str) -> EditApplier:
        """Return the applier of an operation. Raises BadInput if it is missing or fails to load."""
        name = str(op)
        if name not in self._appliers:
            if name not in self._plugins:
                raise BadInput(f"there is no operation {name!r}{name_hint(name, self.names())}")
            self._appliers[name] = _load(self._plugins[name])
        return self._appliers[name]


def default_registry(limits: Limits | None = None) -> EditApplierRegistry:
    """Return a registry of the built-in operations and the installed plug-ins.

    ``limits``: those of the programs that operations run.
    """
    return EditApplierRegistry(
        (
            *(_killable(applier) for module in _MODULES for applier in module.APPLIERS),
            RunFormatter(limits or Limits()),
        ),
        lambda: entry_points(group=GROUP),
    )


def _killable(applier: EditApplier) -> EditApplier:
    return applier if isinstance(applier, _IN_THIS_PROCESS) else KillableApplier(applier)


def _load(point: EntryPoint) -> EditApplier:
    plugin = f"the plug-in {point.name} ({point.value})"
    try:
        loaded = point.load()
        found = loaded() if callable(loaded) else loaded
    except Exception as error:  # a plug-in may raise anything
        text = f"{plugin} cannot be loaded: {type(error).__name__}: {error}"
        raise BadInput(text) from error
    try:
        applier = as_applier(found)
    except BadInput as error:
        raise BadInput(f"{plugin}: {error}") from error
    if applier.op != point.name:
        raise BadInput(f"{plugin} has the operation {applier.op!r}; the two names have to be equal")
    return applier
