"""A spec compared with a code base: what each verdict of a verifier before the work means."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from mulligan.policies.failures.failure import Finding, VerificationResult, VerificationStatus
from mulligan.policies.jobs.job import Output, VerifierSpec
from mulligan.policies.loops.spec import ItemSpec
from mulligan.tasks.loops.spec_check import CodeBase, SpecCheck
from mulligan.tasks.ports.clock import Clock
from mulligan.tasks.ports.errors import BadInput, SetupFailed, VerifierError
from mulligan.tasks.ports.verifiers import Candidate, Verifier

PASS, FAIL = VerificationStatus.PASS, VerificationStatus.FAIL
SKIPPED = VerificationStatus.SKIPPED


def result(status: VerificationStatus, code: str = "", **evidence: Any) -> VerificationResult:
    errors = (Finding(message="said", code=code),) if code else ()
    return VerificationResult(
        status=status, verifier_id="v", summary="said", errors=errors, evidence=evidence
    )


@dataclass
class Code:
    """A code base whose verifiers reach the verdicts that they are named after."""

    verdicts: dict[str, Callable[[], VerificationResult]]
    built: list[VerifierSpec] = field(default_factory=list)
    seconds: float = 0.0

    def base(self, **options: Any) -> CodeBase:
        candidate = Candidate(output=Output(text=""), text="")
        clock = Clock(monotonic=lambda: self.seconds)
        return CodeBase(build=self.build, candidate=lambda _item: candidate, clock=clock, **options)

    def build(self, spec: VerifierSpec) -> Verifier:
        self.built.append(spec)
        verdict = self.verdicts[str(spec.options["args"][0])]

        class Reached:
            slow = True

            def verify(self, candidate: Candidate) -> VerificationResult:
                return verdict()

        return Reached()

    def codes(self, *items: ItemSpec, **options: Any) -> list[str]:
        return [
            f"{each.item} {each.code}{' (warning)' if each.is_warning else ''}"
            for each in SpecCheck(self.base(**options)).find(items)
        ]


def check(what: str, role: str = "acceptance", **more: Any) -> dict[str, Any]:
    return {"id": "pytest.subprocess", "args": [what], "role": role, **more}


def item(name: str, *verifiers: dict[str, Any], **fields: Any) -> ItemSpec:
    base = {"id": name, "prompt": "x", "verifiers": list(verifiers)}
    return ItemSpec.model_validate({**base, **fields})


def raises(error: Exception) -> Callable[[], VerificationResult]:
    def verdict() -> VerificationResult:
        raise error

    return verdict


@pytest.fixture
def code() -> Code:
    return Code(
        {
            "pass": lambda: result(PASS),
            "fail": lambda: result(FAIL),
            "skip": lambda: result(SKIPPED),
            "error": raises(VerifierError("no such program")),
            "bad": raises(BadInput("no command")),
            "bug": raises(RuntimeError("bug")),
            "slow": lambda: result(FAIL, timed_out=True),
            "empty": lambda: result(FAIL, "no_tests"),
            "setup": raises(SetupFailed("no network")),
        }
    )


@pytest.mark.parametrize(
    ("verifiers", "codes"),
    [
        ([check("fail")], []),
        ([check("fail"), check("pass", "guard")], []),
        ([check("pass")], ["A passes_already"]),
        ([check("pass"), check("fail")], ["A passes_already (warning)"]),
        ([check("fail"), check("fail", "guard")], ["A guard_fails"]),
        ([check("skip")], ["A cannot_run"]),
        ([check("error")], ["A cannot_run"]),
        ([check("bad")], ["A cannot_run"]),
        ([check("bug")], ["A cannot_run"]),
        ([check("slow")], ["A cannot_run"]),
        ([check("empty")], ["A cannot_run"]),
        ([check("fail"), check("error", "guard")], ["A cannot_run"]),
    ],
)
def test_what_a_verdict_before_the_work_means(
    code: Code, verifiers: list[dict[str, Any]], codes: list[str]
) -> None:
    assert code.codes(item("A", *verifiers)) == codes


def test_a_setup_that_fails_is_no_problem_of_the_spec(code: Code) -> None:
    with pytest.raises(SetupFailed):
        code.codes(item("A", check("setup")))


def test_equal_verifiers_run_once(code: Code) -> None:
    found = code.codes(
        item("A", check("fail"), check("pass", "guard")),
        item("B", check("fail", name="other", weight=2), check("pass", "guard")),
    )
    assert found == []
    assert len(code.built) == 2


def test_all_verifiers_together_have_a_limit(code: Code) -> None:
    """Given verifiers that take long, then each gets what is left, and the last ones are named."""

    def slow() -> VerificationResult:
        code.seconds += 60
        return result(FAIL)

    code.verdicts |= dict.fromkeys("1234", slow)
    times = {"1": 500, "2": "1h", "3": "20s", "4": 500}
    items = [item(f"A{n}", check(n, timeout=each)) for n, each in times.items()]
    assert code.codes(*items, seconds=150) == ["A4 cannot_run"]
    assert [each.options["timeout"] for each in code.built] == [150, 90, 20]


def test_dependencies_criteria_and_files_are_looked_at(code: Code) -> None:
    found = code.codes(
        item("A", check("fail"), depends_on=["B"], touches=["a.txt", "src/**", "new/**"]),
        item("B", check("fail"), depends_on=["A", "Z"], pass_criteria=["one", "two"]),
        item("C", check("fail")),
        item("C", check("fail")),
        files=["a.txt", "src/b/c.py"],
    )
    assert sorted(found) == [
        "A cycle", "A touches_nothing (warning)", "B criterion_unchecked (warning)",
        "B unknown_dependency", "C duplicate_id", "C duplicate_id",
    ]  # fmt: skip


def test_what_is_done_is_not_run(code: Code) -> None:
    assert [*SpecCheck(code.base()).find([item("A", check("pass"))], done={"A"})] == []
    assert code.built == []
