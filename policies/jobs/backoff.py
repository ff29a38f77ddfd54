"""How long to wait before asking a provider again."""

from __future__ import annotations


def backoff(
    tries: int,
    *,
    base: float = 1.0,
    cap: float = 300.0,
    randomness: float,
    retry_after: float | None = None,
) -> float:
    """Seconds to wait after the ``tries``-th fault in a row (the first is 1).

    Full jitter: anywhere between 0 and ``base`` doubled each time, at most ``cap``; ``randomness``,
    in [0, 1), says where. What the provider asked for is a floor, spread upwards by the same
    randomness, so that a fleet told "in 30 s" does not come back in one instant.
    """
    if tries < 1:
        raise ValueError(f"tries is {tries}: the first fault is try 1")
    if not 0 <= randomness < 1:
        raise ValueError(f"randomness is {randomness}: it must be in [0, 1)")
    # Beyond 2**60 the cap has long won, and larger powers overflow a float.
    longest = min(cap, base * 2.0 ** min(tries - 1, 60))
    jitter = longest * randomness
    return jitter if retry_after is None else max(0.0, retry_after) + jitter
