"""Random runs: a fixed corpus of seeds, and fresh ones."""

from __future__ import annotations

import hashlib
import logging
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from simulation.__main__ import report
from simulation.scenario import (
    FIRST_WITH_COORDINATION,
    FIRST_WITH_LOOPS,
    FIRST_WITH_REGRESSIONS,
    FIRST_WITH_REPOSITORIES,
    generate,
    has_loops,
    run,
)

#: Seeds that are always run. Those of defects that were found and fixed belong here, too.
CORPUS = range(80)
#: Seeds with loops.
LOOPS = range(FIRST_WITH_LOOPS + 1, FIRST_WITH_LOOPS + 11, 2)
#: Seeds with loops that work in a repository.
REPOSITORIES = range(FIRST_WITH_REPOSITORIES + 1, FIRST_WITH_REPOSITORIES + 17, 4)
#: Seeds with loops that lock files and wait for each other.
COORDINATION = (*range(FIRST_WITH_COORDINATION + 3, FIRST_WITH_COORDINATION + 15, 4), 3071)
#: Seeds with loops whose items break each other's work, and with drafts of loops.
REGRESSIONS = (*range(FIRST_WITH_REGRESSIONS + 1, FIRST_WITH_REGRESSIONS + 17, 4), 280781565245)
#: Real seconds for fresh seeds.
FRESH_SECONDS = 60.0


@pytest.fixture(autouse=True)
def _no_log() -> Iterator[None]:
    """The simulated processes log their misfortunes, thousands of times."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


def _check(seed: int) -> None:
    scenario = generate(seed)
    result = run(scenario)
    if result.violations:
        pytest.fail(report(scenario, result), pytrace=False)


def test_corpus() -> None:
    for seed in CORPUS:
        _check(seed)


def test_loops() -> None:
    for seed in LOOPS:
        _check(seed)


def test_repositories() -> None:
    for seed in REPOSITORIES:
        _check(seed)


def test_coordination() -> None:
    for seed in COORDINATION:
        _check(seed)


def test_regressions_and_drafts() -> None:
    for seed in REGRESSIONS:
        _check(seed)


def test_fresh_seeds() -> None:
    """Fresh seeds of loops are for `make simulate`: it finds violations that are still open."""
    end = time.monotonic() + FRESH_SECONDS
    while time.monotonic() < end:
        seed = random.SystemRandom().getrandbits(40)
        if not has_loops(seed):
            _check(seed)


def test_one_seed_gives_one_trace() -> None:
    """The trace depends on the seed alone: not on the hash seed, the time or earlier runs."""
    digests = {_digest_in_another_process(hash_seed) for hash_seed in ("0", "1")}
    assert len(digests) == 1
    run(generate(3))
    assert digests == {trace_digest()}


def _digest_in_another_process(hash_seed: str) -> str:
    tests = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", "from simulation import test_seeds as t; print(t.trace_digest())"],
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(tests)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def trace_digest() -> str:
    """Return a digest of the traces of some seeds."""
    lines = [repr(step) for seed in (9, 22, LOOPS[1]) for step in run(generate(seed)).trace]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
