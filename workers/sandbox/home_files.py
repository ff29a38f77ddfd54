"""Copies of files of the worker's home for a program, whose own home is private and empty."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated

from pydantic import AfterValidator

from mulligan.tasks.ports.errors import VerifierError
from mulligan.workers.sandbox.visible_files import home_directory, is_below

_MOST_BYTES = 20_000_000
_MOST_FILES = 10_000


def _check_name(text: str) -> str:
    name = PurePosixPath(text.removeprefix("~/"))
    if (
        not name.parts
        or name.parts[0].startswith("~")
        or name.is_absolute()
        or ".." in name.parts
        or "\0" in text
    ):
        raise ValueError(
            f"{text!r} is not a file or directory of the home, such as .config/my-agent"
        )
    if name.parts[0] == ".mulligan":
        raise ValueError("mulligan's own files are never copied; name others")
    return str(name)


#: A file or directory by its path in the home of the workers' user.
HomeFile = Annotated[str, AfterValidator(_check_name)]


def copy_home_files(names: Sequence[str], target: Path, never: Sequence[Path] = ()) -> None:
    """Copy files and directories of this user's home to another one. Raise VerifierError.

    Of directories, only regular files are copied, and what links in them lead to, if that is a
    file of the home.
    """
    home, left, count = home_directory().resolve(), _MOST_BYTES, 0
    for source, name in (found for each in names for found in _files(home, each)):
        real = source.resolve()
        if any(is_below(str(real), {str(each)}) for each in never):
            raise VerifierError(f"home_files: {name} is a file of mulligan, which no program gets")
        try:
            left, count = left - real.stat().st_size, count + 1
            if left < 0 or count > _MOST_FILES:
                raise VerifierError(
                    f"home_files: more than {_MOST_BYTES // 1_000_000} MB or {_MOST_FILES:,} files;"
                    f" name smaller directories than {', '.join(names)}"
                )
            _copy(real, target / name)
        except OSError as error:
            raise VerifierError(f"home_files: {name}: {error.strerror}") from None


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(source.stat().st_mode & 0o700 | 0o600)


def _files(home: Path, name: str) -> Iterator[tuple[Path, str]]:
    """Yield the files that a name stands for, each with its path in the home."""
    top = home / name
    if not top.exists():
        raise VerifierError(
            f"home_files: there is no {name} in the home of the worker's user, {home}; correct the"
            " profile, or log in as that user"
        )
    if not is_below(str(top.resolve()), {str(home)}):
        raise VerifierError(f"home_files: {name} is a link out of the home; name what is in it")
    if not top.is_dir():
        if not top.is_file():
            raise VerifierError(f"home_files: {name} is neither a regular file nor a directory")
        yield top, name
        return
    for folder, _, files in os.walk(top, onerror=_refuse):
        for each in sorted(files):
            path = Path(folder, each)
            if _is_copied(path, home):
                yield path, str(path.relative_to(home))


def _refuse(error: OSError) -> None:
    raise VerifierError(f"home_files: {error.strerror}: {str(error.filename)[:200]}")


def _is_copied(path: Path, home: Path) -> bool:
    try:
        real = path.resolve()
        return is_below(str(real), {str(home)}) and stat.S_ISREG(real.stat().st_mode)
    except (OSError, RuntimeError):  # a link to nothing, or to itself
        return False
