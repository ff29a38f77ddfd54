"""What a request's body may say depends on who sends it: producers may not loosen a review.

docs/api.md, "What a body may set", lists every field of this kind.
"""

from __future__ import annotations

from collections.abc import Iterator

from mulligan.console.http.access import Caller
from mulligan.console.http.errors import HttpError
from mulligan.console.http.models.edit_models import PlanSubmission
from mulligan.policies.edits.edit import AutonomyMode, BenchmarkSpec
from mulligan.policies.edits.suite import Suite
from mulligan.policies.problem import Problem


def check_plan_rights(caller: Caller, body: PlanSubmission) -> None:
    """Raise 403 if a producer asks for less review or a weaker gate than the default.

    Stricter values than the default are for everyone.
    """
    if caller.role != "producer":
        return
    found = [Problem.at(field, _needs_ops(why), "not_allowed") for field, why in _loosened(body)]
    if found:
        raise HttpError(403, "needs_ops", "; ".join(map(str, found)), details=found)


def _needs_ops(why: str) -> str:
    return f"{why}, which needs the role ops: leave the field out, or use a token of ops"


def _loosened(body: PlanSubmission) -> Iterator[tuple[str, str]]:
    """Yield each field that loosens something, with what it does."""
    benchmark, usual = body.plan.benchmark, BenchmarkSpec()
    if body.mode is AutonomyMode.AUTO:
        yield "mode", "auto applies edits without their review"
    if benchmark.policy == "allow":
        yield "plan.benchmark.policy", "allow applies edits that nothing has measured"
    if benchmark.max_regression > usual.max_regression:
        text = f"a cluster may lose more than {usual.max_regression:g}"
        yield "plan.benchmark.max_regression", text
    if body.suite is not None:
        yield from _loosened_suite(body.suite)


def _loosened_suite(suite: Suite) -> Iterator[tuple[str, str]]:
    usual = Suite.model_fields["confidence"].default
    if suite.confidence < usual:
        yield "suite.confidence", f"edits are decided with less confidence than {usual:g}"
    if suite.undecided == "estimate":
        yield "suite.undecided", "estimate keeps edits whose effect is not certain"
