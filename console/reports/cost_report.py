"""What work cost, as one JSON-ready report: for the API and the command line."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from mulligan.policies.figures import cost
from mulligan.policies.figures.cost import CostLine, TokenUse
from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.figures.windows import FigureReader, parse_window
from mulligan.workers.settings.model import Settings


def cost_report(
    figures: FigureReader,
    settings: Settings,
    *,
    by: str,
    window: str,
    now: float,
    tenant: str | None = None,
) -> dict[str, Any]:
    """Tokens and money by group, repairs apart; BadInput for a group or a window unheard of."""
    groups = _groups(by, settings)
    found = figures.window(parse_window(window), now=now, compare=False)
    rows = [bucket.rows for bucket in found.buckets]
    lines = cost.lines(rows, by=groups, prices=settings.prices, tenant=tenant)
    return {
        "generated_at": datetime.fromtimestamp(now, UTC).isoformat(),
        "window": window,
        "since": datetime.fromtimestamp(found.buckets[0].start, UTC).isoformat(),
        "by": list(groups),
        "priced": bool(settings.prices),
        "total": _line(cost.total(rows, prices=settings.prices, tenant=tenant)),
        "lines": [_line(line) for line in lines],
    }


def _groups(by: str, settings: Settings) -> Sequence[str]:
    try:
        groups = cost.group_names(by)
    except ValueError as error:
        raise BadInput(f"by: {error}") from None
    own = f"label:{settings.tenant_label}"
    for name in groups:
        label = name.removeprefix("label:")
        if name.startswith("label:") and name != own and label not in settings.report_labels:
            raise BadInput(
                f"by: no figures are kept by the label {label!r}: add it to report_labels"
            )
    # Figures have the tenant's label in a place of its own.
    return tuple(dict.fromkeys("tenant" if name == own else name for name in groups))


def _line(line: CostLine) -> dict[str, Any]:
    both = line.both
    return {
        "of": dict(line.of),
        "attempts": both.attempts,
        "successes": both.successes,
        "tokens": both.known_tokens,
        "money": _money(both.cost),
        "tokens_per_success": _rounded(line.tokens_per_success, 1),
        "repairs_share": _rounded(line.repairs_share, 4),
        "unknown_attempts": both.unknown,
        "unpriced_tokens": both.unpriced_tokens,
        "first": _used(line.first),
        "repairs": _used(line.repairs),
    }


def _used(used: TokenUse) -> dict[str, Any]:
    return {
        "attempts": used.attempts,
        "successes": used.successes,
        "unknown_attempts": used.unknown,
        "tokens": used.known_tokens,
        "prompt_tokens": used.prompt_tokens,
        "completion_tokens": used.completion_tokens,
        "seconds": round(used.milliseconds / 1000, 3),
        "money": _money(used.cost),
        "unpriced_tokens": used.unpriced_tokens,
    }


def _money(amount: float | None) -> float | None:
    return _rounded(amount, 6)


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
