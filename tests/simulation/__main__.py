"""`make simulate`: run fresh seeds until told to stop, or replay one with its trace."""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import random
import signal
import sys
import time

from simulation.scenario import Result, Scenario, generate, run
from simulation.shrink import shrink

#: Seeds per process between two progress lines.
_BATCH = 10


def main() -> int:
    parser = argparse.ArgumentParser(prog="make simulate", description=__doc__)
    parser.add_argument("--seed", type=int, help="replay this seed with its trace")
    parser.add_argument("--keep", default="", help="only these parts of the scenario: j0,f2")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="real seconds to run")
    parser.add_argument("--first", type=int, help="count seeds from here instead of drawing them")
    parser.add_argument("--jobs", type=int, default=1, help="processes to run seeds in")
    options = parser.parse_args()
    logging.disable()
    if options.seed is not None:
        return _replay(options.seed, options.keep)
    return _run_fresh(options.seconds, options.first, options.jobs)


def _replay(seed: int, keep: str) -> int:
    scenario = generate(seed)
    if keep:
        scenario = scenario.only(keep.split(","))
    result = run(scenario)
    print(scenario)
    for step in result.trace:
        if not step.idle:
            print(step)
    print(*result.violations or ["no violation"], sep="\n")
    return bool(result.violations)


def _run_fresh(seconds: float, first: int | None, jobs: int) -> int:
    """Run seeds until one fails or the time is over. Several processes share the work."""
    started, runs, steps = time.monotonic(), 0, 0
    with multiprocessing.Pool(jobs, initializer=_quiet) as pool:
        try:
            while time.monotonic() - started < seconds:
                seeds = [_seed(first, runs + i) for i in range(_BATCH * jobs)]
                for seed, failed, count in pool.imap_unordered(_try, seeds):
                    runs, steps = runs + 1, steps + count
                    if failed:
                        scenario = generate(seed)
                        print("\n" + report(scenario, run(scenario)))
                        return 1
                _progress(runs, steps, time.monotonic() - started)
        except KeyboardInterrupt:
            pool.terminate()
    print()
    return 0


def _seed(first: int | None, number: int) -> int:
    return random.SystemRandom().getrandbits(40) if first is None else first + number


def _try(seed: int) -> tuple[int, bool, int]:
    """Run a seed. Return it, whether it failed, and its steps."""
    result = run(generate(seed))
    return seed, bool(result.violations), result.steps


def _quiet() -> None:
    """Leave Ctrl-C to the parent, and the log of simulated processes unwritten."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.disable()


def _progress(runs: int, steps: int, elapsed: float) -> None:
    rate = runs / elapsed * 60
    print(f"{runs} runs, {steps} steps, {rate:.0f} runs a minute", end="\r", flush=True)


def report(scenario: Scenario, result: Result) -> str:
    """Return what failed, the smallest scenario that fails, and the command that replays it."""
    smallest, found = shrink(scenario, result.violations)
    keep = ",".join(smallest.parts)
    return "\n".join(
        [
            f"seed {scenario.seed} violates an invariant:",
            *result.violations,
            "",
            "the smallest scenario that does so:",
            str(smallest),
            *found,
            "",
            f"replay: make simulate SEED={scenario.seed} KEEP={keep}",
            f"        make simulate SEED={scenario.seed}",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
