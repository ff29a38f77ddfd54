"""Limits of a provider: what is configured for the fleet, and what the provider says itself."""

from __future__ import annotations

from pydantic import Field

from mulligan.policies.value import Value


class ProviderLimits(Value):
    """What the profiles of a provider allow the whole fleet. None is no limit."""

    #: Calls, or sessions of a program, at once.
    concurrency: int | None = Field(default=None, ge=1, title="Calls at once")
    #: Tokens in any 60 seconds.
    tokens_per_minute: int | None = Field(default=None, ge=1, title="Tokens a minute")

    def stricter(self, other: ProviderLimits) -> ProviderLimits:
        """Return the smaller of each limit."""
        return ProviderLimits(
            concurrency=_smaller(self.concurrency, other.concurrency),
            tokens_per_minute=_smaller(self.tokens_per_minute, other.tokens_per_minute),
        )


class Allowance(Value):
    """What the headers of an answer say about an allowance of requests or tokens."""

    #: What is left after the answer.
    remaining: float = Field(ge=0)
    #: Seconds until the whole allowance is there again.
    reset: float = Field(ge=0)
    #: The whole allowance, if the provider names it.
    limit: float | None = Field(default=None, gt=0)


class RateLimits(Value):
    """What an answer says about its provider's limits. None is unknown."""

    requests: Allowance | None = None
    tokens: Allowance | None = None


def _smaller(first: int | None, second: int | None) -> int | None:
    known = [each for each in (first, second) if each is not None]
    return min(known, default=None)
