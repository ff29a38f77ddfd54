"""Audit hooks of the test process: sign its events, and report code that changes its own verdict.

The answer runs in the same process as its tests, so nothing here is a boundary. Two hooks make the
known forgeries visible. Python cannot remove a hook, and these are referred to by the interpreter
alone, so only the memory of the process leads to the key and to the snapshots. Therefore this file
defines no class, which ``object.__subclasses__()`` would show with all that it refers to, and the
hooks call no method of a value before they know who sent it:

- The *signer* writes events. It has the key, and signs only what the reporter of ``child.py`` sends
  from the main thread while no code of the answer is running.
- The *watcher* compares pytest, pluggy, the tests and what they compare with against snapshots,
  whenever something is reported, and reports calls with which an answer could reach the signer
  or exchange code. It decides by the files on the stack, and by what is touched: logging, data
  classes, profilers and tests that use ``gc`` or ``ctypes`` raise no alarm.

What was noticed is sent at once, and cannot be taken back. ``docs/verifiers.md`` says what is not
noticed. Only the standard library is used, and inside the hooks nothing that the answer can
replace: ``child.py`` runs this file with its own copy of the built-in functions.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib
import itertools
import json.encoder
import math
import operator
import os
import re
import sys
import sysconfig
import time
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from hashlib import blake2b
from pathlib import Path
from types import (
    BuiltinFunctionType,
    CodeType,
    FrameType,
    FunctionType,
    MethodType,
    ModuleType,
    TracebackType,
)
from typing import Any

#: The audit event with which the reporter sends an event: its kind and its facts.
EVENT = "mulligan.pytest.event"
#: The process ends with this code if an event cannot be signed.
UNSIGNED = 98

_PR_SET_DUMPABLE = 4

ANSWER, SUITE, PYTEST, LIBRARY, STDLIB, IMPORT, UNKNOWN = range(7)
#: Found between the code that does something and the stdlib function that does it for it.
_PASSED_THROUGH = frozenset({STDLIB, LIBRARY, UNKNOWN})

#: What shows the objects of others, by audit event.
_REACHES = {
    "gc.get_objects": "gc.get_objects",
    "gc.get_referrers": "gc.get_referrers",
    "sys._current_frames": "sys._current_frames",
    "sys._current_exceptions": "sys._current_exceptions",
    "sys.addaudithook": "sys.addaudithook",
    "ctypes.cdata": "ctypes to read or write memory",
    "ctypes.string_at": "ctypes.string_at",
    "ctypes.wstring_at": "ctypes.wstring_at",
    "ctypes.memoryview_at": "ctypes.memoryview_at",
    "ctypes.PyObj_FromPtr": "ctypes to read memory",
    "cpython.PyInterpreterState_New": "another interpreter",
}
_WATCHED = frozenset(_REACHES) | {
    EVENT, "compile", "code.__new__", "ctypes.dlsym", "exec", "object.__setattr__", "open",
    "sys.setprofile", "sys.settrace",
}  # fmt: skip

#: Modules whose functions and classes decide whether a test passes, with all of pytest and pluggy.
_DECIDING = ("contextlib", "pytest", "unittest.case")
_DECIDING_PACKAGES = ("_pytest.", "pluggy.")
#: Large parts of pytest that only show what was decided, or that tests rarely use.
_NOT_DECIDING = (
    "_pytest._io", "_pytest._py", "_pytest.cacheprovider", "_pytest.debugging",
    "_pytest.doctest", "_pytest.helpconfig", "_pytest.junitxml", "_pytest.legacypath",
    "_pytest.pastebin", "_pytest.pytester", "_pytest.stepwise", "_pytest.terminal",
)  # fmt: skip
#: What Python itself adds to a class later.
_ADDED_BY_PYTHON = frozenset({"__annotations__", "__annotations_cache__", "__annotate_func__"})
_BUILT_IN = frozenset(vars(builtins))
#: What pytest replaces or adds itself when it starts.
_BY_PYTEST = frozenset({
    "_getini_unknown_type", "_pytest_diamond_inheritance_warning_shown", "fspath", "inifile",
    "invocation_dir", "makedir", "rootdir", "startdir",
})  # fmt: skip
#: Modules with whose functions tests compare, which tests may replace themselves.
_COMPARING: tuple[ModuleType, ...] = (builtins, math, operator, itertools)
_CODE = (FunctionType, BuiltinFunctionType, type, classmethod, staticmethod, property)
_CONSTANT = (bool, int, float, complex, str, bytes, tuple, frozenset)

#: Texts and attributes of the tests that may name what they replace themselves.
_NAMES = re.compile(
    r"""["'][\w.{}]*?(\w+)["']|\.(\w+)\s*(?:=[^=]|[-+*/|&^%]{1,2}=)|\bglobal\s+([\w, ]+)"""
)
#: The arguments of ``mock.patch.multiple``, whose names it replaces.
_MULTIPLE = re.compile(r"\.multiple\(([^)]{0,2000})\)")
_MAX_SOURCE_BYTES = 4 << 20
#: Names that pytest puts into every test file, with their values. Filled before the answer runs.
_GIVEN: dict[str, Any] = {}


def find_origins(
    root: Path, answer: Iterable[str], child: str, pytest_file: str
) -> Callable[[str], int]:
    """Return a function that says whose a file is, by the name in its code objects."""
    files = [str(root / name) for name in answer]
    start, inside = time.time_ns(), f"{root}/"
    names = frozenset({*answer, *files})
    inodes = frozenset((s.st_dev, s.st_ino) for s in map(_status, files) if s is not None)
    site = Path(pytest_file).parents[1]
    packages = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), str(site)}
    folders = [(f"{site}/{name}/", PYTEST) for name in ("_pytest", "pytest", "pluggy")]
    folders += [(f"{Path(child).parent}/", PYTEST)]
    folders += [(f"{folder}/", LIBRARY) for folder in packages]
    folders += [(f"{Path(os.__file__).parent}/", STDLIB)]
    folders += [("<frozen importlib", IMPORT), ("<frozen ", STDLIB)]

    @cache
    def by_name(filename: str) -> int | None:
        if filename in names:
            return ANSWER
        for folder, whose in folders:
            if filename.startswith(folder):
                return whose
        return None

    def origin(filename: str) -> int:
        if type(filename) is not str:  # its methods are the answer's
            return ANSWER
        known = by_name(filename)
        if known is not None:
            return known
        status = _status(filename)
        if status is None:
            return UNKNOWN
        # Whatever was written since the start was written by the answer, or on its behalf.
        if status.st_ctime_ns > start or (status.st_dev, status.st_ino) in inodes:
            return ANSWER
        return SUITE if filename.startswith(inside) or not filename.startswith("/") else LIBRARY

    return origin


def _status(name: str) -> os.stat_result | None:
    try:
        return _stat(name)
    except (OSError, ValueError):
        return None


def replaced_by_tests(root: Path, answer: Iterable[str]) -> frozenset[str]:
    """Return the names that the tests may replace: those they assign to, or have as a text."""
    skipped, room = {root / name for name in answer}, _MAX_SOURCE_BYTES
    found: set[str] = set()
    for path in sorted(root.rglob("*.py")):
        if path in skipped or not path.is_file() or room <= 0:
            continue
        text = path.read_text("utf-8", "replace")[:room]
        room -= len(text)
        for arguments in _MULTIPLE.findall(text):
            found.update(re.findall(r"(\w+)\s*=", arguments))
        for names in _NAMES.findall(text):
            found.update(part for name in names for part in re.split(r"[,\s]+", name))
    return frozenset(found)


# -- the signer ------------------------------------------------------------------------------------

# Bound here, because the answer can replace the attributes of modules.
_open, _read, _write, _close, _stat = os.open, os.read, os.write, os.close, os.stat
_exit, _getframe, _is = os._exit, sys._getframe, operator.is_
_builtins_of = operator.attrgetter("__builtins__")
# As attributes of a class they could be its metaclass's.
_mro_of, _names_of = vars(type)["__mro__"].__get__, vars(type)["__dict__"].__get__


Origin = Callable[[str], int]


def find_senders(
    origin: Origin, senders: Sequence[CodeType], bottom: CodeType
) -> Callable[[FrameType], bool]:
    """Return a function that says whether the reporter sends an event, in the main thread and not
    on behalf of the answer. ``bottom`` is the code of the main module."""

    def is_reporter(frame: FrameType) -> bool:
        if not any(frame.f_code is code for code in senders):
            return False
        below: FrameType | None = frame
        last = None
        while below is not None:
            last = below.f_code
            if origin(last.co_filename) in (ANSWER, UNKNOWN):
                return False
            below = below.f_back
        return last is bottom

    return is_reporter


def install_signer(
    fd: int, key: str, is_reporter: Callable[[FrameType], bool], teller: CodeType
) -> None:
    """Install the hook that writes events to ``fd``; ``teller`` is the code of the watcher's."""
    copy = blake2b(key=bytes.fromhex(key), digest_size=16).copy
    # As json.dumps(ensure_ascii=False), without anything that could be replaced.
    encode = json.encoder.c_make_encoder(  # type: ignore[attr-defined]
        None, _refuse, json.encoder.encode_basestring, None, ": ", ", ", False, False, True
    )
    count = 0

    def sign(event: str, args: tuple[Any, ...]) -> None:
        nonlocal count
        if event != EVENT:
            return
        try:
            frame = _getframe(1)
            if frame.f_code is not teller and not is_reporter(frame):
                return  # the watcher reports it
            kind, facts = args
            if kind in _FOR_THE_WATCHER:
                return
            body = "".join(encode({"event": kind, **facts}, 0)).encode("utf-8", "replace")
            signed = copy()
            signed.update(b"%d %b" % (count, body))
            count += 1
            line = b"%b %b\n" % (signed.hexdigest().encode(), body)
            while line:
                line = line[_write(fd, line) :]
        except BaseException:
            # An exception would show this frame, and with it the key.
            _exit(UNSIGNED)

    sys.addaudithook(sign)


def _refuse(value: object) -> None:
    """Encode nothing whose own methods would be called."""
    raise TypeError(type(value))


# -- the watcher -----------------------------------------------------------------------------------

#: Events for the watcher alone, which are not written.
_FOR_THE_WATCHER = frozenset({"check", "hooks", "module", "plugin", "skip", "test", "tests"})
#: After these, and before each report, everything is compared.
_COMPARED = _FOR_THE_WATCHER - {"plugin", "skip"} | {"collected", "finish"}


#: A label, names, those whose values must not be replaced, these values, the number of names, and
#: the test whether a name may be there.
Snapshot = tuple[str, Any, tuple[str, ...], tuple[Any, ...], int, Callable[[str], bool]]


def _snapshot(
    label: str, names: Any, values: dict[str, Any], may_add: Callable[[str], bool]
) -> Snapshot:
    return label, names, tuple(values), tuple(values.values()), len(names), may_add


def _replaced(snapshot: Snapshot) -> str | None:
    """Return the first name whose value was replaced, or that was added and may not be there."""
    label, names, keys, expected, size, may_add = snapshot
    if len(names) == size and all(map(_is, map(names.get, keys), expected)):
        return None
    pairs = zip(keys, expected, strict=True)
    changed = [key for key, value in pairs if names.get(key) is not value]
    changed += [name for name in tuple(names) if not may_add(name)]
    return f"{label}.{changed[0]}" if changed else None


def _anything(_: str) -> bool:
    return True


def _hides_nothing(names: Iterable[str], hidden: frozenset[str]) -> Callable[[str], bool]:
    """Return a function that says whether a name of a module hides no built-in function."""
    hiding = _BUILT_IN.difference(names, hidden)
    return lambda name: type(name) is str and name not in hiding


def _snapshots_of(module: ModuleType, label: str, *, hidden: frozenset[str]) -> list[Snapshot]:
    """Return snapshots of a module's own functions and classes, and of those classes' names."""
    names = vars(module)
    code = {k: v for k, v in names.items() if isinstance(v, _CODE) and k not in hidden}
    found = [_snapshot(label, names, code, _hides_nothing(names, hidden))]
    for name, value in code.items():
        if isinstance(value, type) and value.__module__ == module.__name__:
            kept = {
                k: v
                for k, v in vars(value).items()
                if k not in hidden and (isinstance(v, _CODE) or k.startswith("__"))
            }
            may_have = (hidden | _ADDED_BY_PYTHON).union(vars(value)).__contains__
            found.append(_snapshot(f"{label}.{name}", vars(value), kept, may_have))
    return found


def _machinery(replaced: frozenset[str], child: ModuleType) -> list[Snapshot]:
    found = _snapshots_of(child, "mulligan", hidden=frozenset())
    for name, module in sys.modules.copy().items():
        deciding = name.startswith(_DECIDING_PACKAGES) and not name.startswith(_NOT_DECIDING)
        if deciding or name in _DECIDING:
            # Suites may replace parts of pytest on purpose, in their conftest.
            label = name.rpartition(".")[2]
            found += _snapshots_of(module, label, hidden=replaced | _BY_PYTEST)
    for module in _COMPARING:
        found += _snapshots_of(module, module.__name__, hidden=replaced)[:1]
    return found


def _of_test_module(module: ModuleType, hidden: frozenset[str]) -> list[Snapshot]:
    """Return snapshots of a test file's own functions, classes and constants."""
    names, label = vars(module), module.__name__

    def is_own(value: Any) -> bool:
        if isinstance(value, FunctionType):
            return value.__globals__ is names
        if isinstance(value, type):
            return value.__module__ == label
        return isinstance(value, BuiltinFunctionType) or type(value) in _CONSTANT

    kept = {
        key: value
        for key, value in names.items()
        if key not in hidden and not key.startswith(("__", "@")) and is_own(value)
    }
    kept |= {key: value for key, value in _GIVEN.items() if key in names}
    found = [_snapshot(label, names, kept, _hides_nothing(names, hidden))]
    found += _foreign_builtins(label, names)
    for name, value in kept.items():
        if isinstance(value, type):
            functions = {
                k: v
                for k, v in vars(value).items()
                if isinstance(v, FunctionType | classmethod | staticmethod) and k not in hidden
            }
            found.append(_snapshot(f"{label}.{name}", vars(value), functions, _anything))
    return found


def _foreign_builtins(label: str, names: dict[str, Any]) -> list[Snapshot]:
    """Return a snapshot that does not fit for each function with other built-in functions.

    A function keeps those that its file had when it was defined.
    """
    genuine = vars(builtins)
    owners = {label: names.get("__builtins__")}
    classes = [vars(value) for value in names.values() if isinstance(value, type)]
    for space in (names, *classes):
        for name, value in space.items():
            if isinstance(value, FunctionType) and value.__globals__ is names:
                owners[f"{label}.{name}"] = _builtins_of(value)
    return [
        _snapshot(owner, {"__builtins__": found}, {"__builtins__": genuine}, _anything)
        for owner, found in owners.items()
        if found is not genuine and found is not builtins
    ]


def _parts_of_test(function: Any, parameters: Sequence[Any]) -> tuple[Any, ...]:
    """Return what a test consists of: its code, defaults, wrapped functions and parameters."""
    parts: list[Any] = [function]
    depth = 0
    while type(function) is FunctionType and depth < 5:
        keywords = function.__kwdefaults__ or {}
        parts += [function.__code__, *(function.__defaults__ or ()), *keywords.values()]
        cells = [_content(cell) for cell in function.__closure__ or ()]
        functions = [each for each in cells if type(each) is FunctionType]
        parts += functions
        function, depth = functions[0] if functions else None, depth + 1
    return (*parts, *parameters)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is still empty
        return None


def _is_text_of(source: Any, filename: str) -> bool:
    """Return whether this is the text of a file, which whoever loads plug-ins may compile."""
    fd = _open(filename, 0)
    data = _read(fd, _MAX_SOURCE_BYTES)
    _close(fd)
    text = source.encode("utf-8", "replace") if type(source) is str else source
    return type(text) is bytes and text == data


Tell = Callable[[str], None]


def _make_tell() -> Tell:
    """Return a function that reports something once."""
    told: set[str] = set()
    audit = sys.audit

    def tell(what: str) -> None:
        if what not in told and len(told) < 20:
            told.add(what)
            audit(EVENT, "tampered", {"what": what})

    return tell


def _find_callers(origin: Origin) -> Callable[[FrameType | None], tuple[int | None, int | None]]:
    def callers(frame: FrameType | None) -> tuple[int | None, int | None]:
        """Return whose code acts, and whose code called that: None if only libraries do."""
        first: int | None = None
        while frame is not None:
            found = origin(frame.f_code.co_filename)
            if found not in _PASSED_THROUGH and found != first:
                if first is not None:
                    return first, found
                first = found
            frame = frame.f_back
        return first, None

    return callers


def _compare_tests(origin: Origin, tell: Tell) -> Callable[[str, Any], None]:
    tests: dict[str, tuple[Any, ...]] = {}

    def is_of_answer(parts: Sequence[Any]) -> bool:
        """Return whether a test is a function of the answer, which wraps no function of others."""
        whose = [origin(part.co_filename) for part in parts if type(part) is CodeType]
        return bool(whose) and all(each == ANSWER for each in whose)

    def compare(kind: str, facts: Any) -> None:
        """Learn what all tests consist of, or compare one that is about to run."""
        if kind == "tests":
            tests.update({nodeid: _parts_of_test(*parts) for nodeid, *parts in facts})
            for nodeid in (nodeid for nodeid, parts in tests.items() if is_of_answer(parts)):
                tell(f"the code exchanged {nodeid}")
            return
        nodeid, *parts = facts
        known, now = tests.get(nodeid, ()), _parts_of_test(*parts)
        if len(known) != len(now) or not all(map(_is, known, now)):
            tell(f"the code exchanged {nodeid}")

    return compare


def _compare_modules(
    origin: Origin, tell: Tell
) -> tuple[Callable[[CodeType, FrameType], None], Callable[[ModuleType, str], None]]:
    executed: dict[str, list[Any]] = {}

    def learn(code: CodeType, frame: FrameType) -> None:
        """Remember a module of the suite that is about to be executed, unless by the answer."""
        below: FrameType | None = frame
        if origin(code.co_filename) != SUITE or code.co_name != "<module>":
            return
        loads = "exec_module"
        loader = frame if frame.f_code.co_name == loads else frame.f_back
        while below is not None:
            if origin(below.f_code.co_filename) in (ANSWER, UNKNOWN):
                return
            below = below.f_back
        if loader is not None and loader.f_code.co_name == loads:
            executed.setdefault(code.co_filename, []).append(loader.f_locals.get("module"))

    def compare(module: ModuleType, path: str) -> None:
        """Report a module of tests that is not the one that was executed."""
        known = executed.get(path, [])
        if known and not any(each is module for each in known):
            tell(f"the code replaced the module of {path.rpartition('/')[2]}")

    return learn, compare


def _find_skips(origin: Origin) -> Callable[[Any], bool]:
    def is_by_answer(entry: Any) -> bool:
        """Return whether the answer skipped a test: it, or code of an unknown file, is on the way,
        or a function that says nothing about skipping called what skips."""
        caller: CodeType | None = None
        while type(entry) is TracebackType:
            code = entry.tb_frame.f_code
            whose = origin(code.co_filename)
            if whose in (ANSWER, UNKNOWN):
                return True
            if whose in (SUITE, LIBRARY):
                caller = code
            entry = entry.tb_next
        return caller is not None and not _mentions_skipping(caller)

    return is_by_answer


def _mentions_skipping(code: CodeType) -> bool:
    names = (*code.co_names, *code.co_varnames, *code.co_freevars)
    return any(word in name.lower() for name in names for word in ("skip", "xfail"))


def _compare_machinery(
    origin: Origin, tell: Tell, snapshots: Iterable[Snapshot], replaced: frozenset[str]
) -> Callable[[str, Any], None]:
    snapshots, hooks = list(snapshots), list[Any]()
    gettrace, getprofile = sys.gettrace, sys.getprofile

    def is_answers(function: Any) -> bool:
        """Return whether a function is the answer's, or its file is unknown."""
        while type(function) in (MethodType, partial):
            function = function.__func__ if type(function) is MethodType else function.func
        functions = [function]
        if type(function) is not FunctionType:  # an object that can be called
            functions = [f for kind in _mro_of(type(function)) for f in _names_of(kind).values()]
        codes = [each.__code__ for each in functions if type(each) is FunctionType]
        return any(origin(code.co_filename) in (ANSWER, UNKNOWN) for code in codes)

    def compare(kind: str, facts: Any) -> None:
        """Compare everything that is known, then learn a module or the hooks of pytest."""
        for name in filter(None, map(_replaced, snapshots)):
            tell(f"the code replaced {name}")
        if is_answers(gettrace()) or is_answers(getprofile()):
            tell("the code traces the test run")
        for hook in hooks:
            for each in hook.get_hookimpls():
                if is_answers(each.function):
                    tell(f"the code registered a plug-in with {hook.name}")
        if kind == "module":
            snapshots.extend(_of_test_module(facts[0], replaced))
        elif kind == "hooks":
            hooks.extend(facts)

    return compare


def _look_at_code(origin: Origin, tell: Tell) -> Callable[[str, tuple[Any, ...], FrameType], None]:
    def look(event: str, args: tuple[Any, ...], frame: FrameType) -> None:
        """Look at a function that the answer changes, or at code with the name of a file."""
        if event == "object.__setattr__":
            function = args[0]
            if type(function) is FunctionType and args[1] != "__name__":
                code = function.__code__
                whose = origin(code.co_filename)
                if whose == PYTEST or (whose == SUITE and code.co_name.startswith("test")):
                    tell(f"the code changed {code.co_name}.{args[1]}")
            return
        source, filename = args[:2]
        caller = frame.f_code.co_filename
        if filename is None or (type(caller) is str and caller.startswith("<frozen")):
            return
        if type(filename) is not str:
            tell("the code has a file name that is not a plain text")
            return
        whose = origin(filename)
        spoofed = whose == SUITE and filename.endswith(".py") and not _is_text_of(source, filename)
        if spoofed or whose in (PYTEST, STDLIB, LIBRARY):
            tell(f"the code compiles under the name of {filename.rpartition('/')[2]}")

    return look


def _is_own_memory(path: Any, proc: os.stat_result | None) -> bool:
    """Return whether a path is a file of /proc that only a process itself may read."""
    found = _status(path) if type(path) is str else None
    return (
        found is not None
        and proc is not None
        and found.st_dev == proc.st_dev
        and found.st_mode & 0o777 == 0o600
    )


def install_watcher(
    origin: Origin,
    is_reporter: Callable[[FrameType], bool],
    tell: Tell,
    child: ModuleType,
    replaced: frozenset[str],
) -> None:
    """Install the hook that compares with snapshots and looks at who calls what."""
    compare_tests = _compare_tests(origin, tell)
    learn_module, compare_module = _compare_modules(origin, tell)
    is_by_answer = _find_skips(origin)
    compare_machinery = _compare_machinery(origin, tell, _machinery(replaced, child), replaced)
    callers, look_at_code = _find_callers(origin), _look_at_code(origin, tell)
    proc, teller, plugin_teller = _status("/proc/self"), tell.__code__, child.tell.__code__

    def receive(frame: FrameType, args: tuple[Any, ...]) -> None:
        """Handle an event of the reporter, or report one that somebody else sends."""
        if frame.f_code is teller:
            return
        kind = args[0] if args else None
        if not is_reporter(frame):
            registered = frame.f_code is plugin_teller and type(kind) is str and kind == "plugin"
            tell(f"the code {'registered a plug-in' if registered else 'sent an event of its own'}")
            return
        if kind == "module":
            compare_module(*args[1])
        if kind in _COMPARED:
            compare_machinery(*args)
        if kind == "skip":
            entry, found = args[1]
            found.append(is_by_answer(entry))
        if kind in ("test", "tests"):
            compare_tests(*args)

    def watch(event: str, args: tuple[Any, ...]) -> None:
        if event not in _WATCHED:
            return
        frame = _getframe(1)
        if event == EVENT:
            receive(frame, args)
            return
        if event == "exec":
            learn_module(args[0], frame)
            return
        acting = callers(frame)
        if event in _REACHES:
            if acting[0] in (ANSWER, None):
                tell(f"the code uses {_REACHES[event]}")
        elif event in ("sys.settrace", "sys.setprofile"):
            if acting == (ANSWER, PYTEST):
                tell("the code traces the test run")
        elif acting[0] != ANSWER:
            return
        elif event == "open":
            if _is_own_memory(args[0], proc):
                tell("the code opened its own memory")
        elif event == "ctypes.dlsym":
            if type(args[1]) is str and args[1].startswith(("Py", "_Py")):
                tell("the code calls the interpreter through ctypes")
        else:
            look_at_code(event, args, frame)

    sys.addaudithook(watch)


def _hide_memory() -> None:
    """Keep other processes of this user, such as the answer's own, from reading the key.

    The C part of ctypes is enough, and starts much faster.
    """
    if sys.platform == "linux":
        with contextlib.suppress(ImportError, OSError):
            _ctypes = importlib.import_module("_ctypes")
            prctl = _ctypes.dlsym(_ctypes.dlopen(None, os.RTLD_NOW), "prctl")
            _ctypes.call_function(prctl, (_PR_SET_DUMPABLE, 0, 0, 0, 0))


def install(
    *, fd: int, key: str, root: Path, answer: Sequence[str], child: ModuleType, bottom: CodeType
) -> None:
    """Install both hooks, the watcher first: what it notices is sent before what it noticed it at.

    ``answer`` are the files of the answer, and ``bottom`` is the code of the main module.
    """
    for name in sys.modules["_pytest.config"].default_plugins:
        importlib.import_module(f"_pytest.{name}")  # as pytest will, before they are compared
    rewriting = importlib.import_module("_pytest.assertion.rewrite")
    _GIVEN.update({"@py_builtins": builtins, "@pytest_ar": rewriting})
    _hide_memory()
    origin = find_origins(root, answer, str(child.__file__), sys.modules["pytest"].__file__ or "")
    senders = (child.emit.__code__, child.tell.__code__)
    is_reporter, tell = find_senders(origin, senders, bottom), _make_tell()
    install_watcher(origin, is_reporter, tell, child, replaced_by_tests(root, answer))
    install_signer(fd, key, is_reporter, tell.__code__)
