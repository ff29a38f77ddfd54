"""Titles as parts of addresses."""

import re


def slug(title: str) -> str:
    """``Hello, World`` as ``hello-world``."""
    words = re.findall(r"[a-z]+", title)
    return "-".join(words)
