"""Every sentence of a corrected prompt, in one place.

Written for small models: short, imperative, concrete. The placeholders, such as ``{place}``,
are filled in from the failure; nothing else from it reaches a prompt.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from mulligan.policies.failures.failure import FailureKind as Kind


class Recipe(NamedTuple):
    """How to repair one class of failures."""

    #: Stable: statistics and the fleet's memory are keyed by it.
    action: str
    prompt_suffix: str
    next_step: str
    #: The technique in a few words, for "what worked before"; never about one job.
    technique: str
    constrained: bool = False
    temperature: float = 1.0
    token_cap: float = 1.0
    show_last_answer: bool = True


#: Format errors come from sampling: constrain the decoder if possible, and lower the temperature.
_COOLER = 0.3
_format = partial(Recipe, constrained=True, temperature=_COOLER)
#: A cut answer needs room; the factor takes 120 tokens to 300.
_MORE_TOKENS = 2.5


def _not_json(what: str, rule: str) -> dict[str, Recipe]:
    """Return the recipes for answers that are not JSON at all, by their shape."""
    return {
        "fence": _format(
            "drop_fence",
            f"Answer with {what}, without ``` around it. {rule}",
            f"Answer with {what}, without a code fence.",
            "writing JSON without a code fence",
        ),
        "prose": _format(
            "drop_prose",
            f"Answer with {what} and no other words. {rule}",
            f"Answer with only {what}.",
            "writing only the JSON",
        ),
        "empty": _format(
            "answer_at_all",
            f"Your last answer was empty. Answer with {what}. {rule}",
            f"Write {what}.",
            "writing the JSON straight away",
            show_last_answer=False,
        ),
        "not_object": _format(
            "answer_with_object",
            f"Your last answer is JSON, but not an object. Put it into one object. {rule}",
            "Answer with a JSON object.",
            "answering with one object",
        ),
        "syntax": _format(
            "fix_json_syntax",
            "Your last answer is not valid JSON: {message}. Use double quotes for every name and"
            f" text, no trailing comma, no comment. {rule}",
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
    "Your last answer was cut off. Answer again from the start, complete and as short as the task"
    " allows. No explanation.",
    "Write the whole answer, shorter.",
    "a shorter, complete answer with more room",
    token_cap=_MORE_TOKENS,
    show_last_answer=False,
)

_SCHEMA: dict[str, Recipe] = {
    "required": _format(
        "add_missing_field",
        "The field {place} is missing. Add it with a value that fits the schema.",
        "Add {place}.",
        "adding the missing field",
    ),
    "type": _format(
        "fix_type",
        "{place} has the wrong type. It must be: {expected}. It is: {actual}.{hint}",
        "Write {place} as {expected}.",
        "using exactly the type that the schema asks for",
    ),
    "additionalProperties": _format(
        "remove_extra_field",
        "{place} is not allowed by the schema. Remove it. Add no other fields.",
        "Remove {place}.",
        "leaving out fields that the schema does not name",
    ),
    "enum": _format(
        "choose_allowed_value",
        "{place} must be exactly one of: {expected}. It is: {actual}.",
        "Choose an allowed value for {place}.",
        "copying one of the allowed values",
    ),
    "format": _format(
        "fix_format",
        "{place} must have the format {expected}. It is: {actual}.",
        "Rewrite {place} in the required format.",
        "writing the value in the required format",
    ),
    "range": _format(
        "fix_range",
        "{place} is out of range ({rule} {expected}). It is: {actual}.",
        "Bring {place} into range.",
        "keeping the value in range",
    ),
    "size": _format(
        "fix_size",
        "{place} has the wrong size ({rule} {expected}). It is: {actual}.",
        "Give {place} the right size.",
        "giving the value the right size",
    ),
}
#: Keywords that are repaired like another one, some in their own words.
_SCHEMA |= {
    "unevaluatedProperties": _SCHEMA["additionalProperties"],
    "const": _SCHEMA["enum"]._replace(
        prompt_suffix="{place} must be exactly {expected}. It is: {actual}.",
        next_step="Set {place} to {expected}.",
    ),
    "pattern": _SCHEMA["format"]._replace(
        prompt_suffix="{place} must match the pattern {expected}. It is: {actual}."
    ),
    "multipleOf": _SCHEMA["range"]._replace(
        prompt_suffix="{place} must be a multiple of {expected}. It is: {actual}.",
        next_step="Make {place} a multiple of {expected}.",
    ),
    "uniqueItems": _SCHEMA["size"]._replace(
        prompt_suffix="{place} contains the same item twice. It is: {actual}.",
        next_step="Remove the repeated items from {place}.",
    ),
    **dict.fromkeys(
        ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _SCHEMA["range"]
    ),
    **dict.fromkeys(
        ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"),
        _SCHEMA["size"],
    ),
}

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
        "Fix the error in {place}.",
        "handling the case that raised the error",
    ),
    "import_error": Recipe(
        "fix_import",
        "An import fails in {place}: {message}. Use only the standard library and the names in the"
        " task. Spell them exactly as the task does.",
        "Correct the import or the name.",
        "defining exactly the names that the tests import",
    ),
    "syntax_error": Recipe(
        "fix_syntax",
        "The code does not parse{at}: {message}. Answer with the whole file: valid code and no"
        " other words.",
        "Write code that parses.",
        "writing the whole file as plain code",
    ),
    "collection_error": Recipe(
        "fix_collection",
        "The tests could not start{at}: {message}. Answer with the whole file. Define every name"
        " that the task asks for. Do not run code on import.",
        "Make the file importable.",
        "writing an importable file with all names",
    ),
    "no_tests": Recipe(
        "keep_tests_collectable",
        "No test ran: {message}. Answer with the whole file and do not change the tests.",
        "Make the tests run.",
        "leaving the tests alone",
    ),
    "forged": Recipe(
        "remove_tampering",
        "The code interferes with the test run{at}: {message}. Write only what the task asks for:"
        " no exit calls, no exit handlers, no changes to the tests or their settings.",
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
        "It did not finish in time{at}. Look for an endless loop, a wait for input or a slow"
        " algorithm, and remove it.",
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
        "A program could not be started{at}: {message}. Use only programs that the task names.",
        "Use a program that exists.",
        "using only programs that the task names",
    ),
    "exit": Recipe(
        "fix_exit",
        "The check {place} failed with {actual}: {message}. Correct what it reports.",
        "Correct what the check reports.",
        "following the checker's own message",
    ),
}

_REASONING: dict[str, Recipe] = {
    "missing": Recipe(
        "include_text",
        "The answer must contain this text: {expected}. It does not. Copy the text exactly.",
        "Include {expected}.",
        "copying the required text exactly",
        temperature=_COOLER,
    ),
    "forbidden": Recipe(
        "remove_text",
        "The answer must not contain this text: {actual}. Leave it out.",
        "Leave out {actual}.",
        "leaving the forbidden text out",
        temperature=_COOLER,
    ),
    "length": Recipe(
        "fix_length",
        "The answer has the wrong length: {message}. Make it longer or shorter.",
        "Give the answer the right length.",
        "counting the length before answering",
    ),
    "config": Recipe(
        "fix_configuration",
        "The job is configured wrongly{at}: {message}. A person must correct it.",
        "Correct the configuration of the job.",
        "correcting the job",
    ),
    "low_score": Recipe(
        "improve_quality",
        "The answer passes every check, but not well enough. Follow the task to the letter. Use"
        " exactly the format it asks for.",
        "Follow the task to the letter.",
        "following the task to the letter",
        temperature=_COOLER,
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
        "{place} does not match the file: {message}. Copy the lines that you change, and the lines"
        " around them, exactly from the file.",
        "Correct {place} so that it matches the file.",
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
        "{place} does not fit the schema: {message}.",
        "Correct {place}.",
        "correcting the value that does not fit the schema",
    ),
    Kind.JSON_INVALID: _NOT_OBJECT["syntax"],
    Kind.TEST_FAILED: _TESTS["exception"],
    Kind.COMMAND_FAILED: _COMMANDS["exit"],
    Kind.MISSING_CONTEXT: Recipe(
        "use_given_context",
        "The answer needs something that is not available{at}: {message}. Use only what the task"
        " gives you. Do not guess the rest.",
        "Use only what the task gives you.",
        "using only what the task gives",
    ),
    Kind.REASONING_ERROR: Recipe(
        "reconsider",
        "The answer is wrong{at}: {message}. Read the task again and correct this error.",
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
    # A provider's error is not the answer's fault: nothing about it enters the prompt.
    Kind.TOOL_ERROR: Recipe(
        "ask_again",
        "Do the task exactly as it is written.",
        "Do the task again.",
        "asking again",
        show_last_answer=False,
    ),
    Kind.UNKNOWN: Recipe(
        "fix_reported_problem",
        "An error was found{at}: {message}. Correct it.",
        "Correct the reported problem.",
        "correcting the reported problem",
    ),
}


def recipe_for(kind: Kind, cause: str | None, *, from_verifier: bool = False) -> Recipe:
    """Return the recipe for a failure. A ``tool_error`` from a verifier is about the answer."""
    if cause == "truncated":
        constrained = kind in (Kind.JSON_INVALID, Kind.SCHEMA_INVALID)
        return _TRUNCATED._replace(constrained=constrained)
    if kind is Kind.TOOL_ERROR and from_verifier:
        kind = Kind.UNKNOWN
    return RECIPES.get(kind, {}).get(cause or "", FALLBACKS[kind])


#: What to call each part of a technique's name (see ``strategy``) when a prompt says what worked
#: before. The parts that are missing here mean nothing to the model.
TECHNIQUES: dict[str, str] = {
    _TRUNCATED.action: _TRUNCATED.technique,
    **{recipe.action: recipe.technique for recipe in FALLBACKS.values()},
    **{each.action: each.technique for recipes in RECIPES.values() for each in recipes.values()},
    "fresh_context": "starting over from the task alone",
}

# -- the frame of the corrected prompt ------------------------------------------------------------

CONTRACT = "Your answer must be JSON that fits this JSON Schema:"
LAST_ANSWER = "This is your last answer. It is not correct yet:"
ERRORS = "Errors in your last answer:"
ERRORS_WITHOUT_ANSWER = "An earlier answer had these errors. Avoid them:"
MORE = "and {count} more"
OUTPUT = "Last output of the check {name}:"
KEEP = "Already correct. Keep it:"
KEEP_FIELDS = "fields: {names}"
KEEP_TESTS = "{passed} of {collected} tests pass"
WORKED_BEFORE = "What fixed this error before:"
DO_NOW = "Do this now:"
DO_ALL = "Then correct the other errors in the list."
LEFT_OUT = "[… {count} characters left out …]"
#: Reminders that make a free repair unnecessary in the next answer.
COERCIONS: dict[str, str] = {
    "fence": "Do not put ``` around the JSON.",
    "prose": "Write nothing before or after the JSON.",
    "json_repair": "Write strictly valid JSON: double quotes, no trailing commas, no comments.",
}
#: The same for an answer that becomes a file.
FILE_COERCIONS: dict[str, str] = {
    **COERCIONS,
    "fence": "Do not put ``` around the file.",
    "prose": "Write nothing before or after the content of the file.",
}

#: A task in other words: what a delayed verification asks without a model's help. It must share
#: less than 88 % of its words with the task alone, for tasks of ordinary length.
REFORMULATED = """\
Please solve the assignment quoted below on your own. Ignore any earlier attempt and begin from \
scratch. First think carefully about which requirements the assignment names. Then deliver just \
one complete final result that satisfies every single requirement, without further commentary, \
greetings, apologies or alternatives.

Assignment, quoted word for word:
\"\"\"
{task}
\"\"\"

Now give your freshly derived result, exactly as the assignment demands."""
