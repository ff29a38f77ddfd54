"""The history of measured effects as a table and as a chart."""

from __future__ import annotations

from collections.abc import Sequence

from mulligan.console.cli.edits.edit_backend import open_sessions
from mulligan.console.reports.report_view import Change, ChangeChart, ReportTable, ReportView
from mulligan.policies.edits.session import EditDelta
from mulligan.policies.figures.format import change, counted, timestamp
from mulligan.workers.settings.model import load_settings

_NOTHING = "nothing measured yet"


def find_deltas(*, session: str | None, cluster: str | None, limit: int) -> list[EditDelta]:
    """Return measured effects, newest first."""
    with open_sessions(load_settings()) as backend:
        found = backend.engine.sessions.deltas(limit=10_000)
    return [
        delta
        for delta in found
        if session in (None, delta.session) and (cluster is None or cluster in delta.cluster_deltas)
    ][:limit]


def effect_table(deltas: Sequence[EditDelta]) -> ReportView:
    table = ReportTable(
        title="Effects",
        columns=("time", "edit", "operation", "outcome", "change", "notes"),
        rows=tuple(
            (
                timestamp(delta.at.timestamp()),
                f"{delta.session}/{delta.edit_id}",
                f"{delta.op} {delta.target}",
                f"{delta.status} ({delta.reason})",
                changes(delta.benchmark_delta, delta.cluster_deltas),
                "; ".join(f"note: {note}" for note in delta.notes),
            )
            for delta in deltas
        ),
        empty=_NOTHING,
    )
    return ReportView(
        title="Measured edits",
        about=counted(len(deltas), "measured edit"),
        tables=(table,),
        document={"deltas": [delta.model_dump(mode="json") for delta in deltas]},
    )


def effect_chart(deltas: Sequence[EditDelta], cluster: str | None) -> ReportView:
    score = f"{cluster or 'overall'} score"
    chart = ChangeChart(
        title="Change per edit",
        changes=tuple(
            Change(
                name=f"{delta.session}/{delta.edit_id} {delta.op}",
                value=delta.benchmark_delta if cluster is None else delta.cluster_deltas[cluster],
                kept=delta.status == "applied",
                note=str(delta.reason),
            )
            for delta in deltas
        ),
    )
    return ReportView(
        title=f"Measured edits: {score}",
        about=f"The {score}, oldest edit first. Bars to the right are better; pale ones were not"
        " kept."
        if deltas
        else _NOTHING,
        charts=(chart,) if deltas else (),
    )


def changes(overall: float, clusters: dict[str, float]) -> str:
    """Return ``overall +0.200, main +0.200``."""
    parts = {"overall": overall, **clusters}
    return ", ".join(f"{name} {change(value)}" for name, value in parts.items())
