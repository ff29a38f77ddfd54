"""edit_python replaces one definition; run_formatter applies the changes of a formatter."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.edit_changes import an_edit, changes_of, text_after, validation_errors
from support.file_trees import write_files

from mulligan.tasks.ports.appliers import EditRefused

SOURCE = '''\
"""Doc."""
import os


# about f
@cached
def f(x):
    """Say
      it."""
    return x  # one
    # f's tail

# about A
class A(Base):
    size = 1

    # about m
    async def m(self):
        return 2
    # A's own

    class Inner:
        def m(self): return 3

    @property
    def p(self):
        return 1

    @p.setter
    def p(self, value):
        pass

if os.name == "nt":
    def g(): return 1
else:
    def g(): return 2
try:
    def only(): return 1
finally:
    pass
# end'''


def python(symbol: str, code: str) -> Any:
    return an_edit("edit_python", "app.py", symbol=symbol, code=code)


REPLACEMENTS = [
    # symbol, code, old text, new text
    # decorators and comments stay if the code has none; the tail is part of the definition
    (
        "f",
        "def f(x, y):\n    return y\n",
        'def f(x):\n    """Say\n      it."""\n    return x  # one\n    # f\'s tail\n',
        "def f(x, y):\n    return y\n",
    ),
    (
        "f",
        "# new\n@other(1)\ndef f(x):\n  return y",
        '# about f\n@cached\ndef f(x):\n    """Say\n      it."""\n    return x  # one\n'
        "    # f's tail\n",
        "# new\n@other(1)\ndef f(x):\n    return y\n",
    ),
    (
        "A.m",
        'def m(self):\n\tif self:\n\t\treturn """a\n b"""\n',
        "    async def m(self):\n        return 2\n",
        '    def m(self):\n        if self:\n            return """a\n b"""\n',
    ),
    (
        "A.m",
        "    async def m(self):\n        return 5\n",
        "    async def m(self):\n        return 2\n",
        "    async def m(self):\n        return 5\n",
    ),
    ("A.Inner.m", "def m(self): return 4", "def m(self): return 3", "def m(self): return 4"),
    (
        "A.Inner",
        "class Inner(Base):\n    x = (1,\n         2)\n",
        "    class Inner:\n        def m(self): return 3\n",
        "    class Inner(Base):\n        x = (1,\n             2)\n",
    ),
    ("only", "def only(): return 2", "def only(): return 1", "def only(): return 2"),
]


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize(("symbol", "code", "old", "new"), REPLACEMENTS)
def test_everything_else_keeps_its_bytes(
    tmp_path: Path, symbol: str, code: str, old: str, new: str, ending: str
) -> None:
    assert SOURCE.count(old) == 1
    root = write_files(tmp_path, {"app.py": SOURCE.replace("\n", ending)})
    after = text_after(root, python(symbol, code))
    if '"""a\n b"""' in code:  # strings keep their line endings
        after = after.replace("a\n b", f"a{ending} b")
    assert after == SOURCE.replace(old, new).replace("\n", ending)


def test_the_same_definition_is_a_no_op(tmp_path: Path) -> None:
    root = write_files(tmp_path, {"app.py": SOURCE})
    assert changes_of(root, python("A.Inner.m", "def m(self): return 3")) == []


@pytest.mark.parametrize(
    ("symbol", "code", "message"),
    [
        ("ff", "def ff(): pass", r"does not define 'ff'; did you mean .*'f'"),
        ("A.n", "def n(self): pass", "does not define 'A.n'"),
        ("m", "def m(self): pass", r"did you mean .*'A.m'"),
        ("g", "def g(): pass", "defined more than once, in lines 34, 36"),
        ("A.p", "def p(self): pass", "defined more than once, in lines 26, 30"),
        ("f", "def h(): pass", "defines h, not f"),
        ("f", "def f(): pass\nf()", r"define f and nothing else, but has f, f\(\)"),
        ("f", "import os\ndef f(): pass", "but has import os, f"),
        ("f", "x = 1", "nothing else"),
        ("f", "def f(:\n    pass", "is not Python: line 1"),
        ("f", "def f():\n    return await x", "would not compile with this definition"),
        ("f", "def f():\n    break", "would not compile with this definition: line .*'break'"),
    ],
)
def test_refusals_explain_the_problem(tmp_path: Path, symbol: str, code: str, message: str) -> None:
    root = write_files(tmp_path, {"app.py": SOURCE})
    with pytest.raises(EditRefused, match=message):
        changes_of(root, python(symbol, code))


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("app.py", b"def f(:\n", "app.py: is not Python: line"),
        ("app.py", b"\x0cdef f(): pass\n", "form feeds"),
        ("ap.py", b"def f(): pass\n", "app.py: does not exist .did you mean ap.py"),
    ],
)
def test_invalid_files_are_refused(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    root = write_files(tmp_path, {name: data})
    with pytest.raises(EditRefused, match=message):
        changes_of(root, python("f", "def f(): pass"))


def test_the_encoding_of_a_file_stays(tmp_path: Path) -> None:
    text = "# coding: latin-1\nname = 'é'\ndef f(): return 1\n"
    root = write_files(tmp_path, {"app.py": text.encode("latin-1")})
    (change,) = changes_of(root, python("f", "def f(): return 'ü'"))
    assert change.after == text.replace("1\n", "'ü'\n").replace("latin-'ü'", "latin-1").encode(
        "latin-1"
    )


def test_every_mistake_is_reported_at_once(tmp_path: Path) -> None:
    edit = an_edit("edit_python", "../app.py", symbol="f", code="x = 1", decorator="keep")
    errors = validation_errors(tmp_path, edit)
    assert len(errors) == 3
    assert any("out of the root" in line for line in errors)
    assert any("define f and nothing else" in line for line in errors)
    assert any("payload.decorator: there is no such field" in line for line in errors)


bodies = st.lists(st.sampled_from(["x = 1", "# c", "", "if x:\n        pass", '"""t\n"""']))


@settings(max_examples=40, deadline=None)
@given(st.lists(bodies, min_size=1, max_size=4), st.data())
def test_other_definitions_never_change(
    tmp_path_factory: pytest.TempPathFactory, all_bodies: list[list[str]], data: st.DataObject
) -> None:
    parts = [
        f"# about f{n}\ndef f{n}():\n"
        + "".join(f"    {line}\n" for line in body)
        + "    return 1\n"
        for n, body in enumerate(all_bodies)
    ]
    chosen = data.draw(st.integers(0, len(parts) - 1))
    root = write_files(tmp_path_factory.mktemp("tree"), {"app.py": "\n\n".join(parts)})
    after = text_after(root, python(f"f{chosen}", f"def f{chosen}(): return 2"))
    parts[chosen] = f"# about f{chosen}\ndef f{chosen}(): return 2\n"
    assert after == "\n\n".join(parts)


# Formatters


def formatter(tmp_path: Path, body: str) -> tuple[str, ...]:
    script = tmp_path / "shout.py"
    script.write_text("import sys, pathlib\npath = pathlib.Path(sys.argv[-1])\n" + body)
    return (sys.executable, str(script))


def test_ruff_uses_the_configuration_of_the_project(tmp_path: Path) -> None:
    root = write_files(tmp_path, {
        "pyproject.toml": "[tool.ruff.format]\nquote-style = 'single'\n",
        "src/a.py": 'x = {"a":1}\n',
        "src/b.py": "y=1\n",
    })  # fmt: skip
    assert text_after(root, an_edit("run_formatter", "src/a.py")) == "x = {'a': 1}\n"
    both = changes_of(root, an_edit("run_formatter", "src", name="ruff"))
    assert [change.path for change in both] == ["src/a.py", "src/b.py"]
    write_files(tmp_path, {change.path: change.after or b"" for change in both})
    assert changes_of(root, an_edit("run_formatter", "src")) == []


def test_only_changed_files_are_applied(tmp_path: Path) -> None:
    root = write_files(
        tmp_path / "root", {"d/a.txt": "a", "d/b.txt": "B", "d/.git/c": "c", "e": "e"}
    )
    (root / "d/link").symlink_to("a.txt")
    argv = formatter(tmp_path, (
        "for p in sorted(path.rglob('*.txt')): p.write_text(p.read_text().upper())\n"
        "(path / 'cache').write_text('x')\n"
    ))  # fmt: skip
    edit = an_edit("run_formatter", "d")
    (change,) = changes_of(root, edit, formatters={"shout": argv})
    assert (change.path, change.before, change.after) == ("d/a.txt", b"a", b"A")
    (root / "linked").symlink_to("d")
    with pytest.raises(EditRefused, match="symbolic link"):
        changes_of(root, an_edit("run_formatter", "linked"), formatters={"shout": argv})


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("sys.exit('a.txt: line 3 is odd')", "shout failed .exit code 1.: a.txt: line 3 is odd"),
        ("path.write_text('x'); sys.exit(2)", "exit code 2"),
        ("path.unlink()", "deleted it"),
        ("path.unlink(); path.symlink_to('/etc/passwd')", "symbolic link"),
    ],
)
def test_a_failed_formatter_is_refused_with_its_message(
    tmp_path: Path, body: str, message: str
) -> None:
    root = write_files(tmp_path / "root", {"a.txt": "a"})
    argv = formatter(tmp_path, body)
    with pytest.raises(EditRefused, match=message):
        changes_of(root, an_edit("run_formatter", "a.txt"), formatters={"shout": argv})


def test_an_edit_names_a_formatter_and_never_a_command(tmp_path: Path) -> None:
    root = write_files(tmp_path, {"a.txt": "a"})
    known = {"black": ("black",), "shout": ("shout",)}
    (reason,) = validation_errors(
        root, an_edit("run_formatter", "a.txt", name="shuot"), formatters=known
    )
    assert "there is no formatter 'shuot'; did you mean 'shout'" in reason
    (reason,) = validation_errors(
        root, an_edit("run_formatter", "a.txt", argv=["rm"]), formatters=known
    )
    assert "payload.argv: there is no such field" in reason
    with pytest.raises(EditRefused, match="cannot be started"):
        changes_of(root, an_edit("run_formatter", "a.txt", name="shout"), formatters=known)
    with pytest.raises(EditRefused, match=r"b.txt: does not exist .did you mean a.txt"):
        changes_of(root, an_edit("run_formatter", "b.txt"))
