"""The form of a recipe: how to repair one class of failures, in sentences.

Written for small models: short, imperative, concrete. ``instruction.py`` fills in the
placeholders, such as ``{place}``; nothing else from a failure reaches a prompt. Of the choices in
brackets, ``[The field {place}|A field]``, it takes the first one without an empty placeholder, or
none. So every recipe gives true sentences even if nothing but its cause is known. ``{place:.0}``
writes nothing: it makes a choice depend on the place.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple


class Recipe(NamedTuple):
    """How to repair one class of failures."""

    #: Stable: statistics and the fleet's memory are keyed by it.
    action: str
    #: What is wrong with the last answer, and where.
    fact: str
    #: What to do about it. Several errors of one action share it.
    advice: str
    next_step: str
    #: The technique in a few words, for "what worked before"; never about one job.
    technique: str
    #: What holds for every answer; a fresh start shows it and nothing of the failed answer.
    requirement: str = ""
    constrained: bool = False
    #: Whether constraining the answer to the contract rules this failure out.
    ruled_out: bool = False
    #: Whether it is about the answer as a whole, so that one sentence is enough.
    whole: bool = False
    temperature: float = 1.0
    token_cap: float = 1.0
    show_last_answer: bool = True


#: Format errors come from sampling: constrain the decoder if possible, and lower the temperature.
COOLER = 0.3
format_recipe = partial(Recipe, constrained=True, temperature=COOLER)
