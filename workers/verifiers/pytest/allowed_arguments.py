"""The arguments of pytest that a job may use: what selects tests, and what shapes output.

Anything else could reach outside the workspace (``@file``, ``--log-file``, ``--debug``,
``--basetemp``), load code (``-p``, ``-c``, ``-o``), publish results (``--pastebin``) or hide the
run (``--collect-only``, ``--junitxml``, ``-n``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from mulligan.policies.jobs.job import escapes

#: Options without a value. pytest knows no abbreviations of them.
_FLAGS = frozenset({
    "-l", "-q", "-s", "-v", "-x",
    "--continue-on-collection-errors", "--disable-warnings", "--doctest-modules", "--exitfirst",
    "--full-trace", "--no-header", "--no-showlocals", "--no-summary", "--quiet", "--runxfail",
    "--showlocals", "--strict", "--strict-config", "--strict-markers", "--verbose",
})  # fmt: skip
_ANY, _NUMBER = re.compile(r".*", re.DOTALL), re.compile(r"\d{1,9}(\.\d{1,9})?")
#: The third part of a filter is a class. One with a dot in it would be imported.
_WARNING = re.compile(r"[^:]*(:[^:]*(:[^:.]*(:.*)?)?)?", re.DOTALL)
#: Options with a value, and what the value may be. None: a path or node id in the workspace.
_VALUES: dict[str, re.Pattern[str] | None] = {
    "-k": _ANY,
    "-m": _ANY,
    "-r": re.compile(r"\w*"),
    "-W": _WARNING,
    "--capture": re.compile(r"fd|sys|no|tee-sys"),
    "--deselect": None,
    "--doctest-glob": None,
    "--durations": _NUMBER,
    "--durations-min": _NUMBER,
    "--ignore": None,
    "--ignore-glob": None,
    "--import-mode": re.compile(r"prepend|append|importlib"),
    "--log-level": re.compile(r"\w+"),
    "--maxfail": _NUMBER,
    "--show-capture": re.compile(r"no|stdout|stderr|log|all"),
    "--tb": re.compile(r"auto|long|short|line|native|no"),
    "--verbosity": re.compile(r"-?\d"),
}
_ALLOWED = ", ".join(sorted(_FLAGS | _VALUES.keys(), key=lambda name: (name.lstrip("-"), name)))


def check_arguments(args: Sequence[str]) -> None:
    """Raise ValueError for the first argument that is not allowed; it says what is."""
    for arg, option, value in _read(args):
        if option is not None and option not in _FLAGS and option not in _VALUES:
            raise ValueError(f"{arg!r} is not allowed; use files, node ids and {_ALLOWED}")
        if option in _FLAGS:
            if value is not None:
                raise ValueError(f"{arg!r}: {option} takes no value")
            continue
        if value is None:
            raise ValueError(f"{arg!r} needs a value")
        allowed = _VALUES[option] if option is not None else None
        if allowed is not None and not allowed.fullmatch(value):
            raise ValueError(f"{arg!r}: {value!r} cannot be the value of {option}")
        # The name of a test may contain anything; a path is what stands before it.
        path = value.partition("::")[0]
        if allowed is None and path not in (".", "./") and escapes(path):
            raise ValueError(f"{arg!r} must stay inside the workspace")


def _read(args: Sequence[str]) -> Iterator[tuple[str, str | None, str | None]]:
    """Yield each argument, its option (None for a file) and its value, as pytest reads them."""
    rest = iter(args)
    for arg in rest:
        _refuse_file_of_arguments(arg)
        if not arg.startswith("-"):
            yield arg, None, arg
        elif arg.startswith("--"):
            option, attached, value = arg.partition("=")
            takes_next = option in _VALUES and not attached
            yield arg, option, _next(arg, rest) if takes_next else value if attached else None
        else:
            yield from _read_letters(arg, rest)


def _read_letters(arg: str, rest: Iterator[str]) -> Iterator[tuple[str, str | None, str | None]]:
    """Yield the options of ``-xvk``: the value of the last one is attached, or comes next."""
    if len(arg) == 1:
        yield arg, arg, None
    for place, letter in enumerate(arg[1:], start=2):
        option = f"-{letter}"
        if option in _VALUES:
            yield arg, option, arg[place:] or _next(arg, rest)
            return
        yield arg, option, None


def _next(arg: str, rest: Iterator[str]) -> str | None:
    """Return the argument that is the value of this one."""
    value = next(rest, None)
    if value is not None:
        _refuse_file_of_arguments(value)
        if value.startswith("-"):
            raise ValueError(f"{arg!r} needs a value, and {value!r} is an option")
    return value


def _refuse_file_of_arguments(arg: str) -> None:
    if arg.startswith("@"):
        raise ValueError(f"{arg!r} is not allowed: it would read arguments from a file")
