"""Reading older versions of loop files and spec files.

Version 0 has no number: a `loop_config` that names a `test_state_file`, and that file with its
`tests`. Both are read with whatever such files plausibly contain; what they do not say (how an
item is verified) is a problem of the migrated document, not of the migration.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from mulligan.console.loopfiles.references import escape
from mulligan.policies.loops.spec import DoneState
from mulligan.policies.problem import Problem

Raw = dict[str, Any]
#: The version that this release writes.
CURRENT = 1

_STATES: dict[str, DoneState] = {
    **dict.fromkeys(("passed", "pass", "passing", "success", "done", "complete", "completed"),
                    "passed"),
    **dict.fromkeys(("skipped", "skip"), "skipped"),
}  # fmt: skip
#: The names under which version 0 has what an item of version 1 has, the best first.
_ITEM_FIELDS: dict[str, tuple[str, ...]] = {
    "title": ("title", "name"),
    "prompt": ("prompt", "description", "requirement", "title", "name"),
    "depends_on": ("depends_on", "dependencies", "requires"),
    "pass_criteria": ("pass_criteria", "acceptance_criteria", "criteria"),
    "touches": ("touches", "files"),
    "priority": ("priority",),
    "verifiers": ("verifiers",),
}
_LISTS = ("depends_on", "pass_criteria", "touches")
_CAPITAL = re.compile(r"(?<=[a-z0-9])([A-Z])")


@dataclass(frozen=True)
class Migration:
    """How documents of one version become those of the next."""

    loop: Callable[[Raw], Raw]
    spec: Callable[[Raw], Raw]


def loop_from_config(raw: Raw) -> Raw:
    """Return the loop of version 1 that a `loop_config` describes."""
    old = old_config(raw)
    names = {"name": "name", "model": "runner", "max_attempts": "max_attempts",
             "priority": "priority", "auto_heal": "auto_heal"}  # fmt: skip
    loop = {new: escaped(old[name]) for name, new in names.items() if old.get(name) is not None}
    state_file = old.get("test_state_file")
    if isinstance(state_file, str):
        loop["specs"] = [escaped(state_file)]
    return {"version": 1, **loop}


def old_config(raw: Raw) -> Raw:
    """Return a `loop_config` that may be the only field of its file."""
    inside = raw.get("loop_config")
    return inside if isinstance(inside, dict) else raw


def spec_from_tests(raw: Raw) -> Raw:
    """Return the items of version 1 that a `test-state.json` describes."""
    items: list[Raw] = []
    states: Raw = {}
    for name, test in _tests(raw.get("tests")):
        old = _snake_case(test) if isinstance(test, Mapping) else {"title": test}
        item_id = old.get("id") or old.get("test_id") or name
        item = {"id": escaped(item_id)} if item_id is not None else {}
        items.append({**item, **_item_fields(old)})
        state = _STATES.get(str(old.get("status") or old.get("state")).lower())
        if state is None and old.get("passed") is True:
            state = "passed"
        if state is not None and item_id is not None:
            states[str(item_id)] = state
    return {"version": 1, "items": items, **({"states": states} if states else {})}


def _tests(tests: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(tests, Mapping):
        return tests.items()
    return ((None, each) for each in tests) if isinstance(tests, list) else ()


def _item_fields(old: Raw) -> Raw:
    found: Raw = {}
    for name, sources in _ITEM_FIELDS.items():
        value = next((old[each] for each in sources if old.get(each) not in (None, "", [])), None)
        if value is not None:
            value = [value] if name in _LISTS and isinstance(value, str) else value
            found[name] = escaped(value)
    return found


def _snake_case(test: Mapping[str, Any]) -> Raw:
    """Return a test with `dependsOn` as `depends_on`."""
    return {_CAPITAL.sub(r"_\1", str(name)).lower(): value for name, value in test.items()}


def escaped(value: Any) -> Any:
    """Return data whose texts have no references, such as those of version 0."""
    if isinstance(value, str):
        return escape(value)
    if isinstance(value, dict):
        return {name: escaped(each) for name, each in value.items()}
    return [escaped(each) for each in value] if isinstance(value, list) else value


#: By the version that they read.
MIGRATIONS: dict[int, Migration] = {0: Migration(loop=loop_from_config, spec=spec_from_tests)}


def migrate(raw: Raw, kind: Literal["loop", "spec"]) -> tuple[Raw, list[Problem]]:
    """Return a document of the current version, or the problem of its version."""
    version = raw.get("version", _unnumbered(raw))
    if type(version) is not int:
        return raw, []  # the model says what is wrong
    if version > CURRENT:
        message = f"version {version} is newer than this release reads (up to {CURRENT})"
        return raw, [Problem.at("version", message)]
    if version < min(MIGRATIONS):
        return raw, [Problem.at("version", f"there is no version {version}: use {CURRENT}")]
    for number in range(version, CURRENT):
        raw = getattr(MIGRATIONS[number], kind)(raw)
    return raw, []


def _unnumbered(raw: Raw) -> int:
    old = raw.keys() & {"loop_config", "specs_dir", "test_state_file", "tests"}
    return 0 if old and "items" not in raw else CURRENT
