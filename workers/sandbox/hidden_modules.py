"""New files that Python would import instead of a protected one, or that change how it is found."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import PurePosixPath

_SUFFIXES = ("py", "pyc", "pyd", "so")
#: What programs import from elsewhere. ``test`` contains only the tests of Python itself.
_ELSEWHERE = (sys.stdlib_module_names - {"test"}) | {
    "sitecustomize", "usercustomize", "pytest", "_pytest", "pluggy",
}  # fmt: skip


class HiddenModules:
    """The modules of a tree that new files must not hide.

    ``is_chosen``: whether the job protects a file; ``is_protected``: whether it is protected at
    all. A directory without ``__init__.py`` in which there is a chosen module is on the path of
    imports when its tests or scripts run, and so is the root.
    """

    def __init__(
        self,
        files: Iterable[str],
        is_protected: Callable[[str], bool],
        is_chosen: Callable[[str], bool],
    ) -> None:
        modules = {name: found for name in files if (found := _module_of(name)) is not None}
        packages = {modules[name] for name in modules if _is_init(name)}
        #: Protected files by module, by the directories that they are in, and by the name that
        #: they are imported by.
        self._modules: dict[str, str] = {}
        self._folders: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._path = {"."}
        for name in sorted(filter(is_protected, modules)):
            module = PurePosixPath(modules[name])
            self._modules.setdefault(str(module), name)
            if not is_chosen(name):
                continue
            for parent in module.parents:
                self._folders.setdefault(str(parent), name)
            if str(module.parent) not in packages:
                self._path.add(str(module.parent))
                self._names.setdefault(module.name, name)

    def reason(self, name: str, *, is_link: bool = False) -> str:
        """Return why a file must not be added, or nothing."""
        found = _module_of(name, is_link=is_link)
        if found is None:
            return ""
        module = PurePosixPath(found)
        hidden = self._modules.get(found)
        if hidden is None and found in self._folders:
            return f"it changes how {self._folders[found]}, which is protected, is imported"
        if str(module.parent) in self._path and hidden is None:
            if module.name in _ELSEWHERE:
                return f"it hides Python's module {module.name}"
            hidden = self._names.get(module.name)
        return f"it hides {hidden}, which is protected" if hidden is not None else ""


def _is_init(name: str) -> bool:
    return PurePosixPath(name).name.startswith("__init__.")


def _module_of(name: str, *, is_link: bool = False) -> str | None:
    """Return the path of a module without its suffix; of a package, its directory.

    A link without a suffix may lead to a package. Nothing in ``__pycache__`` is ever verified.
    """
    path = PurePosixPath(name)
    stem, _, suffixes = path.name.partition(".")
    is_module = suffixes.rpartition(".")[2] in _SUFFIXES or (is_link and not suffixes)
    if not is_module or "__pycache__" in path.parts:
        return None
    return str(path.parent if _is_init(name) else path.with_name(stem or path.name))
