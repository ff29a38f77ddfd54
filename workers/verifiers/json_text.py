"""The JSON value in an answer, found once for all verifiers that look at it."""

from __future__ import annotations

from functools import lru_cache

from mulligan.policies.failures.failure import Finding
from mulligan.policies.repair.free_repair import JsonExtraction, extract_json
from mulligan.policies.value import Json
from mulligan.tasks.ports.verifiers import Candidate

#: Longer texts are parsed again by each verifier rather than kept in memory.
_CACHED_CHARACTERS = 65_536

_MESSAGES = {
    "empty": "the answer is empty",
    "truncated": "the answer was cut off before its JSON ended",
    "fence": "the code fence in the answer holds no JSON object",
    "prose": "the answer is prose without a JSON object",
    "object": "the answer is JSON with a syntax error",
}


@lru_cache(maxsize=8)
def _recent(text: str, truncated: bool) -> JsonExtraction:
    return extract_json(text, truncated=truncated)


def extraction_of(candidate: Candidate) -> JsonExtraction:
    """What free repair makes of the runner's own text, so that every coercion is seen.

    The value is shared between verifiers: read it, never change it.
    """
    text, truncated = candidate.output.text, candidate.output.truncated
    if len(text) > _CACHED_CHARACTERS:
        return extract_json(text, truncated=truncated)
    return _recent(text, truncated)


def decoder_class(message: str | None) -> str:
    """The class of a decoder's message: what is left without line, column and character."""
    text = (message or "").partition(": line ")[0].strip()
    # A key that the message quotes may hold lone surrogates, which nobody could store.
    return text.encode("utf-8", "replace").decode("utf-8")


def parse_evidence(candidate: Candidate, extraction: JsonExtraction) -> dict[str, Json]:
    """The structured facts of ``json.object`` that signatures are made of."""
    evidence: dict[str, Json] = {
        "shape": extraction.shape,
        "truncated": candidate.output.truncated,
        "decoder": decoder_class(extraction.decoder_message),
    }
    if extraction.coercions:
        evidence["coercions"] = list(extraction.coercions)
    return evidence


def coercion_warnings(extraction: JsonExtraction) -> tuple[str, ...]:
    """One warning per free repair."""
    return tuple(f"coerced: {coercion}" for coercion in extraction.coercions)


def parse_finding(extraction: JsonExtraction, *, code: str | None = None) -> Finding:
    """Why the text is not a JSON object, with its shape as the code unless another is given."""
    shape = extraction.shape
    if extraction.parsed:
        message = f"the answer is a JSON {json_type(extraction.value)}, not an object"
    else:
        message = f"{_MESSAGES[shape]} ({decoder_class(extraction.decoder_message)})"
    # The shape of JSON with a slip in it is "object"; as a reason, that would say nothing.
    reason = "syntax" if shape == "object" else shape
    return Finding(message=message, code=code or reason, path="$", expected="a JSON object")


def json_type(value: Json) -> str:
    """The JSON name of a Python value's type."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"
