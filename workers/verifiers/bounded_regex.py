"""Regular expressions that cannot hang a worker, whatever the pattern and the text.

Python's ``re`` backtracks without limit. jsonschema-rs has two engines: one is linear and has no
lookarounds and back-references, the other limits the steps of these. The dialect is that of
JSON Schema's ``pattern``: ``(?i)``, ``(?m)``, ``(?s)`` work, ``\\d`` and ``\\w`` are ASCII, and the
end of the text is ``$`` (``\\Z`` is unknown).
"""

from __future__ import annotations

from functools import lru_cache

import jsonschema_rs
from jsonschema_rs import FancyRegexOptions, RegexOptions, ValidationErrorKind

from mulligan.tasks.ports.errors import BadInput, VerifierError

_STEPS = 1_000_000
_COMPILED_BYTES = 1 << 20
PATTERN_CHARACTERS = 2_000
#: The linear engine.
LINEAR = RegexOptions(size_limit=_COMPILED_BYTES, dfa_size_limit=_COMPILED_BYTES)
_FANCY = FancyRegexOptions(
    backtrack_limit=_STEPS, size_limit=_COMPILED_BYTES, dfa_size_limit=_COMPILED_BYTES
)


class BoundedRegex:
    """A pattern to search for in a text."""

    def __init__(self, pattern: str, *, ignore_case: bool = False, linear: bool = False) -> None:
        """Compile the pattern, or raise BadInput.

        ``linear``: in the linear engine, which cannot compile every pattern.
        """
        if len(pattern) > PATTERN_CHARACTERS:
            raise BadInput(f"a pattern may have at most {PATTERN_CHARACTERS} characters")
        self.pattern = pattern
        self._validator = _compile(f"(?i){pattern}" if ignore_case else pattern, linear)

    def found_in(self, text: str) -> bool:
        """Return whether it matches anywhere; raise VerifierError if that takes too many steps."""
        clean = text.encode("utf-8", "replace").decode("utf-8")
        if self._validator.is_valid(clean):
            return True
        error = next(iter(self._validator.iter_errors(clean)))
        if isinstance(error.kind, ValidationErrorKind.Pattern):
            return False
        raise VerifierError(f"the pattern {self.pattern!r} is too costly to match")


@lru_cache(maxsize=512)
def _compile(pattern: str, linear: bool) -> jsonschema_rs.Validator:
    options = LINEAR if linear else _FANCY
    try:
        return jsonschema_rs.Draft202012Validator(
            {"pattern": pattern}, pattern_options=options, offline=True
        )
    except ValueError as error:
        raise BadInput(
            f"{pattern!r} is not a valid pattern (JSON Schema dialect, of bounded size)"
        ) from error
