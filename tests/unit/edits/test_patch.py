"""Parsing the diffs that models write, and placing their hunks with rising tolerance."""

from __future__ import annotations

import difflib
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mulligan.policies.edits.fit import MisfitHunk, apply_hunks
from mulligan.policies.edits.parse_diff import parse, special_mode, unquote_name
from mulligan.policies.edits.patch import PatchError
from mulligan.policies.edits.search_replace import replace_text

FILE = """\
import os


def area(width, height):
    # “Area”, in square metres
    return width * height


def twice(x):
    return x + x
"""


def fitted(diff: str, text: str = FILE) -> tuple[str, tuple[str, ...], bool]:
    [file] = parse(diff).files
    done = apply_hunks(text, file.hunks)
    return done.text, done.tolerances, done.applied


def misfit(diff: str, text: str = FILE) -> str:
    with pytest.raises(MisfitHunk) as refused:
        fitted(diff, text)
    return str(refused.value)


@pytest.mark.parametrize(
    ("diff", "old", "new"),
    [
        ("--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-a\n+b\n", "a/x.py", "b/x.py"),
        ("--- x.py\t2024-01-01\n+++ x.py\t2024-01-02\n@@\n-a\n+b\n", "x.py", "x.py"),
        ("Sure!\n```diff\n--- a/x\n+++ b/x\n@@ @@\n-a\n+b\n```\nDone.", "a/x", "b/x"),
        ('--- "a/\\303\\274.py"\n+++ "b/\\303\\274.py"\n@@ -1 +1 @@\n-a\n+b\n', "a/ü.py", "b/ü.py"),
        ("--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+b\n", None, "b/x"),
        ("diff --git a/x y b/x y\nold mode 100644\nnew mode 100755\n", "a/x y", "b/x y"),
        ("diff --git a/x b/z\nsimilarity index 100%\nrename from x\nrename to z\n", "a/x", "b/z"),
        ("@@ -1 +1 @@\n-a\n+b\n", "", ""),
    ],
    ids=["git", "dates", "fence", "quoted", "new", "mode", "rename", "headless"],
)
def test_a_diff_is_parsed_with_its_file_names(diff: str, old: str | None, new: str | None) -> None:
    [file] = parse(diff).files
    assert (file.old, file.new) == (old, new)


@pytest.mark.parametrize(
    ("diff", "message"),
    [
        ("I would change line 3.", "contains no unified diff"),
        ("--- a/x\n+++ b/x\n", "no hunks"),
        ("--- a/x\n+++ b/x\n@@ -1 +1 @@\n a\n", "adds and removes nothing"),
        ("--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\nb\n+c\n", "line 6 of the diff is outside"),
    ],
)
def test_an_invalid_diff_is_refused_with_advice(diff: str, message: str) -> None:
    with pytest.raises(PatchError, match=message):
        parse(diff)


def test_the_hunks_of_two_files_are_separated() -> None:
    diff = (
        "--- a/x\n+++ b/x\n@@ -1,2 +1 @@\n a\n--- old comment\n"
        "--- a/y\n+++ b/y\n@@ -1 +1 @@\n-c\n+d\n-- \n2.39.5\n"
    )
    first, second = parse(diff).files
    assert [line.text for line in first.hunks[0].lines] == ["a\n", "-- old comment\n"]
    assert second.hunks[0].new == ("d\n",)


def test_special_modes_are_found_without_parsing() -> None:
    diff = "diff --git a/l b/l\nnew file mode 120000\nindex 0..1\n--- /dev/null\n+++ b/l\n"
    assert special_mode(diff) == "120000"
    assert special_mode("+new file mode 120000\n") is None
    assert unquote_name('"a/tab\\tquote\\".txt"') == 'a/tab\tquote".txt'


TOLERANCES = [
    ("@@ -1,9 +1,2 @@\n def twice(x):\n-    return x + x\n+    return 2 * x\n", ()),
    ("@@\n def twice(x):   \n-    return x + x\t\n+    return 2 * x\n", ("trailing whitespace",)),
    ("@@ @@\n   def twice(x):\n-      return x + x\n+      return 2 * x\n", ("indentation",)),
    ("@@\n def twice(x):\n-    return x\u00a0+ x\n+    return 2 * x\n", ("Unicode punctuation",)),
]


@pytest.mark.parametrize(("hunk", "tolerances"), TOLERANCES, ids=lambda value: str(value)[:20])
def test_each_tolerance_places_the_hunk_and_is_reported(
    hunk: str, tolerances: tuple[str, ...]
) -> None:
    text, used, applied = fitted(hunk)
    assert text == FILE.replace("x + x", "2 * x")
    assert (used, applied) == (tolerances, False)


def test_context_lines_keep_the_bytes_of_the_file() -> None:
    diff = '@@\n     # "Area", in square metres\n-    return width * height\n+    return 0\n'
    text, used, _ = fitted(diff)
    assert "“Area”" in text
    assert used == ("Unicode punctuation",)


RESPELLED = "Unicode punctuation of added lines, written as the file has it"
CODE = "def f():\n    x = 'a'\n    return \"old\"  # as it is\n"


@pytest.mark.parametrize(
    ("hunk", "line"),
    [
        ("-    return “old”  # as it is\n+    return “new”\n", '    return "new"\n'),
        # One kind of quote decides about the others, but not about dashes.
        (
            "-    return “old”  # as it is\n+    return ‘new’ # – why\n",
            "    return 'new' # – why\n",
        ),
        ('-\u00a0\u00a0  return "old"  # as it is\n+\u00a0\u00a0  return 1\n', "    return 1\n"),
    ],
    ids=["quotes", "other quotes", "no-break spaces"],
)
def test_added_lines_use_the_punctuation_of_the_matched_lines(hunk: str, line: str) -> None:
    text, used, _ = fitted(f"@@\n     x = 'a'\n{hunk}", CODE)
    assert text == CODE.replace('    return "old"  # as it is\n', line)
    assert used[-2:] == ("Unicode punctuation", RESPELLED)


def test_typographic_characters_of_the_file_may_be_added() -> None:
    file = "# “Quoted”, and – so on\nx = 1\n"
    diff = "@@\n # “Quoted”, and - so on\n-x = 1\n+x = 2  # “now”\n"
    text, used, _ = fitted(diff, file)
    assert text == "# “Quoted”, and – so on\nx = 2  # “now”\n"
    assert used == ("Unicode punctuation",)


def test_an_ambiguous_character_is_refused() -> None:
    file = '# “note”\nx = "a"\n'
    message = misfit("@@\n # “note”\n-x = “a”\n+x = “b”\n", file)
    assert 'hunk 1 (@@) adds “, for which the file has " and “' in message
    # If no added line contains it, the hunk fits.
    assert fitted("@@\n # “note”\n-x = “a”\n+x = 'b'\n", file)[0] == "# “note”\nx = 'b'\n"


@pytest.mark.parametrize("search", ["return “old”", "    return “old”  # as it is\n"])
def test_a_replacement_uses_the_punctuation_of_the_match(search: str) -> None:
    done = replace_text(CODE, search, search.replace("old", "new"))
    assert done.text == CODE.replace("old", "new")
    assert done.tolerances == ("Unicode punctuation", RESPELLED)
    with pytest.raises(MisfitHunk, match="the replacement adds “, for which the file has"):
        replace_text('“a”: "b"\n', "“a”: “b”\n", "“a”: “c”\n")


def test_a_change_of_indentation_must_be_uniform() -> None:
    assert "does not fit" in misfit("@@\n  def twice(x):\n-      return x + x\n+      return 0\n")


def test_a_crlf_file_keeps_its_line_endings() -> None:
    text, used, _ = fitted("@@\n one\n-two\n+TWO\n+more\n three\n", "one\r\ntwo\r\nthree\r\n")
    assert text == "one\r\nTWO\r\nmore\r\nthree\r\n"
    assert used == ("trailing whitespace",)


@pytest.mark.parametrize(
    ("hunk", "before", "after"),
    [
        ("@@\n a\n-b\n+c\n", "a\nb", "a\nc"),
        ("@@\n a\n b\n+c\n", "a\nb", "a\nb\nc"),
        ("@@\n a\n-b\n\\ No newline at end of file\n+c\n", "a\nb", "a\nc\n"),
        ("@@\n a\n-b\n+c\n\\ No newline at end of file\n", "a\nb\n", "a\nc"),
    ],
)
def test_the_last_line_keeps_its_ending_unless_the_diff_changes_it(
    hunk: str, before: str, after: str
) -> None:
    assert fitted(hunk, before)[0] == after


def test_an_ambiguous_hunk_is_refused_with_its_lines() -> None:
    assert "2 places (lines 1, 3)" in misfit("@@\n-a\n+b\n", "a\nx\na\n")


def test_the_order_of_hunks_resolves_an_ambiguity() -> None:
    diff = "@@\n-a\n+A\n@@\n-x\n+X\n"
    assert fitted(diff, "a\nx\na\n")[0] == "A\nX\na\n"
    assert "order" in misfit("@@\n-x\n+X\n@@\n-y\n+Y\n", "y\nx\n")


def test_a_hunk_that_does_not_fit_is_explained() -> None:
    message = misfit("@@ -8,2 +8,2 @@\n def twice(x):\n-    return x * 2\n+    return 0\n")
    assert "hunk 1 (@@ -8,2 +8,2 @@) does not fit" in message
    assert "expected '    return x * 2', but line 10 is '    return x + x'" in message
    assert "9: 'def twice(x):'" in message


def test_an_insertion_without_context_is_refused() -> None:
    assert "no context" in misfit("@@ -3,0 +4 @@\n+x = 1\n")


def test_an_applied_diff_is_recognised_and_a_half_applied_one_refused() -> None:
    diff = "@@\n-a\n+A\n x\n@@\n-b\n+B\n y\n"
    assert fitted(diff, "A\nx\nB\ny\n") == ("A\nx\nB\ny\n", (), True)
    assert "hunk 1 (@@) is already applied at line 1" in misfit(diff, "A\nx\n?\ny\n")


LINES = st.lists(st.sampled_from(["a", "b", "  c", "\td", "", "“e”", "f – g"]), max_size=12)


@st.composite
def edited(draw: st.DrawFn) -> tuple[list[str], list[str]]:
    """Return a file of distinct lines, and the same file with some lines changed."""
    size = draw(st.integers(3, 25))
    before = [f"{'    ' * (number % 3)}line {number} “x”\n" for number in range(size)]
    after: list[str] = []
    for line in before:
        action = draw(st.sampled_from(["keep", "keep", "keep", "drop", "change", "add"]))
        after += [] if action == "drop" else [line.upper() if action == "change" else line]
        after += ["        added\n"] if action == "add" else []
    return before, after


def diff_of(before: list[str], after: list[str]) -> str:
    return "".join(difflib.unified_diff(before, after, "a/f", "b/f"))


def loosened(diff: str, *, trailing: bool, quotes: bool) -> str:
    """Return the diff as a careless author would write it."""
    diff = re.sub(r"(?m)^@@.*@@", "@@ -1,3 +1,99 @@", diff)
    if trailing:
        diff = re.sub(r"(?m)^([ -](?!-).*\S)$", r"\1  ", diff)
    if quotes:
        diff = re.sub(r"(?m)^([ -])(?!--)(.*)“(.*)”", r'\1\2"\3"', diff)
    return diff


@settings(max_examples=60, deadline=None)
@given(edited(), st.booleans(), st.booleans())
def test_an_inexact_diff_changes_only_the_lines_it_names(
    pair: tuple[list[str], list[str]], trailing: bool, quotes: bool
) -> None:
    before, after = pair
    exact = diff_of(before, after)
    if not exact:
        return
    diff = loosened(exact, trailing=trailing, quotes=quotes)
    done = apply_hunks("".join(before), parse(diff).files[0].hunks)
    assert not done.applied
    assert done.text == "".join(after)


@settings(max_examples=60, deadline=None)
@given(edited())
def test_an_applied_diff_is_never_applied_again(pair: tuple[list[str], list[str]]) -> None:
    before, after = pair
    exact = diff_of(before, after)
    if not exact or not after:
        return
    text = "".join(after)
    second = apply_hunks(text, parse(exact).files[0].hunks)
    assert second.applied
    assert second.text == text


@settings(max_examples=100, deadline=None)
@given(LINES, LINES, LINES)
def test_any_diff_either_fits_line_by_line_or_is_refused(
    file: list[str], old: list[str], new: list[str]
) -> None:
    body = "".join(f"-{line}\n" for line in old) + "".join(f"+{line}\n" for line in new)
    text = "".join(f"{line}\n" for line in file)
    try:
        done = apply_hunks(text, parse(f"@@ -1 +1 @@\n{body}").files[0].hunks)
    except (MisfitHunk, PatchError):
        return
    if not done.applied:
        assert done.text.count("\n") == len(file) - len(old) + len(new)


@pytest.mark.parametrize(
    ("search", "replace", "after", "tolerances"),
    [
        ("x + x", "2 * x", FILE.replace("x + x", "2 * x"), ()),
        (
            "def twice(x):  \n    return x + x",
            "pass",
            FILE[: FILE.index("def twice")] + "pass\n",
            None,
        ),
        ("return x + x\n", "return 2 * x\n", FILE.replace("x + x", "2 * x"), ()),
        ('# "Area", in', "# Area, in", FILE.replace("“Area”", "Area"), ("Unicode punctuation",)),
        (
            "def twice(x):\n        return x + x\n".replace("def", "    def"),
            "    def thrice(x):\n        return 3 * x\n",
            FILE.replace("twice", "thrice").replace("x + x", "3 * x"),
            ("indentation",),
        ),
    ],
    ids=["inside", "trailing", "line", "punctuation", "indentation"],
)
def test_search_and_replace_has_the_same_tolerances(
    search: str, replace: str, after: str, tolerances: tuple[str, ...] | None
) -> None:
    done = replace_text(FILE, search, replace)
    assert done.text == after
    assert tolerances is None or done.tolerances == tolerances


@pytest.mark.parametrize(
    ("search", "message"),
    [
        ("return", r"occurs 2 times \(lines 6, 10\)"),
        ("def thrice(x):", "does not occur. Nearest lines: 9: 'def twice"),
    ],
)
def test_a_search_without_exactly_one_match_is_refused(search: str, message: str) -> None:
    with pytest.raises(MisfitHunk, match=message):
        replace_text(FILE, search, "x")


def test_the_count_must_match_the_occurrences() -> None:
    assert replace_text(FILE, "return", "yield", 2).text == FILE.replace("return", "yield")
    assert replace_text(FILE, "return", "yield", "all").text == FILE.replace("return", "yield")
    with pytest.raises(MisfitHunk, match=r"occurs 2 times \(lines 6, 10\), not 3"):
        replace_text(FILE, "return", "yield", 3)


def test_an_applied_replacement_is_not_applied_again() -> None:
    once = replace_text(FILE, "return x + x", "return x + x + 0")
    assert replace_text(once.text, "return x + x", "return x + x + 0").applied
    assert replace_text(FILE, "x + x", "x + x").applied


def test_replacing_several_lines_keeps_crlf_endings() -> None:
    done = replace_text("a\r\nb\r\nc\r\n", "a\nb", "a\nB\nbb")
    assert done.text == "a\r\nB\r\nbb\r\nc\r\n"
    assert done.tolerances == ("line endings",)
