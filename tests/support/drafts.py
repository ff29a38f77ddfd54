"""Drafts of loops: a scripted drafter whose first answer has four defects."""

from __future__ import annotations

import json
import sys
from typing import Any

from support.coding_loop import PYTHON, agent, has_line

#: What a draft of these tests may run.
PROGRAMS = [sys.executable, "grep"]


def drafted(name: str, *depends_on: str, **fields: Any) -> dict[str, Any]:
    """Return a drafted item whose file must exist."""
    return {
        "id": name,
        "title": f"Make {name}",
        "prompt": f"Item {name}: make {name}.txt.",
        "depends_on": list(depends_on),
        "verifiers": [has_line(f"{name}.txt", "done")],
        **fields,
    }


def spec(*items: dict[str, Any]) -> str:
    return json.dumps({"items": list(items)})


def runs(code: str) -> dict[str, Any]:
    return {"id": "command.subprocess", "argv": [*PYTHON, code]}


#: A draft with a cycle, an unknown dependency, a verifier that cannot run and one that passes
#: before the work.
DEFECTIVE = spec(
    drafted("A", "B"),
    drafted("B", "A"),
    drafted("C", "Z"),
    drafted("D", verifiers=[{"id": "pytest.subprocess", "args": ["tests/nowhere.py"]}]),
    drafted("E", verifiers=[runs("pass")]),
)
GOOD = spec(drafted("A"), drafted("B", "A"), drafted("C", "B"), drafted("D"), drafted("E"))


def drafter(*answers: str) -> dict[str, Any]:
    return {"kind": "scripted", "answers": list(answers)}


def loop_config(repository: Any, *, code: str, name: str = "demo", **config: Any) -> dict[str, Any]:
    """Return the loop of a draft, without its items."""
    return {"name": name, "repo": str(repository), "base": "main", "runner": agent(code), **config}
