"""``text.match``: the answer contains the required texts and none of the forbidden ones."""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, model_validator

from mulligan.policies.failures.failure import Finding, VerificationResult, VerificationStatus
from mulligan.policies.value import Value
from mulligan.tasks.ports.errors import BadInput
from mulligan.tasks.ports.verifiers import Candidate
from mulligan.workers.verifiers.bounded_regex import BoundedRegex

#: A longer text fails: searching only a part of it could miss something forbidden.
SEARCHED_CHARACTERS = 1_000_000
_SHOWN = 120


def as_tuple(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


Texts = Annotated[tuple[str, ...], BeforeValidator(as_tuple)]


class TextMatch:
    """Evidence: ``length``. Codes: ``missing``, ``forbidden``, ``length``."""

    id: ClassVar[str] = "text.match"
    slow: bool = False

    class Options(Value):
        """One text or a list for each; at least one check is required."""

        contains: Texts = ()
        not_contains: Texts = ()
        regex: Texts = ()
        not_regex: Texts = ()
        equals: str | None = None
        min_length: int | None = Field(default=None, ge=0)
        max_length: int | None = Field(default=None, ge=0)
        ignore_case: bool = False

        @model_validator(mode="after")
        def _checks_something(self) -> TextMatch.Options:
            if not (self.model_fields_set - {"ignore_case"}):
                raise ValueError("nothing to check: set contains, regex, equals, min_length…")
            if self.max_length is not None and (self.min_length or 0) > self.max_length:
                raise ValueError("min_length is larger than max_length")
            return self

    def __init__(self, options: Options) -> None:
        self.options = options
        self._required = self._compile("regex", options.regex)
        self._forbidden = self._compile("not_regex", options.not_regex)

    def _compile(self, field: str, patterns: tuple[str, ...]) -> tuple[BoundedRegex, ...]:
        try:
            ignore_case = self.options.ignore_case
            return tuple(BoundedRegex(pattern, ignore_case=ignore_case) for pattern in patterns)
        except BadInput as error:
            raise BadInput(*(problem.below(field) for problem in error.problems)) from error

    def verify(self, candidate: Candidate) -> VerificationResult:
        started = perf_counter()
        errors = tuple(self._findings(candidate.text))
        return VerificationResult(
            status=VerificationStatus.FAIL if errors else VerificationStatus.PASS,
            verifier_id=self.id,
            summary="; ".join(error.message for error in errors[:3]) or "the text matches",
            evidence={"length": len(candidate.text)},
            errors=errors,
            elapsed_seconds=perf_counter() - started,
        )

    def _findings(self, text: str) -> Iterator[Finding]:
        yield from self._length(len(text))
        yield from self._words(text)
        if not (self._required or self._forbidden):
            return
        if len(text) > SEARCHED_CHARACTERS:
            yield _too_long(len(text), SEARCHED_CHARACTERS)
            return
        yield from self._patterns(text)

    def _patterns(self, text: str) -> Iterator[Finding]:
        for regex in self._required:
            if not regex.found_in(text):
                yield _missing(f"nothing matches the pattern {regex.pattern!r}", regex.pattern)
        for regex in self._forbidden:
            if regex.found_in(text):
                yield _forbidden(f"must not match the pattern {regex.pattern!r}", regex.pattern)

    def _words(self, text: str) -> Iterator[Finding]:
        options, folded = self.options, self._fold(text)
        if options.equals is not None and folded.strip() != self._fold(options.equals).strip():
            shown = options.equals[:_SHOWN]
            actual = text[:_SHOWN].encode("utf-8", "replace").decode("utf-8")
            yield _missing(f"the answer is not exactly {shown!r}", shown, actual=actual)
        for word in options.contains:
            if self._fold(word) not in folded:
                yield _missing(f"{word[:_SHOWN]!r} is missing", word[:_SHOWN])
        for word in options.not_contains:
            if self._fold(word) in folded:
                yield _forbidden(f"{word[:_SHOWN]!r} must not appear", word[:_SHOWN])

    def _length(self, length: int) -> Iterator[Finding]:
        low, high = self.options.min_length, self.options.max_length
        if low is not None and length < low:
            message = f"the answer has {length} characters; at least {low} are required"
            yield Finding(message=message, code="length", expected=low, actual=length)
        if high is not None and length > high:
            yield _too_long(length, high)

    def _fold(self, text: str) -> str:
        return text.casefold() if self.options.ignore_case else text


def _too_long(length: int, limit: int) -> Finding:
    message = f"the answer has {length} characters; at most {limit} are allowed"
    return Finding(message=message, code="length", expected=limit, actual=length)


def _missing(message: str, expected: str, actual: str | None = None) -> Finding:
    return Finding(message=message, code="missing", expected=expected, actual=actual)


def _forbidden(message: str, found: str) -> Finding:
    return Finding(message=message, code="forbidden", actual=found)
