"""What attempts cost: tokens and money, repairs apart. What nobody told is unknown, never 0."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal, Protocol

from mulligan.policies.figures.facts import Figure, read_labels

_MILLION = 1_000_000
#: What costs can be grouped by, besides ``label:NAME``; in the order of a use's dimensions.
GROUPS = ("task_type", "runner", "model", "tenant", "label")


class Price(Protocol):
    """Money per million tokens."""

    @property
    def prompt(self) -> float: ...

    @property
    def completion(self) -> float: ...


@dataclass(frozen=True)
class TokenUse:
    """What some attempts used."""

    attempts: int = 0
    successes: int = 0
    #: Attempts whose usage nobody told.
    unknown: int = 0
    #: Successes among those.
    unknown_successes: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    #: Tokens of which only the sum is known.
    other_tokens: int = 0
    milliseconds: int = 0
    #: Of all tokens, those that have a price, and what they cost.
    priced_tokens: int = 0
    money: float = 0.0

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens + self.other_tokens

    @property
    def known_tokens(self) -> int | None:
        """None if nobody told the usage of any of the attempts: unknown is not 0."""
        return None if self.attempts and self.unknown == self.attempts else self.tokens

    @property
    def cost(self) -> float | None:
        """None if it is unknown, which is not free. What used nothing cost nothing."""
        return self.money if self.priced_tokens or self.known_tokens == 0 else None

    @property
    def why_unpriced(self) -> Literal["usage", "price"] | None:
        """Why there is no cost: nobody told the usage, or no price fits it."""
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
    """One line of a cost report: what it is about, first attempts and repairs apart."""

    of: Mapping[str, str]
    first: TokenUse
    repairs: TokenUse

    @property
    def both(self) -> TokenUse:
        return self.first + self.repairs

    @property
    def tokens_per_success(self) -> float | None:
        """None without a success whose tokens are known. Others count on neither side: their
        tokens are in no sum."""
        both = self.both
        known = both.successes - both.unknown_successes
        return both.tokens / known if known and both.tokens else None

    @property
    def repairs_share(self) -> float | None:
        """None if one of the sides is unknown: it would look like 0 or like all."""
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
    """``task_type,label:team`` taken apart; ValueError names what there is."""
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        if name not in GROUPS and not (name.startswith("label:") and name != "label:"):
            raise ValueError(f"{name!r}: group by {', '.join(GROUPS)} or label:NAME")
    if len(set(names)) != len(names) or not names:
        raise ValueError(f"{text!r}: name each group once, and at least one")
    return names


def lines(
    rows: Iterable[Mapping[Figure, int]],
    *,
    by: Sequence[str],
    prices: Mapping[str, Price],
    tenant: str | None = None,
) -> list[CostLine]:
    """A line per group, the one with the most tokens first. No group: one line over all."""
    found: dict[tuple[str, ...], dict[str, TokenUse]] = {}
    for figure, n in _uses(rows, tenant):
        key = tuple(_group(name, figure.dims) for name in by)
        sides = found.setdefault(key, {"no": TokenUse(), "yes": TokenUse()})
        repair = figure.dims[5]
        sides[repair] = sides[repair] + _used(figure, n, prices)
    if not by and not found:
        found[()] = {"no": TokenUse(), "yes": TokenUse()}
    made = [
        CostLine(of=dict(zip(by, key, strict=True)), first=sides["no"], repairs=sides["yes"])
        for key, sides in found.items()
    ]
    return sorted(made, key=lambda line: (-line.both.tokens, tuple(line.of.values())))


def total(
    rows: Iterable[Mapping[Figure, int]],
    *,
    prices: Mapping[str, Price],
    tenant: str | None = None,
) -> CostLine:
    return lines(rows, by=(), prices=prices, tenant=tenant)[0]


def _uses(rows: Iterable[Mapping[Figure, int]], tenant: str | None) -> Iterable[tuple[Figure, int]]:
    """Each figure once, however many steps it is in: pricing is what takes time."""
    added: dict[Figure, int] = {}
    for step in rows:
        for figure, n in step.items():
            if figure.family == "use" and tenant in (None, figure.dims[3]):
                added[figure] = added.get(figure, 0) + n
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
    """What a million of these tokens cost; None if nobody said, or if these are no tokens."""
    if price is None:
        return None
    if measure == "prompt":
        return price.prompt
    if measure == "completion":
        return price.completion
    # Of a sum the directions are unknown: it has a price only if both cost the same.
    same = measure == "rest" and price.prompt == price.completion
    return price.prompt if same else None
