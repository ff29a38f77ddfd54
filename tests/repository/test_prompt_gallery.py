"""The page of corrected prompts is what the code writes, on any machine."""

from __future__ import annotations

import re

from benchmarks.gallery.__main__ import PAGE, page


def test_the_page_of_corrected_prompts_is_current() -> None:
    written = page()
    assert written == PAGE.read_text(encoding="utf-8"), "run `make gallery` and read the changes"
    assert len(re.findall(r"^### \d+\. ", written, re.MULTILINE)) >= 40
    # Nothing of the machine that wrote it.
    assert not re.search(r"/tmp|/home|/root|/Users|site-packages", written)
    prompts = re.findall(
        r"The prompt of the retry.*?\n\n(`{3,})text\n(.*?)\n\1$", written, re.M | re.S
    )
    for _, prompt in prompts:
        assert not re.search(r"\bNone\b|at the answer|\bmulligan\b", prompt)
