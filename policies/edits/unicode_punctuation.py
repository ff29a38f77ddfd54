"""Typographic quotes, dashes and spaces: what models and word processors write for ASCII."""

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

#: What each typographic character of an author stands for in a file.
Spelling = Mapping[str, frozenset[str]]


class Ambiguous(ValueError):
    """A character stands for several in the file."""

    def __init__(self, character: str, meanings: frozenset[str]) -> None:
        ways = " and ".join(sorted(meanings))
        super().__init__(
            f"adds {character}, for which the file has {ways}: write it as the file shall have it"
        )


def plain(text: str) -> str:
    """Typographic quotes, dashes and spaces as ASCII, character by character."""
    return text.translate(_TABLE)


def spelling(there: Sequence[str], wanted: Sequence[str]) -> Spelling:
    """How an author's lines spell those of a file; the two differ in punctuation and in the white
    space around it only."""
    found: dict[str, set[str]] = {}
    for is_, was in zip(there, wanted, strict=True):
        for has, says in _pairs(is_, was):
            if says in _PUNCTUATION:
                found.setdefault(says, set()).add(has)
    if any(plain(says) in has for says, has in found.items() if says in _QUOTES):
        # Who wrote one kind of quote for an ASCII one wrote them all so.
        found = {quote: {plain(quote)} for quote in _QUOTES} | found
    return {says: frozenset(has) for says, has in found.items()}


def _pairs(is_: str, was: str) -> Iterator[tuple[str, str]]:
    """The characters of a line as a file has them and as an author wrote them."""
    core = plain(was).strip(_BLANKS)
    at, wrote = plain(is_).index(core), plain(was).index(core)
    yield from zip(is_[at:], was[wrote : wrote + len(core)], strict=False)
    # Indentation may differ in length: a blank stands for itself where the file has it too.
    yield from ((c if c in is_[:at] else plain(c), c) for c in was[:wrote])


def respelled(text: str, known: Spelling) -> str:
    """A text of the same author as the file would have it. Raises Ambiguous."""
    return "".join(_meant(character, known) for character in text)


def _meant(character: str, known: Spelling) -> str:
    meanings = known.get(character, frozenset({character}))
    if len(meanings) > 1:
        raise Ambiguous(character, meanings)
    return next(iter(meanings))
