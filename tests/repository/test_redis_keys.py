"""Redis keys are named in one file, and only workers use Redis."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from mulligan.workers.ledger import keys

ROOT = Path(__file__).resolve().parents[2]
LUA = ROOT / "workers" / "ledger" / "lua"
KEYS = ROOT / "workers" / "ledger" / "keys.py"
#: Functions of keys.py that name a partition or types, not a key.
PARTITIONS = {
    "partition_prefix", "fleet_prefix", "partition_name", "partition_prefixes", "partition_of",
    "prefix_of", "shared_types",
}  # fmt: skip


def table() -> list[str]:
    """Return every key of the table in keys.py, without its prefix: `job:<id>`, `jobs`, …"""
    found = []
    for line in (keys.__doc__ or "").splitlines():
        if match := re.match(r"mulligan:\{\w+\}:(\S+?)(?:, (\S+))?\s", line):
            found += [name for name in match.groups() if name]
    return found


def heads() -> set[str]:
    """Return the fixed text at the beginning of each key of the table."""
    return {name.partition("<")[0] for name in table()}


def names_in(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield texts that directly follow a value: `f"{prefix}job:"`, `prefix + "jobs"`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            for before, part in zip(node.values, node.values[1:], strict=False):
                if isinstance(before, ast.FormattedValue) and isinstance(part, ast.Constant):
                    yield node.lineno, str(part.value)
        elif (
            isinstance(node, ast.BinOp)
            and isinstance(node.op, ast.Add)  # not the `/` of a path
            and isinstance(node.right, ast.Constant)
        ):
            yield node.lineno, str(node.right.value)


def keys_built_in(source: str) -> list[str]:
    """Return texts that look like a key of the table: `job:…`, or a whole name such as `outbox`."""
    known = heads()
    return [
        f"{line}: {text}"
        for line, text in names_in(ast.parse(source))
        if text in known or any(head[-1] == ":" and text.startswith(head) for head in known)
    ]


def modules(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def test_the_check_finds_keys() -> None:
    assert keys_built_in('f"{prefix}job:{job_id}"') == ["1: job:"]
    assert keys_built_in('prefix + "swept_at"') == ["1: swept_at"]
    assert keys_built_in('f"{count} jobs"') == []


@pytest.mark.parametrize("folder", ["policies", "tasks", "workers", "console"])
def test_no_other_module_builds_a_key(folder: str) -> None:
    found = {
        str(path.relative_to(ROOT)): built
        for path in modules(folder)
        if path != KEYS and (built := keys_built_in(path.read_text()))
    }
    assert found == {}


def test_every_key_is_in_the_table() -> None:
    patterns = [re.sub(r"<\w+>", "[^:]+", name) for name in table()]
    for name, function in inspect.getmembers(keys, inspect.isfunction):
        if name in PARTITIONS:
            continue
        parameters = inspect.signature(function).parameters
        key = function("", *["x"] * (len(parameters) - 1))
        assert any(re.fullmatch(pattern, key) for pattern in patterns), name


def test_every_key_in_lua_is_in_the_table() -> None:
    known = heads()
    scripts = "".join(path.read_text() for path in LUA.glob("*.lua"))
    used = set(re.findall(r"\bP \.\. '([^']+)'", scripts))
    assert len(used) > 30
    assert {name for name in used if not any(head.startswith(name) for head in known)} == set()


def test_console_and_client_never_use_the_ledgers_connection() -> None:
    """import-linter checks imports; this checks `ledger.calls`, which needs no import."""
    files = [*modules("console", "mulligan/client"), ROOT / "mulligan" / "testing.py"]
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in files
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in ("calls", "_calls")
    ]
    assert found == []
