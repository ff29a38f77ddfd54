"""What the hooks against forged verdicts cost: CPU time of the same test run with and without them.

``python -m benchmarks.tamper_hooks [--tests N] [--rounds N]``
"""

from __future__ import annotations

import argparse
import resource
import statistics
import tempfile
from pathlib import Path

from mulligan.workers.sandbox.limits import Limits
from mulligan.workers.verifiers.pytest import run

_ANSWER = "def double(n):\n    return 2 * n\n"
_TESTS = """
import pytest
from solution import double

@pytest.mark.parametrize("n", range({tests}))
def test_double(n):
    assert double(n) == n + n
"""
#: What the copy without the watcher leaves out.
_WATCHER = "    install_watcher("


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tests", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=8)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder) / "work"
        work.mkdir()
        (work / "solution.py").write_text(_ANSWER)
        (work / "test_double.py").write_text(_TESTS.format(tests=options.tests))
        plain = _without_watcher(Path(folder) / "plain")
        pairs = []
        for round_ in range(options.rounds):
            sides = [(run._CHILD, "with"), (plain, "without")]
            seconds = {name: _cpu(child, work) for child, name in sides[:: (-1) ** round_]}
            pairs.append((seconds["with"], seconds["without"]))
    _print(pairs, options.tests)


def _without_watcher(folder: Path) -> Path:
    """Copy the child with a signer but no watcher, and return the copy."""
    folder.mkdir()
    for file in run.CHILD_FILES:
        text = file.read_text().replace(_WATCHER, "    (lambda *_: None)(")
        (folder / file.name).write_text(text)
    return folder / run.CHILD_FILES[0].name


def _cpu(child: Path, work: Path) -> float:
    """Return the CPU seconds of one run of all tests."""
    run._CHILD = child
    run.CHILD_FILES = (child, child.with_name("tamper_hooks.py"))
    before = _children()
    result = run.run_pytest(work, [], timeout=600, limits=Limits(), answer=["solution.py"])
    if result.transcript.exit_code != 0 or result.transcript.problems:
        raise SystemExit(f"the run failed: {result.transcript.problems}\n{result.output_tail}")
    return _children() - before


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _print(pairs: list[tuple[float, float]], tests: int) -> None:
    watched, plain = zip(*pairs, strict=True)
    ratios = [a / b for a, b in pairs]
    extra = statistics.median([a - b for a, b in pairs])
    print(f"{tests} tests, {len(pairs)} alternating rounds, CPU seconds, median (range):")
    for name, values in (("with the watcher", watched), ("without", plain), ("ratio", ratios)):
        spread = f"({min(values):.3f}-{max(values):.3f})"
        print(f"  {name:17} {statistics.median(values):6.3f} {spread}")
    print(f"  {extra / tests * 1e6:.0f} microseconds more for each test")


if __name__ == "__main__":
    main()
