"""Differences file by file: paths, numbers of lines, and what is too long."""

from __future__ import annotations

import pytest

from mulligan.console.page.loops.diff_files import MAX_LINES, diff_files
from mulligan.tasks.ports.repositories import ChangedFile

CHANGED = """diff --git a/shop/tax.py b/shop/tax.py
index 3adfde0..cc4106f 100644
--- a/shop/tax.py
+++ b/shop/tax.py
@@ -1,3 +1,3 @@ RATES
 same
--- a comment of a query
+++ another one
-old
+new
\\ No newline at end of file
"""


def test_a_changed_file_shows_its_hunks() -> None:
    """Lines that look like headers are content after the first hunk has begun."""
    change = ChangedFile(path="shop/tax.py", kind="changed", added=2, removed=2)
    (file,) = diff_files(CHANGED, [change])
    assert (file.path, file.added, file.removed, file.is_open) == ("shop/tax.py", 2, 2, True)
    assert [line.kind for line in file.lines] == [
        "place", "same", "del", "add", "del", "add", "place",
    ]  # fmt: skip
    assert file.lines[2].text == "--- a comment of a query"


@pytest.mark.parametrize(
    ("head", "path", "said"),
    [
        (["new file mode 100644", "--- /dev/null", "+++ b/a b.txt"], "a b.txt", 1),
        (["deleted file mode 100644", "--- a/old.txt", "+++ /dev/null"], "old.txt", 1),
        (["similarity index 100%", "rename from x", "rename to y/z"], "y/z", 2),
        (["--- a/x", '+++ "b/\\303\\244.txt"'], "\\303\\244.txt", 0),
    ],
)
def test_a_file_is_called_by_its_new_path(head: list[str], path: str, said: int) -> None:
    text = "\n".join(["diff --git a/x b/x", *head, ""])
    (file,) = diff_files(text, [])
    assert (file.path, len(file.lines)) == (path, said)


def test_a_binary_file_has_no_lines() -> None:
    text = "diff --git a/logo.png b/logo.png\nBinary files a/logo.png and b/logo.png differ\n"
    (file,) = diff_files(text, [ChangedFile(path="logo.png", kind="changed")])
    assert (file.path, file.added) == ("logo.png", None)
    assert [line.text[:12] for line in file.lines] == ["Binary files"]


def test_a_long_difference_is_cut() -> None:
    one = CHANGED + "+x\n" * MAX_LINES
    first, second = diff_files(one + CHANGED, [])
    assert (len(first.lines), first.left_out, first.added) == (MAX_LINES, 7, MAX_LINES + 2)
    assert (second.lines, second.left_out, second.is_open) == ([], 7, False)


def test_nothing_has_no_files() -> None:
    assert diff_files("", []) == []
