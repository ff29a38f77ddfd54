"""The fast verifier json.object, and the registry."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from types import ModuleType
from typing import Any, ClassVar

import pytest

from mulligan.policies.failures.failure import VerificationResult, VerificationStatus
from mulligan.policies.jobs.job import Output, VerifierSpec, Workspace
from mulligan.policies.value import Value
from mulligan.tasks.ports.errors import BadInput
from mulligan.tasks.ports.verifiers import Candidate
from mulligan.workers.verifiers.json_object import JsonObject
from mulligan.workers.verifiers.verifier_registry import GROUP, VerifierRegistry

PASS, FAIL = VerificationStatus.PASS, VerificationStatus.FAIL


def candidate(text: str, *, finish_reason: str | None = "stop") -> Candidate:
    return Candidate(output=Output(text=text, finish_reason=finish_reason), text=text)


def spec(verifier_id: str, **options: Any) -> VerifierSpec:
    return VerifierSpec.model_validate({"id": verifier_id, **options})


# -- json.object ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "finish_reason", "shape", "code"),
    [
        ("", "stop", "empty", "empty"),
        ("   \n", "stop", "empty", "empty"),
        ('{"a": 1, "b": [1, 2', "length", "truncated", "truncated"),
        ("I cannot do that.", "stop", "prose", "prose"),
        ("```\nno json here\n```", "stop", "fence", "fence"),
        ("[1, 2]", "stop", "not_object", "not_object"),
        ("null", "stop", "not_object", "not_object"),
        ('"text"', "stop", "not_object", "not_object"),
        ("31", "stop", "not_object", "not_object"),
        ("true", "stop", "not_object", "not_object"),
    ],
)
def test_an_answer_that_is_not_an_object_fails_with_its_shape(
    text: str, finish_reason: str, shape: str, code: str
) -> None:
    result = JsonObject().verify(candidate(text, finish_reason=finish_reason))
    assert result.status is FAIL
    assert result.evidence["shape"] == shape
    assert result.evidence["truncated"] is (finish_reason == "length")
    assert [error.code for error in result.errors] == [code]
    assert result.errors[0].path == "$"
    assert result.summary == result.errors[0].message


def test_an_object_passes_without_warnings() -> None:
    result = JsonObject().verify(candidate('{"a": 1}'))
    assert result.status is PASS
    assert result.warnings == ()
    assert result.evidence == {"shape": "object", "truncated": False, "decoder": ""}
    assert result.score is None


def test_free_repairs_pass_and_are_recorded() -> None:
    result = JsonObject().verify(candidate('Sure!\n```json\n{"a": 1}\n```\n'))
    assert result.status is PASS
    coercions = result.evidence["coercions"]
    assert "fence" in coercions
    assert len(result.warnings) == len(coercions)


def test_coercions_are_those_of_the_original_answer() -> None:
    """Given a candidate whose text is already repaired, the coercion is still recorded."""
    output = Output(text='```json\n{"a": 1}\n```')
    result = JsonObject().verify(Candidate(output=output, text='{"a": 1}'))
    assert result.evidence["coercions"] == ["fence"]


def test_the_decoders_message_has_no_position() -> None:
    first = JsonObject().verify(candidate('{"a": 1, "b": [1, 2', finish_reason="length"))
    second = JsonObject().verify(candidate('{"a": 1,\n "bb": [1, 2', finish_reason="length"))
    assert first.evidence["decoder"]
    assert first.evidence == second.evidence


def test_a_long_object_passes() -> None:
    result = JsonObject().verify(candidate('{"a": "' + "x" * 100_000 + '"}'))
    assert result.status is PASS


# -- registry -------------------------------------------------------------------------------------


@pytest.fixture
def registry() -> VerifierRegistry:
    return VerifierRegistry(plugins=lambda: ())


def test_the_built_in_verifiers(registry: VerifierRegistry) -> None:
    assert registry.names() == [
        "command.subprocess",
        "contract.schema",
        "edits.plan",
        "external.score",
        "git.diff",
        "git.merge",
        "json.object",
        "loop.draft",
        "pytest.subprocess",
        "text.match",
    ]


@pytest.mark.parametrize(
    ("options", "slow"),
    [
        ({"id": "json.object"}, False),
        ({"id": "contract.schema", "schema": True}, False),
        ({"id": "text.match", "contains": "x"}, False),
        ({"id": "pytest.subprocess"}, True),
        ({"id": "command.subprocess", "argv": ["true"]}, True),
    ],
)
def test_only_subprocess_verifiers_are_slow(
    registry: VerifierRegistry, options: dict[str, Any], slow: bool
) -> None:
    assert registry.build(VerifierSpec.model_validate(options)).slow is slow


def test_equal_specs_share_their_verifier(registry: VerifierRegistry) -> None:
    one = spec("contract.schema", schema={"type": "object", "required": ["a"]}, weight=2)
    two = spec("contract.schema", schema={"required": ["a"], "type": "object"}, name="other")
    assert registry.build(one) is registry.build(two)


@pytest.mark.parametrize(
    ("invalid", "problem"),
    [
        (spec("json.objct"), "verifiers[0].id: unknown verifier 'json.objct'; did you mean"),
        (spec("zzz"), "verifiers[0].id: unknown verifier 'zzz'; there are: command.subprocess"),
        (spec("json.object", strict=True), "verifiers[0].strict: there is no such option"),
        (spec("contract.schema"), "verifiers[0].schema: is required"),
        (spec("contract.schema", shema={}, schema={}), "did you mean 'schema'?"),
        (spec("contract.schema", schema={"type": "x"}), "verifiers[0].schema.type: "),
        (spec("text.match", regex="["), "verifiers[0].regex: '[' is not a valid pattern"),
        (spec("text.match"), "verifiers[0]: nothing to check"),
        (spec("text.match", min_length=3, max_length=2), "min_length is larger than max_length"),
        (spec("pytest.subprocess", args=["--junitxml=x"]), "verifiers[0].args: '--junitxml=x'"),
        (spec("pytest.subprocess", args=["../t.py"]), "must stay inside the workspace"),
        (spec("pytest.subprocess", timeout="soon"), "verifiers[0].timeout: 'soon' is not a dur"),
        (spec("command.subprocess", argv="ls -l"), "verifiers[0].argv: "),
        (spec("command.subprocess", timeout=0), "verifiers[0].timeout: "),
    ],
)
def test_each_problem_names_its_field(
    registry: VerifierRegistry, invalid: VerifierSpec, problem: str
) -> None:
    workspace = Workspace(path="x", output_file="solution.py")
    problems = registry.check([invalid], workspace)
    assert len(problems) == 1
    assert problem in str(problems[0])
    with pytest.raises(BadInput):
        registry.build(invalid)


def test_all_problems_are_reported_at_once(registry: VerifierRegistry) -> None:
    specs = [
        spec("json.object"),
        spec("contract.schema", schema={"type": "x", "required": 3}),
        spec("pytest.subprocess", timeout=-1),
        spec("nope"),
    ]
    problems = registry.check(specs, None)
    assert [problem.field for problem in problems] == [
        "verifiers[1].schema.required",
        "verifiers[1].schema.type",
        "verifiers[2]",
        "verifiers[2].timeout",
        "verifiers[3].id",
    ]
    assert "needs a workspace" in problems[2].message


@pytest.mark.parametrize(
    "name", ["conftest.py", "test_x.py", "deep/sitecustomize.py", "tests/a.py"]
)
def test_an_answer_may_not_become_a_protected_file(registry: VerifierRegistry, name: str) -> None:
    problems = registry.check([spec("json.object")], Workspace(path="x", output_file=name))
    assert len(problems) == 1
    assert str(problems[0]).startswith(f"workspace.output_file: {name} is a protected file")


class Shouting:
    """A user's plug-in."""

    slow = False

    class Options(Value):
        mark: str = "!"

    built: ClassVar[int] = 0

    def __init__(self, options: Options) -> None:
        self.options = options
        Shouting.built += 1

    def verify(self, candidate: Candidate) -> VerificationResult:
        status = PASS if candidate.text.endswith(self.options.mark) else FAIL
        return VerificationResult(status=status, verifier_id="acme.shouting")


def plugin_registry(monkeypatch: pytest.MonkeyPatch) -> VerifierRegistry:
    module = ModuleType("acme_plugin")
    vars(module).update(Shouting=Shouting, number=3)
    monkeypatch.setitem(sys.modules, "acme_plugin", module)
    entries = {
        "acme.shouting": "acme_plugin:Shouting",
        "acme.number": "acme_plugin:number",
        "acme.broken": "acme_missing_module:Thing",
    }
    return VerifierRegistry(
        plugins=lambda: [EntryPoint(name, value, GROUP) for name, value in entries.items()]
    )


def test_a_plug_in_is_built_with_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = plugin_registry(monkeypatch)
    assert "acme.shouting" in registry.names()
    verifier = registry.build(spec("acme.shouting", mark="?"))
    assert verifier.verify(candidate("really?")).status is PASS
    assert verifier.verify(candidate("really!")).status is FAIL
    assert list(map(str, registry.check([spec("acme.shouting", markk="?")], None))) == [
        "verifiers[0].markk: there is no such option; did you mean 'mark'?"
    ]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("acme.broken", r"plug-in acme.broken \(acme_missing_module:Thing\) cannot be loaded"),
        ("acme.number", r"plug-in acme.number \(acme_plugin:number\) is not a verifier"),
    ],
)
def test_a_broken_plug_in_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, message: str
) -> None:
    registry = plugin_registry(monkeypatch)
    assert name in registry.names(), "listing does not load"
    with pytest.raises(BadInput, match=message):
        registry.build(spec(name))
    assert registry.build(spec("json.object")), "the others still work"
