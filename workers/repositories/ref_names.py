"""The names of references: those of mulligan, and which names of branches git accepts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote, unquote

from mulligan.tasks.ports.errors import BadInput
from mulligan.tasks.ports.repositories import ATTEMPT_TRAILER, ATTEMPTS, TRANSCRIPTS

OURS = "refs/mulligan/"
FENCES = "refs/mulligan/fence/"
GROUP_FENCES = "refs/mulligan/group-fence/"
_FORBIDDEN = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//")
_LONGEST = 1000


@dataclass(frozen=True, kw_only=True)
class AttemptName:
    """One attempt of an item. Its token tells its claim from others of the same attempt."""

    loop: str
    item: str
    attempt: int
    token: str
    #: The job of the attempt: an item that runs again has another one. References do not name it.
    job: str = ""

    @property
    def trailer(self) -> str:
        """What the messages of its commits end with."""
        return f"\n{ATTEMPT_TRAILER}: {self.job}/{self.attempt}\n" if self.job else ""

    @property
    def work_ref(self) -> str:
        """The reference of its saved work."""
        return f"{ATTEMPTS}{self._path}"

    @property
    def transcript_ref(self) -> str:
        """The reference of its transcript."""
        return f"{TRANSCRIPTS}{self._path}"

    @property
    def _path(self) -> str:
        parts = (self.loop, self.item, f"{self.attempt}-{self.token}")
        return "/".join(map(quote_part, parts))

    @classmethod
    def from_ref(cls, ref: str) -> AttemptName | None:
        """Return the attempt that a reference belongs to; None if it is another reference."""
        for start in (ATTEMPTS, TRANSCRIPTS):
            parts = ref.removeprefix(start).split("/")
            if ref.startswith(start) and len(parts) == 3:
                loop, item, last = map(unquote, parts)
                number, _, token = last.partition("-")
                if number.isdecimal():
                    return cls(loop=loop, item=item, attempt=int(number), token=token)
        return None


def refs_below(start: str, loop: str, item: str | None = None) -> str:
    """Return what the references of a loop or an item begin with, below ATTEMPTS or TRANSCRIPTS."""
    below = "" if item is None else f"{quote_part(item)}/"
    return f"{start}{quote_part(loop)}/{below}"


def fence_ref(loop: str, group: str = "") -> str:
    """Return the reference of a fence. Git keeps no reference below another one."""
    if group:
        return f"{GROUP_FENCES}{quote_part(loop)}/{quote_part(group)}"
    return f"{FENCES}{quote_part(loop)}"


def branch_ref(branch: str) -> str:
    """Return the reference of a branch. Raise BadInput for a name that git does not accept."""
    ref = f"refs/heads/{branch}"
    if branch.startswith("-") or branch == "HEAD" or not is_ref(ref):
        raise BadInput.at(
            "branch", f"{branch!r} is not the name of a branch, such as mulligan/docs"
        )
    return ref


def is_ref(name: str) -> bool:
    """Whether git accepts the full name of a reference (``git check-ref-format``)."""
    parts = name.split("/")
    wrong = (not part or part[0] == "." or part.endswith(".lock") for part in parts)
    return not (
        len(parts) < 2
        or len(name) > _LONGEST
        or any(wrong)
        or name.endswith((".", "/"))
        or _FORBIDDEN.search(name)
    )


def quote_part(text: str) -> str:
    """Return a text as one part of a reference. Git accepts neither ``a..b`` nor ``a.lock``."""
    return quote(text, safe="").replace(".", "%2E").replace("~", "%7E")
