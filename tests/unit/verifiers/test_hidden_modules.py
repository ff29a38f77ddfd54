"""New files that Python would import instead of protected ones."""

from __future__ import annotations

import pytest

from mulligan.workers.sandbox.file_tree import TreeNode
from mulligan.workers.sandbox.protection import Protection

FLAT = ("tests/helpers.py", "tests/test_a.py", "tests/data/x.json", "app.py", "conftest.py")
PACKAGE = (
    "src/shop/__init__.py", "src/shop/prices.py", "tests/__init__.py", "tests/helpers.py",
    "tests/unit/__init__.py", "tests/unit/test_a.py", "tests/api/test_b.py",
)  # fmt: skip


def reason(base: tuple[str, ...], name: str, *, is_link: bool = False) -> str:
    tree = {each: TreeNode("file", 0o644) for each in base}
    return Protection(["tests/**"]).hidden_modules(tree).reason(name, is_link=is_link)


@pytest.mark.parametrize(
    ("base", "name", "found"),
    [
        (FLAT, "tests/helpers/__init__.py", "hides tests/helpers.py, which"),
        (FLAT, "tests/helpers.so", "hides tests/helpers.py, which"),
        (FLAT, "tests/helpers.cpython-311-x86_64-linux-gnu.so", "hides tests/helpers.py, which"),
        (FLAT, "tests/test_a/__init__.py", "hides tests/test_a.py, which"),
        (FLAT, "conftest/__init__.py", "hides conftest.py, which"),
        (FLAT, "tests/__init__.py", "changes how tests/helpers.py, which is protected, is"),
        (FLAT, "tests.py", "changes how tests/helpers.py, which is protected, is"),
        (FLAT, "helpers.py", "hides tests/helpers.py, which"),
        (FLAT, "helpers/__init__.py", "hides tests/helpers.py, which"),
        (FLAT, "unittest/__init__.py", "hides Python's module unittest"),
        (FLAT, "decimal.py", "hides Python's module decimal"),
        (FLAT, "tests/decimal.py", "hides Python's module decimal"),
        (FLAT, "tests/pytest.so", "hides Python's module pytest"),
        (PACKAGE, "tests/unit.py", "hides tests/unit/__init__.py, which"),
        (PACKAGE, "tests/api/__init__.py", "changes how tests/api/test_b.py, which"),
        (PACKAGE, "tests/api/random.py", "hides Python's module random"),
        (PACKAGE, "__init__.py", "changes how tests/__init__.py, which"),
    ],
)
def test_a_file_that_hides_a_protected_one_is_found(
    base: tuple[str, ...], name: str, found: str
) -> None:
    assert f"it {found}" in reason(base, name)


@pytest.mark.parametrize(
    ("base", "name"),
    [
        (FLAT, "tests/test_b.py"),
        (FLAT, "tests/helpers/data.json"),
        (FLAT, "tests/test_a/case.yaml"),
        (FLAT, "tests/more/__init__.py"),
        (FLAT, "tests/more/test_a.py"),
        (FLAT, "tests/__pycache__/helpers.cpython-311.pyc"),
        (FLAT, "shop/__init__.py"),
        (FLAT, "shop/helpers.py"),
        (FLAT, "shop/types.py"),
        (FLAT, "app/__init__.py"),
        (FLAT, "test/__init__.py"),
        (FLAT, "json/schema.json"),
        (FLAT, "calendar.md"),
        (FLAT, "tests/helpers.pyi"),
        (FLAT, ".py"),
        (PACKAGE, "helpers.py"),
        (PACKAGE, "tests/unit/types.py"),
        (PACKAGE, "src/shop/calendar.py"),
        (PACKAGE, "src/shop/helpers.py"),
        (PACKAGE, "src/other/__init__.py"),
        (("app.py", "tests/conftest.py"), "tests/new/__init__.py"),
        (("app.py", "src/pyproject.toml"), "src/__init__.py"),
    ],
)
def test_ordinary_new_files_hide_nothing(base: tuple[str, ...], name: str) -> None:
    assert reason(base, name) == ""


def test_a_link_may_lead_to_a_package() -> None:
    assert "hides tests/helpers.py" in reason(FLAT, "tests/helpers", is_link=True)
    assert "module json" in reason(FLAT, "json", is_link=True)
    assert reason(FLAT, "tests/latest", is_link=True) == ""
    assert reason(FLAT, "tests/helpers") == ""
