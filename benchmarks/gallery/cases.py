"""The failures of the gallery: a task, how its answer is checked, and a wrong answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ValidationError

from mulligan.policies.failures.failure import Finding
from mulligan.tasks.external.lane import ReportedAttempt
from mulligan.tasks.user_tasks.user_task import Repair, as_text


@dataclass(frozen=True, kw_only=True)
class Case:
    """One failed attempt."""

    title: str
    prompt: str
    #: The wrong answer; None if the attempt ended without one.
    answer: str | None = None
    verifiers: Sequence[Any] = ()
    #: Files of the workspace; the answer is written to ``output_file``.
    files: Mapping[str, str] = field(default_factory=dict)
    output_file: str | None = None
    #: Whether the token cap cut the answer off.
    truncated: bool = False
    #: What a user's task raised, or what was reported from outside.
    raised: Exception | None = None
    reported: ReportedAttempt | None = None
    #: Whether the same failure happened before.
    again: bool = False
    #: Whether the runner constrains answers to the contract, and whether it did last time.
    constrains: bool = False
    was_constrained: bool = False
    worked_before: Sequence[str] = ()
    #: Points that the checks subtract although they pass.
    score: float | None = None

    @property
    def text(self) -> str | None:
        """The answer, wherever it comes from."""
        if self.reported is not None:
            return self.reported.answer
        given = getattr(self.raised, "answer", None)
        return self.answer if given is None else as_text(given)


@dataclass(frozen=True)
class Section:
    title: str
    about: str
    cases: Sequence[Case]


# -- JSON ------------------------------------------------------------------------------------------

PERSON = {
    "type": "object",
    "required": ["name", "age"],
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
}
ALICE = "Extract the person as JSON with name and age: 'Alice is 31 years old.'"


def contract(schema: Mapping[str, Any]) -> list[Any]:
    return ["json.object", {"id": "contract.schema", "weight": 2, "schema": schema}]


JSON = (
    Case(title="Prose instead of JSON", prompt=ALICE, verifiers=["json.object"],
         answer="Alice is a person who is 31 years old."),
    Case(title="Prose, and two checks that need JSON", prompt=ALICE, verifiers=contract(PERSON),
         answer="The person's name is Alice and she is 31."),
    Case(title="A code fence without JSON", prompt=ALICE, verifiers=["json.object"],
         answer="```\nname: Alice\nage: 31\n```"),
    Case(title="An empty answer", prompt=ALICE, verifiers=["json.object"], answer=" \n"),
    Case(title="An array instead of an object", prompt=ALICE, verifiers=["json.object"],
         answer='["Alice", 31]'),
    Case(title="A key without a value", prompt=ALICE, verifiers=["json.object"],
         answer='{"name": "Alice", "age": }'),
    Case(title="An answer cut off at the token cap", prompt=ALICE, verifiers=contract(PERSON),
         answer='{"name": "Alice", "biography": "Alice was born in', truncated=True),
)  # fmt: skip

# -- the contract ----------------------------------------------------------------------------------


def one_field(name: str, value: Mapping[str, Any]) -> list[Any]:
    return contract({"type": "object", "required": [name], "properties": {name: value}})


class Booking(BaseModel):
    """A stay in a hotel."""

    first_day: int
    last_day: int


def _validation_error() -> ValidationError:
    try:
        Booking.model_validate_json('{"first_day": "soon", "nights": 3}')
    except ValidationError as error:
        return error
    raise AssertionError("the booking is wrong")


ROWS = {
    "type": "array",
    "items": {"type": "object", "required": ["id"], "properties": {"id": {"type": "integer"}}},
}
EVENT = {
    "type": "object",
    "required": ["title", "day", "seats", "kind"],
    "additionalProperties": False,
    "properties": {
        "title": {"type": "string"},
        "day": {"type": "string", "format": "date"},
        "seats": {"type": "integer", "minimum": 1},
        "kind": {"enum": ["talk", "workshop"]},
    },
}
TALK = "Extract the event as JSON: 'A talk about bees on 3 May 2026, 40 seats.'"

SCHEMA = (
    Case(title="A missing field", prompt=ALICE, verifiers=contract(PERSON),
         answer='{"name": "Alice"}'),
    Case(title="A number in quotes", prompt=ALICE, verifiers=contract(PERSON),
         answer='{"name": "Alice", "age": "31"}'),
    Case(title="A number in words", prompt=ALICE, verifiers=contract(PERSON),
         answer='{"name": "Alice", "age": "thirty-one"}'),
    Case(title="A null that is not allowed", prompt=ALICE, verifiers=contract(PERSON),
         answer='{"name": null, "age": 31}'),
    Case(title="A field that the schema does not allow", prompt=ALICE,
         verifiers=contract(PERSON | {"additionalProperties": False}),
         answer='{"name": "Alice", "age": 31, "city": "unknown"}'),
    Case(title="A value that is not one of the choices",
         prompt="What is the mood of 'I love it!'? Answer as JSON with mood.",
         verifiers=one_field("mood", {"enum": ["good", "bad", "neutral"]}),
         answer='{"mood": "enthusiastic"}'),
    Case(title="A fixed value", prompt="Describe the unit as JSON: version 2, unit metre.",
         verifiers=one_field("version", {"const": 2}), answer='{"version": 1}'),
    Case(title="A pattern in the schema", prompt="Give the part number of the pump as JSON.",
         verifiers=one_field("part", {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}$"}),
         answer='{"part": "AB 1234"}'),
    Case(title="A date in another format", prompt="When was the Vasa launched? JSON with day.",
         verifiers=one_field("day", {"type": "string", "format": "date"}),
         answer='{"day": "10 August 1628"}'),
    Case(title="A number out of range", prompt="How likely is rain, from 0 to 1? JSON with rain.",
         verifiers=one_field("rain", {"type": "number", "maximum": 1}), answer='{"rain": 70}'),
    Case(title="A text that is too long", prompt="Summarise the ticket as JSON with title.",
         verifiers=one_field("title", {"type": "string", "maxLength": 20}),
         answer='{"title": "The login button does not react on small screens"}'),
    Case(title="Not a multiple", prompt="How many eggs should I buy? JSON with eggs.",
         verifiers=one_field("eggs", {"type": "integer", "multipleOf": 6}),
         answer='{"eggs": 10}'),
    Case(title="Repeated items", prompt="List the colours of the flag as JSON with colours.",
         verifiers=one_field("colours", {"type": "array", "uniqueItems": True}),
         answer='{"colours": ["red", "white", "red"]}'),
    Case(title="None of several alternatives", prompt="How long does it take? JSON with time.",
         verifiers=one_field("time", {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
         answer='{"time": "about an hour"}'),
    Case(title="The same error in 300 rows", prompt="Number the 300 rows as a JSON array.",
         verifiers=[{"id": "contract.schema", "schema": ROWS}],
         answer="[" + ", ".join(f'{{"id": "{n}"}}' for n in range(300)) + "]"),
    Case(title="Several different errors", prompt=TALK, verifiers=contract(EVENT),
         answer='{"title": "Bees", "day": "3 May 2026", "seats": "40", "host": "Ann"}'),
)  # fmt: skip

# -- text ------------------------------------------------------------------------------------------

TICKET = "Is this ticket a bug or a feature? 'The button does nothing.'"


def matches(**options: Any) -> list[Any]:
    return [{"id": "text.match", **options}]


TEXT = (
    Case(title="A text that is missing", prompt="Write a short letter to Ms Lee. End with regards.",
         verifiers=matches(contains=["Dear Ms Lee", "Kind regards"]),
         answer="Hello, the parcel has arrived. Bye."),
    Case(title="A text that is forbidden", prompt="Decline the offer in one sentence.",
         verifiers=matches(not_contains="unfortunately", ignore_case=True),
         answer="Unfortunately we have to decline."),
    Case(title="A pattern that lists the choices", prompt=TICKET,
         verifiers=matches(regex="^(bug|feature)$"), answer="This ticket describes a bug."),
    Case(title="A pattern", prompt="Give the time of the meeting, as in 09:30.",
         verifiers=matches(regex="^[0-9]{2}:[0-9]{2}$"), answer="half past nine"),
    Case(title="A pattern that must not match", prompt="Name the colour in words.",
         verifiers=matches(not_regex="#[0-9a-f]{6}"), answer="It is #ff0000."),
    Case(title="An exact text", prompt="Answer with OK if you can read this.",
         verifiers=matches(equals="OK"), answer="OK, I can read this."),
    Case(title="An answer that is too short", prompt="Describe the sea in a few sentences.",
         verifiers=matches(min_length=80), answer="It is blue."),
    Case(title="An answer that is too long", prompt="Write a title for an article about bees.",
         verifiers=matches(max_length=30),
         answer="Everything that you always wanted to know about bees"),
    Case(title="An answer that is too long and was cut off", truncated=True,
         prompt="Write a title for an article about bees.", verifiers=matches(max_length=30),
         answer="Everything that you always wanted to know about bees and how they live in their"),
)  # fmt: skip

# -- tests and commands ----------------------------------------------------------------------------

SLUG = (
    "Write slug(title) in Python: lower case, words joined by hyphens. Reply with the whole file."
)
SLUG_TESTS = {
    "test_slug.py": """\
from slug import slug


def test_words():
    assert slug("Two Words") == "two-words"


def test_spaces():
    assert slug("  a   b ") == "a-b"
"""
}
PYTEST = [{"id": "pytest.subprocess", "args": ["test_slug.py"], "timeout": 60}]
HANGS = [{"id": "pytest.subprocess", "args": ["test_slug.py"], "timeout": 8}]


def code(title: str, answer: str, **more: Any) -> Case:
    fields = {"verifiers": PYTEST, "files": SLUG_TESTS, "output_file": "slug.py", "prompt": SLUG}
    return Case(title=title, answer=answer, **(fields | more))


def command(title: str, script: str, answer: str, **options: Any) -> Case:
    check = {"id": "command.subprocess", "argv": ["sh", "check.sh"], **options}
    return Case(
        title=title,
        prompt="Write the settings as an INI file.",
        answer=answer,
        verifiers=[check],
        files={"check.sh": script},
        output_file="settings.ini",
    )


EDIT = "Write a plan of edits that greets with Hello in page.txt."
PAGE = {"page.txt": "Welcome\nto the page\n"}
TESTS = (
    code("A failing test",
         'def slug(title):\n    return title.lower().replace(" ", "-")\n'),
    code("Two failing tests, in a code fence",
         'Here it is:\n```python\ndef slug(title):\n    return title.replace(" ", "_")\n```'),
    code("An exception in the code",
         'def slug(title):\n    return "-".join(word.lower() for word in words(title))\n'),
    code("A function with another name",
         'def slugify(title):\n    return "-".join(title.lower().split())\n'),
    code("Code that does not parse", 'def slug(title:\n    return "-".join(title.split())\n'),
    code("A loop that never ends",
         'def slug(title):\n    while "  " in title or title:\n        title = title or " "\n',
         verifiers=HANGS),
    code("Code that ends the test run",
         'import os\n\n\ndef slug(title):\n    os._exit(0)\n'),
    command("A command with several lines of output",
            "echo 'settings.ini:2: error: unknown key colour' >&2\n"
            "echo 'settings.ini:3: error: size is not a number' >&2\n"
            "echo '2 errors in 1 file' >&2\nexit 1\n",
            "[page]\ncolour = red\nsize = large\n"),
    command("A command without output", "grep -q '^size' settings.ini\n", "[page]\n"),
    command("A command that does not end", "sleep 30\n", "[page]\n", timeout=1),
    command("A command that is killed", "kill -SEGV $$\n", "[page]\n"),
    Case(title="An edit that does not apply", prompt=EDIT, verifiers=["edits.plan"], files=PAGE,
         answer='{"edits": [{"id": "e1", "op": "search_replace", "target": "page.txt", "payload":'
         ' {"search": "Wellcome", "replace": "Hello"}}]}'),
    Case(title="Prose instead of a plan of edits", prompt=EDIT, verifiers=["edits.plan"],
         files=PAGE, answer="I would replace Welcome by Hello."),
)  # fmt: skip

# -- users' tasks, reports, repeated and constrained attempts --------------------------------------

SUMMARY = "Summarise the minutes as JSON with decision and owner."
OTHER = (
    Case(title="A user's task: a key that the answer does not have", prompt=SUMMARY,
         raised=KeyError("owner")),
    Case(title="A user's task: a pydantic model refuses the answer", prompt="Book the room.",
         raised=_validation_error()),
    Case(title="A user's task: an assertion", prompt="Book the room.",
         raised=AssertionError("the last day is before the first day")),
    Case(title="A user's task: any other exception", prompt="Book the room.",
         raised=RuntimeError("the calendar has no room 12")),
    Case(title="A user's task raises Repair", prompt=SUMMARY,
         raised=Repair("the owner must be one person, with a full name", path="$.owner",
                       answer={"decision": "We buy it.", "owner": "the team"})),
    Case(title="A report from outside", prompt="Translate: 'Yesterday I went home.'",
         reported=ReportedAttempt(score=40, answer="Gestern gehe ich nach Hause.",
             feedback="Think of the word yesterday.", findings=[
             Finding(message="the verb must be in the past tense", code="tense.past",
                     path="word 2")])),
    Case(title="Every check passes, but the score is low", prompt="Describe the mug in a sentence.",
         verifiers=matches(contains="mug"), answer="mug mug mug", score=40),
    Case(title="An error that was repaired before", prompt=ALICE, verifiers=contract(PERSON),
         answer='{"name": "Alice", "age": "31"}', worked_before=["fix_type+constrained"]),
    Case(title="The same error again: a fresh start", prompt=TALK, verifiers=contract(EVENT),
         answer='{"title": "Bees", "day": "3 May 2026", "seats": 40, "kind": "talk"}', again=True),
    Case(title="The same text again: a fresh start", prompt=TICKET,
         verifiers=matches(regex="^(bug|feature)$"), answer="This ticket describes a bug.",
         again=True),
    Case(title="Constrained to the contract: nothing is left to say", prompt=ALICE,
         verifiers=contract(PERSON), answer='{"name": "Alice", "age": "31"}', constrains=True),
    Case(title="Constrained to the contract: only what constraining cannot give", prompt=TALK,
         verifiers=[*contract(EVENT), *matches(contains="bees")], constrains=True,
         answer='{"title": "A talk", "day": "3 May 2026", "seats": "40", "kind": "talk"}'),
    Case(title="A server that ignored the contract", prompt=ALICE, verifiers=contract(PERSON),
         answer='{"name": "Alice", "age": "31"}', constrains=True, was_constrained=True),
)  # fmt: skip

SECTIONS = (
    Section("JSON", "The answer should be JSON, checked by `json.object`.", JSON),
    Section("The contract", "The JSON should fit a schema, checked by `contract.schema`.", SCHEMA),
    Section("Text", "The answer is checked by `text.match`.", TEXT),
    Section("Tests, commands and edits", "The answer is a file, checked by `pytest.subprocess` or"
            " `command.subprocess`, or a plan of edits, checked by `edits.plan`.", TESTS),
    Section("Tasks, reports and repeated attempts", "Users' own Celery tasks, external work, and"
            " what changes from the second failure on.", OTHER),
)  # fmt: skip
