"""The run of an item that repairs a regression: what it is told, and what it must not break."""

from __future__ import annotations

from mulligan.policies.loops.loop import LoopSnapshot
from mulligan.policies.loops.spec import ItemSpec, ItemVerifier
from mulligan.policies.regressions.record import Regression
from mulligan.policies.repair import wording

#: Verifiers of an item, without those that a loop adds.
_MOST_VERIFIERS = 46


def regression_run(snapshot: LoopSnapshot, spec: ItemSpec) -> tuple[ItemSpec, str]:
    """Return an item as its next run has it, and what that run is told about a regression.

    The checks that fail now are what the run is for, also if they were guards. What it repairs must
    not break the other side: its checks are guards.
    """
    found = snapshot.loop.regressions.repaired_by(spec.id)
    if found is None:
        return spec, ""
    own = found.item == spec.id
    verifiers = [
        each.model_copy(update={"role": "acceptance"}) if own and place in found.broken else each
        for place, each in enumerate(spec.verifiers)
    ]
    other = snapshot.spec(found.culprit_item if own else found.item)
    guards = _guards(snapshot, other) if other is not None and other.id != spec.id else []
    new = [each for each in guards if each.plain() not in [v.plain() for v in verifiers]]
    if len(verifiers) + len(new) <= _MOST_VERIFIERS:
        verifiers += new
    changed = spec.model_copy(update={"verifiers": tuple(verifiers)})
    return changed, _told(found, own=own)


def _guards(snapshot: LoopSnapshot, other: ItemSpec) -> list[ItemVerifier]:
    """Return the checks of the other side, if they pass now."""
    if snapshot.record(other.id).state != "passed":
        return []
    broken = snapshot.loop.regressions.open_of(other.id)
    return [
        each.model_copy(update={"role": "guard"})
        for place, each in enumerate(other.verifiers)
        if each.required and (broken is None or broken.repairs != broken.item)
    ]


def _told(found: Regression, *, own: bool) -> str:
    words = wording.REGRESSION if own else wording.UNDONE_REGRESSION
    return words.format(
        item=found.item,
        checks=found.checks,
        good=found.good[:10],
        bad=found.culprit[:10],
        culprit=found.culprit_name,
        summary=found.summary,
        difference=found.difference or "(it cannot be shown)",
    )
