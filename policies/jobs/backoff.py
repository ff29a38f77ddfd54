"""Backoff: waits that double up to a cap, with or without jitter."""

from __future__ import annotations


def doubled(tries: int, *, base: float, cap: float) -> float:
    """Return ``base`` after the first try, doubled after each further one, at most ``cap``."""
    if tries < 1:
        raise ValueError(f"tries is {tries}: the first one is 1")
    # The cap applies long before 2**60, and larger powers overflow a float.
    return min(cap, base * 2.0 ** min(tries - 1, 60))


def backoff(
    tries: int,
    *,
    base: float = 1.0,
    cap: float = 300.0,
    randomness: float,
    jitter: float = 1.0,
    retry_after: float | None = None,
) -> float:
    """Return the seconds to wait after the ``tries``-th failure in a row.

    The share ``jitter`` of the doubled wait is random: it is multiplied by ``randomness``, which
    is in [0, 1). ``retry_after`` is a minimum that the wait is added to, so that a fleet does not
    come back at the same instant.
    """
    if not 0 <= randomness < 1:
        raise ValueError(f"randomness is {randomness}: it must be in [0, 1)")
    wait = doubled(tries, base=base, cap=cap) * (1 - jitter + jitter * randomness)
    return wait if retry_after is None else max(0.0, retry_after) + wait
