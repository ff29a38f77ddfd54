"""The plans of examples/edits, run by the command on a copy of each tree."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.file_trees import snapshot

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "edits"


class Copy:
    """A copy of the examples with a separate home."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(shutil.copytree(EXAMPLES, folder / "edits"))
        hidden = ("MULLIGAN_", "PYTHONPATH")
        visible = {k: v for k, v in os.environ.items() if not k.startswith(hidden)}
        self._environment = {
            **visible,
            "MULLIGAN_HOME": str(folder / "home"),
            "MULLIGAN_NO_MODELS": "except:command",
        }

    def tree(self, name: str) -> Path:
        return self.folder / name / "tree"

    def mulligan(self, *argv: str, code: int = 0) -> dict[str, Any]:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "mulligan.console", "edits", *argv, "--json"],
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == code, f"{argv}:\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def run(self, name: str, mode: str, code: int) -> dict[str, Any]:
        argv = ("run", f"{name}/plan.yaml", "--root", f"{name}/tree", "--mode", mode)
        return self.mulligan(*argv, code=code)


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    return Copy(tmp_path)


def states(found: dict[str, Any]) -> dict[str, str]:
    return {each["edit_id"]: f"{each['status']} {each['reason']}" for each in found["outcomes"]}


def effect(found: dict[str, Any], edit: str) -> dict[str, float]:
    (one,) = [each for each in found["outcomes"] if each["edit_id"] == edit]
    deltas: dict[str, float] = one["cluster_deltas"]
    return {name: delta for name, delta in deltas.items() if delta}


def test_the_configuration_example_works(copy: Copy) -> None:
    untouched = snapshot(copy.tree("config"))
    found = copy.run("config", "tiered", code=1)
    assert states(found) == {
        "m1": "applied kept",
        "m2": "rejected_by_gate regression",
        "m3": "applied kept",
        "m4": "skipped no_op",
        "m5": "pending_review review_tier",
        "m6": "skipped manual_tier",
    }
    assert effect(found, "m1") == {"extraction": 0.35}
    assert effect(found, "m2") == {"cost": 0.4, "reasoning": -0.4}
    # Rejected edits left no trace; kept ones preserved comments and order.
    before = (EXAMPLES / "config" / "tree" / "agents.toml").read_text()
    expected = before.replace("temperature = 0.9 ", "temperature = 0.2 ", 1)
    expected = expected.replace('["search"]', '["search", "calculator"]')
    assert (copy.tree("config") / "agents.toml").read_text() == expected
    assert states(copy.mulligan("rollback", found["session"]))["m1"] == "rolled_back rolled_back"
    assert snapshot(copy.tree("config")) == untouched


def test_the_code_example_works_with_pytest_as_its_suite(copy: Copy) -> None:
    untouched = snapshot(copy.tree("code"))
    found = copy.run("code", "tiered", code=1)
    assert states(found) == {
        "c1": "applied kept",
        "c2": "rejected_by_gate regression",
        "c3": "rejected_by_gate apply_error",
        "c4": "pending_review review_tier",
    }
    assert effect(found, "c1") == {"slugs": 1.0}
    (missed,) = [each["error"] for each in found["outcomes"] if each["edit_id"] == "c3"]
    assert "Nearest lines: 9" in missed
    # Only the fixed file has changed.
    now = snapshot(copy.tree("code"))
    assert {name for name in untouched if now.get(name) != untouched[name]} == {"slug.py"}
    assert now.keys() == untouched.keys()


def test_the_prompt_example_is_measured_by_jobs(copy: Copy) -> None:
    untouched = snapshot(copy.tree("prompt"))
    waiting = copy.run("prompt", "tiered", code=0)
    assert set(states(waiting).values()) == {"pending_review review_tier"}
    assert snapshot(copy.tree("prompt")) == untouched

    approved = copy.mulligan("review", "approve", "p1", "--note", "reads well")
    assert states(approved)["p1"] == "applied kept"
    assert effect(approved, "p1") == {"extraction": 1.0}
    prompt = copy.tree("prompt") / "prompts" / "extractor.md"
    assert "one JSON object" in prompt.read_text()
    better = snapshot(copy.tree("prompt"))

    refused = copy.mulligan("review", "approve", "p2", code=1)
    assert states(refused)["p2"] == "rejected_by_gate regression"
    assert effect(refused, "p2") == {"languages": -1.0}
    assert snapshot(copy.tree("prompt")) == better
