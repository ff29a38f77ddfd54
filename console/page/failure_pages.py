"""The pages of failures: ranked signatures, a heat map of kinds by task type, and repairs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import HTMLResponse

from mulligan.console.http.access import Reader
from mulligan.console.http.context import ConsoleContext
from mulligan.console.http.errors import not_found
from mulligan.console.page.overview_page import cause_and_place
from mulligan.console.page.render import ShortText, Text, page
from mulligan.console.reports.charts import shade
from mulligan.console.reports.failure_report import failure_report
from mulligan.console.reports.overview import overview
from mulligan.console.reports.overview_values import WINDOWS

#: Columns of the heat map. More task types share the last one.
_COLUMNS = 8
_MAX_SIGNATURES = 100


@dataclass(frozen=True, kw_only=True)
class HeatMap:
    """Failures by kind and task type, the most frequent first. A cell is a number and its shade."""

    types: tuple[str, ...]
    rows: tuple[tuple[str, tuple[tuple[int, int], ...], int], ...]


def add(router: APIRouter, context: ConsoleContext) -> None:
    @router.get("/failures")
    def failures(
        request: Request, caller: Reader, window: ShortText = "24h", tenant: Text = ""
    ) -> HTMLResponse:
        figures = overview(
            context.services,
            context.app,
            window=window,
            tenant=caller.tenant_filter(tenant),
            bound=caller.tenant is not None,
            owner=caller.owner,
            max_failures=_MAX_SIGNATURES,
        )
        return page(
            request,
            "failures.html",
            caller=caller,
            chosen=None if caller.tenant else figures.tenant,
            heat=heat_map(figures.heat),
            o=figures,
            cause_and_place=cause_and_place,
            windows=WINDOWS,
        )

    @router.get("/failures/{signature:path}")
    def failure(
        request: Request,
        caller: Reader,
        signature: str,
        window: ShortText = "7d",
        tenant: Text = "",
    ) -> HTMLResponse:
        report = failure_report(
            context.ledger,
            context.services.figures,
            signature=signature,
            window=window,
            tenant=caller.tenant_filter(tenant),
            texts=caller.texts,
            owner=caller.owner,
        )
        if report is None:
            raise not_found(f"failure {signature!r} in the last {window}")
        return page(
            request,
            "failure.html",
            caller=caller,
            chosen=None if caller.tenant else tenant,
            f=report,
            parts=signature_parts(report["explanation"]),
            may_mute=caller.role in ("ops", "admin") and caller.tenant is None,
            window=window,
            windows=WINDOWS,
        )


def signature_parts(explanation: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """Return the names and texts of the parts of a signature."""
    parts = (explanation or {}).get("coarse_parts") or {}
    return [
        (name, _as_text(value)) for name, value in parts.items() if value not in (None, "", [], {})
    ]


def _as_text(value: Any) -> str:
    """Format a list of lists as words separated by semicolons, anything else as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple):
        return "; ".join(
            " ".join(map(str, each)) if isinstance(each, list | tuple) else str(each)
            for each in value
        )
    return json.dumps(value, ensure_ascii=False)


def heat_map(counts: Mapping[str, Mapping[str, int]]) -> HeatMap:
    by_type: Counter[str] = Counter()
    for row in counts.values():
        by_type.update(row)
    ranked = sorted(by_type, key=lambda name: (-by_type[name], name))
    shown = ranked if len(ranked) <= _COLUMNS else ranked[: _COLUMNS - 1]
    largest = max((n for row in counts.values() for n in row.values()), default=0)

    def cells(row: Mapping[str, int]) -> tuple[tuple[int, int], ...]:
        numbers = [row.get(name, 0) for name in shown]
        if len(shown) < len(ranked):
            numbers.append(sum(row.values()) - sum(numbers))
        return tuple((number, shade(number, largest)) for number in numbers)

    kinds = sorted(counts, key=lambda kind: (-sum(counts[kind].values()), kind))
    rows = tuple((kind, cells(counts[kind]), sum(counts[kind].values())) for kind in kinds)
    others = ("others",) if len(shown) < len(ranked) else ()
    return HeatMap(types=(*shown, *others), rows=rows)
