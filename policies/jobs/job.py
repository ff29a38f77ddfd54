"""The job that a producer enqueues, and the values that one attempt reads and writes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic.json_schema import SkipJsonSchema

from mulligan.policies.failures.failure import FailureKind
from mulligan.policies.jobs.provider_limits import RateLimits
from mulligan.policies.problem import FieldError
from mulligan.policies.value import Json, SortedSet, Value

_DURATION = re.compile(r"^\s*([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h|d)?\s*$")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, None: 1.0}
#: Neither UTF-8 nor JSON can hold it.
HALF_A_PAIR = "contains half a surrogate pair, which cannot be stored"


def parse_duration(value: Any) -> Any:
    """Read ``90``, ``"20s"``, ``"10m"`` or ``"1h"`` as seconds; return what is not text as is."""
    if not isinstance(value, str):
        return value
    match = _DURATION.match(value)
    if match is None:
        raise ValueError(f"{value!r} is not a duration: use seconds, or 20s, 10m, 1h")
    return float(match.group(1)) * _SECONDS[match.group(2)]


def joined_surrogates(text: str) -> str:
    """Join surrogate pairs, and replace each half of one by U+FFFD."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _without_halves(text: str) -> str:
    if joined_surrogates(text) != text:
        raise ValueError(HALF_A_PAIR)
    return text


Seconds = Annotated[float, BeforeValidator(parse_duration), Field(ge=0, allow_inf_nan=False)]
#: Text of any length. pydantic itself checks only text with a limit for half a surrogate pair.
Text = Annotated[str, AfterValidator(_without_halves)]
#: A word of a provider beside its answer. The answer was paid for, so nothing here may refuse it.
ProviderText = Annotated[str, AfterValidator(joined_surrogates)]
Name = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[\w][\w .:/@+-]*$")]


class OpenModel(BaseModel):
    """A value that may have more fields: the options of a verifier or a runner."""

    model_config = ConfigDict(frozen=True, extra="allow")

    @property
    def options(self) -> dict[str, Json]:
        return dict(self.__pydantic_extra__ or {})


class VerifierSpec(OpenModel):
    """One check of the answer. Other fields are the verifier's options."""

    id: Name
    name: Text | None = None
    weight: float = Field(default=1.0, gt=0, le=1000)
    required: bool = True

    @model_validator(mode="before")
    @classmethod
    def _from_id(cls, value: Any) -> Any:
        return {"id": value} if isinstance(value, str) else value

    @property
    def label(self) -> str:
        return self.name or self.id


class RunnerSpec(OpenModel):
    """Who answers: a profile named in the workers' configuration, or an inline definition."""

    profile: Name | None = None
    kind: Name | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_profile(cls, value: Any) -> Any:
        return {"profile": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _one_of(self) -> RunnerSpec:
        if (self.profile is None) == (self.kind is None):
            raise ValueError("give either a profile of mulligan.toml or a kind")
        return self


class PolicySpec(Value):
    """The limits that RetryPolicy enforces."""

    max_attempts: int = Field(default=4, ge=1, le=100)
    same_failure_limit: int = Field(default=2, ge=1, le=100)
    escalate_on: SortedSet[FailureKind] = frozenset({FailureKind.UNSAFE_REQUEST})


TOKENS_USED_UP = "budget_tokens"
SECONDS_USED_UP = "budget_seconds"
MONEY_USED_UP = "budget_money"


class Budget(Value):
    """What a job may use; None is no limit. Seconds are running time without queueing."""

    tokens: int | None = Field(default=None, ge=1)
    seconds: Seconds | None = None
    #: By the prices of the workers' configuration.
    money: float | None = Field(default=None, gt=0, allow_inf_nan=False)

    def exhausted(self, *, tokens: int, seconds: float, money: float = 0.0) -> str | None:
        """Return the reason to escalate if this use reaches a limit."""
        if self.tokens is not None and tokens >= self.tokens:
            return TOKENS_USED_UP
        if self.seconds is not None and seconds >= self.seconds:
            return SECONDS_USED_UP
        if self.money is not None and money >= self.money:
            return MONEY_USED_UP
        return None


#: In bytes, as Linux has them.
_LONGEST_PATH = 4096
_LONGEST_PATH_PART = 255


class Setup(Value):
    """How a checkout is prepared, before an agent works in it and before it is verified."""

    #: Each a command of the workers' configuration by its name, or its arguments.
    run: tuple[Text | tuple[Text, ...], ...] = Field(min_length=1, max_length=20)
    #: Directories that these commands make and git ignores, such as ``node_modules``.
    cache: tuple[Text, ...] = Field(default=(), max_length=20)
    #: Patterns of the files that the cached directories depend on, such as ``package-lock.json``.
    key: tuple[Text, ...] = Field(default=(), max_length=20)
    #: Of each command.
    timeout: Seconds = Field(default=600.0, gt=0, le=3600)

    @model_validator(mode="after")
    def _stays_inside(self) -> Setup:
        for index, path in enumerate(self.cache):
            if escapes(path) or ".git" in path.split("/"):
                raise FieldError(("cache", index), f"{path!r} is not a directory of the checkout")
        return self


class Workspace(Value):
    """The directory for checking an answer. Submitting turns ``path`` into a ``snapshot``."""

    path: Text | None = None
    #: A directory named in the workers' configuration.
    profile: Name | None = None
    #: Content address of the packed directory in the blob store; filled in by submit.
    snapshot: Text | None = None
    #: A git repository instead of a directory: a name of the workers' configuration, its URL, or a
    #: path that every worker can reach.
    git: Text | None = None
    #: The branch, tag or commit to begin with.
    ref: Text = "HEAD"
    #: The commit of ``ref``; filled in by submit.
    commit: Text | None = None
    #: The branch that the work is merged into. Only loops have one.
    branch: Text | None = None
    setup: Setup | None = None
    #: The file that the answer is written to.
    output_file: Text | None = None
    #: Whether the answer is a plan of edits, which are applied.
    edits: bool = False
    #: Patterns of tests and configuration that no answer may change, relative to the workspace.
    protect: tuple[Text, ...] = ("test_*.py", "*_test.py", "tests/**", "conftest.py", "pytest.ini",
                                "pyproject.toml", "setup.cfg", "tox.ini")  # fmt: skip

    @model_validator(mode="after")
    def _has_a_location(self) -> Workspace:
        places = [each for each in (self.path, self.profile, self.snapshot, self.git) if each]
        if not places:
            raise ValueError("a workspace needs a path")
        if self.git and len(places) > 1:
            raise FieldError("git", "give either git or a directory")
        if not self.git and self.ref != "HEAD":
            raise FieldError("ref", "belongs to git")
        if self.edits and self.output_file is not None:
            raise FieldError("edits", "give either edits or output_file")
        if self.output_file is not None and escapes(self.output_file):
            raise FieldError("output_file", f"{self.output_file!r} is not inside the workspace")
        for field, path in (("path", self.path), ("output_file", self.output_file)):
            if path is not None and _too_long(path):
                raise FieldError(field, f"no file system has such a long path: {path[:50]}…")
        return self


def escapes(path: str) -> bool:
    """Whether a relative path leaves its root, by its text alone."""
    parts = path.replace("\\", "/").split("/")
    return path.startswith(("/", "\\")) or ".." in parts or path in ("", ".") or "\0" in path


def _too_long(path: str) -> bool:
    data = path.encode()
    return len(data) > _LONGEST_PATH or max(map(len, data.split(b"/"))) > _LONGEST_PATH_PART


class DelayedVerification(Value):
    """When and how a repaired answer is checked again."""

    after: Seconds = 600.0
    #: ``recheck`` verifies the stored answer again; ``reformulate`` asks again in other words.
    mode: Literal["recheck", "reformulate"] = "recheck"
    #: The prompt for ``reformulate``; by default mulligan's own sentences around the task.
    prompt: str | None = Field(default=None, min_length=1)
    #: Whether external work must also belong to another family of tasks.
    other_family: bool = False

    @model_validator(mode="after")
    def _only_for_reformulate(self) -> DelayedVerification:
        if self.mode == "recheck" and (self.prompt is not None or self.other_family):
            raise ValueError("prompt and other_family are for mode reformulate")
        return self


#: The runner of work that a person or another system does.
EXTERNAL = "external"
#: The verifiers that an item of a repository begins and ends with.
GIT_DIFF = "git.diff"
GIT_MERGE = "git.merge"
#: The kind of runner that represents a task of a user's own Celery app.
USER_TASK = "celery"


#: The first words of the names of mulligan's own queues (workers/celery/broker/queues.py).
_RESERVED_QUEUES = frozenset(
    {"repair", "verify", "attempt", "agent", "edit", "loop", "control", "mulligan"}
)


class OnDone(Value):
    """The task of the producer's Celery app that receives a job's outcome."""

    task: Name
    queue: Name = "celery"

    @model_validator(mode="after")
    def _not_ours(self) -> OnDone:
        if self.task.startswith("mulligan."):
            raise FieldError("task", "must be a task of your own app, not one of mulligan's")
        first = self.queue.partition(".")[0]
        # kombu's own keys on Redis; one of another type would stop every consumer.
        kombus = self.queue.startswith(("_kombu", "unacked"))
        if kombus or first in _RESERVED_QUEUES:
            raise FieldError(
                "queue", "must be a queue of your own app, not one of mulligan's or kombu's"
            )
        return self


@dataclass(frozen=True)
class Misfit:
    """Fields of a job that do not fit together, each of which may be well-formed."""

    error: FieldError
    fields: frozenset[str]


def misfits(job: Job) -> Iterator[Misfit]:
    """Find the fields that do not fit together."""

    def misfit(field: str, message: str, *others: str) -> Misfit:
        return Misfit(FieldError(field, message), frozenset({field, *others}))

    if (job.prompt is None) == (not job.messages):
        yield misfit("prompt", "give either a prompt or messages", "messages")
    if job.messages and job.messages[-1].role != "user":
        yield misfit("messages", "the last message must be the user's")
    if (job.runner.kind == EXTERNAL) != (job.subject is not None):
        message = "a subject and the runner {kind: external} belong together"
        yield misfit("subject", message, "runner")
    if job.subject is not None and job.memory_scope != "job":
        yield misfit("memory_scope", "must be job for external work", "subject")


class Message(Value):
    role: Literal["system", "user", "assistant"]
    content: Text


class Job(Value):
    """What a producer enqueues. It has no authority: it names runners but does not define them."""

    task_type: Name
    #: A name for people; by default the task type.
    name: Name | None = None
    prompt: str | None = Field(default=None, min_length=1)
    system: Text | None = None
    messages: tuple[Message, ...] = ()
    runner: RunnerSpec
    verifiers: tuple[VerifierSpec, ...] = Field(min_length=1, max_length=50)
    policy: PolicySpec = PolicySpec()
    budget: Budget = Budget()
    labels: dict[Text, Text] = Field(default_factory=dict, max_length=50)
    idempotency_key: str | None = Field(default=None, min_length=1, max_length=500)
    workspace: Workspace | None = None
    delayed_verification: DelayedVerification = DelayedVerification()
    on_done: OnDone | None = None
    #: The person or system that does external work (runner ``external``).
    subject: Name | None = None
    memory_scope: Literal["job", "input", "task_type"] = "job"
    #: How long after accepting the job may wait for providers.
    deadline: Seconds = 86400.0
    #: 0 is the most urgent.
    priority: int = Field(default=5, ge=0, le=9)

    @model_validator(mode="after")
    def _fits_together(self) -> Job:
        for misfit in misfits(self):
            raise misfit.error
        return self

    @classmethod
    def unreadable(cls, *, task_type: str, name: str | None) -> Job:
        """Return what is known about a job without its body. It is for people and cannot run."""
        runner = RunnerSpec(kind="unreadable")
        return cls.model_construct(
            task_type=task_type, name=name, prompt="", runner=runner, verifiers=()
        )

    @property
    def label(self) -> str:
        return self.name or self.task_type

    @property
    def merges(self) -> bool:
        """Whether the work is merged into the branch of a loop."""
        return self.workspace is not None and self.workspace.branch is not None

    @property
    def conversation(self) -> tuple[Message, ...]:
        """The messages of the first attempt, the system message first."""
        head = (Message(role="system", content=self.system),) if self.system else ()
        tail = self.messages or (Message(role="user", content=self.prompt or ""),)
        return head + tail

    @property
    def task_text(self) -> str:
        """The user's last message, which a corrected prompt starts from."""
        if self.prompt is not None:
            return self.prompt
        # Without messages it is the rest of a malformed job, of which all problems are wanted.
        return self.messages[-1].content if self.messages else ""

    @property
    def prompt_size(self) -> int:
        return sum(len(message.content.encode()) for message in self.conversation)


class Decoding(Value):
    """How an attempt asks the model differently."""

    #: Constrain the answer to the job's JSON Schema if the runner can.
    constrained: bool = False
    temperature: float | None = None
    max_tokens: int | None = None
    #: The position in the runner's list of fallbacks; 0 is the runner itself.
    fallback: int = 0


def _plausible(tokens: int | None) -> int | None:
    return tokens if tokens is not None and 0 <= tokens <= MOST_TOKENS else None


#: Tokens as a provider counted them. An impossible number is unknown: the answer was paid for.
_Tokens = Annotated[int | None, AfterValidator(_plausible)]
MOST_TOKENS = 10**12


class Usage(Value):
    """The tokens of an answer. Unknown is None, never 0."""

    prompt_tokens: _Tokens = None
    completion_tokens: _Tokens = None
    total_tokens: _Tokens = None


class Output(Value):
    """A runner's answer, which is stored before anything else happens."""

    text: str
    #: Whether ``text`` is the answer itself or the JSON of a task's return value.
    encoding: Literal["text", "json"] = "text"
    finish_reason: ProviderText | None = None
    usage: Usage = Usage()
    model: ProviderText | None = None
    elapsed_seconds: float = Field(default=0.0, ge=0)
    #: Content address of a binary diff of a command runner's private copy of the workspace.
    diff: str | None = None
    #: The commit with what the attempt did, and the commit that it began with. Only in loops that
    #: work in a repository.
    commit: str | None = None
    base: str | None = None
    #: How an agent ended that did not end well, such as ``exited with code 1``. What it did until
    #: then is verified all the same.
    ended: str | None = None
    #: What an agent repeated, or how it hung, and what to do instead, as it follows "the last
    #: attempt"; None unless a rule about stuck agents applied at its end.
    stuck: str | None = None
    #: Whether the next attempt begins anew, because this one only repeated itself.
    start_over: bool = False
    #: What is no part of its work, such as files that are too large or that git ignores.
    not_saved: str | None = None
    #: Seconds for which the provider asked to send it nothing more. It is a fact about the
    #: provider, not about the answer, and is not stored with it.
    provider_wait: float | None = Field(default=None, ge=0, exclude=True)
    #: What the answer says about the provider's limits; not stored either.
    rate_limits: SkipJsonSchema[RateLimits | None] = Field(default=None, exclude=True)
    #: The most tokens that the request allowed, which count if the usage is unknown; not stored.
    token_cap: SkipJsonSchema[int | None] = Field(default=None, ge=1, exclude=True)

    @model_validator(mode="before")
    @classmethod
    def _read_older_rows(cls, value: Any) -> Any:
        """Read older rows, which have this finish reason instead of the encoding ``json``."""
        if isinstance(value, dict) and value.get("finish_reason") == "value":
            return {**value, "encoding": "json", "finish_reason": None}
        return value

    @property
    def truncated(self) -> bool:
        return self.finish_reason == "length"


Mode = Literal["initial", "immediate_retry", "policy_retry", "delayed_verification"]


class AttemptPlan(Value):
    """What one attempt will ask and how. The plan of attempt 1 is the job itself."""

    number: int = Field(default=1, ge=1)
    mode: Mode = "initial"
    #: Replaces the job's prompt.
    prompt: str | None = None
    decoding: Decoding = Decoding()
    #: The name of what was changed: see recipes.TECHNIQUES.
    technique: str | None = None
    #: The coarse signature that this attempt should repair.
    cures: str | None = None
    #: The cycle of a mandatory retry.
    cycle_id: str | None = None
    #: The number of attempts before a person's requeue, which do not count any more.
    since: int = Field(default=0, ge=0)
    #: The commit with the best work so far, on which this attempt goes on, and its score.
    kept: str | None = None
    kept_score: float = -1.0
    #: Conflicts with what others merged meanwhile, which do not count as attempts.
    conflicts: int = Field(default=0, ge=0)


TerminalState = Literal["succeeded", "escalated", "cancelled"]
JobState = Literal["queued", "running", "waiting", TerminalState]
TERMINAL: frozenset[str] = frozenset(get_args(TerminalState))
