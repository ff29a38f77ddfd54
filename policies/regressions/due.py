"""Which items are due to be verified again, and what the results of a check say about them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from posixpath import normpath
from typing import Literal

from mulligan.policies.failures.failure import VerificationResult, VerificationStatus
from mulligan.policies.jobs.job import VerifierSpec
from mulligan.policies.path_patterns import matches

#: Distinct verifiers and items of one check.
MOST_VERIFIERS = 40
MOST_ITEMS = 100
#: ``flaky``: it is good, but failed once. ``unknown``: a check reached no verdict or was skipped.
ItemVerdict = Literal["good", "flaky", "bad", "unknown"]
_FAIL, _SKIPPED = VerificationStatus.FAIL, VerificationStatus.SKIPPED
#: Begins the summary of a failure that did not repeat.
FLAKE = "failed once, and passed when it was repeated"


def meets(
    changed: Collection[str], files: Collection[str], patterns: Sequence[str], words: Sequence[str]
) -> bool:
    """Whether changed files are those of an item.

    ``files``: what its merge changed. ``patterns``: what it declares. ``words``: arguments of its
    verifiers, which may name files and directories.
    """
    if not changed:
        return False
    named = {normpath(each.partition("::")[0]) for each in words}
    return any(path in files or matches(patterns, path) or _names(named, path) for path in changed)


def _names(named: Collection[str], path: str) -> bool:
    """Whether one of the words is a file or a directory that it is in."""
    parts = path.split("/")
    return "." in named or any(
        "/".join(parts[:count]) in named for count in range(1, len(parts) + 1)
    )


def argument_words(verifier: VerifierSpec) -> list[str]:
    """Return the arguments of a verifier that may name files."""
    given = [verifier.options.get(name) for name in ("args", "argv")]
    words = [word for each in given if isinstance(each, list | tuple) for word in each]
    return [each for each in words if isinstance(each, str) and each and not each.startswith("-")]


def batch(
    items: Mapping[str, Sequence[VerifierSpec]],
) -> tuple[list[str], list[VerifierSpec]]:
    """Return the first items that one check covers, and their verifiers, each of them once."""
    chosen, verifiers = list[str](), list[VerifierSpec]()
    for item, wanted in items.items():
        new = [each for each in wanted if each not in verifiers]
        if chosen and (len(verifiers) + len(new) > MOST_VERIFIERS or len(chosen) == MOST_ITEMS):
            break
        chosen.append(item)
        verifiers += [each for i, each in enumerate(new) if each not in new[:i]]
    return chosen, verifiers


def judge_item(
    wanted: Sequence[VerifierSpec],
    specs: Sequence[VerifierSpec],
    results: Sequence[VerificationResult],
    guards: Collection[int] = (),
) -> tuple[ItemVerdict, list[int]]:
    """Return what a check says about an item, and the places of its verifiers that failed.

    ``wanted``: the item's verifiers. ``specs``: those of the check, in the order of the results.
    ``guards``: places of verifiers that may be skipped, if not all are.
    """
    found = dict[int, VerificationResult]()
    for place, each in enumerate(wanted):
        if each not in specs or specs.index(each) >= len(results):
            return "unknown", []
        found[place] = results[specs.index(each)]
    failed = [i for i, r in found.items() if wanted[i].required and r.status is _FAIL]
    if failed:
        return "bad", failed
    skipped = {i for i, r in found.items() if wanted[i].required and r.status is _SKIPPED}
    if skipped.difference(guards) or (skipped and len(skipped) == len(found)):
        return "unknown", []
    flaky = [i for i, r in found.items() if r.summary.startswith(FLAKE)]
    return ("flaky", flaky) if flaky else ("good", [])
