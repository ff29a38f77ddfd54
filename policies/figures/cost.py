"""The cost of attempts in tokens and money, repairs separately. Unknown usage is never 0."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal, Protocol

from mulligan.policies.figures.facts import Figure, read_labels

_MILLION = 1_000_000
#: The names to group costs by, besides ``label:NAME``, in the order of a figure's dimensions.
GROUPS = ("task_type", "runner", "model", "tenant", "label")


class Price(Protocol):
    """Money per million tokens."""

    @property
    def prompt(self) -> float: ...

    @property
    def completion(self) -> float: ...


@dataclass(frozen=True)
class TokenUse:
    """The tokens that some attempts used."""

    attempts: int = 0
    successes: int = 0
    #: Attempts with unknown usage.
    unknown: int = 0
    #: Successes with unknown usage.
    unknown_successes: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    #: Tokens of which only the sum is known.
    other_tokens: int = 0
    milliseconds: int = 0
    #: Tokens with a price.
    priced_tokens: int = 0
    #: The cost of the tokens with a price.
    money: float = 0.0

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens + self.other_tokens

    @property
    def known_tokens(self) -> int | None:
        """None if the usage of all attempts is unknown: unknown is not 0."""
        return None if self.attempts and self.unknown == self.attempts else self.tokens

    @property
    def cost(self) -> float | None:
        """None if it is unknown, which is not free. Attempts that used no tokens cost 0."""
        return self.money if self.priced_tokens or self.known_tokens == 0 else None

    @property
    def why_unpriced(self) -> Literal["usage", "price"] | None:
        """Why the cost is unknown: the usage is unknown, or the tokens have no price."""
        if self.cost is not None:
            return None
        return "usage" if self.known_tokens is None else "price"

    @property
    def unpriced_tokens(self) -> int:
        return self.tokens - self.priced_tokens

    def __add__(self, other: TokenUse) -> TokenUse:
        return TokenUse(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


@dataclass(frozen=True, kw_only=True)
class CostLine:
    """One line of a cost report: its groups, and first attempts and repairs separately."""

    of: Mapping[str, str]
    first: TokenUse
    repairs: TokenUse

    @property
    def both(self) -> TokenUse:
        return self.first + self.repairs

    @property
    def tokens_per_success(self) -> float | None:
        """None without a success with known usage. Successes with unknown usage do not count,
        because their tokens are in no sum."""
        both = self.both
        known = both.successes - both.unknown_successes
        return both.tokens / known if known and both.tokens else None

    @property
    def repairs_share(self) -> float | None:
        """None if one of the two is unknown: the share would look like 0 or 1."""
        if self.first.known_tokens is None or self.repairs.known_tokens is None:
            return None
        tokens = self.both.tokens
        return self.repairs.tokens / tokens if tokens else None


_MEASURES = {
    "n": "attempts",
    "ok": "successes",
    "unknown": "unknown",
    "unknown_ok": "unknown_successes",
    "prompt": "prompt_tokens",
    "completion": "completion_tokens",
    "rest": "other_tokens",
    "ms": "milliseconds",
}


def group_names(text: str) -> tuple[str, ...]:
    """Split ``task_type,label:team``. ValueError names the groups there are."""
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        if name not in GROUPS and not (name.startswith("label:") and name != "label:"):
            raise ValueError(f"{name!r}: group by {', '.join(GROUPS)} or label:NAME")
    if len(set(names)) != len(names) or not names:
        raise ValueError(f"{text!r}: name at least one group, each once")
    return names


def lines(
    rows: Iterable[Mapping[Figure, int]],
    *,
    by: Sequence[str],
    prices: Mapping[str, Price],
    tenant: str | None = None,
) -> list[CostLine]:
    """Return a line per group, most tokens first; without groups, one line over all."""
    found: dict[tuple[str, ...], dict[str, TokenUse]] = {}
    for figure, n in _uses(rows, tenant):
        key = tuple(_group(name, figure.dims) for name in by)
        sides = found.setdefault(key, {"no": TokenUse(), "yes": TokenUse()})
        repair = figure.dims[5]
        sides[repair] = sides[repair] + _used(figure, n, prices)
    if not by and not found:
        found[()] = {"no": TokenUse(), "yes": TokenUse()}
    unsorted = [
        CostLine(of=dict(zip(by, key, strict=True)), first=sides["no"], repairs=sides["yes"])
        for key, sides in found.items()
    ]
    return sorted(unsorted, key=lambda line: (-line.both.tokens, tuple(line.of.values())))


def total(
    rows: Iterable[Mapping[Figure, int]],
    *,
    prices: Mapping[str, Price],
    tenant: str | None = None,
) -> CostLine:
    return lines(rows, by=(), prices=prices, tenant=tenant)[0]


def _uses(rows: Iterable[Mapping[Figure, int]], tenant: str | None) -> Iterable[tuple[Figure, int]]:
    """Add up each figure over all steps first, because pricing is what takes time."""
    added: Counter[Figure] = Counter()
    for step in rows:
        for figure, n in step.items():
            if figure.family == "use" and tenant in (None, figure.dims[3]):
                added[figure] += n
    return added.items()


def _group(name: str, dims: tuple[str, ...]) -> str:
    if name.startswith("label:"):
        return read_labels(dims[4]).get(name.removeprefix("label:"), "")
    return dims[GROUPS.index(name)]


def _used(figure: Figure, n: int, prices: Mapping[str, Price]) -> TokenUse:
    _, runner, model, *_ = figure.dims
    price = prices.get(runner) or prices.get(model)
    used = TokenUse(**{_MEASURES[figure.measure]: n})
    rate = _rate(figure.measure, price)
    return used if rate is None else replace(used, priced_tokens=n, money=n * rate / _MILLION)


def _rate(measure: str, price: Price | None) -> float | None:
    """Return the price of a million of these tokens; None if unknown or if these are not tokens."""
    if price is None:
        return None
    if measure == "prompt":
        return price.prompt
    if measure == "completion":
        return price.completion
    # A sum of input and output tokens has a price only if both cost the same.
    same = measure == "rest" and price.prompt == price.completion
    return price.prompt if same else None
