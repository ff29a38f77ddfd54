"""A bounded overview of a repository, for a model that plans work in it and cannot look itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from mulligan.policies.terminal_text import terminal_text

_MOST_FILES = 200
_LONGEST_PATH = 200
_LONGEST_README = 3000
_READMES = ("readme.md", "readme.rst", "readme.txt", "readme")
#: The files that say how a project is tested.
_TEST_FILES = ("pytest.ini", "pyproject.toml", "setup.cfg", "tox.ini", "noxfile.py", "Makefile",
               "package.json", "Cargo.toml", "go.mod")  # fmt: skip


def describe_repository(files: Mapping[str, bytes]) -> str:
    """Return the files, how tests are run, and the beginning of the README."""
    return "\n\n".join(_parts(files))


def _parts(files: Mapping[str, bytes]) -> Iterator[str]:
    names = sorted(files, key=lambda name: (name.count("/"), name))
    shown = [_one_line(name) for name in names[:_MOST_FILES]]
    more = f"\n… and {len(names) - _MOST_FILES} more" if len(names) > _MOST_FILES else ""
    yield f"The files of the repository ({len(names)}):\n" + "\n".join(sorted(shown)) + more
    settings = [name for name in names if name in _TEST_FILES]
    tests = sum(_is_test(name) for name in names)
    yield f"Test files: {tests}. Settings of tools: {', '.join(settings) or 'none'}."
    readme = next((name for name in names if name.lower() in _READMES), None)
    if readme is not None:
        text = files[readme][: 4 * _LONGEST_README].decode("utf-8", "replace")
        yield f"{readme} begins:\n{terminal_text(text)[:_LONGEST_README]}"


def _one_line(name: str) -> str:
    return terminal_text(" ".join(name.split()))[:_LONGEST_PATH]


def _is_test(name: str) -> bool:
    path = PurePosixPath(name)
    return path.suffix == ".py" and (path.stem.startswith("test_") or path.stem.endswith("_test"))
