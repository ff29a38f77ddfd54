"""What a provider's refusal means: "later" (TransportFault) or "never" (RunnerError).

Nothing here may carry a key: messages of providers are scrubbed, and those about keys are dropped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from mulligan.tasks.ports.errors import RunnerError, TransportFault

#: Besides 5xx, what is worth asking again unchanged.
_LATER = frozenset({408, 409, 425, 429})
_LONGEST_MESSAGE = 500
#: Codes of OpenAI, Azure, llama.cpp and vLLM, found in ``code`` or ``type``.
_CONTEXT_CODES = ("context_length", "exceed_context_size", "context_window")
_FILTER_CODES = ("content_filter", "content_policy", "moderation")


@dataclass(frozen=True, kw_only=True)
class ProviderCall:
    """Whom an error is about, for messages that people can act on."""

    provider: str
    base_url: str
    model: str
    key_env: str | None = None
    #: The key itself, only to take it out of texts; never shown.
    secret: str | None = field(default=None, repr=False)

    def scrub(self, text: str) -> str:
        """A provider's text without the key, cut to a length that belongs in a record."""
        if self.secret:
            text = text.replace(self.secret, "***")
        return text if len(text) <= _LONGEST_MESSAGE else text[:_LONGEST_MESSAGE] + "…"


@dataclass(frozen=True, kw_only=True)
class ProviderRefusal:
    """A response with status 4xx or 5xx."""

    status: int
    message: str
    codes: str
    headers: Mapping[str, str]

    @property
    def is_context_length(self) -> bool:
        return any(code in self.codes for code in _CONTEXT_CODES)

    @property
    def is_content_filter(self) -> bool:
        return any(code in self.codes for code in _FILTER_CODES)

    @property
    def blames_the_request(self) -> bool:
        """Whether leaving something out of the request (a response_format) might be accepted."""
        return (
            self.status in (400, 422) and not self.is_context_length and not self.is_content_filter
        )


def refused(
    refusal: ProviderRefusal, caller: ProviderCall, now: datetime
) -> TransportFault | RunnerError:
    """The error to raise for a refusal."""
    if refusal.status in _LATER or refusal.status >= 500:
        return TransportFault(
            f"{caller.provider} answered {refusal.status}: {caller.scrub(refusal.message)}",
            provider=caller.provider,
            status=refusal.status,
            retry_after=retry_after_seconds(refusal.headers, now),
        )
    kind = "unsafe_request" if refusal.is_content_filter else "tool_error"
    cause, message = _explain(refusal, caller)
    return runner_error(message, caller, cause=cause, kind=kind, status=refusal.status)


def runner_error(
    message: str,
    caller: ProviderCall,
    *,
    cause: str,
    kind: str = "tool_error",
    status: int | None = None,
) -> RunnerError:
    """A final error with the parts that its signature is made of."""
    evidence = {"kind": kind, "provider": caller.provider, "status": status, "class": cause}
    return RunnerError(message, {key: value for key, value in evidence.items() if value})


def _explain(refusal: ProviderRefusal, caller: ProviderCall) -> tuple[str, str]:
    said = caller.scrub(refusal.message)
    where = f"at {caller.base_url}"
    if refusal.status in (401, 403):
        # The provider's own text may quote part of the key: it is not repeated.
        named = (
            f"the key named by {caller.key_env} was" if caller.key_env else "no key was sent and"
        )
        fix = "check its value in the worker's environment" if caller.key_env else "set api_key_env"
        refused = "refused" if caller.key_env else "the call was refused"
        return "key_refused", f"{named} {refused} {where} ({refusal.status}): {fix}"
    if refusal.status == 404:
        return "not_found", f"model {caller.model!r} not found {where}: {said}"
    if refusal.is_context_length:
        return "context_length", f"the prompt is too long for {caller.model!r} {where}: {said}"
    if refusal.is_content_filter:
        return "content_filter", f"the content filter {where} refused the request: {said}"
    return "bad_request", f"{caller.provider} refused the request ({refusal.status}): {said}"


def retry_after_seconds(headers: Mapping[str, str], now: datetime) -> float | None:
    """Seconds, never negative, from ``retry-after-ms`` or ``retry-after`` (number or HTTP date)."""
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return max(0.0, milliseconds / 1000)
    text = headers.get("retry-after")
    seconds = _number(text)
    if seconds is None and text:
        seconds = _seconds_until(text, now)
    return None if seconds is None else max(0.0, seconds)


def _number(text: str | None) -> float | None:
    try:
        value = float(text) if text else None
    except ValueError:
        return None
    return value if value is not None and math.isfinite(value) else None


def _seconds_until(date: str, now: datetime) -> float | None:
    try:
        moment = parsedate_to_datetime(date)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - now).total_seconds()
