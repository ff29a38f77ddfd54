"""Regular expressions that cannot hang a worker, whatever the pattern and the text.

Python's ``re`` backtracks without limit. The engine inside jsonschema-rs is linear for plain
patterns and limits its steps for lookarounds and back-references. The dialect is that of
JSON Schema's ``pattern``: ``(?i)``, ``(?m)``, ``(?s)`` work, ``\\d`` and ``\\w`` are ASCII, and the
end of the text is ``$`` (``\\Z`` is unknown).
"""

from __future__ import annotations

from functools import lru_cache

import jsonschema_rs
from jsonschema_rs import FancyRegexOptions, ValidationErrorKind

from mulligan.tasks.ports.errors import BadInput, VerifierError

_STEPS = 1_000_000
_COMPILED_BYTES = 1 << 20
PATTERN_CHARACTERS = 2_000


class BoundedRegex:
    """A pattern to search for in a text."""

    def __init__(self, pattern: str, *, ignore_case: bool = False) -> None:
        """Compile the pattern, or raise BadInput."""
        if len(pattern) > PATTERN_CHARACTERS:
            raise BadInput(f"a pattern may have at most {PATTERN_CHARACTERS} characters")
        self.pattern = pattern
        self._validator = _compile(f"(?i){pattern}" if ignore_case else pattern)

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
def _compile(pattern: str) -> jsonschema_rs.Validator:
    options = FancyRegexOptions(
        backtrack_limit=_STEPS, size_limit=_COMPILED_BYTES, dfa_size_limit=_COMPILED_BYTES
    )
    try:
        return jsonschema_rs.Draft202012Validator(
            {"pattern": pattern}, pattern_options=options, offline=True
        )
    except ValueError as error:
        raise BadInput(
            f"{pattern!r} is not a valid pattern (JSON Schema dialect, of bounded size)"
        ) from error
