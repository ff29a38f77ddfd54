"""Structured files: one value changes, every other byte stays."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mulligan.tasks.ports.appliers import EditRefused
from mulligan.workers.edits.formats.json_file import JsonFile, JsonLinesFile
from mulligan.workers.edits.formats.structured_file import StructuredFile, UnreadableFile, same
from mulligan.workers.edits.formats.toml_file import TomlFile
from mulligan.workers.edits.formats.yaml_file import YamlFile

FORMATS: dict[str, type[StructuredFile]] = {
    "toml": TomlFile,
    "yaml": YamlFile,
    "json": JsonFile,
    "jsonl": JsonLinesFile,
}


def read(kind: str, text: str) -> StructuredFile:
    return FORMATS[kind].read(f"file.{kind}", text.encode())


SETTINGS = [
    # the file with the changing part between «»; the path; the value; the new text
    ("toml", "# top\n[a]  # c\nx = «0.7»   # keep\ny=1\n", ("a", "x"), 0.2, "0.2"),
    ("toml", '[a]\r\nx = «"b"» # c\r\nz = """p\r\nq"""\r\n', ("a", "x"), 'q"\\', r'"q\"\\"'),
    ("toml", "[a]\nx = «'b'»\n", ("a", "x"), r"C:\dir", r"'C:\dir'"),
    ("toml", "[a]\nx = «'b'»\n", ("a", "x"), "it's", '"it\'s"'),
    ("toml", 'a.x = «"""\nold\n"""» # c\n', ("a", "x"), "new\n", '"""\nnew\n"""'),
    ("toml", 'a.x = «"one"»\n', ("a", "x"), 'two\n"""\n"', '"""\ntwo\n""\\"\n\\""""'),
    ("toml", "[m]\na . x   =   «1»\n", ("m", "a", "x"), 2, "2"),
    ("toml", "m = { a = «1», b = 2 } # c\n", ("m", "a"), 3, "3"),
    ("toml", "[m.a]\nx=1\n[n]\n[m.b]\nx=«1»", ("m", "b", "x"), True, "true"),
    ("toml", '["m.n"."o p"]\nx = «1»\n', ("m.n", "o p", "x"), 1e-7, "1.0e-07"),
    ("yaml", "# top\na:\n    x: «0.7»   # keep\n    'y':   1\n", ("a", "x"), 0.2, "0.2"),
    ("yaml", 'a: {"x": «"b"», y: [1,   2]}\n', ("a", "x"), "c, d", '"c, d"'),
    ("yaml", "a:\r\n- x: «'b'»   # c\r\n  y: 1\r\n", ("a", 0, "x"), "it's", "'it''s'"),
    ("yaml", "a: «b»\nc: d\n", ("a",), "yes", '"yes"'),
    ("yaml", "a: «b»\nc: d\n", ("a",), "1.5", '"1.5"'),
    ("yaml", "a: «b»\nc: d\n", ("a",), "x: y # z", '"x: y # z"'),
    ("yaml", "a: «|\n   old\n   text»\n\n# on c\nc: d\n", ("a",), "new\n x\n", "|\n   new\n    x"),
    ("yaml", "a: «> # c\n  old\n  text»\nc: d\n", ("a",), "new", "|- # c\n  new"),
    ("yaml", "a:«»\nc: d\n", ("a",), "b", " b"),
    ("yaml", "d: &d 1\na: «*d»\n", ("a",), 2, "2"),
    ("yaml", "a: &unused «1»\n", ("a",), 2, "2"),
    ("yaml", "l: «very long text that no line of this file needs to be broken for»\nm: " + "w " * 80
     + "\n", ("l",), "short", "short"),
    ("json", '{"a":{"x":«1»,"y":[1,2]}}', ("a", "x"), 1.5, "1.5"),
    ("json", '{\n\t"a": {\n\t\t"x" : «"b"»\n\t}\n}', ("a", "x"), 'é"\n', '"é\\"\\n"'),
    ("json", '{"a": "\\u00e9", "x": «"b"»}', ("x",), "é", '"\\u00e9"'),
    ("json", '{\r\n  "a": «[\r\n    "x"\r\n  ]»\r\n}\r\n', ("a",), ["y", "z"],
     '[\r\n    "y",\r\n    "z"\r\n  ]'),
    ("jsonl", '{"q": 1}\n\n«{"q": 2}»\n', (1,), {"q": 3}, '{"q": 3}'),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "text", "where", "value", "new"), SETTINGS)
def test_only_the_value_changes(
    kind: str, text: str, where: tuple[str | int, ...], value: Any, new: str
) -> None:
    before, rest = text.split("«")
    after = rest.partition("»")[2]
    document = read(kind, text.replace("«", "").replace("»", "")).set(where, value)
    assert document.text == before + new + after
    assert same(document.at(where), value)


INSERTIONS = [
    (
        "toml",
        "[a]\nx=1 # c\n\n# about b\n[b]\n",
        ("a", "w z"),
        "v",
        '[a]\nx=1 # c\n"w z"="v"\n\n# about b\n[b]\n',
    ),
    ("toml", "[a] # c\n\n# about b\n[b]\n", ("a", "w"), 1, "[a] # c\nw = 1\n\n# about b\n[b]\n"),
    ("toml", "[a.b]\nx=1\n", ("a", "w"), 1, "[a]\nw = 1\n\n[a.b]\nx=1\n"),
    ("toml", "a.x = 1\r\n[b]\r\n", ("a", "w"), 2, "a.x = 1\r\na.w = 2\r\n[b]\r\n"),
    ("toml", "a = {x=1}\n", ("a", "w"), [True], "a = {x=1, w = [true]}\n"),
    ("toml", "[a]\nx = 1", ("a", "w"), 2, "[a]\nx = 1\nw = 2"),
    (
        "yaml",
        "a:\n  x: 1 # c\n\n# about b\nb: 2\n",
        ("a", "w"),
        "v",
        "a:\n  x: 1 # c\n  w: v\n\n# about b\nb: 2\n",
    ),
    (
        "yaml",
        "a:\n  x: |\n    t\nb: 2\n",
        ("a", "w"),
        "m\nn\n",
        "a:\n  w: |\n    m\n    n\n  x: |\n    t\nb: 2\n",
    ),
    (
        "yaml",
        "d: &d {x: 1}\na:\n  <<: *d\n",
        ("a", "w"),
        2,
        "d: &d {x: 1}\na:\n  <<: *d\n  w: 2\n",
    ),
    ("yaml", 'a: {"x": 1}\n', ("a", "w"), "v", 'a: {"x": 1, "w": "v"}\n'),
    ("yaml", "a: {x: 1}\n", ("a", "y"), "on", 'a: {x: 1, "y": "on"}\n'),  # both are YAML 1.1's true
    ("json", '{"a":{"x":1}}', ("a", "w"), "v", '{"a":{"x":1,"w":"v"}}'),
    (
        "json",
        '{\n  "a": {\n    "x" : 1\n  }\n}\n',
        ("a", "w"),
        2,
        '{\n  "a": {\n    "x" : 1,\n    "w" : 2\n  }\n}\n',
    ),
    ("json", '{"a": {}}', ("a", "w"), 2, '{"a": {"w": 2}}'),
]


@pytest.mark.parametrize(("kind", "text", "where", "value", "after"), INSERTIONS)
def test_a_new_key_is_written_beside_its_siblings(
    kind: str, text: str, where: tuple[str | int, ...], value: Any, after: str
) -> None:
    assert read(kind, text).insert(where, value).text == after


LISTS = [
    # a list; with one more item; without its first; without its last
    ("toml", "a = []\n", "a = ['n']\n", None, None),
    ("toml", "a = [\n  # none yet\n]\n", "a = [\n  # none yet\n  'n'\n]\n", None, None),
    ("toml", "a = ['x']\n", "a = ['x', 'n']\n", "a = []\n", "a = []\n"),
    ("toml", "a = [ 'x', ]\n", "a = [ 'x', 'n', ]\n", "a = []\n", "a = []\n"),
    ("toml", "a = ['x','y',]\n", "a = ['x','y','n',]\n", "a = ['y',]\n", "a = ['x',]\n"),
    (
        "toml",
        "a = [\n  'x', # one\n  # two\n  'y', # 2, really\n] # end\n",
        "a = [\n  'x', # one\n  # two\n  'y', # 2, really\n  'n',\n] # end\n",
        "a = [\n  # two\n  'y', # 2, really\n] # end\n",
        "a = [\n  'x', # one\n  # two\n] # end\n",
    ),
    (
        "toml",
        "a = [\r\n\t'x', # one\r\n\t'y' # two\r\n]\r\n",
        "a = [\r\n\t'x', # one\r\n\t'y', # two\r\n\t'n'\r\n]\r\n",
        "a = [\r\n\t'y' # two\r\n]\r\n",
        "a = [\r\n\t'x' # one\r\n]\r\n",
    ),
    (
        "toml",
        "a = ['x', # one\n 'y']\n",
        "a = ['x', # one\n 'y',\n 'n']\n",
        "a = ['y']\n",
        "a = ['x' # one\n]\n",
    ),
    ("yaml", "a: []\nb: 1\n", "a: [new]\nb: 1\n", None, None),
    ("yaml", "a: [x, 'y'] # c\n", "a: [x, 'y', 'new'] # c\n", "a: ['y'] # c\n", "a: [x] # c\n"),
    (
        "yaml",
        "a:\n- x # one\n# two\n- y\n\n# about b\nb: 1\n",
        "a:\n- x # one\n# two\n- y\n- new\n\n# about b\nb: 1\n",
        "a:\n# two\n- y\n\n# about b\nb: 1\n",
        "a:\n- x # one\n# two\n\n# about b\nb: 1\n",
    ),
    (
        "yaml",
        "a:\r\n  -   x # c\r\nb: 1\r\n",
        "a:\r\n  -   x # c\r\n  -   new\r\nb: 1\r\n",
        "a: [] # c\r\nb: 1\r\n",
        "a: [] # c\r\nb: 1\r\n",
    ),
    ("json", '{"a":["x","y"]}', '{"a":["x","y","new"]}', '{"a":["y"]}', '{"a":["x"]}'),
    ("json", '{"a": ["x"]}', '{"a": ["x", "new"]}', '{"a": []}', '{"a": []}'),
    (
        "json",
        '{\n  "a": [\n    "x",\n    "y"\n  ]\n}',
        '{\n  "a": [\n    "x",\n    "y",\n    "new"\n  ]\n}',
        '{\n  "a": [\n    "y"\n  ]\n}',
        '{\n  "a": [\n    "x"\n  ]\n}',
    ),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "text", "longer", "without_first", "without_last"), LISTS)
def test_items_are_added_and_removed_with_comma_line_and_comment(
    kind: str, text: str, longer: str, without_first: str | None, without_last: str | None
) -> None:
    document = read(kind, text)
    new = "n" if kind == "toml" else "new"
    appended = document.append(("a",), new).text
    assert appended.replace('"n"', "'n'") == longer
    if without_first is not None:
        assert document.remove(("a",), 0).text == without_first
        assert document.remove(("a",), len(document.at(("a",))) - 1).text == without_last


TABLES = '[[e]]\nq = "1"\n\n[[e]]\nq = "2"\n# about p\n[p]\nx = 1\n'


def test_an_array_of_tables_grows_and_shrinks_by_whole_tables() -> None:
    document = read("toml", TABLES)
    third = '\n[[e]]\nq = "3"\n'
    assert document.append(("e",), {"q": "3"}).text == TABLES.replace("# about", third + "# about")
    assert document.remove(("e",), 0).text == TABLES.removeprefix('[[e]]\nq = "1"\n\n')
    assert document.set(("e", 0), {"r": 1}).text == TABLES.replace('q = "1"', "r = 1")
    assert document.remove(("e",), 1).text == TABLES.replace('[[e]]\nq = "2"\n', "")


@pytest.mark.parametrize(
    ("text", "after"),
    [
        (
            "e:\n  - q: a\n    r: b\n",
            "e:\n  - q: a\n    r: b\n  - q: c\n    r: |-\n      d\n      e\n",
        ),
        ("e: [{q: a}]\n", 'e: [{q: a}, {q: c, r: "d\\ne"}]\n'),
    ],
)  # fmt: skip
def test_a_table_in_a_yaml_list_is_written_like_its_neighbour(text: str, after: str) -> None:
    assert read("yaml", text).append(("e",), {"q": "c", "r": "d\ne"}).text == after


def test_changing_a_shared_anchor_is_refused() -> None:
    with pytest.raises(EditRefused, match="shared anchor"):
        read("yaml", "a: &x 1\nb: *x\n").set(("a",), 2)


def test_aliases_that_unfold_exponentially_are_refused() -> None:
    lines = ["a0: &a0 [x, x]"]
    lines += [f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 40)]
    with pytest.raises(EditRefused, match="expand"):
        read("yaml", "\n".join([*lines, "z: 1\n"])).set(("z",), 2)


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("toml", "a = 1\na = 2\n", "TOML"),
        ("toml", "a = b\n", "TOML"),
        ("yaml", "a: 1\na: 2\n", "YAML"),
        ("yaml", "a: 1\n---\nb: 2\n", "one document"),
        ("yaml", "a: !!python/object:os.system 1\n", "YAML"),
        ("json", '{"a": 1, "a": 2}', "'a' twice"),
        ("json", "{'a': 1}", "JSON"),
        ("jsonl", '{"a": 1}\n{\n', "line 2"),
    ],
)
def test_an_unreadable_file_is_refused_with_the_reason(kind: str, text: str, message: str) -> None:
    with pytest.raises(UnreadableFile, match=message):
        read(kind, text)


def test_a_byte_order_mark_stays() -> None:
    data = "\ufeffa = 1\n".encode()
    document = TomlFile.read("a.toml", data)
    assert document.bytes() == data
    assert document.set(("a",), 2).bytes() == "\ufeffa = 2\n".encode()


# For any value and any file, the rest keeps its bytes and the value is read back with its type.

keys = st.text("abyn.é \"'#:=", min_size=1, max_size=6)
texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=30)
numbers = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
scalars = numbers | st.booleans() | texts
values = scalars | st.lists(scalars, max_size=3)
tables = st.dictionaries(keys, scalars, min_size=1, max_size=4)


def toml_text(table: dict[str, Any]) -> str:
    lines = [f"{json.dumps(key)} = {toml_value(value)} # c" for key, value in table.items()]
    return "# top\n[ t ] # t\n" + "\n".join(lines) + "\n\n# about u\n[u]\nlast = [1, 2] # end"


def toml_value(value: Any) -> str:
    if isinstance(value, str):
        return json.dumps(value).replace("\x7f", "\\u007f")
    return ("true" if value else "false") if isinstance(value, bool) else repr(value)


def readable(text: str) -> bool:
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return False
    return True


@settings(max_examples=40, deadline=None)
@given(tables, values, st.data())
def test_toml_keeps_every_other_byte(
    table: dict[str, Any], value: Any, data: st.DataObject
) -> None:
    # JSON's escapes of characters beyond U+FFFF are not valid in TOML.
    text = toml_text(
        {key: v for key, v in table.items() if readable(toml_text({key: v}))} or {"k": 1}
    )
    check(read("toml", text), value, data)


@settings(max_examples=40, deadline=None)
@given(tables, values, st.data())
def test_yaml_keeps_every_other_byte(
    table: dict[str, Any], value: Any, data: st.DataObject
) -> None:
    lines = [f"  {json.dumps(key)}: {json.dumps(v)} # c" for key, v in table.items()]
    text = "# top\nt:\n" + "\n".join(lines) + "\n\n# about u\nu:\n- [1,   2]\n"
    check(read("yaml", text), value, data)


@settings(max_examples=40, deadline=None)
@given(tables, values, st.data(), st.sampled_from([None, 1, "\t"]))
def test_json_keeps_every_other_byte(
    table: dict[str, Any], value: Any, data: st.DataObject, indent: Any
) -> None:
    text = json.dumps({"t": table, "u": [1, 2]}, indent=indent)
    check(read("json", text), value, data)


def check(document: StructuredFile, value: Any, data: st.DataObject) -> None:
    table = document.data["t"]
    key = data.draw(st.sampled_from(sorted(table)))
    changed = document.set(("t", key), value)
    assert same(changed.data, {**document.data, "t": {**table, key: value}})
    # The bytes around the value are the same as before.
    marked = changed.set(("t", key), "mark")
    before, mark, after = marked.text.partition("mark")
    assert mark
    assert document.text.startswith(before.rstrip("\"'|->\n "))
    assert document.text.endswith(after.lstrip("\"'"))
