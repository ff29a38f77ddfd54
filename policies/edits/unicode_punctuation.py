"""Typographic quotes, dashes and spaces, which models and word processors write for ASCII."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

_QUOTES = dict.fromkeys("‘’‚‛′", "'") | dict.fromkeys("“”„‟″", '"')
_PUNCTUATION = (
    _QUOTES
    | dict.fromkeys("‐‑‒–—―−", "-")
    | dict.fromkeys("\u00a0\u2002\u2003\u2007\u2009\u200a\u202f\u3000", " ")
)
_TABLE = str.maketrans(_PUNCTUATION)
_BLANKS = " \t\r\n"

#: The characters that a file has for each typographic character of an author.
PunctuationMap = Mapping[str, set[str]]


class AmbiguousCharacter(ValueError):
    """The file has several characters for one of the author's."""

    def __init__(self, character: str, variants: set[str]) -> None:
        ways = " and ".join(sorted(variants))
        super().__init__(
            f"adds {character}, for which the file has {ways}: use the one that the file needs"
        )


def to_ascii(text: str) -> str:
    """Replace typographic quotes, dashes and spaces by ASCII, one character by one."""
    return text.translate(_TABLE)


def punctuation_map(actual: Sequence[str], written: Sequence[str]) -> PunctuationMap:
    """Map an author's punctuation to a file's. The lines differ only in punctuation and in the
    white space around them."""
    found: dict[str, set[str]] = {}
    for is_, was in zip(actual, written, strict=True):
        for ours, theirs in _pairs(is_, was):
            if theirs in _PUNCTUATION:
                found.setdefault(theirs, set()).add(ours)
    if any(to_ascii(theirs) in ours for theirs, ours in found.items() if theirs in _QUOTES):
        # An author who wrote one typographic quote for an ASCII one did so for all.
        found = {quote: {to_ascii(quote)} for quote in _QUOTES} | found
    return found


def _pairs(is_: str, was: str) -> Iterator[tuple[str, str]]:
    """Pair the characters of a file's line with those that an author wrote."""
    core = to_ascii(was).strip(_BLANKS)
    at, wrote = to_ascii(is_).index(core), to_ascii(was).index(core)
    yield from zip(is_[at:], was[wrote : wrote + len(core)], strict=False)
    # Indentation may differ in length: a blank maps to itself if the file has it, too.
    yield from ((c if c in is_[:at] else to_ascii(c), c) for c in was[:wrote])


def respell(text: str, known: PunctuationMap) -> str:
    """Return the author's text with the file's punctuation. Raises AmbiguousCharacter."""
    for character in text:
        if len(known.get(character, ())) > 1:
            raise AmbiguousCharacter(character, known[character])
    return text.translate({ord(c): next(iter(variants)) for c, variants in known.items()})
