"""The names that packages export, where a reader of the handbook expects them."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

PACKAGES = ("mulligan", "mulligan.policies", "mulligan.workers")
#: The names of the seeds, by the package in which a reader looks for them.
SEEDS = {
    "mulligan.policies": (
        "classify_failure VerificationResult ParseFailure SchemaFailure ConfigFailure FailureRecord"
        " FailureKind RetryMemory RetryPolicy reduce_failure_to_repair RepairInstruction"
        " failure_record_to_dict repair_instruction_to_dict SelfRepairCycle PROTOCOL_VERSION"
        " Edit EditPlan EditOp EditOutcome EditRiskTier AutonomyMode"
    ),
    "mulligan.workers": "execute_edits EditApplierRegistry ApplyContext",
}


@pytest.mark.parametrize("package", PACKAGES)
def test_type_checkers_and_the_interpreter_see_the_same_names(package: str) -> None:
    module = import_module(package)
    tree = ast.parse(Path(str(module.__file__)).read_text())
    imports = [
        (str(node.module), alias.name)
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]
    assert sorted(name for _, name in imports) == sorted(module.__all__)
    for home, name in imports:
        assert getattr(module, name) is getattr(import_module(home), name)


@pytest.mark.parametrize("package", PACKAGES)
def test_an_unknown_name_is_an_attribute_error(package: str) -> None:
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'Klient'"):
        getattr(import_module(package), "Klient")  # noqa: B009 - a type checker would refuse it


@pytest.mark.parametrize("package", SEEDS)
def test_the_seeds_names_are_exported(package: str) -> None:
    assert set(SEEDS[package].split()) <= set(import_module(package).__all__)


def test_importing_the_packages_loads_none_of_their_modules() -> None:
    code = (
        "import sys, mulligan, mulligan.policies, mulligan.workers;"
        "print(*sorted(name for name in sys.modules if name.startswith('mulligan')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [*PACKAGES[:1], "mulligan.lazy_exports", *PACKAGES[1:]]
