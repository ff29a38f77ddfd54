"""The ``scripted`` runner: prepared answers, for tests and examples."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from threading import Lock
from typing import Annotated, Any

from pydantic import Field, model_validator

from mulligan.policies.jobs.job import Output, Seconds, Usage
from mulligan.policies.value import Json, Value
from mulligan.tasks.ports.errors import OutOfCredits, TransportFault
from mulligan.tasks.ports.runners import Request
from mulligan.workers.runners.runner_options import read_options

PROVIDER = "scripted"
#: A script may occupy a worker's slot this long.
LONGEST_DELAY = 60.0
_REMEMBERED_FAULTS = 10_000
_PAYMENT_REQUIRED = 402


class ScriptedFault(Value):
    """A transport fault instead of an answer. 402 means that the credits are used up."""

    status: int | None = Field(default=None, ge=100, le=599)
    retry_after: Seconds | None = None
    #: How often it hits one attempt, counted in each worker process; None is every time.
    times: int | None = Field(default=None, ge=1)


class ScriptedAnswer(Value):
    """The answer to one attempt. A bare string is its text."""

    text: str = ""
    finish_reason: str | None = None
    usage: Usage = Usage()
    delay: Annotated[Seconds, Field(le=LONGEST_DELAY)] = 0.0
    fault: ScriptedFault | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return {"text": value} if isinstance(value, str) else value


class ScriptedOptions(Value):
    answers: tuple[ScriptedAnswer, ...] = Field(min_length=1)


class ScriptedRunner:
    """Answers by attempt number; the last answer repeats."""

    Options = ScriptedOptions

    provider = PROVIDER

    def __init__(self, answers: tuple[ScriptedAnswer, ...]) -> None:
        self._answers = answers
        self._faults: Counter[tuple[str, int]] = Counter()
        self._lock = Lock()

    @classmethod
    def from_options(cls, options: Mapping[str, Json]) -> ScriptedRunner:
        """Raise BadInput with every problem of ``answers``."""
        return cls(read_options(ScriptedOptions, options).answers)

    def answer(self, request: Request) -> Output:
        entry = self._answers[min(request.attempt, len(self._answers)) - 1]
        fault = entry.fault if entry.fault and self._fault_is_due(entry.fault, request) else None
        if entry.usage.prompt_tokens is not None and fault is None:
            request.meter({"tokens": float(entry.usage.prompt_tokens)})
        self._wait(entry.delay, request.timeout)
        if fault is not None:
            raise self._fault(fault)
        return Output(
            text=entry.text,
            finish_reason=entry.finish_reason,
            usage=entry.usage,
            model=PROVIDER,
            elapsed_seconds=entry.delay,
        )

    def _wait(self, delay: float, timeout: float) -> None:
        if delay > 0:
            time.sleep(min(delay, timeout))
        if delay > timeout:
            reason = f"no answer within {timeout:g} s"
            raise TransportFault(reason, provider=PROVIDER, maybe_served=True)

    def _fault_is_due(self, fault: ScriptedFault, request: Request) -> bool:
        if fault.times is None:
            return True
        key = (request.job_id, request.attempt)
        with self._lock:
            if len(self._faults) >= _REMEMBERED_FAULTS and key not in self._faults:
                self._faults.clear()
            self._faults[key] += 1
            return self._faults[key] <= fault.times

    def _fault(self, fault: ScriptedFault) -> TransportFault:
        what = f"status {fault.status}" if fault.status else "no connection"
        raised = OutOfCredits if fault.status == _PAYMENT_REQUIRED else TransportFault
        return raised(
            f"scripted fault: {what}",
            provider=PROVIDER,
            status=fault.status,
            retry_after=fault.retry_after,
        )
