"""Find the JSON value in an answer, once for all verifiers that need it."""

from __future__ import annotations

from functools import lru_cache

from mulligan.policies.failures.failure import Finding
from mulligan.policies.repair.free_repair import (
    MAX_QUICK_REPAIR,
    JsonExtraction,
    extract_json,
    repair_syntax,
)
from mulligan.policies.value import Json
from mulligan.tasks.ports.errors import TooCostly
from mulligan.tasks.ports.verifiers import Candidate
from mulligan.workers.killable.pool import call_killable

#: Longer texts are parsed again by each verifier rather than kept in memory.
_CACHED_CHARACTERS = 65_536

#: A text that takes longer to repair is not JSON.
_REPAIR_SECONDS = 3.0

_MESSAGES = {
    "empty": "the answer is empty",
    "truncated": "the answer was cut off before its JSON ended",
    "fence": "the code fence in the answer has no JSON object",
    "prose": "the answer is prose without a JSON object",
    "object": "the answer is JSON with a syntax error",
}
_TYPE_NAMES = {
    type(None): "null", bool: "boolean", int: "number", float: "number", str: "string",
    list: "array",
}  # fmt: skip


def repair_json_text(text: str) -> str | None:
    """Repair the syntax of a JSON text, a long one in a killable child; None if that is costly."""
    if len(text) <= MAX_QUICK_REPAIR:
        return repair_syntax(text)
    try:
        return call_killable(repair_syntax, text, seconds=_REPAIR_SECONDS)
    except TooCostly:
        return None


@lru_cache(maxsize=8)
def _recent(text: str, truncated: bool) -> JsonExtraction:
    return extract_json(text, truncated=truncated, repair=repair_json_text)


def extraction_of(candidate: Candidate) -> JsonExtraction:
    """Repair the runner's own text for free, so that every coercion is recorded.

    The value is shared between verifiers: read it, never change it.
    """
    text, truncated = candidate.output.text, candidate.output.truncated
    if len(text) > _CACHED_CHARACTERS:
        return extract_json(text, truncated=truncated, repair=repair_json_text)
    return _recent(text, truncated)


def decoder_class(message: str | None) -> str:
    """Return a decoder's message without line, column and character."""
    text = (message or "").partition(": line ")[0].strip()
    # A key that the message quotes may contain lone surrogates, which cannot be stored.
    return text.encode("utf-8", "replace").decode("utf-8")


def parse_evidence(candidate: Candidate, extraction: JsonExtraction) -> dict[str, Json]:
    """Return the evidence of ``json.object``, from which signatures are built."""
    evidence: dict[str, Json] = {
        "shape": extraction.shape,
        "truncated": candidate.output.truncated,
        "decoder": decoder_class(extraction.decoder_message),
    }
    if extraction.coercions:
        evidence["coercions"] = list(extraction.coercions)
    return evidence


def coercion_warnings(extraction: JsonExtraction) -> tuple[str, ...]:
    """Return one warning per free repair."""
    return tuple(f"coerced: {coercion}" for coercion in extraction.coercions)


def parse_finding(extraction: JsonExtraction, *, code: str | None = None) -> Finding:
    """Say why the text is not a JSON object; its shape is the code unless one is given."""
    shape = extraction.shape
    if extraction.parsed:
        message = f"the answer is a JSON {_TYPE_NAMES[type(extraction.value)]}, not an object"
    else:
        message = f"{_MESSAGES[shape]} ({decoder_class(extraction.decoder_message)})"
    # JSON with a syntax error has the shape "object", which would say nothing as a code.
    reason = "syntax" if shape == "object" else shape
    return Finding(message=message, code=code or reason, path="$", expected="a JSON object")
