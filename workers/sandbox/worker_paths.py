"""Output of programs without the paths of this worker and without terminal codes.

What a program prints enters prompts, records and pages. Where the worker keeps its copy, its
Python and its home is of no use there, and differs between workers. Only paths that are really
this worker's are removed: a test may compare other paths, and its message must stay true.
"""

from __future__ import annotations

import os
import re
import site
import sys
import sysconfig
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import mulligan
from mulligan.workers.sandbox.private import user_of
from mulligan.workers.sandbox.visible_files import home_directory

_TERMINAL = re.compile(
    r"\x1b(?:\[[0-?]{0,64}[ -/]{0,8}[@-~]|\][^\x07\x1b]{0,1000}(?:\x07|\x1b\\)|[@-Z\\-_])"
)
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
#: The directory that pytest makes for each run and user.
_PYTEST_TEMPORARY = re.compile(r"pytest-of-[^/\s]{1,100}/pytest-\d{1,9}/")


class WorkerPaths:
    """Removes a private copy's paths and user, and this worker's own paths, from texts."""

    _user: re.Pattern[str] | None = None

    def __init__(self, work: Path) -> None:
        """``work`` is the directory in which the program ran."""
        private = work.parent
        own = {f"{work}/": "", str(work): ".", f"{private}/home": "~"}
        self._use(own | {f"{private}/": ""})
        if os.getuid() == 0:  # each program that root starts has a user of its own
            self._user = re.compile(rf"(?<![\w.]){user_of(work)}(?![\w.])")

    @classmethod
    def of_this_process(cls) -> WorkerPaths:
        """Return those of errors that this process raises itself, in its working directory."""
        paths, here = cls.__new__(cls), Path.cwd()
        paths._use({f"{here}/": ""} if here != Path("/") else {})
        return paths

    def _use(self, names: Mapping[str, str]) -> None:
        self._names = {**_of_this_process(), **names}
        # Longer paths first: one may be inside another.
        paths = sorted(self._names, key=len, reverse=True)
        self._pattern = re.compile(rf"(?<![\w.-])(?:{'|'.join(map(re.escape, paths))})")

    def clean(self, text: str) -> str:
        """Return the text with relative paths, on plain lines, without control characters."""
        text = _TERMINAL.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
        text = _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)
        text = self._pattern.sub(lambda found: self._names[found[0]], text)
        if self._user is not None:
            text = self._user.sub("<uid>", text)
        return _PYTEST_TEMPORARY.sub("", text)


@cache
def _of_this_process() -> dict[str, str]:
    """Return the directories of this worker's Python, code and user: path → what to write."""
    packages = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    packages |= {*site.getsitepackages(), site.getusersitepackages()}
    libraries = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    prefixes = {sys.prefix, sys.base_prefix, sys.exec_prefix}
    product = {str(Path(mulligan.__file__).parents[1]), str(Path(__file__).resolve().parents[2])}
    names = {f"{each}/": "" for each in packages | libraries | product}
    names |= {f"{each}/bin/": "" for each in prefixes if each != "/usr"}
    home = str(home_directory())
    return names | ({f"{home}/": "~/"} if home != "/" else {})
