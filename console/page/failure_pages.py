"""Failures: signatures ranked, kind by task type, and what repaired them how often."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from starlette.requests import Request
from starlette.responses import HTMLResponse

from mulligan.console.http.access import Caller, needs
from mulligan.console.http.context import ConsoleContext
from mulligan.console.http.errors import not_found
from mulligan.console.page.overview_page import why_place
from mulligan.console.page.render import only, page
from mulligan.console.reports.charts import shade
from mulligan.console.reports.failure_report import failure_report
from mulligan.console.reports.overview import WINDOWS, overview

Reader = Annotated[Caller, Depends(needs("producer", "ops"))]
Window = Annotated[str, Query(max_length=10)]
Tenant = Annotated[str, Query(max_length=200)]
#: More columns than a screen has room for: the rest is one column.
_TYPES = 8
#: Signatures that are listed.
_SIGNATURES = 100


@dataclass(frozen=True, kw_only=True)
class Heat:
    """Kind × task type, the most frequent first; each cell a number and its shade."""

    types: tuple[str, ...]
    rows: tuple[tuple[str, tuple[tuple[int, int], ...], int], ...]


def add(router: APIRouter, context: ConsoleContext) -> None:
    @router.get("/failures")
    def failures(
        request: Request,
        caller: Reader,
        window: Window = "24h",
        tenant: Tenant = "",
    ) -> HTMLResponse:
        figures = overview(
            context.services,
            context.app,
            window=window,
            tenant=only(caller, tenant),
            bound=caller.tenant is not None,
            whys=_SIGNATURES,
        )
        return page(
            request,
            "failures.html",
            caller=caller,
            chosen=None if caller.tenant else figures.tenant,
            heat=heat_map(figures.heat),
            o=figures,
            why_place=why_place,
            windows=WINDOWS,
        )

    @router.get("/failures/{signature:path}")
    def failure(
        request: Request,
        caller: Reader,
        signature: str,
        window: Window = "7d",
        tenant: Tenant = "",
    ) -> HTMLResponse:
        report = failure_report(
            context.ledger,
            context.services.figures,
            signature=signature,
            window=window,
            tenant=only(caller, tenant),
            texts=caller.texts,
        )
        if report is None:
            raise not_found(f"failure {signature} in the last {window}")
        return page(
            request,
            "failure.html",
            caller=caller,
            chosen=None if caller.tenant else tenant,
            f=report,
            made_of=made_of(report["explanation"]),
            may_mute=caller.role in ("ops", "admin") and caller.tenant is None,
            window=window,
            windows=WINDOWS,
        )


def made_of(explanation: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """The parts that make a signature, each as a name and a text."""
    parts = (explanation or {}).get("coarse_parts") or {}
    return [
        (name, _as_text(value)) for name, value in parts.items() if value not in (None, "", [], {})
    ]


def _as_text(value: Any) -> str:
    """A list of lists as words between semicolons; anything deeper as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple):
        return "; ".join(
            " ".join(map(str, each)) if isinstance(each, list | tuple) else str(each)
            for each in value
        )
    return json.dumps(value, ensure_ascii=False)


def heat_map(counts: Mapping[str, Mapping[str, int]]) -> Heat:
    by_type: dict[str, int] = {}
    for row in counts.values():
        for name, number in row.items():
            by_type[name] = by_type.get(name, 0) + number
    ranked = sorted(by_type, key=lambda name: (-by_type[name], name))
    shown = ranked if len(ranked) <= _TYPES else ranked[: _TYPES - 1]
    most = max((n for row in counts.values() for n in row.values()), default=0)

    def cells(row: Mapping[str, int]) -> tuple[tuple[int, int], ...]:
        numbers = [row.get(name, 0) for name in shown]
        if len(shown) < len(ranked):
            numbers.append(sum(row.values()) - sum(numbers))
        return tuple((number, shade(number, most)) for number in numbers)

    kinds = sorted(counts, key=lambda kind: (-sum(counts[kind].values()), kind))
    rows = tuple((kind, cells(counts[kind]), sum(counts[kind].values())) for kind in kinds)
    others = ("others",) if len(shown) < len(ranked) else ()
    return Heat(types=(*shown, *others), rows=rows)
