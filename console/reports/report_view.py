"""A report as a value: a document for programs; facts, tables and charts for people.

Terminals show only the charts whose numbers are in no table: changes and lines.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class ReportTable:
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    #: Shown where there are no rows.
    empty: str = "nothing"


@dataclass(frozen=True, kw_only=True)
class BarChart:
    """One bar per name."""

    title: str
    bars: tuple[tuple[str, float], ...]


@dataclass(frozen=True, kw_only=True)
class ColumnChart:
    """Stacked columns: a label and one number per name."""

    title: str
    names: tuple[str, ...]
    columns: tuple[tuple[str, tuple[float, ...]], ...]


@dataclass(frozen=True, kw_only=True)
class Change:
    """One bar of a chart of changes."""

    name: str
    value: float
    #: Whether the change is still in force.
    kept: bool
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class ChangeChart:
    """Bars from the middle; right is better."""

    title: str
    changes: tuple[Change, ...]


@dataclass(frozen=True, kw_only=True)
class LineChart:
    """A number over time."""

    title: str
    #: Times in seconds since 1970, and values.
    points: tuple[tuple[float, float], ...]
    #: When it may come down to a value, at the earliest and at the latest.
    ends: tuple[float, float] | None = None
    floor: float = 0.0


Chart = BarChart | ColumnChart | ChangeChart | LineChart


@dataclass(frozen=True, kw_only=True)
class ReportView:
    title: str
    #: What the report covers, in a sentence.
    about: str
    facts: tuple[tuple[str, str], ...] = ()
    tables: tuple[ReportTable, ...] = ()
    charts: tuple[Chart, ...] = ()
    #: Sentences at the end.
    remarks: tuple[str, ...] = ()
    #: The same as JSON-ready data.
    document: Mapping[str, Any] = field(default_factory=dict)
