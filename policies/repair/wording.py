"""Every sentence that a corrected prompt may say, in one place.

Written for small models: short, imperative, concrete. ``{place}``, ``{expected}``, ``{actual}``,
``{message}`` and ``{hint}`` are filled in from the failure; nothing else of it reaches a prompt.
"""

from __future__ import annotations

from typing import NamedTuple

from mulligan.policies.failures.failure import FailureKind as Kind


class Recipe(NamedTuple):
    """How one sort of failure is repaired."""

    #: Stable: statistics and the fleet's memory are keyed by it.
    action: str
    #: What the corrected prompt says.
    say: str
    #: The one thing to do next.
    step: str
    #: The technique in a few words, for "what worked before"; never about one job.
    technique: str
    constrained: bool = False
    temperature: float = 1.0
    token_cap: float = 1.0
    show_last_answer: bool = True


#: Format slips come from sampling: constrain the decoder if it can be, and cool it down.
_COOL = 0.3
#: A cut answer needs room; the factor takes 120 tokens to 300.
_ROOM = 2.5


def _format(action: str, say: str, step: str, technique: str, *, show: bool = True) -> Recipe:
    return Recipe(
        action, say, step, technique, constrained=True, temperature=_COOL, show_last_answer=show
    )


def _not_json(what: str, rule: str) -> dict[str, Recipe]:
    """Answers that are not JSON at all, by their shape."""
    return {
        "fence": _format(
            "drop_fence",
            f"Answer with {what} itself, without ``` around it. {rule}",
            f"Answer with {what}, bare.",
            "writing bare JSON without a code fence",
        ),
        "prose": _format(
            "drop_prose",
            f"Answer with {what} and no other words. {rule}",
            f"Answer with {what} alone.",
            "writing only the JSON",
        ),
        "empty": _format(
            "answer_at_all",
            f"Your answer was empty. Answer with {what}. {rule}",
            f"Write {what}.",
            "writing the JSON straight away",
            show=False,
        ),
        "not_object": _format(
            "answer_with_object",
            f"Your answer is JSON, but not an object. Put it into one object. {rule}",
            "Answer with a JSON object.",
            "answering with an object at the top",
        ),
        "syntax": _format(
            "fix_json_syntax",
            "Your answer is not valid JSON: {message}. Use double quotes for every name and text,"
            f" no trailing comma, no comment. {rule}",
            "Write the same content as valid JSON.",
            "writing strictly valid JSON",
        ),
    }


_NOT_OBJECT = _not_json(
    "one JSON object", "Begin with {{ and end with }}. Write nothing before or after it."
)
#: A contract may ask for an array or a number as well.
_NOT_CONTRACT = _not_json("the JSON that the schema asks for", "Write nothing before or after it.")

_TRUNCATED = Recipe(
    "raise_token_cap",
    "Your last answer was cut off before its end. Answer again from the start, complete and as"
    " short as the task allows. No explanation.",
    "Write the whole answer, shorter.",
    "a shorter, complete answer with more room",
    token_cap=_ROOM,
    show_last_answer=False,
)

_SCHEMA: dict[str, Recipe] = {
    "required": _format(
        "add_missing_field",
        "The field {place} is missing. Add it with a value that fits the contract.",
        "Add {place}.",
        "adding the missing field",
    ),
    "type": _format(
        "fix_type",
        "{place} has the wrong type. It must be: {expected}. It is: {actual}.{hint}",
        "Write {place} as {expected}.",
        "giving the value exactly the type of the contract",
    ),
    "additionalProperties": _format(
        "remove_extra_field",
        "{place} is not allowed by the contract. Remove it. Add no other fields.",
        "Remove {place}.",
        "leaving out fields that the contract does not name",
    ),
    "enum": _format(
        "choose_allowed_value",
        "{place} must be exactly one of: {expected}. It is: {actual}.",
        "Choose an allowed value for {place}.",
        "copying one of the allowed values",
    ),
    "format": _format(
        "fix_format",
        "{place} has the wrong form. Wanted: {expected}. It is: {actual}.",
        "Rewrite {place} in the wanted form.",
        "writing the value in the wanted form",
    ),
    "range": _format(
        "fix_range",
        "{place} is out of range ({rule} {expected}). It is: {actual}.",
        "Bring {place} into its range.",
        "keeping the value in its range",
    ),
    "size": _format(
        "fix_size",
        "{place} has the wrong size ({rule} {expected}). It is: {actual}.",
        "Give {place} the wanted size.",
        "giving the value the wanted size",
    ),
}
#: Keywords that are repaired like another one.
_SCHEMA |= {
    "unevaluatedProperties": _SCHEMA["additionalProperties"],
    "const": _SCHEMA["enum"],
    "pattern": _SCHEMA["format"],
    **dict.fromkeys(
        ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
        _SCHEMA["range"],
    ),
    **dict.fromkeys(
        ("minLength", "maxLength", "minItems", "maxItems", "uniqueItems", "minProperties",
         "maxProperties"), _SCHEMA["size"],
    ),
}  # fmt: skip

_TESTS: dict[str, Recipe] = {
    "assertion": Recipe(
        "fix_assertion",
        "The test {place} fails: {message}. Work out by hand what the code must return there, then"
        " correct the code. Do not change the test.",
        "Make {place} pass.",
        "working through the failing case by hand",
    ),
    "exception": Recipe(
        "fix_exception",
        "The code raises an error in {place}: {message}. Correct the line that raises it.",
        "Remove the error in {place}.",
        "handling the case that raised",
    ),
    "import_error": Recipe(
        "fix_import",
        "An import fails in {place}: {message}. Use the standard library and the names that the"
        " task gives, spelled exactly so.",
        "Correct the import or the name.",
        "defining exactly the names that the tests import",
    ),
    "syntax_error": Recipe(
        "fix_syntax",
        "The code does not parse ({place}): {message}. Answer with valid code only, the whole file,"
        " no other words.",
        "Write code that parses.",
        "writing the whole file as plain code",
    ),
    "collection_error": Recipe(
        "fix_collection",
        "The tests could not start ({place}): {message}. Answer with the whole file, with every"
        " name that the task asks for, and no code that runs on import.",
        "Make the file importable.",
        "writing an importable file with all names",
    ),
    "no_tests": Recipe(
        "keep_tests_collectable",
        "No test was run: {message}. Answer with the whole file and do not change the tests.",
        "Make the tests run.",
        "leaving the tests alone",
    ),
    "forged": Recipe(
        "remove_tampering",
        "The code interferes with the test run ({place}): {message}. Write only what the task asks"
        " for: no exit calls, no exit handlers, no changes to the tests or their settings.",
        "Remove everything that touches the test run.",
        "writing only the code that was asked for",
        show_last_answer=False,
    ),
}
_TESTS["conftest_broken"] = _TESTS["collection_error"]
_TESTS["early_exit"] = _TESTS["forged"]

_COMMANDS: dict[str, Recipe] = {
    "timeout": Recipe(
        "make_it_finish",
        "It did not finish in time ({place}). Look for an endless loop, a wait for input or a slow"
        " method, and remove it.",
        "Make it finish quickly.",
        "replacing an endless or slow loop",
    ),
    "signal": Recipe(
        "fix_crash",
        "The check {place} was killed ({expected}): {message}. Use less memory and no endless"
        " recursion.",
        "Remove the crash.",
        "using less memory and no endless recursion",
    ),
    "not_found": Recipe(
        "name_existing_program",
        "A program could not be started ({place}): {message}. Use only programs that the task"
        " names.",
        "Use a program that exists.",
        "using only programs that the task names",
    ),
    "exit": Recipe(
        "fix_exit",
        "The check {place} failed with {actual}: {message}. Correct what it complains about.",
        "Correct what the check reports.",
        "following the checker's own message",
    ),
}

_REASONING: dict[str, Recipe] = {
    "missing": Recipe(
        "include_text",
        "The answer must contain this: {expected}. It does not. Write it exactly so.",
        "Include {expected}.",
        "copying the wanted text exactly",
        temperature=_COOL,
    ),
    "forbidden": Recipe(
        "remove_text",
        "The answer must not contain this: {actual}. Leave it out.",
        "Leave out {actual}.",
        "leaving the forbidden text out",
        temperature=_COOL,
    ),
    "length": Recipe(
        "fix_length",
        "The answer has the wrong length: {message}. Make it fit.",
        "Give the answer the wanted length.",
        "counting the length before answering",
    ),
    "config": Recipe(
        "fix_configuration",
        "The job is set up wrongly at {place}: {message}. A person must correct it.",
        "Correct {place} in the job.",
        "correcting the job",
    ),
    "low_score": Recipe(
        "improve_quality",
        "The answer passes every check, but not well enough. Follow the task to the letter, in"
        " exactly the form it asks for.",
        "Follow the task to the letter.",
        "following the task to the letter",
        temperature=_COOL,
    ),
}

_CONTEXT: dict[str, Recipe] = {
    "context_length": Recipe(
        "shorten_context",
        "Use only the parts of the task that the answer needs, and answer briefly.",
        "Answer with less text.",
        "a shorter request",
        show_last_answer=False,
    ),
}
_APPLYING: dict[str, Recipe] = {
    "does_not_apply": Recipe(
        "match_the_file",
        "{place} does not fit the file as it is: {message}. Copy the lines that you change, and"
        " those around them, exactly as they stand in the file.",
        "Correct {place} so that it fits the file.",
        "copying the lines of the file exactly",
    ),
}

#: By kind and finer cause. A cause that has no row of its own falls back to its kind's.
RECIPES: dict[Kind, dict[str, Recipe]] = {
    Kind.SCHEMA_INVALID: _NOT_CONTRACT | _SCHEMA,
    Kind.JSON_INVALID: _NOT_OBJECT,
    Kind.TEST_FAILED: _TESTS,
    Kind.COMMAND_FAILED: _COMMANDS,
    Kind.REASONING_ERROR: _REASONING,
    Kind.TOOL_ERROR: _CONTEXT,
    Kind.MISSING_CONTEXT: _APPLYING,
}

FALLBACKS: dict[Kind, Recipe] = {
    Kind.SCHEMA_INVALID: _format(
        "fix_value",
        "{place} does not fit the contract: {message}.",
        "Correct {place}.",
        "correcting the value that the contract refuses",
    ),
    Kind.JSON_INVALID: _NOT_OBJECT["syntax"],
    Kind.TEST_FAILED: _TESTS["exception"],
    Kind.COMMAND_FAILED: _COMMANDS["exit"],
    Kind.MISSING_CONTEXT: Recipe(
        "use_given_context",
        "This is not available: {place} ({message}). Use only what the task gives you. Do not guess"
        " what is not there.",
        "Do without {place}.",
        "using only what the task gives",
    ),
    Kind.REASONING_ERROR: Recipe(
        "reconsider",
        "The answer is wrong at {place}: {message}. Read the task again and correct exactly that.",
        "Correct {place}.",
        "reading the task again",
    ),
    Kind.REPEATED_FAILURE: Recipe(
        "change_approach",
        "The same error came back: {message}. Start over and solve it in another way.",
        "Start over in another way.",
        "starting over in another way",
        show_last_answer=False,
    ),
    Kind.UNSAFE_REQUEST: Recipe(
        "stay_safe",
        "Part of this is not allowed. Leave that part out and do only what is safe.",
        "Leave out what is not allowed.",
        "leaving out what is not allowed",
        show_last_answer=False,
    ),
    # Trouble with a provider is no fault of the answer: nothing about it enters the prompt.
    Kind.TOOL_ERROR: Recipe(
        "ask_again",
        "Do the task exactly as it is written.",
        "Do the task again.",
        "asking again",
        show_last_answer=False,
    ),
    Kind.UNKNOWN: Recipe(
        "fix_reported_problem",
        "This went wrong at {place}: {message}. Correct it.",
        "Correct the reported problem.",
        "correcting the reported problem",
    ),
}


def recipe_for(kind: Kind, cause: str | None, *, from_verifier: bool = False) -> Recipe:
    """The recipe of a failure. A plug-in's ``tool_error`` is about the answer after all."""
    if cause == "truncated":
        constrained = kind in (Kind.JSON_INVALID, Kind.SCHEMA_INVALID)
        return _TRUNCATED._replace(constrained=constrained)
    if kind is Kind.TOOL_ERROR and from_verifier:
        kind = Kind.UNKNOWN
    return RECIPES.get(kind, {}).get(cause or "", FALLBACKS[kind])


def _techniques() -> dict[str, str]:
    every = [*FALLBACKS.values(), _TRUNCATED, *(r for t in RECIPES.values() for r in t.values())]
    return {recipe.action: recipe.technique for recipe in every}


#: What to call each action when a prompt says what worked before.
TECHNIQUES: dict[str, str] = _techniques()
#: The other parts of a technique's name (see ``strategy``); most are no business of the model's.
TECHNIQUES |= {"fresh_context": "starting over from the task alone"}

# -- the frame of the corrected prompt ------------------------------------------------------------

CONTRACT = "Your answer must be JSON that fits this JSON Schema:"
LAST_ANSWER = "This was your last answer. It is not right yet:"
ERRORS = "Errors that were found in it:"
ERRORS_WITHOUT_ANSWER = "A first answer had these errors. Avoid them:"
MORE = "and {count} more"
OUTPUT = "The check {name} printed at its end:"
KEEP = "Already right. Keep it:"
KEEP_FIELDS = "the fields {names}"
KEEP_TESTS = "{passed} of {collected} tests pass"
WORKED_BEFORE = "What fixed this error before:"
DO_NOW = "Do this now:"
DO_ALL = "Then correct the other errors in the list."
LEFT_OUT = "[… {count} characters left out …]"
#: What the free repairs had to do, said so that it does not happen again.
COERCIONS: dict[str, str] = {
    "fence": "Do not put ``` around the JSON.",
    "prose": "Write no words before or after the JSON.",
    "json_repair": "Write strictly valid JSON: double quotes, no trailing commas, no comments.",
}
#: The same of an answer that becomes a file.
FILE_COERCIONS: dict[str, str] = {
    **COERCIONS,
    "fence": "Do not put ``` around the file.",
    "prose": "Write no words before or after what stands in the file.",
}

#: A task once more, in other words: what a delayed verification asks without a model's help. It
#: must share less than 88 % of its words with the task alone, for tasks of ordinary length.
REFORMULATED = """\
Somebody else solved the assignment quoted below some time ago. Work independently: forget any \
earlier attempt, begin from scratch, think about which requirements it names, then deliver just \
one complete final result that satisfies every single requirement, without commentary, greetings, \
apologies or alternatives.

Assignment, quoted word for word:
\"\"\"
{task}
\"\"\"

Now give that result again, freshly derived, exactly as the assignment demands."""
