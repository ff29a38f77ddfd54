"""A unified diff that takes little time, for texts whose lines would take too long to match."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def one_hunk(
    before: Sequence[str], after: Sequence[str], old: str, new: str, *, lineterm: str = "\n"
) -> Iterator[str]:
    """Yield a unified diff without context whose only hunk has every line that may differ.

    Yield nothing if the texts are equal.
    """
    if before == after:
        return
    shortest = min(len(before), len(after))
    head = next((n for n in range(shortest) if before[n] != after[n]), shortest)
    shortest -= head
    tail = next((n for n in range(shortest) if before[-1 - n] != after[-1 - n]), shortest)
    removed, added = (lines[head : len(lines) - tail] for lines in (before, after))
    starts = [head + 1 if lines else head for lines in (removed, added)]
    yield f"--- {old}{lineterm}"
    yield f"+++ {new}{lineterm}"
    yield f"@@ -{starts[0]},{len(removed)} +{starts[1]},{len(added)} @@{lineterm}"
    yield from (f"-{line}" for line in removed)
    yield from (f"+{line}" for line in added)
