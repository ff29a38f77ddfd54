"""Find tests that an answer switches off: they run without it, and do not run with it.

Whether a test is skipped, is expected to fail or exists at all may depend on a module of the answer
(``skipif(not ENABLED)``, ``parametrize("case", CASES)``). Such a test says nothing about its skip
that an honest one would not say. So the tests that were skipped, and those that are gone, are run
once more on the base, which is the workspace without the answer. Those that are skipped there, too,
stay skipped.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from mulligan.workers.verifiers.pytest.event_stream import TestReport, Transcript
from mulligan.workers.verifiers.pytest.expected_tests import Expected, function_of
from mulligan.workers.verifiers.pytest.run import PytestRun

#: So that every test of the base is run, whatever the others do.
BASE_ARGUMENTS = ("--maxfail=0", "--continue-on-collection-errors")


class Extent(IntEnum):
    """How far a test was run."""

    SKIPPED = 0
    EXPECTED_TO_FAIL = 1
    RAN = 2


_NOW = {
    Extent.SKIPPED: "is skipped now",
    Extent.EXPECTED_TO_FAIL: "is expected to fail now",
}


@dataclass(frozen=True, kw_only=True)
class BaseTests:
    """How far the tests were run on the base, and the files that skip themselves in any case."""

    extents: Mapping[str, Extent] = field(default_factory=dict)
    skipped_files: frozenset[str] = frozenset()
    #: Tests that run with stubs on which it depends what is collected.
    guessed: frozenset[str] = frozenset()


def find_suspects(run: PytestRun, expected: Expected, own: Collection[str]) -> tuple[str, ...]:
    """Return the test functions and files with tests that were not run. ``own``: the answer's."""
    transcript = run.transcript
    weak = {node for node, extent in _extents(transcript).items() if extent < Extent.RAN}
    exchanged = _exchanged(expected.on_base, transcript.collected or ())
    gone = {node for lost, new in exchanged if len(lost) > len(new) for node in lost}
    found = {*map(function_of, weak | gone), *transcript.skipped_files}
    return tuple(sorted(each for each in found if _file(each) not in own))


def run_on_base(
    run: Callable[[Sequence[str], bool], PytestRun], suspects: Sequence[str]
) -> BaseTests:
    """Run the suspects on the base.

    A test file may need what only the answer has, and fail or skip itself without it. Then it is
    run with stubs for that, unless what is collected depends on a stub.

    ``run`` gets the files and functions, and whether names that are missing become stubs.
    """
    first = run(suspects, False).transcript
    extents = _extents_on_base(first, stubs=False)
    known, skipped, guessed = {*map(_file, extents)}, set[str](), set[str]()
    if rest := [each for each in suspects if _file(each) not in known]:
        second = run(rest, True).transcript
        found = {
            node: extent
            for node, extent in _extents_on_base(second, stubs=True).items()
            if _file(node) not in first.skipped_files
        }
        if second.guessed:
            guessed = {node for node, extent in found.items() if extent > Extent.SKIPPED}
        else:
            skipped = {*first.skipped_files} & {*second.skipped_files}
            extents |= found
    return BaseTests(extents=extents, skipped_files=frozenset(skipped), guessed=frozenset(guessed))


def switched_off(run: PytestRun, base: BaseTests, *, guess: bool) -> dict[str, str]:
    """Return the tests that ran on the base and did not run now, each with a reason.

    ``guess``: also those that a value switches off which only the answer has.
    """
    now = _extents(run.transcript)
    off = {
        node: _NOW[now[node]]
        for node, before in base.extents.items()
        if node in now and now[node] < before
    }
    ran = [node for node, before in base.extents.items() if before > Extent.SKIPPED]
    for lost, new in _exchanged(ran, run.transcript.collected or ()):
        # The answer's parameters may have other names now, but not be fewer.
        as_many = sum(now.get(node, Extent.RAN) > Extent.SKIPPED for node in new)
        off |= dict.fromkeys(lost[as_many:], "does not exist now")
    found = {node: f"it ran before the work, and {what}" for node, what in off.items()}
    skips = {node for node in base.guessed if guess and now.get(node) is Extent.SKIPPED}
    return found | dict.fromkeys(skips, "it is skipped by a value that is new")


def _extents(transcript: Transcript) -> dict[str, Extent]:
    found = {node: _extent(reports) for node, reports in transcript.phases().items()}
    running = transcript.unfinished
    if running is not None and "::" in running:  # the run ended while it ran
        found.setdefault(running, Extent.RAN)
    return found


def _extents_on_base(transcript: Transcript, *, stubs: bool) -> dict[str, Extent]:
    """Return them for comparison. What passes on the base may fail as expected with the answer."""
    passed = {each.nodeid for each in transcript.reports if each.xfail}
    return {
        node: min(extent, Extent.EXPECTED_TO_FAIL) if stubs or node in passed else extent
        for node, extent in _extents(transcript).items()
    }


def _extent(reports: Sequence[TestReport]) -> Extent:
    skips = [each for each in reports if each.outcome == "skipped"]
    by_answer = any(each.raised is not None and each.raised.by_answer for each in skips)
    if not skips or by_answer or any(each.outcome == "failed" for each in reports):
        return Extent.RAN  # a skip by the answer itself is a failure already
    return Extent.EXPECTED_TO_FAIL if any(each.xfail for each in skips) else Extent.SKIPPED


def _exchanged(before: Sequence[str], now: Sequence[str]) -> Iterator[tuple[list[str], list[str]]]:
    """Yield, for each test function, the tests that are gone and the ones that are new."""
    lost, new = defaultdict(list), defaultdict(list)
    for gone in sorted({*before} - {*now}):
        lost[function_of(gone)].append(gone)
    for added in sorted({*now} - {*before}):
        new[function_of(added)].append(added)
    for function, tests in lost.items():
        yield tests, new[function]


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]
