"""Run pytest and report every event to a reader outside this process.

Run as ``python -P -s -B child.py``, with the standard library and pytest only. The configuration
comes as JSON on stdin, so that neither the environment nor the command line contains the key
when the answer is imported:

``{"fd": 5, "key": "…", "root": "/private/work", "args": ["-q"], "show_source": true,
"answer": ["solution.py"], "only": ["test_new.py", "test_old.py::test_one"] | null,
"stubs": {"files": ["solution.py"], "names": ["solution"], "fill": false} | null}``

Events are signed, and interference is reported, by the hooks of ``tamper_hooks.py``.

With ``stubs`` it replaces the modules of those files by stubs that have every name, so that tests
which import the answer can be listed without it. With ``fill``, modules that exist are kept, and
get only the names that they lack.
"""

from __future__ import annotations

import builtins
import importlib.abc
import importlib.machinery
import json
import os
import sys
import types
import unittest
from collections.abc import Generator, Sequence
from os import _exit
from pathlib import Path
from sys import audit
from typing import Any

NO_PYTEST = 97
_HOOKS = Path(__file__).with_name("tamper_hooks.py")
_EVENT = "mulligan.pytest.event"
#: Hooks of pytest that decide whether a test passes.
_DECIDING_HOOKS = (
    "pytest_pyfunc_call", "pytest_runtest_call", "pytest_runtest_logreport",
    "pytest_runtest_makereport", "pytest_runtest_protocol", "pytest_runtest_setup",
    "pytest_runtest_teardown",
)  # fmt: skip

try:
    import pytest
except ImportError as missing:
    sys.stderr.write(f"pytest cannot be imported by {sys.executable}: {missing}\n")
    _exit(NO_PYTEST)

_SKIPS = (pytest.skip.Exception, pytest.xfail.Exception, unittest.SkipTest)
_MESSAGE_CHARACTERS = 1_500
_LINE_CHARACTERS = 300
#: The lines of a test that are shown, and the number of failures that are shown with them.
_SOURCE_LINES = 25
_SHOWN_FAILURES = 5


def emit(event: str, **facts: Any) -> None:
    """Send an event to the reader outside."""
    audit(_EVENT, event, facts)


def tell(kind: str, what: Any) -> None:
    """Give the hooks something to compare with, now or later."""
    audit(_EVENT, kind, what)


class Reporter:
    """The pytest plugin that reports collection, every phase of every test, and errors."""

    def __init__(self, root: Path, *, only: Sequence[str] | None, show_source: bool) -> None:
        self._root, self._only, self._show_source = root, only, show_source
        self._shown = 0
        self._raised: dict[tuple[str, str], dict[str, Any]] = {}

    def pytest_plugin_registered(self, plugin_name: str) -> None:
        tell("plugin", plugin_name)

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        tell("hooks", [getattr(session.config.hook, name) for name in _DECIDING_HOOKS])

    def pytest_collectstart(self, collector: pytest.Collector) -> None:
        if isinstance(collector, pytest.File):
            emit("running", nodeid=collector.nodeid)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        report = yield
        if report.skipped:
            emit("collect_skipped", nodeid=collector.nodeid)
        # A text file with doctests has no module.
        if isinstance(collector, pytest.Module) and report.passed and collector.obj is not None:
            tell("module", (collector.obj, str(collector.path)))
        return report

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        emit("running", nodeid=nodeid)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self._only is not None:
            items[:] = [item for item in items if _is_one_of(item.nodeid, self._only)]

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        nodeids = [item.nodeid for item in session.items]
        tell("tests", [_parts(item) for item in session.items])
        patterns = list(session.config.getini("python_files"))
        emit("collected", nodeids=nodeids, guessed=Stub.guessed, python_files=patterns)

    def pytest_exception_interact(
        self, node: pytest.Collector, call: pytest.CallInfo[Any], report: Any
    ) -> None:
        if isinstance(report, pytest.CollectReport) and call.excinfo is not None:
            emit("collect_error", nodeid=node.nodeid, **self._describe(call.excinfo))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None]:
        tell("test", _parts(item))
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        if call.when == "call" or call.excinfo is not None:
            tell("check", None)
        raised = call.excinfo  # before pytest makes a skip of its own of it
        report = yield
        if call.excinfo is not None:
            described = self._describe(call.excinfo, report.nodeid)
            described["by_answer"] = _is_skipped_by_answer(raised or call.excinfo)
            self._raised[report.nodeid, str(report.when)] = described
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        emit(
            "report",
            nodeid=report.nodeid,
            when=report.when,
            outcome=report.outcome,
            xfail=hasattr(report, "wasxfail"),
            **self._raised.pop((report.nodeid, str(report.when)), {}),
        )

    def pytest_internalerror(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        emit("internal_error", **self._describe(excinfo))

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        emit("interrupted", **self._describe(excinfo))

    def _describe(
        self, excinfo: pytest.ExceptionInfo[BaseException], nodeid: str = ""
    ) -> dict[str, Any]:
        """Return the exception's class, its innermost place in the workspace and its text."""
        error = excinfo.value
        cause = error.__cause__ if isinstance(error, pytest.Collector.CollectError) else None
        # About two test files of one name, pytest itself says more than its cause.
        if cause is not None and _name(type(cause)) != "ImportPathMismatchError":
            error = cause
            excinfo = pytest.ExceptionInfo.from_exception(error)
        text = _text(excinfo)
        lines = text.splitlines() or [""]
        if isinstance(error, SyntaxError):
            lines.reverse()  # the location comes before the message
        asserted = next((line for line in lines if line.startswith("assert ")), lines[0])
        return {
            "exception": _name(type(error)),
            "bases": [_name(base) for base in type.mro(type(error))],
            "name": str(error.name) if isinstance(error, ImportError) and error.name else None,
            "frame": self._frame(excinfo),
            "line": self._line(excinfo),
            "files": self._files(excinfo),
            "assertion": asserted[:_LINE_CHARACTERS],
            "message": text[:_MESSAGE_CHARACTERS],
            "source": self._source(excinfo, nodeid),
        }

    def _source(self, excinfo: pytest.ExceptionInfo[BaseException], nodeid: str) -> str:
        """Return the lines of the test that failed, the failing one marked, if they may be shown.

        Only for the first failures: the events of a run must stay small.
        """
        if not self._show_source or self._shown >= _SHOWN_FAILURES:
            return ""
        test_file = nodeid.partition("::")[0]
        entries = (e for e in excinfo.traceback if self._inside(str(e.path)) == test_file)
        entry = next(entries, None)
        if entry is None or entry.frame.code.raw.co_name == "<module>":
            return ""
        self._shown += 1
        try:
            failing = entry.lineno - entry.getfirstlinesource()
            lines = entry.getsource().deindent().lines  # type: ignore[union-attr]
        except Exception:  # the file may have been changed, and source code is only a help
            return ""
        shown = [f"{'>' if n == failing else ' '}   {line}" for n, line in enumerate(lines)]
        left_out = len(shown) - _SOURCE_LINES
        if left_out > 0:
            shown[1 : left_out + 2] = ["    ..."]
        return "\n".join(line[:_LINE_CHARACTERS].rstrip() for line in shown)

    def _line(self, excinfo: pytest.ExceptionInfo[BaseException]) -> int | None:
        """Return the line of the frame that ``_frame`` returns."""
        error = excinfo.value
        if isinstance(error, SyntaxError) and self._inside(error.filename or "/"):
            return error.lineno
        found = (e for e in reversed(excinfo.traceback) if self._inside(str(e.path)))
        return next((entry.lineno + 1 for entry in found), None)

    def _frame(self, excinfo: pytest.ExceptionInfo[BaseException]) -> list[str] | None:
        """Return the file and function of the innermost frame in the workspace."""
        error = excinfo.value
        if isinstance(error, SyntaxError) and error.filename:
            name = self._inside(error.filename)
            if name is not None:
                return [name, "<module>"]
        for entry in reversed(excinfo.traceback):
            name = self._inside(str(entry.path))
            if name is not None:
                return [name, entry.frame.code.raw.co_name]
        return None

    def _files(self, excinfo: pytest.ExceptionInfo[BaseException]) -> list[str]:
        """Return the files of the workspace in the traceback."""
        return sorted({name for e in excinfo.traceback if (name := self._inside(str(e.path)))})

    def _inside(self, path: str) -> str | None:
        resolved = Path(path).resolve()
        if not resolved.is_relative_to(self._root):
            return None
        return resolved.relative_to(self._root).as_posix()


def _is_one_of(nodeid: str, names: Sequence[str]) -> bool:
    """Return whether a test is one of these files or test functions."""
    return nodeid.partition("::")[0] in names or nodeid.partition("[")[0] in names


def _is_skipped_by_answer(excinfo: pytest.ExceptionInfo[BaseException]) -> bool:
    """Return whether this is a skip or an expected failure that the answer raised.

    The hooks decide, by the files in the traceback. unittest catches the exception that skips a
    test, and pytest raises one of its own while that is handled.
    """
    found: list[bool] = []
    error, entry = excinfo.value, excinfo.tb
    if isinstance(error, _SKIPS):
        tell("skip", (entry, found))
        if isinstance(error.__context__, unittest.SkipTest):
            tell("skip", (error.__context__.__traceback__, found))
    return any(found)


def _text(excinfo: pytest.ExceptionInfo[BaseException]) -> str:
    try:
        return excinfo.exconly(tryshort=True).removeprefix("AssertionError: ")
    except Exception:  # the text of an answer's exception class may fail itself
        return type(excinfo.value).__name__


def _name(kind: type) -> str:
    """Return the name of a class, whatever its metaclass says."""
    return str(vars(type)["__name__"].__get__(kind))


def _parts(item: pytest.Item) -> tuple[str, Any, list[Any]]:
    """Return a test's node id, its function and its parameters."""
    function = getattr(item, "obj", None)
    callspec = getattr(item, "callspec", None)
    parameters = list(callspec.params.values()) if callspec is not None else []
    return item.nodeid, getattr(function, "__func__", function), parameters


# -- listing tests without the answer --------------------------------------------------------------


class Stub:
    """A stand-in for any name of a stubbed module: callable, iterable, usable as a base class."""

    #: Whether a stub had to return a made-up value, so that the number of tests or their
    #: parameters may differ.
    guessed = False

    def __init__(self, name: str) -> None:
        self.__name__ = self.__qualname__ = name

    def __getattr__(self, name: str) -> Stub:
        if name.startswith(("__", "pytest", "_pytest")):
            raise AttributeError(name)
        return Stub(name)

    def __call__(self, *args: Any, **_: Any) -> Any:
        # Used as a decorator, it returns the test unchanged.
        if len(args) == 1 and isinstance(args[0], types.FunctionType | type):
            return args[0]
        return Stub(self.__name__)

    def __mro_entries__(self, _bases: tuple[Any, ...]) -> tuple[type, ...]:
        return ()


def _guess(result: Any) -> Any:
    def method(*_: Any) -> Any:
        Stub.guessed = True
        return result() if callable(result) else result

    return method


def _add_operators() -> None:
    """Give stubs every operator, each with a made-up result."""
    guesses = {
        "__iter__": lambda: iter(()),
        "__len__": 0,
        "__bool__": True,
        "__contains__": True,
        "__getitem__": lambda: Stub("item"),
        "__int__": 0,
        "__index__": 0,
        "__float__": 0.0,
        "__enter__": lambda: Stub("context"),
        "__exit__": False,
    }
    operators = "add radd sub rsub mul rmul truediv floordiv mod pow and or xor lt le gt ge neg"
    for name in operators.split():
        guesses[f"__{name}__"] = lambda: Stub("value")
    for name, result in guesses.items():
        setattr(Stub, name, _guess(result))


class StubFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds only the modules of the answer's files."""

    def __init__(self, root: Path, files: Sequence[str], names: Sequence[str], fill: bool) -> None:
        self._files = {(root / file).resolve() for file in files}
        self._names, self._fill = frozenset(names), fill

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, _target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self._names or fullname in sys.stdlib_module_names:
            return None
        found = importlib.machinery.PathFinder.find_spec(fullname, path)
        if found is not None and not self._is_answer(found):
            return None
        if self._fill and found is not None:
            found.loader = FillingLoader(fullname, str(found.origin))
            return found
        spec = importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        if found is not None and found.submodule_search_locations:
            # The other modules of a package whose __init__.py the answer wrote are not its own.
            spec.submodule_search_locations = list(found.submodule_search_locations)
        return spec

    def _is_answer(self, spec: importlib.machinery.ModuleSpec) -> bool:
        return spec.origin is not None and Path(spec.origin).resolve() in self._files

    def exec_module(self, module: types.ModuleType) -> None:
        _add_stubs(module)


class FillingLoader(importlib.machinery.SourceFileLoader):
    """Loads a module, and gives it stubs for the names that it lacks."""

    def exec_module(self, module: types.ModuleType) -> None:
        super().exec_module(module)
        _add_stubs(module)


def _add_stubs(module: types.ModuleType) -> None:
    module.__getattr__ = Stub(module.__name__).__getattr__  # type: ignore[method-assign]


def _install_hooks(config: dict[str, Any]) -> None:
    """Run the file of the hooks with its own built-in functions, and outside ``sys.modules``."""
    names: dict[str, Any] = {"__name__": "tamper_hooks", "__builtins__": dict(vars(builtins))}
    exec(compile(_HOOKS.read_text("utf-8"), str(_HOOKS), "exec"), names)  # noqa: S102 - our own file
    names["install"](
        fd=config["fd"],
        key=config["key"],
        root=Path(config["root"]),
        answer=config["answer"],
        child=sys.modules[__name__],
        bottom=sys._getframe(2).f_code,
    )


def main() -> None:
    config = json.loads(sys.stdin.read())
    root = Path(config["root"])
    os.set_inheritable(config["fd"], False)
    _add_operators()  # before the hooks learn what there is
    _install_hooks(config)
    reporter = Reporter(root, only=config["only"], show_source=config["show_source"])
    stubs, args = config["stubs"], config["args"]
    del config
    # Like ``python -m pytest``, so that tests in a folder find the modules beside it.
    sys.path.insert(0, str(root))
    if stubs is not None:
        sys.meta_path.insert(0, StubFinder(root, **stubs))
    emit("start")
    code = int(pytest.main(args, plugins=[reporter]))
    emit("finish", exit_code=code)
    sys.stdout.flush()
    sys.stderr.flush()
    # Exit handlers that the answer registered do not run.
    _exit(code)


if __name__ == "__main__":
    main()
