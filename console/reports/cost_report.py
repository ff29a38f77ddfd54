"""The cost report: JSON-ready for the API and the command line, and as a view for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mulligan.console.reports.report_view import BarChart, ColumnChart, ReportTable, ReportView
from mulligan.policies.figures import cost
from mulligan.policies.figures.cost import CostLine, TokenUse
from mulligan.policies.figures.format import iso_time, money, number, percent
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
    """Report tokens and money by group; raise BadInput for an unknown group or window."""
    groups = _groups(by, settings)
    found = figures.window(parse_window(window), now=now, compare=False)
    rows = [bucket.rows for bucket in found.buckets]
    lines = cost.lines(rows, by=groups, prices=settings.prices, tenant=tenant)
    return {
        "generated_at": iso_time(now),
        "window": window,
        "since": iso_time(found.buckets[0].start),
        "by": list(groups),
        "priced": bool(settings.prices),
        "total": _line(cost.total(rows, prices=settings.prices, tenant=tenant)),
        "lines": [_line(line) for line in lines],
    }


def _groups(by: str, settings: Settings) -> Sequence[str]:
    try:
        groups = cost.group_names(by)
    except ValueError as error:
        raise BadInput.at("by", f"{error}") from None
    tenant = f"label:{settings.tenant_label}"
    for name in groups:
        label = name.removeprefix("label:")
        if name.startswith("label:") and name != tenant and label not in settings.report_labels:
            raise BadInput.at(
                "by", f"there are no figures by the label {label!r}: add it to report_labels"
            )
    # Figures store the tenant's label separately.
    return tuple(dict.fromkeys("tenant" if name == tenant else name for name in groups))


def _line(line: CostLine) -> dict[str, Any]:
    both = line.both
    return {
        "of": dict(line.of),
        "attempts": both.attempts,
        "successes": both.successes,
        "tokens": both.known_tokens,
        "money": _rounded(both.cost, 6),
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
        "money": _rounded(used.cost, 6),
        "unpriced_tokens": used.unpriced_tokens,
    }


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


# -- for people ------------------------------------------------------------------------------------

#: Columns and bars of the charts.
_COLUMNS, _BARS = 60, 15


def cost_view(report: Mapping[str, Any]) -> ReportView:
    total, by, lines = report["total"], report["by"], report["lines"]
    priced = report["priced"]
    names = [" · ".join(value or "(none)" for value in line["of"].values()) for line in lines]
    return ReportView(
        title="Cost",
        about=f"The last {report['window']}, as of {report['generated_at'][:19]} UTC.",
        facts=(
            ("tokens", number(total["tokens"])),
            ("money", _amount(total, priced)),
            ("of which repairs", percent(total["repairs_share"])),
            ("tokens per success", number(total["tokens_per_success"])),
            ("attempts without reported usage", number(total["unknown_attempts"])),
            ("tokens without a price", number(total["unpriced_tokens"])),
        ),
        tables=(
            ReportTable(
                title="By " + ", ".join(by),
                columns=(*by, "attempts", "tokens", "first", "repairs", "per success", "money",
                         "of which repairs", "unknown"),
                rows=tuple(_row(line, priced) for line in lines),
                empty="no attempt was settled",
            ),
        ),
        charts=(
            ColumnChart(
                title="Tokens",
                names=("first attempts", "repairs"),
                columns=tuple(
                    (name, (line["first"]["tokens"] or 0, line["repairs"]["tokens"] or 0))
                    for name, line in list(zip(names, lines, strict=True))[:_COLUMNS]
                ),
            ),
            BarChart(
                title="Money",
                bars=tuple(
                    (name, line["money"])
                    for name, line in zip(names, lines, strict=True)
                    if line["money"]
                )[:_BARS],
            ),
        ),
        document=report,
    )  # fmt: skip


def _row(line: Mapping[str, Any], priced: bool) -> tuple[str, ...]:
    return (
        *(value or "(none)" for value in line["of"].values()),
        number(line["attempts"]),
        number(line["tokens"]),
        number(line["first"]["tokens"]),
        number(line["repairs"]["tokens"]),
        number(line["tokens_per_success"]),
        _amount(line, priced),
        _amount(line["repairs"], priced),
        number(line["unknown_attempts"]),
    )


def _amount(used: Mapping[str, Any], priced: bool) -> str:
    if used["money"] is not None:
        return money(used["money"])
    if not priced:
        return "unknown: no prices set"
    return "unknown: usage not reported" if used["tokens"] is None else "unknown: no price"
