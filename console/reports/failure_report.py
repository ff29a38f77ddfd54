"""Failures by signature: one JSON-ready report for the API, the page and the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from mulligan.console.reports.report_view import BarChart, ColumnChart, ReportTable, ReportView
from mulligan.policies.failures.describe import describe_failure
from mulligan.policies.failures.failure import FailureRecord
from mulligan.policies.failures.redaction import redacted_parts
from mulligan.policies.failures.signature import explain_signature
from mulligan.policies.figures.failure_ranking import RankedFailure, RankingFilter, rank
from mulligan.policies.figures.format import UNKNOWN, condense, iso_time, minute, number, sparkline
from mulligan.tasks.ports.ledger import EscalationGroup
from mulligan.workers.figures.windows import Bucket, FigureReader, Window, parse_window
from mulligan.workers.ledger.redis_ledger import RedisLedger


def failures_report(
    ledger: RedisLedger,
    figures: FigureReader,
    *,
    window: str,
    choice: RankingFilter,
    limit: int,
    owner: str | None = None,
) -> dict[str, Any]:
    """Report the most frequent signatures first. ``owner``: a producer; its jobs are examples."""
    now = ledger.now()
    found = figures.window(parse_window(window), now=now)
    ranked = rank(rows_of(found.buckets), rows_of(found.before), choice=choice, limit=limit)
    groups = ledger.groups_of([each.signature for each in ranked])
    failures = [
        _row(each, found, groups.get(each.signature), now=now, tenant=choice.tenant)
        for each in ranked
    ]
    owned = ledger.owned([row["example"] for row in failures if row["example"]], owner)
    for row in failures:
        row["example"] = row["example"] if row["example"] in owned else None
    return {**_head(found, window, now), "failures": failures}


def failure_report(
    ledger: RedisLedger,
    figures: FigureReader,
    *,
    signature: str,
    window: str,
    tenant: str | None,
    texts: bool,
    owner: str | None = None,
) -> dict[str, Any] | None:
    """Report one signature with its explanation; None if the tenant never had it.

    ``owner``: a producer. It reads nothing that quotes the answer to another one's job.
    """
    now = ledger.now()
    found = figures.window(parse_window(window), now=now)
    choice = RankingFilter(tenant=tenant, signature=signature)
    ranked = rank(rows_of(found.buckets), rows_of(found.before), choice=choice, limit=1)
    group = ledger.group(signature)
    if group and not ranked and tenant is not None and tenant not in group.tenants:
        group = None
    if not ranked and group is None:
        return None
    one = ranked[0] if ranked else _without_failures(signature, group, len(found.buckets))
    row = _row(one, found, group, now=now, tenant=tenant)
    example = example_of(found, signature, tenant)
    failure = figures.failure(example) if example else None
    if example and not ledger.owned([example.partition("/")[0]], owner):
        texts = False
    if row["example"] and not ledger.owned([row["example"]], owner):
        row["example"] = None
    return {
        **_head(found, window, now),
        **row,
        "place": place_of(failure, texts=texts),
        "explanation": _explanation(failure, texts=texts),
    }


def rows_of(buckets: Sequence[Bucket]) -> list[Mapping[Any, int]]:
    return [bucket.rows for bucket in buckets]


def example_of(window: Window, signature: str, tenant: str | None) -> str | None:
    """Return an attempt with this failure as `<job>/<attempt>`, of the tenant if one is given."""
    if tenant is not None:
        return window.examples.get((signature, tenant))
    examples = [example for (name, _), example in window.examples.items() if name == signature]
    return examples[-1] if examples else None


def place_of(failure: FailureRecord | None, *, texts: bool = False) -> str:
    """Return where in the answer it failed (``$.total``, ``2/5 passed``); empty if unknown.

    Without ``texts``, keys that are not in the contract are left out.
    """
    if failure is None:
        return ""
    return describe_failure(failure, texts=texts).removeprefix(failure.kind.value).strip()


def _head(found: Window, window: str, now: float) -> dict[str, Any]:
    return {
        "generated_at": iso_time(now),
        "window": window,
        "since": iso_time(found.buckets[0].start),
        "step_seconds": found.step,
    }


def _row(
    ranked: RankedFailure,
    window: Window,
    group: EscalationGroup | None,
    *,
    now: float,
    tenant: str | None,
) -> dict[str, Any]:
    example = example_of(window, ranked.signature, tenant)
    tried = ranked.tried
    muted = group.muted_until if group else None
    return {
        "signature": ranked.signature,
        "kind": ranked.kind,
        "cause": ranked.cause or None,
        "count": ranked.count,
        "before": ranked.before,
        "trend": ranked.trend,
        "series": list(ranked.series),
        "task_types": dict(ranked.task_types),
        "models": dict(ranked.models),
        "tried": tried.tried,
        "repaired": tried.repaired,
        "repaired_share": None if tried.share is None else round(tried.share, 4),
        "techniques": [
            {"name": name, "tried": each.tried, "repaired": each.repaired}
            for name, each in ranked.techniques.items()
        ],
        "example": _example_job(example, group, tenant),
        "open_escalations": _open(group, tenant),
        "muted": muted is not None and muted > now,
        "muted_until": muted if muted is not None and muted > now else None,
    }


def _example_job(
    example: str | None, group: EscalationGroup | None, tenant: str | None
) -> str | None:
    """Return a job with the failure. A group's example may belong to another tenant."""
    if example:
        return example.partition("/")[0]
    return group.example if group and tenant is None else None


def _open(group: EscalationGroup | None, tenant: str | None) -> int:
    if group is None:
        return 0
    return group.open if tenant is None else group.tenants.get(tenant, 0)


def _without_failures(signature: str, group: EscalationGroup | None, length: int) -> RankedFailure:
    """Return a signature that has escalations, but no failures in the window."""
    return RankedFailure(
        signature=signature,
        kind=(group.kind or "") if group else "",
        cause="",
        count=0,
        before=0,
        series=(0,) * length,
        task_types={},
        models={},
        techniques={},
    )


def _explanation(failure: FailureRecord | None, *, texts: bool) -> dict[str, Any] | None:
    """Explain the signature. Without texts, parts that may quote an answer are left out."""
    if failure is None:
        return None
    explained = explain_signature(failure)
    shown = explained.as_dict()
    if not texts:
        shown |= {"strict_parts": {}, "coarse_parts": redacted_parts(explained)}
    return {**shown, "redacted": not texts}


# -- for people ------------------------------------------------------------------------------------

#: Columns and bars of the charts, and kinds with a separate colour.
_COLUMNS, _BARS, _KINDS = 60, 15, 4


def failures_view(report: Mapping[str, Any]) -> ReportView:
    rows = report["failures"]
    step, start = report["step_seconds"], datetime.fromisoformat(report["since"]).timestamp()
    return ReportView(
        title="Failures",
        about=f"The last {report['window']}, as of {report['generated_at'][:19]} UTC.",
        facts=(
            ("failed attempts", number(sum(row["count"] for row in rows))),
            ("signatures", number(len(rows))),
        ),
        tables=(
            ReportTable(
                title="Signatures",
                columns=("signature", "kind", "n", "before", "trend", "repaired", "task types",
                         "example"),
                rows=tuple(_table_row(row) for row in rows),
                empty="no attempt failed",
            ),
        ),
        charts=(
            _failures_over_time(rows, start=start, step=step),
            BarChart(
                title="Signatures",
                bars=tuple(
                    (f"{_kind(row)} {row['signature']}", row["count"]) for row in rows[:_BARS]
                ),
            ),
        ),
        document=report,
    )  # fmt: skip


def _kind(row: Mapping[str, Any]) -> str:
    return f"{row['kind']}.{row['cause']}" if row["cause"] else str(row["kind"])


def _table_row(row: Mapping[str, Any]) -> tuple[str, ...]:
    types = ", ".join(f"{name} {n}" for name, n in list(row["task_types"].items())[:3])
    mark = {1: " ▲", 0: "", -1: " ▼"}[row["trend"]]
    return (
        row["signature"] + (" (muted)" if row["muted"] else ""),
        _kind(row),
        f"{number(row['count'])}{mark}",
        number(row["before"]),
        sparkline(row["series"]),
        f"{row['repaired']} of {row['tried']}" if row["tried"] else UNKNOWN,
        types,
        row["example"] or UNKNOWN,
    )


def _failures_over_time(
    rows: Sequence[Mapping[str, Any]], *, start: float, step: int
) -> ColumnChart:
    """Chart failures by kind. Kinds beyond the number of colours are merged."""
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    names = kinds[:_KINDS] + (["others"] if len(kinds) > _KINDS else [])
    length = max((len(row["series"]) for row in rows), default=0)
    series = {name: [0.0] * length for name in names}
    for row in rows:
        values = series[row["kind"] if row["kind"] in kinds[:_KINDS] else "others"]
        for place, n in enumerate(row["series"]):
            values[place] += n
    condensed = {name: condense(values, _COLUMNS) for name, values in series.items()}
    columns = len(next(iter(condensed.values()), []))
    width = step * max(1, -(-length // _COLUMNS))
    return ColumnChart(
        title="Failed attempts",
        names=tuple(names),
        columns=tuple(
            (
                minute(start + place * width),
                tuple(condensed[name][place] for name in names),
            )
            for place in range(columns)
        ),
    )
