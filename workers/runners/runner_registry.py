"""Find the runner of a job: a built-in, a plug-in or a profile of mulligan.toml."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from threading import Lock
from typing import Any, ClassVar, Protocol

from pydantic import BaseModel

from mulligan.policies.jobs.job import EXTERNAL, RunnerSpec
from mulligan.policies.jobs.provider_limits import ProviderLimits
from mulligan.policies.loops.stuck import RULES, Rule, RuleName
from mulligan.policies.problem import Problem
from mulligan.policies.suggestions import did_you_mean, name_hint
from mulligan.policies.value import Json
from mulligan.tasks.ports.blobs import BlobStore
from mulligan.tasks.ports.errors import BadInput, refuse
from mulligan.tasks.ports.runners import Runner
from mulligan.workers.runners.blocking import BlockedRunner, blocked
from mulligan.workers.sandbox.confinement import STRICT, Confinement
from mulligan.workers.settings.config_file import config_place
from mulligan.workers.settings.profile_pools import HARD_LIMIT, POOL, pool_problems

ENTRY_POINT_GROUP = "mulligan.runners"
#: What a job may change of a profile: how the model is called, never which one or with which key.
SAFE_OVERRIDES = frozenset({"temperature", "max_tokens", "timeout", "seed", "stop"})
#: The options of every profile that limit its provider in the whole fleet.
FLEET_LIMITS = tuple(ProviderLimits.model_fields)
_ONLY_IN_PROFILES = "a limit of the whole fleet: set it in a profile in mulligan.toml"
#: Jobs choose overrides and so can ask for any number of runners: only the latest are kept.
_MAX_RUNNERS = 256

#: ``[runners.NAME]`` of mulligan.toml: an inline definition for each name.
Profiles = Mapping[str, Mapping[str, Json]]
#: Builds a runner without contacting anything; raises ``BadInput.at("option", "what is wrong")``.
RunnerFactory = Callable[[Mapping[str, Json]], Runner]


#: Imported on use: a worker of scripted or command jobs never loads a model client.
_BUILT_IN = {
    "openai": "mulligan.workers.runners.openai:OpenAIRunner",
    "command": "mulligan.workers.runners.command:CommandRunner",
    "local": "mulligan.workers.runners.local:LocalRunner",
    "scripted": "mulligan.workers.runners.scripted:ScriptedRunner",
    EXTERNAL: "mulligan.workers.runners.external:ExternalRunner",
}


class BuiltInRunner(Protocol):
    """What a built-in runner class declares; with ``needs_blobs`` it also gets ``blobs``."""

    Options: ClassVar[type[BaseModel]]

    @classmethod
    def from_options(cls, options: Mapping[str, Json], **resources: Any) -> Runner: ...


@dataclass(frozen=True)
class _Definition:
    kind: str
    options: dict[str, Json]
    profile: str | None = None
    #: The fields that the job itself set.
    overridden: frozenset[str] = frozenset()

    def locate(self, problem: Problem) -> Problem:
        """Put a factory's problem where it can be corrected: in the job or in the profile."""
        if self.profile is None or (problem.path[:1] and problem.path[0] in self.overridden):
            return problem.below("runner")
        return _in_profile(self.profile, problem)


@dataclass
class RunnerRegistry:
    """Builds and keeps runners. Safe to share between threads."""

    profiles: Profiles = field(default_factory=dict)
    #: Where command runners store their diffs.
    blobs: BlobStore | None = None
    #: What the programs of command runners may do.
    confinement: Confinement = STRICT
    #: After how long the programs of a worker that does not move are ended.
    heartbeat_seconds: float | None = None
    #: When an agent counts as stuck.
    stuck: Mapping[RuleName, Rule] = field(default_factory=lambda: RULES)
    _built: OrderedDict[tuple[bool, str], Runner] = field(default_factory=OrderedDict, repr=False)
    _lock: Lock = field(default_factory=Lock, repr=False)

    def resolve(self, spec: RunnerSpec, *, allow_inline: bool) -> Runner:
        """Return the spec's runner, always the same one, or raise BadInput with every problem."""
        key = (allow_inline, json.dumps(spec.model_dump(mode="json"), sort_keys=True))
        with self._lock:
            if key in self._built:
                self._built.move_to_end(key)
                return self._built[key]
        runner = self._build(spec, allow_inline=allow_inline)
        with self._lock:
            runner = self._built.setdefault(key, runner)
            while len(self._built) > _MAX_RUNNERS:
                self._built.popitem(last=False)
        return runner

    def for_job(self, spec: RunnerSpec, *, allow_inline: bool) -> Runner:
        """Return the runner for an attempt: one that refuses if its kind is blocked."""
        runner = self.resolve(spec, allow_inline=allow_inline)
        kind = self._definition(spec, [], allow_inline=allow_inline).kind
        return BlockedRunner(kind, runner.provider) if blocked(kind) else runner

    def check(self, spec: RunnerSpec, *, allow_inline: bool) -> list[Problem]:
        """Return every problem of a job's runner without contacting anything."""
        try:
            self.resolve(spec, allow_inline=allow_inline)
        except BadInput as error:
            return list(error.problems)
        return []

    def check_profiles(self) -> list[Problem]:
        """Return every problem of every profile, for ``doctor`` and a starting worker."""
        return [
            problem
            for name in self.profiles
            for problem in self.check(RunnerSpec(profile=name), allow_inline=False)
        ]

    def providers(self) -> list[str]:
        """Return the profiles' providers as breakers and pauses name them.

        A profile that cannot be built here has none.
        """
        found = set()
        for name in self.profiles:
            try:
                found.add(self.resolve(RunnerSpec(profile=name), allow_inline=False).provider)
            except BadInput:
                continue
        return sorted(found)

    def ceilings(self) -> dict[str, ProviderLimits]:
        """Return the limits of each provider with a ``concurrency`` or ``tokens_per_minute``.

        Of several profiles with one provider, the smallest numbers count. A profile that cannot
        be built here limits nothing.
        """
        found: dict[str, ProviderLimits] = {}
        for name, profile in self.profiles.items():
            limits = {each: profile[each] for each in FLEET_LIMITS if each in profile}
            if not limits or self.check(RunnerSpec(profile=name), allow_inline=False):
                continue
            provider = self.resolve(RunnerSpec(profile=name), allow_inline=False).provider
            known = found.get(provider, ProviderLimits())
            found[provider] = known.stricter(ProviderLimits(**limits))
        return found

    def kinds(self) -> list[str]:
        """Return the built-in kinds and those of plug-ins, whether or not the plug-ins load."""
        return sorted({*_BUILT_IN, *_plug_ins()})

    def option_models(self) -> dict[str, type[BaseModel] | None]:
        """Return the model of each kind's options; None for a plug-in, which reads its own."""
        built_in = {kind: _built_in(kind).Options for kind in _BUILT_IN}
        return built_in | dict.fromkeys(_plug_ins().keys() - built_in.keys())

    def _build(self, spec: RunnerSpec, *, allow_inline: bool) -> Runner:
        problems: list[Problem] = []
        definition = self._definition(spec, problems, allow_inline=allow_inline)
        try:
            runner = self._factory(definition.kind)(definition.options)
        except BadInput as error:
            raise BadInput(*problems, *map(definition.locate, error.problems)) from error
        refuse(problems)
        return runner

    def _definition(
        self, spec: RunnerSpec, problems: list[Problem], *, allow_inline: bool
    ) -> _Definition:
        """Return what to build; append to ``problems`` those that do not prevent building it."""
        if spec.profile is not None:
            return self._from_profile(spec.profile, spec.options, problems)
        if not allow_inline and spec.kind != EXTERNAL:
            message = (
                f"a job may not define its runner here: name a profile{self._known_profiles()}, or"
                " set allow_inline = true in mulligan.toml"
            )
            raise BadInput.at("runner.kind", message, "not_allowed")
        options = dict(spec.options)
        for name in (*FLEET_LIMITS, POOL, HARD_LIMIT):
            if options.pop(name, None) is not None:
                problems.append(Problem(_ONLY_IN_PROFILES, ("runner", name), "not_allowed"))
        return _Definition(spec.kind or "", options)

    def _from_profile(
        self, name: str, overrides: Mapping[str, Json], problems: list[Problem]
    ) -> _Definition:
        if name not in self.profiles:
            hint = did_you_mean(name, self.profiles) or self._known_profiles()
            raise BadInput.at("runner.profile", f"no profile {name!r}{hint}", "unknown_name")
        options = dict(self.profiles[name])
        kind = options.pop("kind", None)
        if not isinstance(kind, str):
            raise BadInput(_in_profile(name, Problem.at("kind", "is required", "missing")))
        for field_name in FLEET_LIMITS:
            limit = options.pop(field_name, None)
            if limit is not None and (type(limit) is not int or limit < 1):
                problem = Problem.at(field_name, f"must be a whole number from 1, not {limit!r}")
                problems.append(_in_profile(name, problem))
        problems += [_in_profile(name, each) for each in pool_problems(self.profiles[name])]
        for option in (POOL, HARD_LIMIT):
            options.pop(option, None)
        problems += [_refusal(field) for field in overrides if field not in SAFE_OVERRIDES]
        safe = {key: value for key, value in overrides.items() if key in SAFE_OVERRIDES}
        return _Definition(kind, options | safe, name, frozenset(safe))

    def _known_profiles(self) -> str:
        if not self.profiles:
            if not config_place().is_file():
                return " (there is no mulligan.toml yet)"
            return " (mulligan.toml has no [runners.NAME] yet)"
        return f" ({', '.join(sorted(self.profiles))})"

    def _factory(self, kind: str) -> RunnerFactory:
        if kind in _BUILT_IN:
            runner = _built_in(kind)
            if getattr(runner, "needs_blobs", False):
                build = runner.from_options
                return partial(
                    build,
                    blobs=self.blobs,
                    confinement=self.confinement,
                    heartbeat_seconds=self.heartbeat_seconds,
                    stuck=self.stuck,
                )
            return runner.from_options
        plug_ins = _plug_ins()
        if kind in plug_ins:
            return _plug_in_factory(plug_ins[kind])
        known = self.kinds()
        hint = name_hint(kind, known)
        raise BadInput.at("kind", f"no runner {kind!r}{hint}", "unknown_name")


def _built_in(kind: str) -> type[BuiltInRunner]:
    module, _, name = _BUILT_IN[kind].partition(":")
    found: type[BuiltInRunner] = getattr(import_module(module), name)
    return found


def _refusal(name: str) -> Problem:
    message = (
        f"a job may override only {', '.join(sorted(SAFE_OVERRIDES))}; set this in the profile in"
        " mulligan.toml"
    )
    return Problem(message, ("runner", name), "not_allowed")


def _in_profile(name: str, problem: Problem) -> Problem:
    """Report a problem of mulligan.toml at the job that names the profile."""
    message = f"[runners.{name}] of mulligan.toml: {problem}"
    return Problem(message, ("runner", "profile"), problem.code)


def _plug_ins() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}


def _plug_in_factory(point: EntryPoint) -> RunnerFactory:
    """Return the plug-in's factory; an exception in its code becomes BadInput that names it."""

    def build(options: Mapping[str, Json]) -> Runner:
        try:
            factory: RunnerFactory = point.load()
            return factory(options)
        except BadInput:
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            message = f"the plug-in {point.name!r} ({point.value}) failed: {reason}"
            raise BadInput.at("kind", message) from error

    return build
