"""How long to wait before the next try: doubling up to a cap, with or without jitter."""

from __future__ import annotations


def doubled(tries: int, *, base: float, cap: float) -> float:
    """``base`` after the first try, doubled after each further one, at most ``cap``."""
    if tries < 1:
        raise ValueError(f"tries is {tries}: the first one is 1")
    # Beyond 2**60 the cap has long won, and larger powers overflow a float.
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
    """Seconds to wait after the ``tries``-th failure in a row.

    The last share ``jitter`` of the doubled wait is random; ``randomness``, in [0, 1), says how
    much of it is waited. What the other side asked for is a floor, spread upwards by the same
    randomness, so that a fleet told "in 30 s" does not come back in one instant.
    """
    if not 0 <= randomness < 1:
        raise ValueError(f"randomness is {randomness}: it must be in [0, 1)")
    wait = doubled(tries, base=base, cap=cap) * (1 - jitter + jitter * randomness)
    return wait if retry_after is None else max(0.0, retry_after) + wait
