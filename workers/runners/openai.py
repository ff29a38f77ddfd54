"""The ``openai`` runner: any server that speaks OpenAI's chat completions."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit
from urllib.request import getproxies

from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator

from mulligan.extras import find_missing
from mulligan.policies.jobs.job import Decoding, Output, Seconds, Usage
from mulligan.policies.problem import Problem
from mulligan.policies.value import Json, Value
from mulligan.tasks.ports.errors import BadInput, TransportFault, refuse
from mulligan.tasks.ports.runners import Request
from mulligan.workers.runners import openai_client
from mulligan.workers.runners.blocking import blocked, refusal
from mulligan.workers.runners.openai_faults import (
    ProviderCall,
    ProviderRefusal,
    refused,
    runner_error,
)
from mulligan.workers.runners.rate_limit_headers import asked_wait, told_limits
from mulligan.workers.runners.runner_options import RunnerDefaults, read_options

OPENAI_URL = "https://api.openai.com/v1"
OPENAI_KEY = "OPENAI_API_KEY"
_PROBE_SECONDS = 3.0
#: The usual rule, for answers without usage.
_CHARACTERS_PER_TOKEN = 4
#: Fields that the runner sets itself; ``extra`` may set the rest of a request body.
RESERVED_FIELDS = frozenset({"model", "messages", "stream", "max_tokens", "response_format"})


class OpenAIOptions(Value):
    """Options of ``kind: openai``."""

    model: str = Field(min_length=1)
    base_url: str = OPENAI_URL
    #: The *name* of the environment variable that holds the key; with None no key is sent.
    api_key_env: str | None = None
    temperature: float | None = Field(default=None, ge=0, le=2)
    max_tokens: int | None = Field(default=None, ge=1)
    timeout: Annotated[Seconds, Field(gt=0)] | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    #: Other models, or options that differ; ``decoding.fallback`` counts them from 1.
    fallbacks: tuple[dict[str, Json], ...] = ()
    #: More fields of the request body, in the server's own terms.
    extra: dict[str, Json] = Field(default_factory=dict)
    #: How a constrained attempt asks for JSON.
    constrain: Literal["json_schema", "json_object", "none"] = "json_schema"

    @model_validator(mode="before")
    @classmethod
    def _default_key(cls, value: Any) -> Any:
        if isinstance(value, dict) and "base_url" not in value:
            return {"api_key_env": OPENAI_KEY} | value
        return value

    @field_validator("base_url")
    @classmethod
    def _is_a_url(cls, value: str) -> str:
        parts = urlsplit(value)
        _ = parts.port  # raises ValueError if out of range
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("must be a URL such as http://127.0.0.1:8080/v1")
        if parts.username or parts.password:
            raise ValueError("must not contain credentials: name the key with api_key_env")
        return value.rstrip("/")

    @field_validator("api_key_env")
    @classmethod
    def _is_a_name(cls, value: str | None) -> str | None:
        if value is not None and not value.isidentifier():
            raise ValueError("must be the name of an environment variable, never the key itself")
        return value

    @field_validator("stop", mode="before")
    @classmethod
    def _stop_as_tuple(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @field_validator("fallbacks", mode="before")
    @classmethod
    def _fallbacks_by_model(cls, value: Any) -> Any:
        if not isinstance(value, list | tuple):
            return value
        return [{"model": item} if isinstance(item, str) else item for item in value]

    @field_validator("extra")
    @classmethod
    def _no_reserved_fields(cls, value: dict[str, Json]) -> dict[str, Json]:
        if reserved := sorted(RESERVED_FIELDS & value.keys()):
            raise ValueError(f"must not set {', '.join(reserved)}: the runner does")
        return value


class _Message(BaseModel):
    content: str | None = None
    refusal: str | None = None


class _Choice(BaseModel):
    message: _Message
    finish_reason: str | None = None


class _Usage(BaseModel):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None


class _Completion(BaseModel):
    """The fields that are read; servers add many more."""

    model: str | None = None
    choices: list[_Choice] = Field(min_length=1)
    usage: _Usage | None = None


class OpenAIRunner:
    """Sends one request per call: the queue does retries, back-off and breakers."""

    Options = OpenAIOptions

    def __init__(self, options: OpenAIOptions, fallbacks: tuple[OpenAIRunner, ...] = ()) -> None:
        self._options = options
        self._fallbacks = fallbacks
        #: Whether the server has answered only without a schema.
        self._refuses_schemas = False
        self.provider = urlsplit(options.base_url).netloc
        self.defaults = RunnerDefaults(
            timeout=options.timeout,
            temperature=options.temperature,
            max_tokens=options.max_tokens,
        )

    def __repr__(self) -> str:
        return f"OpenAIRunner({self.provider}, model={self._options.model!r})"

    @classmethod
    def from_options(cls, options: Mapping[str, Json]) -> OpenAIRunner:
        """Raise BadInput with every problem, including those of fallbacks."""
        primary = read_options(OpenAIOptions, options)
        shared = {key: value for key, value in options.items() if key != "fallbacks"}
        runners: list[OpenAIRunner] = []
        problems: list[Problem] = []
        for index, override in enumerate(primary.fallbacks):
            try:
                runners.append(cls(read_options(OpenAIOptions, shared | override)))
            except BadInput as error:
                problems += [each.below("fallbacks", index) for each in error.problems]
        refuse(problems)
        return cls(primary, tuple(runners))

    def probe(self) -> Problem | None:
        """Return what would keep this runner from answering now; calls no model."""
        options = self._options
        if problem := find_missing("openai"):
            return Problem.at("kind", problem)
        if problem := self._key_problem():
            return Problem.at("api_key_env", problem)
        parts = urlsplit(options.base_url)
        if getproxies() and not openai_client.is_loopback(options.base_url):
            return None  # only the proxy knows whether the server can be reached
        port = parts.port or (443 if parts.scheme == "https" else 80)
        try:
            socket.create_connection((str(parts.hostname), port), timeout=_PROBE_SECONDS).close()
        except OSError as error:
            reason = error.strerror or str(error)
            message = f"{options.base_url} cannot be reached ({reason}): start it or fix base_url"
            return Problem.at("base_url", message)
        return None

    def provider_for(self, decoding: Decoding) -> str:
        """Return the host that is asked: a fallback may be on another one."""
        return self._asked(decoding).provider

    def constrains(self, decoding: Decoding, schema: Mapping[str, Json]) -> bool:
        """Return whether such an attempt follows the schema: servers may ignore one that is not
        ``strict``."""
        asked = self._asked(decoding)
        sends = asked._options.constrain == "json_schema" and not asked._refuses_schemas
        return decoding.constrained and sends and is_strict(schema)

    def answer(self, request: Request) -> Output:
        if blocked("openai"):
            raise refusal("openai")
        return self._asked(request.decoding).ask(request)

    def _asked(self, decoding: Decoding) -> OpenAIRunner:
        step = min(decoding.fallback, len(self._fallbacks))
        return self._fallbacks[step - 1] if step else self

    def ask(self, request: Request) -> Output:
        """Send the request to this model, not to a fallback."""
        call = self._provider_call()
        seconds = min(request.timeout, self._options.timeout or request.timeout)
        openai_client.load()  # takes more than a second once, so before the clock starts
        started = time.monotonic()
        body = request_body(self._options, request)
        response = self._complete(body, call, seconds)
        output = read_completion(response.text, call, elapsed=time.monotonic() - started)
        about_provider = {
            "provider_wait": asked_wait(response.headers, datetime.now(UTC)),
            "rate_limits": told_limits(response.headers),
            "token_cap": _most_tokens(body),
        }
        return output.model_copy(update=about_provider)

    def _provider_call(self) -> ProviderCall:
        options = self._options
        call = ProviderCall(
            provider=self.provider,
            base_url=options.base_url,
            model=options.model,
            key_env=options.api_key_env,
            secret=self._secret,
        )
        if problem := find_missing("openai"):
            raise runner_error(problem, call, cause="not_installed")
        if problem := self._key_problem():
            raise runner_error(problem, call, cause="missing_key")
        return call

    @property
    def _secret(self) -> str | None:
        return os.environ.get(self._options.api_key_env or "", "").strip() or None

    def _key_problem(self) -> str | None:
        name, secret = self._options.api_key_env, self._secret
        if name is None:
            return None
        if secret is None:
            return (
                f"the environment variable {name} is not set in the worker:"
                f" export {name}=<the key> and restart the worker"
            )
        # Checked here because the HTTP library would quote the whole header, key included.
        if not secret.isascii() or not secret.isprintable() or " " in secret:
            return f"the environment variable {name} holds characters that no key has"
        return None

    def _complete(
        self, body: dict[str, Any], call: ProviderCall, seconds: float
    ) -> openai_client.Response:
        import openai

        served = True
        try:
            return openai_client.within(seconds, self._complete_with_or_without_format(body, call))
        except (TimeoutError, openai.APITimeoutError):
            reason = f"no answer within {seconds:g} s"
        except openai.APIStatusError as error:
            raise refused(_refusal(error), call, datetime.now(UTC)) from None
        except openai.APIConnectionError as error:
            cause = error.__cause__ or error
            text = str(cause) or type(cause).__name__  # many of httpx's have no text
            reason = f"connection failed: {call.scrub(text)}"
            served = type(cause).__name__ != "ConnectError"  # the HTTP library's own class
        message = f"{call.base_url}: {reason}"
        raise TransportFault(message, provider=call.provider, maybe_served=served)

    async def _complete_with_or_without_format(
        self, body: dict[str, Any], call: ProviderCall
    ) -> openai_client.Response:
        """Call once; again without ``response_format`` only if the server may not support it."""
        import openai

        try:
            return await openai_client.complete(call.base_url, call.secret, body)
        except openai.APIStatusError as error:
            if "response_format" not in body or not _refusal(error).rejects_the_request:
                raise
        plain = {key: value for key, value in body.items() if key != "response_format"}
        response = await openai_client.complete(call.base_url, call.secret, plain)
        self._refuses_schemas = True
        return response


def _refusal(error: Any) -> ProviderRefusal:
    body = error.body
    message = body.get("message") if isinstance(body, dict) else None
    return ProviderRefusal(
        status=error.status_code,
        message=str(message or error.message),
        codes=f"{error.code or ''} {error.type or ''}".lower(),
        headers=error.response.headers,
    )


def request_body(options: OpenAIOptions, request: Request) -> dict[str, Any]:
    """Return the request body; the attempt's decoding overrides the runner's options."""
    decoding = request.decoding
    temperature = options.temperature if decoding.temperature is None else decoding.temperature
    fields: dict[str, Any] = {
        "model": options.model,
        "messages": [message.model_dump() for message in request.messages],
        "temperature": temperature,
        "max_tokens": _token_cap(options, request),
        "seed": options.seed,
        "stop": list(options.stop) or None,
        "response_format": response_format(options.constrain, decoding, request.json_schema),
        "extra_body": options.extra or None,
    }
    return {key: value for key, value in fields.items() if value is not None}


def _token_cap(options: OpenAIOptions, request: Request) -> int | None:
    caps = [request.decoding.max_tokens or options.max_tokens, request.token_allowance]
    known = [cap for cap in caps if cap is not None]
    return max(1, min(known)) if known else None


def _most_tokens(body: Mapping[str, Any]) -> int | None:
    """Return the cap of the answer and about the prompt's tokens; None without a cap."""
    cap: int | None = body.get("max_tokens")
    prompt = sum(len(message["content"]) for message in body["messages"])
    return None if cap is None else cap + prompt // _CHARACTERS_PER_TOKEN


def response_format(
    constrain: str, decoding: Decoding, schema: Mapping[str, Json] | None
) -> dict[str, Json] | None:
    """Return how a constrained attempt asks for JSON: its schema, or any object without one."""
    if not decoding.constrained or constrain == "none":
        return None
    if constrain == "json_object" or not schema:
        return {"type": "json_object"}
    named = {"name": "answer", "schema": dict(schema), "strict": is_strict(schema)}
    return {"type": "json_schema", "json_schema": named}


def is_strict(schema: Json) -> bool:
    """Return whether OpenAI takes it as ``strict``: closed objects, all properties required."""
    if isinstance(schema, list):
        return all(is_strict(item) for item in schema)
    if not isinstance(schema, Mapping):
        return True
    properties = schema.get("properties")
    if isinstance(properties, Mapping) or schema.get("type") == "object":
        closed = schema.get("additionalProperties") is False
        if not closed or set(schema.get("required", ())) != set(properties or ()):
            return False
    return all(is_strict(value) for value in schema.values())


def read_completion(text: str, call: ProviderCall, *, elapsed: float) -> Output:
    """Read the body of a 2xx. A malformed one is the provider's fault: ask again later."""
    try:
        completion = _Completion.model_validate_json(text)
    except ValidationError as error:
        reason = error.errors(include_url=False, include_input=False)[0]["msg"]
        raise TransportFault(
            f"{call.base_url}: the answer is not a chat completion: {call.scrub(reason)}",
            provider=call.provider,
            maybe_served=True,
        ) from None
    choice = completion.choices[0]
    if choice.finish_reason == "content_filter" or choice.message.refusal:
        reason = call.scrub(choice.message.refusal or "the content filter stopped the answer")
        raise runner_error(
            f"{call.provider}: {reason}", call, cause="content_filter", kind="unsafe_request"
        )
    return Output(
        text=choice.message.content or "",
        finish_reason=choice.finish_reason,
        usage=Usage(**completion.usage.model_dump()) if completion.usage else Usage(),
        model=completion.model or call.model,
        elapsed_seconds=elapsed,
    )
