"""Scripted answers, the registry with its profiles and plug-ins, and request bodies."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from mulligan.policies.jobs.job import Decoding, Message, Output, RunnerSpec, Usage
from mulligan.policies.value import Json
from mulligan.tasks.ports.errors import BadInput, OutOfCredits, RunnerError, TransportFault
from mulligan.tasks.ports.runners import Request, Runner
from mulligan.workers.runners import local_state
from mulligan.workers.runners import runner_registry as registry
from mulligan.workers.runners.local_server import needed
from mulligan.workers.runners.local_state import ProcessId, ServerState
from mulligan.workers.runners.openai import OpenAIOptions, is_strict, request_body
from mulligan.workers.runners.runner_options import RunnerDefaults, defaults_of
from mulligan.workers.runners.runner_registry import RunnerRegistry
from mulligan.workers.runners.scripted import ScriptedRunner

HELLO = (Message(role="user", content="hello"),)
SMALL = {"kind": "openai", "base_url": "http://127.0.0.1:8080/v1", "model": "small"}


def request(**fields: Any) -> Request:
    return Request(messages=HELLO, **fields)


def scripted(*answers: Any) -> ScriptedRunner:
    return ScriptedRunner.from_options({"answers": list(answers)})


class TestScripted:
    def test_answers_by_attempt_and_repeats_the_last(self) -> None:
        runner = scripted("first", "second")
        texts = [runner.answer(request(attempt=number)).text for number in (1, 2, 3, 9)]
        assert texts == ["first", "second", "second", "second"]

    def test_unknown_usage_is_none(self) -> None:
        assert scripted("x").answer(request()).usage == Usage()

    def test_an_answer_may_have_usage_and_finish_reason(self) -> None:
        usage = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
        runner = scripted({"text": "cut", "finish_reason": "length", "usage": usage})
        output = runner.answer(request())
        assert output.truncated
        assert output.usage.total_tokens == 7

    def test_a_fault_is_a_transport_fault(self) -> None:
        runner = scripted({"fault": {"status": 429, "retry_after": "2s"}})
        with pytest.raises(TransportFault, match="429") as caught:
            runner.answer(request())
        assert (caught.value.status, caught.value.retry_after) == (429, 2.0)
        assert caught.value.provider == runner.provider == "scripted"

    def test_a_fault_402_means_that_the_credits_are_used_up(self) -> None:
        with pytest.raises(OutOfCredits):
            scripted({"fault": {"status": 402}}).answer(request())

    def test_a_fault_can_be_limited_for_each_job(self) -> None:
        runner = scripted({"text": "at last", "fault": {"status": 503, "times": 2}})
        for _ in range(2):
            with pytest.raises(TransportFault):
                runner.answer(request(job_id="a"))
        assert runner.answer(request(job_id="a")).text == "at last"
        with pytest.raises(TransportFault):
            runner.answer(request(job_id="b"))

    def test_a_delay_beyond_the_timeout_is_a_fault(self) -> None:
        with pytest.raises(TransportFault, match="no answer within"):
            scripted({"text": "late", "delay": 30}).answer(request(timeout=0.01))

    @pytest.mark.parametrize(
        ("options", "problem"),
        [
            ({}, "answers: is required"),
            ({"answers": []}, "answers: "),
            ({"answers": [{"txt": "x"}]}, "answers[0].txt: there is no such option"),
            ({"answers": [{"text": "x", "delay": 3600}]}, "answers[0].delay: "),
            (
                {"answers": ["x"], "answer": 1},
                "answer: there is no such option; did you mean 'answers'?",
            ),
        ],
    )
    def test_invalid_options_are_named(self, options: dict[str, Json], problem: str) -> None:
        with pytest.raises(BadInput) as caught:
            ScriptedRunner.from_options(options)
        assert any(str(line).startswith(problem) for line in caught.value.problems)


class TestProfiles:
    profiles = RunnerRegistry({"small": SMALL, "broken": {"kind": "openai"}, "kindless": {}})

    def test_a_profile_is_resolved_once(self) -> None:
        found = self.profiles.resolve(RunnerSpec(profile="small"), allow_inline=False)
        again = self.profiles.resolve(RunnerSpec(profile="small"), allow_inline=False)
        assert found is again
        assert found.provider == "127.0.0.1:8080"

    def test_the_order_of_fields_does_not_matter(self) -> None:
        one = RunnerSpec.model_validate({"profile": "small", "seed": 1, "temperature": 0.1})
        two = RunnerSpec.model_validate({"temperature": 0.1, "seed": 1, "profile": "small"})
        resolve = self.profiles.resolve
        assert resolve(one, allow_inline=False) is resolve(two, allow_inline=False)

    def test_safe_fields_override(self) -> None:
        spec = RunnerSpec.model_validate(
            {"profile": "small", "temperature": 0.2, "max_tokens": 9, "timeout": "3s"}
        )
        runner = self.profiles.resolve(spec, allow_inline=False)
        expected = RunnerDefaults(timeout=3.0, temperature=0.2, max_tokens=9)
        assert defaults_of(runner) == expected

    @pytest.mark.parametrize(
        "field", ["base_url", "api_key_env", "model", "argv", "env", "extra", "fallbacks", "x"]
    )
    @pytest.mark.parametrize("allow_inline", [True, False])
    def test_other_fields_do_not_override(self, field: str, allow_inline: bool) -> None:
        spec = RunnerSpec.model_validate({"profile": "small", field: "http://evil"})
        problems = self.profiles.check(spec, allow_inline=allow_inline)
        assert [problem.field for problem in problems] == [f"runner.{field}"]

    def test_all_problems_are_reported_at_once(self) -> None:
        spec = RunnerSpec.model_validate(
            {"profile": "small", "base_url": "x", "temperature": 9, "max_tokens": "many"}
        )
        problems = self.profiles.check(spec, allow_inline=False)
        fields = {problem.field for problem in problems}
        assert fields == {"runner.base_url", "runner.temperature", "runner.max_tokens"}

    @pytest.mark.parametrize(
        ("name", "part"),
        [
            ("smal", "did you mean 'small'?"),
            ("zzz", "(broken, kindless, small)"),
            ("broken", "[runners.broken] of mulligan.toml: model: is required"),
            ("kindless", "[runners.kindless] of mulligan.toml: kind: is required"),
        ],
    )
    def test_an_unusable_profile_is_explained(self, name: str, part: str) -> None:
        (problem,) = self.profiles.check(RunnerSpec(profile=name), allow_inline=False)
        assert problem.field == "runner.profile"
        assert part in problem.message

    def test_every_profile_can_be_checked_at_once(self) -> None:
        assert len(self.profiles.check_profiles()) == 2

    def test_the_number_of_kept_runners_is_bounded(self) -> None:
        keep = RunnerRegistry({"small": SMALL})
        for seed in range(300):
            spec = RunnerSpec.model_validate({"profile": "small", "seed": seed})
            keep.resolve(spec, allow_inline=False)
        assert len(keep._built) == 256


class TestInline:
    def test_an_inline_runner_is_refused_with_advice(self) -> None:
        spec = RunnerSpec.model_validate({"kind": "command", "argv": ["rm"]})
        (problem,) = RunnerRegistry({"small": SMALL}).check(spec, allow_inline=False)
        assert problem.field == "runner.kind"
        assert "(small)" in problem.message
        assert "allow_inline = true" in problem.message

    def test_an_allowed_inline_runner_is_built(self) -> None:
        spec = RunnerSpec.model_validate({"kind": "scripted", "answers": ["x"]})
        runner = RunnerRegistry().resolve(spec, allow_inline=True)
        assert runner.answer(request()).text == "x"
        assert RunnerRegistry().check(spec, allow_inline=True) == []

    def test_a_built_inline_runner_is_still_refused_to_others(self) -> None:
        shared = RunnerRegistry()
        spec = RunnerSpec.model_validate({"kind": "scripted", "answers": ["x"]})
        shared.resolve(spec, allow_inline=True)
        with pytest.raises(BadInput):
            shared.resolve(spec, allow_inline=False)

    def test_an_unknown_kind_gets_a_hint(self) -> None:
        (problem,) = RunnerRegistry().check(RunnerSpec(kind="opnai"), allow_inline=True)
        assert str(problem) == "runner.kind: no runner 'opnai'; did you mean 'openai'?"

    @pytest.mark.parametrize(
        ("options", "problem"),
        [
            ({}, "runner.model: is required"),
            ({"base_url": "ftp://x"}, "runner.base_url: must be a URL"),
            ({"base_url": "http://u:p@host/v1"}, "runner.base_url: must not contain credentials"),
            ({"base_url": "http://host:99999"}, "runner.base_url: port out of range"),
            ({"api_key": "sk-secret"}, "runner.api_key: name the variable"),
            ({"api_key_env": "sk-secret-1"}, "runner.api_key_env: must be the name"),
            ({"temperature": 3}, "runner.temperature: "),
            ({"max_tokens": 0}, "runner.max_tokens: "),
            ({"timeout": "soon"}, "runner.timeout: 'soon' is not a duration"),
            ({"extra": {"stream": True}}, "runner.extra: must not set stream"),
            ({"constrain": "yes"}, "runner.constrain: "),
            (
                {"max_token": 5},
                "runner.max_token: there is no such option; did you mean 'max_tokens'?",
            ),
            (
                {"model": "m", "fallbacks": [{"temprature": 1}]},
                "runner.fallbacks[0].temprature: there is no such option; did you mean 'temper",
            ),
        ],
    )
    def test_openai_options_are_checked(self, options: dict[str, Json], problem: str) -> None:
        spec = RunnerSpec.model_validate({"kind": "openai", **options})
        problems = RunnerRegistry().check(spec, allow_inline=True)
        assert any(str(line).startswith(problem) for line in problems), problems
        assert not any("sk-secret" in str(line) for line in problems)

    @pytest.mark.parametrize(
        ("options", "problem"),
        [
            ({"base_url": "http://elsewhere"}, "runner.base_url: there is no such option"),
            ({"temperature": -1}, "runner.temperature: "),
            ({"extra": {"model": "x"}}, "runner.extra: must not set model"),
        ],
    )
    def test_local_options_are_checked(self, options: dict[str, Json], problem: str) -> None:
        spec = RunnerSpec.model_validate({"kind": "local", **options})
        problems = RunnerRegistry().check(spec, allow_inline=True)
        assert any(str(line).startswith(problem) for line in problems), problems


class _Echo:
    provider = "echo"

    def answer(self, request: Request) -> Output:
        return Output(text=request.messages[-1].content)


def echo(options: Mapping[str, Json]) -> Runner:
    if "bad" in options:
        raise BadInput.at("bad", "is not wanted")
    if "crash" in options:
        raise ZeroDivisionError("oops")
    return _Echo()


class TestPlugIns:
    @pytest.fixture(autouse=True)
    def _installed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        points = [
            EntryPoint("echo", f"{__name__}:echo", registry.ENTRY_POINT_GROUP),
            EntryPoint("gone", "no_such_module:make", registry.ENTRY_POINT_GROUP),
        ]
        monkeypatch.setitem(sys.modules, __name__, sys.modules[type(self).__module__])
        monkeypatch.setattr(registry, "entry_points", lambda *, group: points)

    def test_a_plug_in_is_found_by_its_kind(self) -> None:
        runner = RunnerRegistry().resolve(RunnerSpec(kind="echo"), allow_inline=True)
        assert runner.answer(request()).text == "hello"
        assert defaults_of(runner) == RunnerDefaults()
        assert "echo" in RunnerRegistry().kinds()

    @pytest.mark.parametrize(
        ("spec", "problem"),
        [
            ({"kind": "echo", "bad": 1}, "is not wanted"),
            ({"kind": "echo", "crash": 1}, "plug-in 'echo' ("),
            ({"kind": "gone"}, "plug-in 'gone' (no_such_module:make) failed: ModuleNotFoundError"),
        ],
    )
    def test_a_broken_plug_in_is_named(self, spec: dict[str, Json], problem: str) -> None:
        (found,) = RunnerRegistry().check(RunnerSpec.model_validate(spec), allow_inline=True)
        assert problem in found.message


SCHEMA: dict[str, Json] = {
    "type": "object",
    "properties": {"age": {"type": "integer"}},
    "required": ["age"],
    "additionalProperties": False,
}


class TestRequestBody:
    options = OpenAIOptions(model="m", base_url="http://h/v1", temperature=0.5, max_tokens=100)

    @pytest.mark.parametrize(
        ("decoding", "allowance", "temperature", "cap"),
        [
            (Decoding(), None, 0.5, 100),
            (Decoding(temperature=0.0, max_tokens=300), None, 0.0, 300),
            (Decoding(max_tokens=300), 40, 0.5, 40),
            (Decoding(), 0, 0.5, 1),
        ],
    )
    def test_the_attempt_overrides_the_runner(
        self, decoding: Decoding, allowance: int | None, temperature: float, cap: int
    ) -> None:
        body = request_body(self.options, request(decoding=decoding, token_allowance=allowance))
        assert (body["temperature"], body["max_tokens"]) == (temperature, cap)
        assert "response_format" not in body

    @pytest.mark.parametrize(
        ("constrain", "schema", "expected"),
        [
            ("json_schema", SCHEMA, "json_schema"),
            ("json_schema", {"type": "array"}, "json_schema"),
            ("json_schema", {}, "json_object"),
            ("json_schema", None, "json_object"),
            ("json_object", SCHEMA, "json_object"),
            ("none", SCHEMA, None),
        ],
    )
    def test_a_constrained_attempt_asks_for_json(
        self, constrain: str, schema: dict[str, Json] | None, expected: str | None
    ) -> None:
        options = OpenAIOptions.model_validate(
            {"model": "m", "base_url": "http://h", "constrain": constrain}
        )
        constrained = request(decoding=Decoding(constrained=True), json_schema=schema)
        assert request_body(options, constrained).get("response_format", {}).get("type") == expected

    @pytest.mark.parametrize(
        ("schema", "strict"),
        [
            (SCHEMA, True),
            ({**SCHEMA, "required": []}, False),
            ({"type": "object", "properties": {}}, False),
            ({"type": "array", "items": SCHEMA}, True),
            ({"anyOf": [SCHEMA, {"type": "object"}]}, False),
        ],
    )
    def test_strict_is_claimed_only_for_closed_schemas(self, schema: Json, strict: bool) -> None:
        assert is_strict(schema) is strict


def test_the_sdk_is_not_imported_until_it_is_needed() -> None:
    code = (
        "import sys; from mulligan.workers.runners.runner_registry import RunnerRegistry;"
        "from mulligan.policies.jobs.job import RunnerSpec;"
        "spec = RunnerSpec.model_validate({'kind': 'openai', 'model': 'm'});"
        "print(RunnerRegistry().check(spec, allow_inline=True), 'openai' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, timeout=60, capture_output=True)
    assert done.stdout.decode().split() == ["[]", "False"]


class TestLocalState:
    me = local_state.identify(os.getpid())
    gone = ProcessId(pid=2**22 + 1, started=1)

    @pytest.mark.parametrize(
        ("owners", "users", "idle", "expected"),
        [
            ((), (), False, False),
            ((), (me,), False, True),
            ((), (me,), True, False),
            ((), (gone,), False, False),
            ((me,), (), True, True),
            ((gone,), (), False, False),
            ((gone,), (me,), False, True),
            ((gone, me), (), True, True),
        ],
    )
    def test_the_server_runs_while_an_owner_or_a_busy_user_lives(
        self,
        owners: tuple[ProcessId, ...],
        users: tuple[ProcessId, ...],
        idle: bool,
        expected: bool,
    ) -> None:
        server = ProcessId(pid=7, started=1)
        state = ServerState(
            server=server, base_url="http://127.0.0.1:1/v1", owners=owners, users=users
        )
        assert needed(state, 7, idle=idle) is expected
        assert not needed(state, 8, idle=False)
        assert not needed(None, 7, idle=False)

    def test_a_later_process_with_the_same_pid_is_another(self) -> None:
        assert self.me is not None
        assert self.me.alive
        assert not ProcessId(pid=self.me.pid, started=self.me.started + 1).alive

    def test_a_missing_model_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(local_state, "find_spec", lambda name: None)
        with pytest.raises(RunnerError, match=r"pip install 'mulligan\[local\]'") as caught:
            local_state.model_path()
        assert caught.value.evidence["class"] == "not_installed"
