"""Find the program to run, so that a missing one is named before anything is started."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path

from mulligan.tasks.ports.errors import VerifierError
from mulligan.workers.sandbox.visible_files import hidden_links, home_directory

DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"
_LONGEST_FIRST_LINE = 256


class ProgramMissing(VerifierError):
    """The program does not exist, may not be executed, or is not visible to what is confined."""


def find_program(program: str, cwd: Path, env: Mapping[str, str], visible: Set[str]) -> Path:
    """Return the program's file, if possible in the visible directories. Raise ProgramMissing."""
    found = [path for path in _places(program, cwd, env) if _is_program(path)]
    if not found:
        raise ProgramMissing(
            f"{program}: no such program, or it may not be executed; install it where the workers"
            " run, or name its full path in argv"
        )
    seen = (path for path in found if not hidden_links(path, visible))
    return next(seen, found[0])


def require_interpreter(program: Path, env: Mapping[str, str], visible: Set[str]) -> None:
    """Raise ProgramMissing if the interpreter of a script is not in the visible directories.

    Of ``#!/usr/bin/env NAME``, that is the first NAME on PATH: inside, another might be found.
    """
    words = _first_line(program)
    if not words:
        return
    interpreter = Path(words[0])
    if not _is_program(interpreter):
        raise ProgramMissing(f"{program.name}: cannot be started: there is no {interpreter}")
    if interpreter.name == "env" and (name := _name_for_env(words[1:])):
        places = _places(name, Path("/"), env)
        interpreter = next(filter(_is_program, places), interpreter)
    if hidden := hidden_links(interpreter, visible):
        wanted = ", ".join(dict.fromkeys(map(_installation, hidden)))
        raise ProgramMissing(
            f"{program.name}: cannot be started: {hidden[0]} is outside the directories that"
            f" programs under test can see; name {wanted} in sandbox_read of mulligan.toml, or"
            " in `read` of the runner's profile"
        )


def _name_for_env(words: Sequence[str]) -> str | None:
    """Return the program that ``env`` starts with these arguments, unless they say where it is."""
    for word in words:
        name = word.removeprefix("-S")
        if name and not name.startswith("-") and "=" not in name:
            return name if "/" not in name else None
    return None


def _installation(file: str) -> str:
    """Return the directory that a program is installed in, with its libraries, or its own one.

    A directory of many programs' links, such as ~/.local/bin, stands for itself.
    """
    folder = Path(file).parent
    shared = Path(file).is_symlink() or folder.parent in (
        home_directory(),
        home_directory() / ".local",
    )
    return str(folder.parent if folder.name in ("bin", "shims") and not shared else folder)


def _places(program: str, cwd: Path, env: Mapping[str, str]) -> Iterator[Path]:
    if "/" in program:
        yield cwd / program
        return
    for folder in env.get("PATH", DEFAULT_PATH).split(os.pathsep):
        yield cwd / folder / program


def _is_program(path: Path) -> bool:
    # Path.is_file raises for a directory that this user may not pass.
    return os.path.isfile(path) and os.access(path, os.X_OK)


def _first_line(path: Path) -> list[str]:
    """Return the interpreter that a script names in its first line, and its arguments."""
    with path.open("rb") as file:
        first = file.readline(_LONGEST_FIRST_LINE)
    words = first[2:].split() if first.startswith(b"#!") else []
    return [os.fsdecode(word) for word in words]
