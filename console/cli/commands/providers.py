"""`mulligan providers`: what providers take, what runs, what waits for them, and why."""

from __future__ import annotations

from dataclasses import asdict

from rich.table import Table

from mulligan.console.cli.backend import open_ledger_backend
from mulligan.console.cli.options import Json
from mulligan.console.cli.output import screen
from mulligan.console.reports.providers import ProviderRow, provider_rows
from mulligan.policies.figures.format import UNKNOWN, duration, number


def providers(json: Json = False) -> None:
    """List the providers: limits, calls, waiting work, faults."""
    with open_ledger_backend() as backend:
        rows = provider_rows(backend.services, tenant=None)
        now = backend.ledger.now()
    if json:
        screen.emit({"providers": [asdict(row) for row in rows]})
    elif rows:
        _print_table(rows, now)
    else:
        screen.say("no provider is configured, and none was called")


def _print_table(rows: list[ProviderRow], now: float) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    tokens = any(row.tokens_per_minute is not None for row in rows)
    names = ["provider", "breaker", "running", "limit", "waiting", "longest wait"]
    for name in [*names, *(["tokens a minute"] if tokens else [])]:
        right = name in ("running", "limit", "waiting", "tokens a minute")
        table.add_column(name, no_wrap=True, justify="right" if right else "left")
    table.add_column("last fault")
    table.add_column("now")
    for row in rows:
        fault = f"{row.last_fault}, {duration(now - (row.last_fault_at or now))} ago"
        table.add_row(
            row.provider,
            row.state.replace("_", " "),
            number(row.in_flight),
            _limit(row),
            number(row.parked),
            duration(row.oldest_seconds),
            *([_tokens(row)] if tokens else []),
            fault if row.last_fault else UNKNOWN,
            row.text,
        )
    screen.out().print(table)


def _tokens(row: ProviderRow) -> str:
    if row.tokens_per_minute is None:
        return UNKNOWN
    return f"{number(row.tokens_used or 0)} of {number(row.tokens_per_minute)}"


def _limit(row: ProviderRow) -> str:
    """Return the learned limit, and the configured one if it is reached."""
    if row.limit is None:
        return UNKNOWN if row.ceiling is None else f"at most {row.ceiling}"
    return f"{row.limit}{' (configured)' if row.limit == row.ceiling else ''}"
