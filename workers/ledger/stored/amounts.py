"""Amounts of tokens, money and seconds as the ledger stores them."""

from __future__ import annotations

from collections.abc import Mapping

from mulligan.policies.loops.budget import RESOURCES, Resource


def amounts(values: Mapping[Resource, float]) -> str:
    """Return ``tokens|money|seconds``; what has no value is empty."""
    return "|".join(repr(values[name]) if name in values else "" for name in RESOURCES)


def read_amounts(text: str) -> dict[Resource, float]:
    parts = text.split("|")
    return {name: float(part) for name, part in zip(RESOURCES, parts, strict=False) if part}
