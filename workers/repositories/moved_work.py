"""The work of a loop that moves to another repository: a pack, and the references that need it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import IO

from mulligan.tasks.ports.errors import BadInput
from mulligan.tasks.ports.repositories import ATTEMPTS, TRANSCRIPTS
from mulligan.workers.repositories.git_command import Git
from mulligan.workers.repositories.ref_names import AttemptName, branch_ref, is_ref, refs_below

#: References of one loop, and bytes of their objects.
MOST_REFS = 100_000
MOST_BYTES = 2_000_000_000


def write_pack(objects: Git, commits: Mapping[str, str], base: str | None, into: IO[bytes]) -> None:
    """Write the objects of these references that are not in the history of ``base``."""
    wanted = [*dict.fromkeys(commits.values())]
    text = "".join(f"{line}\n" for line in [*wanted, *([] if base is None else [f"^{base}"])])
    objects.read("pack-objects", "--revs", "--stdout", "-q", stdin=text.encode(), stdout=into)


def read_pack(objects: Git, pack: IO[bytes]) -> None:
    """Take the objects of a pack. Raises BadInput if one of them is damaged."""
    limit = f"--max-input-size={MOST_BYTES}"
    result = objects.run("index-pack", "--stdin", "--fsck-objects", limit, stdin=pack)
    if result.code:
        raise BadInput(f"the archive cannot be read: its objects are refused: {result.reason}")


def check_refs(loop: str, branch: str, refs: Mapping[str, str]) -> None:
    """Raise BadInput for a reference that is not the loop's."""
    own = branch_ref(branch)
    if len(refs) > MOST_REFS:
        raise BadInput(f"the archive has more than {MOST_REFS:,} references")
    for ref in refs:
        name = AttemptName.from_ref(ref)
        below = tuple(refs_below(start, loop) for start in (ATTEMPTS, TRANSCRIPTS))
        is_work = name is not None and name.loop == loop and ref.startswith(below)
        if not is_ref(ref) or not (ref == own or is_work):
            raise BadInput(f"the archive has a reference that is not the loop's: {ref[:200]!r}")


def check_complete(objects: Git, refs: Mapping[str, str], base: str | None, base_name: str) -> None:
    """Raise BadInput if commits or files of these references are missing."""
    commits = [*dict.fromkeys(refs.values())]
    lines = "".join(f"{each}^{{commit}}\n" for each in commits)
    found = objects.run("cat-file", "--batch-check=%(objecttype)", stdin=lines.encode())
    if found.code or any(line != "commit" for line in found.lines):
        raise BadInput(_incomplete(base_name))
    text = "".join(f"{line}\n" for line in [*commits, *([] if base is None else [f"^{base}"])])
    result = objects.run("rev-list", "--objects", "--quiet", "--stdin", stdin=text.encode())
    if result.code:
        raise BadInput(_incomplete(base_name))


def _incomplete(base: str) -> str:
    return (
        "the repository lacks commits that the loop's work was made from: bring"
        f" {base} of the other repository here first (`git push`, `git fetch`)"
    )
