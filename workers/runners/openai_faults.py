"""Turn a provider's refusal into "try later" (TransportFault) or "never" (RunnerError).

No message here may contain a key: providers' texts are scrubbed, and those about keys are dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from mulligan.tasks.ports.errors import OutOfCredits, RunnerError, TransportFault
from mulligan.workers.runners.rate_limit_headers import asked_wait

#: Besides 5xx.
_RETRYABLE = frozenset({408, 409, 425, 429})
_LONGEST_MESSAGE = 500
#: Codes of OpenAI, Azure, llama.cpp and vLLM, found in ``code`` or ``type``.
_CONTEXT_CODES = ("context_length", "exceed_context_size", "context_window")
_FILTER_CODES = ("content_filter", "content_policy", "moderation")
_PAYMENT_REQUIRED = 402
#: With 403 or 429, the whole ``code`` or ``type`` that means that credits or quota are used up.
_CREDIT_CODES = frozenset({
    "insufficient_quota", "billing_hard_limit_reached", "billing_not_active", "billing_error",
    "credit_balance_too_low", "insufficient_credits", "insufficient_balance", "insufficient_funds",
})  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ProviderCall:
    """The provider and the model of a call, for messages that people can act on."""

    provider: str
    base_url: str
    model: str
    key_env: str | None = None
    #: The key itself, only to remove it from texts; never shown.
    secret: str | None = field(default=None, repr=False)

    def scrub(self, text: str) -> str:
        """Return a provider's text without the key, cut to a length that fits a record."""
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
    def is_out_of_credits(self) -> bool:
        coded = not _CREDIT_CODES.isdisjoint(self.codes.split())
        return self.status == _PAYMENT_REQUIRED or (self.status in (403, 429) and coded)

    @property
    def rejects_the_request(self) -> bool:
        """Whether the request may be accepted without an optional part (a response_format)."""
        return (
            self.status in (400, 422) and not self.is_context_length and not self.is_content_filter
        )


def may_succeed_later(status: int) -> bool:
    """Whether the same request may succeed later."""
    return status in _RETRYABLE or status >= 500


def refused(
    refusal: ProviderRefusal, call: ProviderCall, now: datetime
) -> TransportFault | RunnerError:
    """Return the error to raise for a refusal."""
    if refusal.is_out_of_credits:
        # The provider's own text is not repeated: it may quote part of the key.
        return OutOfCredits(
            f"{call.provider} answered {refusal.status}: out of credits or quota",
            provider=call.provider,
            status=refusal.status,
            retry_after=asked_wait(refusal.headers, now),
        )
    if may_succeed_later(refusal.status):
        return TransportFault(
            f"{call.provider} answered {refusal.status}: {call.scrub(refusal.message)}",
            provider=call.provider,
            status=refusal.status,
            retry_after=asked_wait(refusal.headers, now),
        )
    kind = "unsafe_request" if refusal.is_content_filter else "tool_error"
    cause, message = _explain(refusal, call)
    return runner_error(message, call, cause=cause, kind=kind, status=refusal.status)


def runner_error(
    message: str,
    call: ProviderCall,
    *,
    cause: str,
    kind: str = "tool_error",
    status: int | None = None,
) -> RunnerError:
    """Return a final error with the evidence that its signature is built from."""
    evidence = {"kind": kind, "provider": call.provider, "status": status, "class": cause}
    return RunnerError(message, {key: value for key, value in evidence.items() if value})


def _explain(refusal: ProviderRefusal, call: ProviderCall) -> tuple[str, str]:
    """Return the cause and the message of a final refusal."""
    text = call.scrub(refusal.message)
    where = f"at {call.base_url}"
    if refusal.status in (401, 403):
        # The provider's own text is not repeated: it may quote part of the key.
        what = "no key was sent and the call was refused"
        fix = "set api_key_env"
        if call.key_env:
            what = f"the key named by {call.key_env} was refused"
            fix = "check its value in the worker's environment"
        return "key_refused", f"{what} {where} ({refusal.status}): {fix}"
    if refusal.status == 404:
        return "not_found", f"model {call.model!r} not found {where}: {text}"
    if refusal.is_context_length:
        return "context_length", f"the prompt is too long for {call.model!r} {where}: {text}"
    if refusal.is_content_filter:
        return "content_filter", f"the content filter {where} refused the request: {text}"
    return "bad_request", f"{call.provider} refused the request ({refusal.status}): {text}"
