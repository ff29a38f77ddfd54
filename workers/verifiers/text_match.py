"""``text.match``: the answer has the required words and form, and nothing that is forbidden."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import lru_cache
from time import perf_counter
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, model_validator

from mulligan.policies.failures.failure import Finding, VerificationResult, VerificationStatus
from mulligan.policies.problem import Problem
from mulligan.policies.value import Value
from mulligan.tasks.ports.errors import BadInput, TooCostly, VerifierError
from mulligan.tasks.ports.verifiers import Candidate
from mulligan.workers.killable.pool import call_killable
from mulligan.workers.verifiers.bounded_regex import BoundedRegex
from mulligan.workers.verifiers.pattern_cost import pattern_states
from mulligan.workers.verifiers.pattern_examples import examples_of, fixed_texts

#: A longer text fails: searching only a part of it could miss something forbidden.
SEARCHED_CHARACTERS = 1_000_000
_SHOWN = 120
#: Texts of a choice that a message names.
_NAMED = 50
#: Characters of a text that the answer must copy.
_COPIED = 400
#: Lines to look at for the place of something forbidden.
_MAX_LINES = 1_000
#: Seconds in which patterns must be compiled, and a text searched.
_COMPILE_SECONDS = 3.0
_SEARCH_SECONDS = 10.0
#: Somebody waits for the answer to a submission.
_WAIT_SECONDS = 5.0
#: States of patterns that this process may compile, and steps of a search that it may make.
_CHEAP_PATTERNS = 20_000
_CHEAP_STEPS = 4_000_000
#: An example must not break another rule in one of these ways.
_BREAKS = frozenset({"forbidden", "forbidden_pattern", "too_long", "equality", "choice"})


def as_tuple(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


Texts = Annotated[tuple[str, ...], BeforeValidator(as_tuple)]


class TextMatch:
    """Evidence: ``length``.

    Codes: ``missing``, ``equality``, ``choice``, ``pattern``, ``forbidden``,
    ``forbidden_pattern``, ``too_short``, ``too_long``.
    """

    id: ClassVar[str] = "text.match"
    slow: bool = False

    class Options(Value):
        """One text or a list for each; at least one check is required."""

        contains: Texts = ()
        not_contains: Texts = ()
        regex: Texts = ()
        not_regex: Texts = ()
        equals: str | None = None
        choice: Texts = ()
        min_length: int | None = Field(default=None, ge=0)
        max_length: int | None = Field(default=None, ge=0)
        ignore_case: bool = False
        #: An answer that fits, for the corrected prompt; by default one is made for each pattern.
        example: str | None = None

        @model_validator(mode="after")
        def _checks_something(self) -> TextMatch.Options:
            if not (self.model_fields_set - {"ignore_case", "example"}):
                raise ValueError("nothing to check: set contains, regex, equals, min_length…")
            if self.max_length is not None and (self.min_length or 0) > self.max_length:
                raise ValueError("min_length is larger than max_length")
            return self

    def __init__(self, options: Options) -> None:
        """Check the options, or raise BadInput."""
        self.options = options
        #: The steps to search one character; None if nobody knows.
        self._steps = _steps(options)
        if self._is_cheap(options.example or "") and (self._steps or 0) <= _CHEAP_PATTERNS:
            try:
                _matcher(options, linear=True)
            except BadInput:
                self._steps = None  # it may need the other engine, in another process
            else:
                return
        try:
            call_killable(
                check_options,
                options,
                seconds=_COMPILE_SECONDS,
                what="compiling the patterns",
                wait_seconds=_WAIT_SECONDS,
            )
        except TooCostly as error:
            raise BadInput(Problem(str(error), code="too_costly")) from error

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

    def _is_cheap(self, text: str) -> bool:
        """Whether this process may search a text itself."""
        return self._steps is not None and self._steps * len(text) <= _CHEAP_STEPS

    def _findings(self, text: str) -> list[Finding]:
        if self._is_cheap(text):
            return text_findings(self.options, text, linear=True)
        return call_killable(
            text_findings, self.options, text, seconds=_SEARCH_SECONDS, what="searching the answer"
        )


def check_options(options: TextMatch.Options) -> None:
    """Raise BadInput with the problems of patterns and of the example."""
    _matcher(options)


def text_findings(options: TextMatch.Options, text: str, *, linear: bool = False) -> list[Finding]:
    """Return every broken rule. The answer as a whole comes first, then its parts."""
    return list(_matcher(options, linear=linear).findings(text))


def _steps(options: TextMatch.Options) -> int | None:
    """Return at most how many steps each character of a text takes; None if nobody knows."""
    patterns = [pattern_states(each) for each in (*options.regex, *options.not_regex)]
    known = [each for each in patterns if each is not None]
    words = (*options.contains, *options.not_contains, *options.choice)
    return sum(known) + len(words) + 1 if len(known) == len(patterns) else None


@lru_cache(maxsize=256)
def _matcher(options: TextMatch.Options, *, linear: bool = False) -> _Matcher:
    return _Matcher(options, linear=linear)


class _Matcher:
    """The compiled options, which find the broken rules."""

    def __init__(self, options: TextMatch.Options, *, linear: bool) -> None:
        """``linear``: with the engine that takes one step for each character and state."""
        self.options, self._linear = options, linear
        self._required = self._compile("regex", options.regex)
        self._forbidden = self._compile("not_regex", options.not_regex)
        if options.example is not None:
            self._check_example(options.example)

    def _compile(self, field: str, patterns: tuple[str, ...]) -> tuple[BoundedRegex, ...]:
        try:
            ignore_case, linear = self.options.ignore_case, self._linear
            return tuple(
                BoundedRegex(pattern, ignore_case=ignore_case, linear=linear)
                for pattern in patterns
            )
        except BadInput as error:
            raise BadInput(*(problem.below(field) for problem in error.problems)) from error

    def _check_example(self, example: str) -> None:
        wrong = next(self.findings(example), None)
        if wrong is not None:
            raise BadInput.at("example", f"does not pass: {wrong.message}")

    def findings(self, text: str) -> Iterator[Finding]:
        """Yield every broken rule. The answer as a whole comes first, then its parts."""
        yield from self._length(len(text))
        yield from self._whole(text)
        yield from self._words(text)
        if not (self._required or self._forbidden):
            return
        if len(text) > SEARCHED_CHARACTERS:
            if len(text) <= (self.options.max_length or len(text)):
                yield _too_long(len(text), SEARCHED_CHARACTERS)
            return
        yield from self._patterns(text)

    def _length(self, length: int) -> Iterator[Finding]:
        low, high = self.options.min_length, self.options.max_length
        if low is not None and length < low:
            message = f"the answer has {length} characters; at least {low} are required"
            yield Finding(message=message, code="too_short", expected=low, actual=length)
        if high is not None and length > high:
            yield _too_long(length, high)

    def _whole(self, text: str) -> Iterator[Finding]:
        equals, choice = self.options.equals, self.options.choice
        folded = self._fold(text).strip()
        if equals is not None and folded != self._fold(equals).strip():
            yield _whole_text((equals,), text)
        if choice and folded not in [self._fold(each).strip() for each in choice]:
            yield _whole_text(choice, text)

    def _words(self, text: str) -> Iterator[Finding]:
        folded = self._fold(text)
        for word in self.options.contains:
            if self._fold(word) not in folded:
                yield _missing(word)
        for word in self.options.not_contains:
            if self._fold(word) in folded:
                yield _forbidden(word)

    def _patterns(self, text: str) -> Iterator[Finding]:
        for regex in self._required:
            if not regex.found_in(text):
                yield self._unmatched(regex.pattern, text)
        for regex in self._forbidden:
            if regex.found_in(text):
                yield self._matched(regex, text)

    def _unmatched(self, pattern: str, text: str) -> Finding:
        """Report a pattern in the plainest way: as a choice of texts, a text, or a pattern."""
        fixed = fixed_texts(pattern)
        if fixed is not None and fixed.whole:
            return _whole_text(fixed.texts, text)
        if fixed is not None and len(fixed.texts) == 1:
            return _missing(fixed.texts[0])
        example = self.options.example or self._example(pattern)
        such = f"; an answer that does: {_quoted(example)}" if example else ""
        return Finding(
            message=f"the answer does not match the pattern {pattern[:_SHOWN]}{such}",
            code="pattern",
            expected=pattern,
            actual=_shown(text),
            example=example,
        )

    def _example(self, pattern: str) -> str | None:
        """Return a text that matches the pattern and breaks no other rule by what it contains."""
        for example in examples_of(pattern):
            codes = {
                *(finding.code for finding in self._length(len(example))),
                *(finding.code for finding in self._whole(example)),
                *(finding.code for finding in self._words(example)),
                *("forbidden_pattern" for each in self._forbidden if each.found_in(example)),
            }
            if not codes & _BREAKS:
                return example
        return None

    def _matched(self, regex: BoundedRegex, text: str) -> Finding:
        """Report a forbidden pattern by the text that it found, if it names its texts."""
        fixed = fixed_texts(regex.pattern)
        texts = fixed.texts if fixed is not None and not fixed.whole else ()
        # The pattern may ignore case by itself.
        found = next((each for each in texts if each.casefold() in text.casefold()), None)
        if found is not None:
            return _forbidden(found)
        message = f"the answer must not match the pattern {regex.pattern[:_SHOWN]}"
        line = _line_found(regex, text)
        return Finding(
            message=f"{message}; this does: {_quoted(line)}" if line else message,
            code="forbidden_pattern",
            expected=regex.pattern,
            actual=line,
        )

    def _fold(self, text: str) -> str:
        return text.casefold() if self.options.ignore_case else text


def _whole_text(texts: Sequence[str], text: str) -> Finding:
    """The whole answer must be one text, or one of several."""
    shown = [_shown(each, _COPIED if len(texts) == 1 else _SHOWN) for each in texts]
    actual = _shown(text)
    names = ", ".join(_quoted(_shown(each)) for each in shown[:_NAMED])
    if len(shown) > _NAMED:
        names += f" and {len(shown) - _NAMED:,} others"
    rule = f"exactly {names}" if len(shown) == 1 else f"exactly one of {names}"
    return Finding(
        message=f"the answer must be {rule}; it is {_quoted(actual) if actual else 'empty'}",
        code="equality" if len(shown) == 1 else "choice",
        expected=shown[0] if len(shown) == 1 else shown,
        actual=actual,
    )


def _missing(word: str) -> Finding:
    shown = _shown(word)
    message = f"the answer does not contain {_quoted(shown)}"
    return Finding(message=message, code="missing", expected=_shown(word, _COPIED))


def _forbidden(word: str) -> Finding:
    shown = _shown(word)
    message = f"the answer contains {_quoted(shown)}, which is not allowed"
    return Finding(message=message, code="forbidden", actual=shown)


def _too_long(length: int, limit: int) -> Finding:
    message = f"the answer has {length} characters; at most {limit} are allowed"
    return Finding(message=message, code="too_long", expected=limit, actual=length)


def _line_found(regex: BoundedRegex, text: str) -> str | None:
    """Return the first line that matches by itself. With anchors, that need not be the place."""
    if "^" in regex.pattern or "$" in regex.pattern:
        return None
    try:
        found = (line for line in text.splitlines()[:_MAX_LINES] if regex.found_in(line))
        return next((_shown(line.strip()) for line in found), None)
    except VerifierError:  # the whole text was decided, and that is what counts
        return None


def _shown(text: str, limit: int = _SHOWN) -> str:
    """Cut a text, and replace half surrogate pairs, which cannot be stored."""
    clean = text[: limit + 1].encode("utf-8", "replace").decode("utf-8")
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
