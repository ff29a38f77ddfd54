"""Honest code and honest tests that look inside Python raise no alarm."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.pytest_project import Project

from mulligan.policies.failures.failure import VerificationStatus

#: An answer that uses what forgeries use, too, for its own purposes.
ANSWER = """
import asyncio, atexit, collections, contextlib, cProfile, ctypes, dataclasses, enum, functools, gc
import importlib, inspect, io, logging, os, pathlib, pickle, signal, string, subprocess, sys
import tempfile, threading, traceback, types, typing, unittest.mock, warnings, weakref

log = logging.getLogger(__name__)
Point = collections.namedtuple("Point", "x y")
Mode = enum.Enum("Mode", "FAST SLOW")
sys.setrecursionlimit(2000)
warnings.simplefilter("ignore", DeprecationWarning)
atexit.register(lambda: None)

@dataclasses.dataclass(order=True)
class Row:
    name: str
    value: int = 0

def caller():
    return sys._getframe(1).f_code.co_name

def stack():
    return [each.function for each in inspect.stack()]

def explain(error):
    frames = [entry.tb_frame for entry in _entries(error.__traceback__)]
    return traceback.format_exception(error), frames

def _entries(entry):
    while entry is not None:
        yield entry
        entry = entry.tb_next

def with_default(function, value):
    function.__defaults__ = (value,)
    return function

def renamed():
    def function(): return 8
    function.__code__ = function.__code__.replace(co_name="renamed")
    return function

def wrap(value):
    return ctypes.c_int32(value).value

def strlen(text):
    return ctypes.CDLL(None).strlen(text.encode())

def profiled(function):
    profile = cProfile.Profile()
    profile.enable()
    try:
        return function()
    finally:
        profile.disable()

def traced(function):
    lines = []
    def tracer(frame, event, arg):
        lines.append(event)
        return tracer
    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        function()
    finally:
        sys.settrace(before)
    return lines

def evaluate(text):
    names = {}
    exec(compile(text, "<input>", "exec"), names)
    return names["result"]

def run_plugin(path):
    names = {}
    exec(compile(pathlib.Path(path).read_text(), path, "exec"), names)
    return names

def depth(n=0):
    try:
        return depth(n + 1)
    except RecursionError:
        return n

def tracked(value):
    return gc.is_tracked(value), gc.collect() >= 0, gc.get_referents(value)

def parallel(function):
    found = []
    threads = [threading.Thread(target=lambda: found.append(function())) for _ in range(4)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    return found

def say(text):
    print(text)
    warnings.warn(text, stacklevel=2)
    log.warning("said %s", text)

def alarm(seconds):
    fired = []
    signal.signal(signal.SIGALRM, lambda number, frame: fired.append(frame.f_lineno))
    signal.setitimer(signal.ITIMER_REAL, seconds)
    while not fired: pass
    return True

def child():
    return subprocess.check_output([sys.executable, "-c", "print(6 * 7)"], text=True)

async def slow():
    await asyncio.sleep(0)
    return [task.get_stack() for task in asyncio.all_tasks()]
"""

TESTS = """
import asyncio, ctypes, gc, importlib, inspect, logging, math, os, sys, time, traceback, unittest
from unittest import mock

import pytest
import solution

COUNT = 0
LIMIT = 3
EXPECTED = (1, 2)

def helper(value):
    return value

@pytest.fixture(autouse=True, scope="module")
def environment():
    original, module = math.isclose, sys.modules[__name__]
    math.isclose = lambda a, b: True
    module.LIMIT = 4
    yield
    math.isclose = original

@pytest.fixture
def quiet(monkeypatch):
    monkeypatch.setattr("builtins.print", lambda *args: None)
    monkeypatch.setattr("builtins.isinstance", isinstance)
    monkeypatch.setattr(sys.modules[__name__], "helper", lambda value: 1)
    monkeypatch.setitem(sys.modules, "not_there", None)

def test_replaced(quiet):
    global COUNT
    COUNT += 1
    assert helper(5) == 1
    with pytest.warns(UserWarning):
        solution.say("hello")

@mock.patch("solution.wrap", return_value=2)
@mock.patch.object(os, "getcwd", return_value="/")
def test_mocked(getcwd, wrap):
    assert solution.wrap(1) == 2

@mock.patch("builtins.len", return_value=3)
def test_mocked_built_in(replaced):
    assert solution.Row("a").name == "a"

def test_frames():
    assert solution.caller() == "test_frames"
    assert "test_frames" in solution.stack()
    try:
        raise ValueError("x")
    except ValueError as error:
        assert "ValueError: x" in solution.explain(error)[0][-1]

def test_functions():
    def double(n=1): return 2 * n
    assert solution.with_default(double, 4)() == 8
    assert solution.renamed()() == 8
    assert solution.evaluate("result = 1 + 1") == 2
    assert "VALUE" in solution.run_plugin("plugin.py")

def test_memory_of_the_tests_own():
    assert gc.get_objects() and gc.get_referrers(solution)
    assert ctypes.string_at(ctypes.create_string_buffer(b"abc"), 3) == b"abc"
    assert sys._current_frames()
    assert solution.tracked([])

def test_ctypes():
    assert solution.wrap(2**31) == -(2**31)
    assert solution.strlen("abc") == 3

def test_tracing():
    assert solution.profiled(lambda: 5) == 5
    assert solution.traced(lambda: 5)
    sys.settrace(lambda *args: None)
    sys.settrace(None)

def test_depth():
    assert solution.depth() > 100
    with pytest.raises(RecursionError):
        def forever(): return forever()
        forever()

def test_threads_and_signals():
    assert solution.parallel(solution.caller) == ["<lambda>"] * 4
    assert solution.alarm(0.01)
    assert solution.child() == "42\\n"
    assert asyncio.run(solution.slow())

def test_reload():
    importlib.reload(solution)
    assert solution.Point(1, 2) == EXPECTED and LIMIT == 4

@pytest.mark.parametrize("value", [[1], {"a": 1}, object(), lambda: 0])
def test_parameters(value):
    if isinstance(value, list):
        value.append(2)
    assert value is not None

class TestUnit(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.shared = {}

    def setUp(self):
        patcher = mock.patch.object(TestUnit, "helper", lambda self: 3)
        patcher.start()
        self.addCleanup(patcher.stop)

    def helper(self):
        return 2

    def test_helper(self):
        self.assertEqual(self.helper(), 3)

    def test_parts(self):
        for n in range(3):
            with self.subTest(n=n):
                self.assertLess(n, 3)
"""

CONFTEST = '''
import pytest
from _pytest.runner import runtestprotocol

seen = []

class Extra:
    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item, call):
        outcome = yield
        outcome.get_result().duration_of = call.duration

def pytest_configure(config):
    config.pluginmanager.register(Extra(), "extra")

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    """As a plug-in that runs failed tests again does."""
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    seen.extend(runtestprotocol(item, nextitem=nextitem))
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True

def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.name)
'''


@pytest.mark.parametrize("conftest", ["", CONFTEST], ids=["plain", "conftest"])
def test_code_that_looks_inside_python_raises_no_alarm(tmp_path: Path, conftest: str) -> None:
    project = Project(tmp_path / "project")
    project.write("test_solution.py", TESTS)
    project.write("plugin.py", "VALUE = 1\n")
    project.write("conftest.py", conftest)
    result = project.verify(ANSWER, output_file="solution.py")
    assert [error.message for error in result.errors] == []
    assert result.status is VerificationStatus.PASS
    assert result.in_process


def test_skips_of_the_suite_stay_skips(tmp_path: Path) -> None:
    project = Project(tmp_path / "project")
    project.write("needs.py", "import pytest\ndef need(x):\n    if not x: pytest.skip('lacking')\n")
    project.write(
        "test_it.py",
        """
        import asyncio, functools, unittest
        import pytest
        from it import decorated, answer
        from needs import need

        def test_passes(): assert answer() == 1
        def test_skip(): pytest.skip("no")
        def test_helper(): need(answer() == 2)
        def test_import(): pytest.importorskip("not_there")
        def test_raised(): raise unittest.SkipTest("no")
        def test_async(): asyncio.run(later())
        async def later(): pytest.skip("no")
        @unittest.skip("no")
        def test_mark(): pass
        @decorated
        def test_decorated(): assert answer() == 1
        @pytest.fixture
        def absent(): pytest.skip("no")
        def test_fixture(absent): pass
        class TestIt(unittest.TestCase):
            def test_skip(self): self.skipTest("no")
            @unittest.skip("no")
            def test_mark(self): pass
            @unittest.expectedFailure
            def test_expected(self): self.assertEqual(answer(), 2)
        @unittest.skip("no")
        class TestClass(unittest.TestCase):
            def test(self): pass
        """,
    )
    answer = """
        import functools
        def answer(): return 1
        def decorated(function):
            @functools.wraps(function)
            def run(*args): return function(*args)
            return run
        """
    result = project.verify(answer, output_file="it.py")
    assert [error.message for error in result.errors] == []
    assert (result.evidence["passed"], result.evidence["collected"]) == (3, 3)


@pytest.mark.parametrize(
    "skips",
    [
        "import pytest\npytest.importorskip('not_there')",
        "import pytest\npytest.skip('no', allow_module_level=True)",
        "import unittest\nraise unittest.SkipTest('no')",
    ],
)
def test_a_file_that_skips_itself_is_no_forgery(tmp_path: Path, skips: str) -> None:
    project = Project(tmp_path / "project")
    project.write("test_it.py", "from it import x\ndef test_x(): assert x == 1")
    project.write("test_other.py", f"{skips}\ndef test_y(): pass")
    result = project.verify("x = 1", output_file="it.py")
    assert (result.status, result.errors) == (VerificationStatus.PASS, ())


def test_built_in_functions_that_tests_patch_together(tmp_path: Path) -> None:
    project = Project(tmp_path / "project")
    project.write(
        "test_it.py",
        """
        import pytest
        from unittest import mock
        from it import ask
        @pytest.fixture
        def typed():
            with mock.patch.multiple("builtins", input=lambda *_: "7"): yield
        def test_ask(typed): assert ask() == "7"
        """,
    )
    result = project.verify("def ask(): return input()", output_file="it.py")
    assert (result.status, result.errors) == (VerificationStatus.PASS, ())
