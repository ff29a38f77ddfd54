"""The operations on files: their changes, refusals and no-ops."""

from __future__ import annotations

import hashlib
import stat
from pathlib import Path
from typing import Any

import pytest

from mulligan.policies.edits.edit import Edit
from mulligan.tasks.ports.appliers import ApplyContext, EditApplier, EditRefused, FileChange
from mulligan.workers.edits.operations.file_operations import APPLIERS
from mulligan.workers.edits.tree.write_changes import perform

PARSE = """\
def parse(text):
    return text.split(',')


def join(parts):
    return ','.join(parts)
"""
OPS: dict[str, EditApplier] = {applier.op: applier for applier in APPLIERS}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "parse.py").write_text(PARSE)
    (tmp_path / "notes.md").write_text("# Notes\n")
    return tmp_path


def edit_of(op: str, target: str, **payload: Any) -> Edit:
    return Edit(id="e1", op=op, target=target, payload=payload)


def changes(root: Path, op: str, target: str, **payload: Any) -> list[FileChange]:
    return OPS[op].changes(edit_of(op, target, **payload), ApplyContext(root=root))


def apply(root: Path, op: str, target: str, **payload: Any) -> str:
    """Apply an edit and return its notes."""
    found = changes(root, op, target, **payload)
    perform(root, found)
    return "; ".join(change.note for change in found if change.note)


def refused(root: Path, op: str, target: str, **payload: Any) -> str:
    """Check that an edit is refused and changes nothing. Return the message."""
    before = tree(root)
    with pytest.raises(EditRefused) as error:
        changes(root, op, target, **payload)
    assert tree(root) == before
    return str(error.value)


def tree(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def diff_of(path: str, old: str, new: str, header: str = "@@ -2 +2 @@") -> str:
    return f"--- a/{path}\n+++ b/{path}\n{header}\n-{old}\n+{new}\n"


@pytest.mark.parametrize(
    ("op", "target", "payload", "message"),
    [
        ("write_file", "x", {}, "payload.content: is required"),
        ("write_file", "x", {"content": 5}, "payload.content: "),
        (
            "write_file",
            "x",
            {"content": "", "contnt": ""},
            "no such field; did you mean 'content'?",
        ),
        ("write_file", "../x", {"content": ""}, "leads out of the root"),
        ("write_file", ".git/config", {"content": ""}, "nothing inside .git may be edited"),
        ("patch_file", "x", {"diff": ""}, "payload.diff: "),
        ("search_replace", "x", {"search": "", "replace": ""}, "payload.search: "),
        ("search_replace", "x", {"search": "a", "replace": "", "count": 0}, "payload.count: "),
        ("rename_file", "x", {"to": "/etc/x"}, "relative to the root"),
        ("delete_file", "x", {"expect": "abc"}, "payload.expect: "),
    ],
)
def test_an_invalid_payload_is_explained(
    root: Path, op: str, target: str, payload: dict[str, Any], message: str
) -> None:
    found = OPS[op].validate(edit_of(op, target, **payload), ApplyContext(root=root))
    assert not found.ok
    assert message in found.reason


def test_a_file_is_written_and_writing_it_again_is_a_no_op(root: Path) -> None:
    apply(root, "write_file", "bin/run", content="#!/bin/sh\n", executable=True)
    assert stat.S_IMODE((root / "bin/run").stat().st_mode) == 0o755
    [again] = changes(root, "write_file", "bin/run", content="#!/bin/sh\n", executable=True)
    assert again.unchanged
    assert again.note == "it has this content"
    apply(root, "write_file", "bin/run", content="x")
    assert stat.S_IMODE((root / "bin/run").stat().st_mode) == 0o755
    apply(root, "write_file", "bin/run", content="x", executable=False)
    assert stat.S_IMODE((root / "bin/run").stat().st_mode) == 0o644


def test_a_rename_never_overwrites(root: Path) -> None:
    assert "already exists" in refused(root, "rename_file", "app/parse.py", to="notes.md")
    assert "did you mean app/parse.py" in refused(root, "rename_file", "app/pars.py", to="x")
    apply(root, "rename_file", "app/parse.py", to="lib/parser.py")
    assert tree(root) == {"lib/parser.py": PARSE.encode(), "notes.md": b"# Notes\n"}
    [same] = changes(root, "rename_file", "notes.md", to="./notes.md")
    assert same.unchanged


def test_a_deletion_can_require_a_content(root: Path) -> None:
    right = hashlib.sha256(b"# Notes\n").hexdigest()
    assert right in refused(root, "delete_file", "notes.md", expect="0" * 64)
    assert "is a folder" in refused(root, "delete_file", "app")
    apply(root, "delete_file", "notes.md", expect=right)
    assert "notes.md" not in tree(root)


def test_search_and_replace_needs_exactly_one_match(root: Path) -> None:
    assert (
        apply(root, "search_replace", "app/parse.py", search="split(',')", replace="split()") == ""
    )
    assert b"text.split()" in tree(root)["app/parse.py"]
    assert "occurs 2 times (lines 2, 6)" in refused(
        root, "search_replace", "app/parse.py", search="return ", replace="yield "
    )
    assert "Nearest lines: 5: 'def join(parts):'" in refused(
        root, "search_replace", "app/parse.py", search="def joined(parts):", replace="x"
    )
    [again] = changes(root, "search_replace", "notes.md", search="Notes", replace="Notes")
    assert again.unchanged


OLD, NEW = "    return text.split(',')", "    return text.split(';')"
EXACT = (
    "--- a/app/parse.py\n+++ b/app/parse.py\n"
    f"@@ -1,3 +1,3 @@\n def parse(text):\n-{OLD}\n+{NEW}\n \n"
)
RENAMED = "diff --git a/notes.md b/news.md\nsimilarity index 100%\n"
BODY = EXACT.partition("@@\n")[2]


@pytest.mark.parametrize(
    ("diff", "note"),
    [
        (EXACT, ""),
        (f"Here it is:\n```diff\n{EXACT}```\n", ""),
        (EXACT.replace("-1,3 +1,3", "-1,7 +1,9"), "line counts in hunk headers"),
        (EXACT.replace("-1,3 +1,3", "-40,3 +40,3"), ""),
        (EXACT.replace("a/app", "app").replace("b/app", "app"), "names without a/ and b/"),
        (f"--- a/parse.py\n+++ b/parse.py\n@@ -1,3 +1,3 @@\n{BODY}", "file headers"),
        (f"--- original\n+++ modified\n@@ -1,3 +1,3 @@\n{BODY}", "file headers"),
        (f"@@ -1,3 +1,3 @@\n{BODY}", "file headers"),
        (
            f"```\n@@ … @@\n{BODY}```\nDone!\n",
            "code fence; line counts in hunk headers; file headers",
        ),
        (EXACT.replace(" def parse(text):", " def parse(text):  "), "trailing whitespace"),
        (EXACT.replace("',')\n+", "’,‘)\n+"), "Unicode punctuation"),
    ],
    ids=[
        "exact",
        "fence",
        "counts",
        "numbers",
        "no prefix",
        "short name",
        "placeholder",
        "headless",
        "fenced hunk",
        "trailing",
        "punctuation",
    ],
)
def test_an_inexact_diff_is_applied_and_its_tolerance_noted(
    root: Path, diff: str, note: str
) -> None:
    assert apply(root, "patch_file", "app/parse.py", diff=diff) == note
    assert (root / "app/parse.py").read_text() == PARSE.replace("split(',')", "split(';')")


def test_the_indentation_of_the_file_wins(root: Path) -> None:
    diff = "@@ -1 +1 @@\n-return text.split(',')\n+if text:\n+    return text.split(';')\n"
    assert "indentation" in apply(root, "patch_file", "app/parse.py", diff=diff)
    assert "\n    if text:\n        return text.split(';')\n" in (root / "app/parse.py").read_text()


@pytest.mark.parametrize(
    ("target", "diff", "message"),
    [
        ("app/parse.py", "Change the comma to a semicolon.", "no unified diff"),
        ("app/parse.py", EXACT.replace("split(',')", "split('|')"), "but line 2 is"),
        ("notes.md", EXACT, "the diff is of app/parse.py"),
        ("app/new.py", EXACT.replace("parse.py", "new.py"), "does not exist"),
        (
            "app/parse.py",
            EXACT + "--- a/notes.md\n+++ b/notes.md\n@@ -1 +1 @@\n-# Notes\n+#\n",
            "notes.md",
        ),
        (".", f"@@ -1,3 +1,3 @@\n{BODY}", "names no file"),
        (".", EXACT.replace("app/parse.py", "../parse.py"), ".."),
        (".", EXACT.replace("app/parse.py", ".git/config"), ".git"),
        (
            ".",
            "diff --git a/l b/l\nnew file mode 120000\n--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n+x\n",
            "symbolic link",
        ),
        (".", "--- /dev/null\n+++ b/.mulligan/x\n@@ -0,0 +1 @@\n+x\n", ".mulligan"),
        (".", "--- /dev/null\n+++ b/notes.md\n@@ -0,0 +1 @@\n+x\n", "exists"),
        (".", "--- /dev/null\n+++ b/notes.md/x\n@@ -0,0 +1 @@\n+x\n", "not a folder"),
    ],
)
def test_an_inapplicable_diff_changes_nothing(
    root: Path, target: str, diff: str, message: str
) -> None:
    """The text of a diff that does not fit never ends up in a file."""
    assert message in refused(root, "patch_file", target, diff=diff)
    assert not any(b"@@" in data for data in tree(root).values())


def test_a_diff_is_never_applied_to_another_file_of_the_same_name(root: Path) -> None:
    (root / "parse.py").write_text(PARSE)
    message = refused(root, "patch_file", "parse.py", diff=EXACT)
    assert "the diff is of app/parse.py" in message
    short = EXACT.replace("/app/parse.py", "/parse.py")
    assert "the diff is of parse.py" in refused(root, "patch_file", "app/parse.py", diff=short)
    # Without such a file, the name can only mean the target.
    (root / "app/parse.py").unlink()
    assert apply(root, "patch_file", "parse.py", diff=EXACT) == "file headers"


def test_a_rename_whose_hunk_has_no_context_is_refused(root: Path) -> None:
    diff = (
        "diff --git a/notes.md b/news.md\nsimilarity index 50%\n"
        "rename from notes.md\nrename to news.md\n"
        "--- a/notes.md\n+++ b/news.md\n@@ -1,0 +2 @@\n+more\n"
    )
    assert "no context lines" in refused(root, "patch_file", ".", diff=diff)
    copied = diff.replace("rename ", "copy ")
    assert "no context lines" in refused(root, "patch_file", ".", diff=copied)


LONG = "".join(f"line {number}\n" for number in range(12))


def test_a_hunk_longer_than_its_header_is_applied_in_full(root: Path) -> None:
    (root / "long.txt").write_text(LONG)
    body = " line 0\n-line 1\n+one\n line 2\n line 3\n line 4\n-line 5\n+five\n line 6\n"
    diff = f"--- a/long.txt\n+++ b/long.txt\n@@ -1,4 +1,4 @@\n{body}"
    assert apply(root, "patch_file", "long.txt", diff=diff) == "line counts in hunk headers"
    changed = LONG.replace("line 1\n", "one\n", 1).replace("line 5", "five")
    assert (root / "long.txt").read_text() == changed


@pytest.mark.parametrize("header", ["@@", "@@ … @@", "@@ line 6 @@"])
def test_a_hunk_with_an_unknown_header_is_applied(root: Path, header: str) -> None:
    (root / "long.txt").write_text(LONG)
    diff = (
        "--- a/long.txt\n+++ b/long.txt\n@@ -2,3 +2,3 @@\n line 1\n-line 2\n+two\n line 3\n"
        f"{header}\n line 6\n-line 7\n+seven\n line 8\n"
    )
    assert apply(root, "patch_file", "long.txt", diff=diff) == "line counts in hunk headers"
    assert (root / "long.txt").read_text() == LONG.replace("line 2", "two").replace(
        "line 7", "seven"
    )


def test_text_after_a_code_fence_is_not_applied(root: Path) -> None:
    rest = "--- a/notes.md\n+++ /dev/null\n@@ -1 +0,0 @@\n-# Notes\n"
    apply(root, "patch_file", ".", diff=f"```diff\n{EXACT}```\n{rest}")
    assert "notes.md" in tree(root)


def test_a_line_without_a_marker_is_refused(root: Path) -> None:
    (root / "long.txt").write_text(LONG)
    diff = (
        "--- a/long.txt\n+++ b/long.txt\n@@ -1,3 +1,3 @@\n line 0\n-line 1\n+one\n line 2\n"
        "line 3\n-line 4\n+four\n"
    )
    assert "is outside a hunk" in refused(root, "patch_file", "long.txt", diff=diff)


def test_either_all_files_of_a_diff_are_patched_or_none(root: Path) -> None:
    notes = "--- a/notes.md\n+++ b/notes.md\n@@ -1 +1 @@\n-# Notes\n+# News\n"
    message = refused(root, "patch_file", ".", diff=EXACT + notes.replace("-# Notes", "-# Nope"))
    assert "notes.md: hunk 1" in message
    assert apply(root, "patch_file", ".", diff=EXACT + notes) == ""
    assert tree(root)["notes.md"] == b"# News\n"
    assert b"split(';')" in tree(root)["app/parse.py"]


def test_an_applied_diff_is_a_no_op_and_a_half_applied_one_is_refused(root: Path) -> None:
    notes = "--- a/notes.md\n+++ b/notes.md\n@@ -1 +1 @@\n-# Notes\n+# News\n"
    apply(root, "patch_file", "app/parse.py", diff=EXACT)
    [again] = changes(root, "patch_file", "app/parse.py", diff=EXACT)
    assert (again.unchanged, again.note) == (True, "already applied")
    message = refused(root, "patch_file", ".", diff=EXACT + notes.replace("-1 +1", "-1,4 +1"))
    assert "app/parse.py: its part of the diff is already applied" in message


def test_a_new_file_without_prefix_is_created_at_its_path(root: Path) -> None:
    diff = "--- /dev/null\n+++ app/new.py\n@@ -0,0 +1 @@\n+x = 1\n"
    assert apply(root, "patch_file", ".", diff=diff) == "names without a/ and b/"
    assert tree(root)["app/new.py"] == b"x = 1\n"
    [again] = changes(root, "patch_file", ".", diff=diff)
    assert (again.unchanged, again.note) == (True, "already applied")


def test_wrong_counts_are_tolerated_in_new_deleted_and_renamed_files(root: Path) -> None:
    diff = (
        "diff --git a/n.py b/n.py\nnew file mode 100755\n--- /dev/null\n+++ b/n.py\n"
        "@@ -0,0 +1,9 @@\n+n = 1\n"
        "diff --git a/notes.md b/notes.md\ndeleted file mode 100644\n"
        "--- a/notes.md\n+++ /dev/null\n"
        "@@ -1,9 +0,0 @@\n-# Notes\n"
        "diff --git a/app/parse.py b/lib/p.py\nsimilarity index 90%\nrename from app/parse.py\n"
        f"rename to lib/p.py\n--- a/app/parse.py\n+++ b/lib/p.py\n@@ -1,9 +1,9 @@\n{BODY}"
    )
    assert "line counts" in apply(root, "patch_file", ".", diff=diff)
    after = PARSE.replace("split(',')", "split(';')").encode()
    assert tree(root) == {"n.py": b"n = 1\n", "lib/p.py": after}
    assert stat.S_IMODE((root / "n.py").stat().st_mode) == 0o755


def test_a_diff_keeps_the_mode_of_a_private_file(root: Path) -> None:
    (root / "notes.md").chmod(0o600)
    apply(root, "patch_file", ".", diff=f"{RENAMED}rename from notes.md\nrename to news.md\n")
    assert stat.S_IMODE((root / "news.md").stat().st_mode) == 0o600
    diff = "--- a/news.md\n+++ b/news.md\n@@ -1 +1 @@\n-# Notes\n+# News\n"
    apply(root, "patch_file", "news.md", diff=diff)
    assert stat.S_IMODE((root / "news.md").stat().st_mode) == 0o600


def test_a_diff_never_follows_a_link(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside")
    (outside / "f").write_text("one\n")
    (root / "linked").symlink_to(outside)
    (root / "f").symlink_to(outside / "f")
    for path in ("f", "linked/f", "linked/new"):
        diff = f"--- a/{path}\n+++ b/{path}\n@@ -1 +1 @@\n-one\n+two\n"
        assert "symbolic link" in refused(root, "patch_file", path, diff=diff)
        new = f"--- /dev/null\n+++ b/{path}\n@@ -0,0 +1 @@\n+two\n"
        assert "symbolic link" in refused(root, "patch_file", ".", diff=new)
    assert (outside / "f").read_text() == "one\n"


def test_a_diff_whose_result_exceeds_the_cap_is_refused(root: Path) -> None:
    ctx = ApplyContext(root=root, max_bytes=len(PARSE) + 3)
    edit = edit_of("patch_file", "app/parse.py", diff=diff_of("app/parse.py", OLD, NEW + "    #"))
    with pytest.raises(EditRefused, match="over the cap"):
        OPS["patch_file"].changes(edit, ctx)
