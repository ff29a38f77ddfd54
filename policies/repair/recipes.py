"""The recipe for each kind of failure and each finer cause."""

from __future__ import annotations

from mulligan.policies.failures.failure import FailureKind as Kind
from mulligan.policies.repair.recipe import COOLER, Recipe, format_recipe
from mulligan.policies.repair.schema_recipes import NOT_CONTRACT, NOT_OBJECT, SCHEMA, VALUE

#: A cut answer needs room; the factor takes 120 tokens to 300.
_MORE_TOKENS = 2.5

TRUNCATED = Recipe(
    "raise_token_cap",
    "Your last answer was cut off.",
    "Answer again from the start, complete and as short as the task allows. No explanation.",
    "Write the whole answer, shorter.",
    "a shorter, complete answer with more room",
    requirement="Make the answer complete and as short as the task allows. No explanation.",
    whole=True,
    token_cap=_MORE_TOKENS,
    show_last_answer=False,
)

# -- tests and commands ---------------------------------------------------------------------------

_TESTS: dict[str, Recipe] = {
    "assertion": Recipe(
        "fix_assertion",
        "[The test {place}|A check of the answer] fails[: {message}].",
        "[{place:.0}Work out by hand what the code must do there, then correct the code. Do not"
        " change the test.|Correct the answer.]",
        "[Make {place} pass.|Correct the answer.]",
        "working through the failing case by hand",
    ),
    "exception": Recipe(
        "fix_exception",
        "The code raises an error[ in {place}][: {message}].",
        "[{line:.0}Correct the line that raises it.|Correct the code so that it raises no error.]",
        "Fix the error[ in {place}].",
        "handling the case that raised the error",
    ),
    "import_error": Recipe(
        "fix_import",
        "An import fails[ in {place}][: {message}].",
        "Use only the standard library and the names in the task. Spell them exactly as the task"
        " does.",
        "Correct the import or the name.",
        "defining exactly the names that the tests import",
    ),
    "syntax_error": Recipe(
        "fix_syntax",
        "The code does not parse[ ({place})][: {message}].",
        "Answer with the whole file: valid code and no other words.",
        "Write code that parses.",
        "writing the whole file as plain code",
    ),
    "collection_error": Recipe(
        "fix_collection",
        "The tests could not start[ ({place})][: {message}].",
        "Answer with the whole file. Define every name that the task asks for. Do not run code on"
        " import.",
        "Make the file importable.",
        "writing an importable file with all names",
    ),
    "no_tests": Recipe(
        "keep_tests_collectable",
        "No test ran[: {message}].",
        "Answer with the whole file and do not change the tests.",
        "Make the tests run.",
        "leaving the tests alone",
    ),
    "forged": Recipe(
        "remove_tampering",
        "The code interferes with the test run[ ({place})][: {message}].",
        "Write only what the task asks for: no exit calls, no exit handlers, no changes to the"
        " tests or their settings.",
        "Remove everything that touches the test run.",
        "writing only the code that was asked for",
        show_last_answer=False,
    ),
}
_TESTS["switched_off"] = Recipe(
    "keep_tests_running",
    "A test does not run any more[ ({place})][: {message}].",
    "Every test must run as it did before. Restore what it depends on, and make it pass.",
    "Make the test run again, and pass.",
    "leaving on what the tests depend on",
)
_TESTS["crash"] = Recipe(
    "fix_crash",
    "The code crashed the test run[ in {place}][: {message}].",
    "Use less memory and no endless recursion.",
    "Remove the crash.",
    "using less memory and no endless recursion",
)
_TESTS["conftest_broken"] = _TESTS["collection_error"]
_TESTS["early_exit"] = _TESTS["forged"]

_COMMANDS: dict[str, Recipe] = {
    "timeout": Recipe(
        "make_it_finish",
        "[{place}|{program}] did not finish in time.",
        "Look for an endless loop, a wait for input or a slow algorithm, and remove it.",
        "Make it finish quickly.",
        "replacing an endless or slow loop",
    ),
    "signal": Recipe(
        "fix_crash",
        "{program}[ {place}] was killed[ by {expected}][: {message}].",
        "Use less memory and no endless recursion.",
        "Remove the crash.",
        "using less memory and no endless recursion",
    ),
    "not_found": Recipe(
        "name_existing_program",
        "A program could not be started[ ({place})][: {message}].",
        "Use only programs that the task names.",
        "Use a program that exists.",
        "using only programs that the task names",
    ),
    "exit": Recipe(
        "fix_exit",
        "{program}[ {place}] failed[ with {actual}][: {message}].",
        "[{message:.0}Correct what it reports.|Correct the answer so that it passes.]",
        "[{message:.0}Correct what the check reports.|Correct the answer.]",
        "following the checker's own message",
    ),
}

#: A program that is the runner itself, such as an agent. Nothing is known about its answer, and
#: nobody can correct the program by a prompt: its name and its output stay out.
_RUNNERS: dict[str, Recipe] = {
    "timeout": Recipe(
        "finish_in_time",
        "The last attempt was stopped because its time was over.",
        "Begin with what the task needs most, and leave out everything else.",
        "Do the task in less time.",
        "beginning with what the task needs most",
    ),
    "work_refused": Recipe(
        "leave_out_files",
        "The changes of the last attempt could not be kept[: {message}].",
        "Leave out what does not belong to the task, such as files that programs generate.",
        "Leave out files that do not belong to the task.",
        "leaving out files that do not belong to the task",
    ),
    # What it repeated has a sentence of its own in the prompt.
    "stuck": Recipe(
        "do_something_else",
        "",
        "Do the task as it is written.",
        "Do something else first.",
        "doing something else first",
    ),
    "exit": Recipe(
        "do_again",
        "The last attempt broke off[: {message}| with {actual}| by {expected}].",
        "Do the task as it is written.",
        "Do the task again.",
        "asking again",
    ),
}

# -- everything else ------------------------------------------------------------------------------


def _text(
    action: str, requirement: str, fact: str, advice: str, next_step: str, technique: str
) -> Recipe:
    """Return the recipe for a check of the answer's text, which holds for every answer."""
    whole = f"{requirement} {advice}".strip()
    return Recipe(
        action,
        f"{requirement}{fact}",
        advice,
        next_step,
        technique,
        requirement=whole,
        temperature=COOLER,
    )


_REASONING: dict[str, Recipe] = {
    "missing": _text(
        "include_text",
        "The answer must contain [this text: {expected}|a text that is missing].",
        "",
        "Copy the text exactly.",
        "Include [{expected}|the missing text].",
        "copying the required text exactly",
    ),
    "pattern": _text(
        "match_pattern",
        "The answer must match [the pattern {expected}|a pattern].[ For example, {example} does.]",
        "",
        "Do not write the pattern itself. Write your own answer in that form.",
        "Write an answer that matches the pattern.",
        "writing an answer that matches the pattern",
    ),
    "equality": _text(
        "write_exact_text",
        "The answer must be exactly [this text: {expected}|the required text].",
        "",
        "Write nothing before or after it.",
        "Answer with exactly [{expected}|the required text].",
        "writing exactly the required text",
    ),
    "choice": _text(
        "choose_one_text",
        "The answer must be exactly one of [these: {expected}|the allowed texts].",
        "",
        "Write one of them, with no other words.",
        "Answer with one of the allowed texts.",
        "answering with one of the allowed texts alone",
    ),
    "forbidden": _text(
        "remove_text",
        "The answer must not contain [this text: {actual}|a forbidden text].",
        "",
        "Leave it out.",
        "Leave out [{actual}|the forbidden text].",
        "leaving the forbidden text out",
    ),
    "forbidden_pattern": _text(
        "avoid_pattern",
        "The answer must not match [the pattern {expected}|a forbidden pattern].",
        "[ This does: {actual}.]",
        "Rewrite the part that matches it.",
        "Rewrite the part that matches the forbidden pattern.",
        "rewriting the forbidden part",
    ),
    "too_long": _text(
        "shorten_answer",
        "[The answer must have at most {expected} characters.|The answer is too long.]",
        "[ Your last answer has {actual}.]",
        "Write a shorter answer.",
        "Write a shorter answer.",
        "writing a shorter answer",
    ),
    "too_short": _text(
        "lengthen_answer",
        "[The answer must have at least {expected} characters.|The answer is too short.]",
        "[ Your last answer has {actual}.]",
        "Write a longer answer.",
        "Write a longer answer.",
        "writing a longer answer",
    ),
    "protected_changed": Recipe(
        "restore_protected",
        "[{added:.0}{place} must not be added.|{place} is protected: {message}."
        "|A file is protected.]",
        "[{added:.0}It is gone again: do the task without it."
        "|It is back as it was: do the task without changing it.]",
        "Do the task without [{added:.0}adding {place}|changing {place}|changing protected files].",
        "leaving protected files as they are",
    ),
    "protected_hidden": Recipe(
        "rename_file",
        "[{place}|A file] must not be added[: {message}].",
        "Remove it, or give it another name.",
        "Remove or rename [{place}|the file].",
        "choosing names that hide no other module",
    ),
    "no_change": Recipe(
        "change_files",
        "No file was changed[ ({actual})].",
        "Answer with edits that change the files that the task needs.",
        "Change the files that the task needs.",
        "changing files instead of describing the change",
    ),
    "left_out": Recipe(
        "make_smaller",
        "A part of the last work was [{actual}|too large to be saved].",
        "Do without such files. Remove what tools generate, or let git ignore it.",
        "Do without files that are too large.",
        "leaving out large and generated files",
    ),
    "conflict_markers": Recipe(
        "remove_markers",
        "[{place}|A file] still contains the marks of a conflict.",
        "Keep what both sides are for, and remove the lines with <<<<<<<, ======= and >>>>>>>.",
        "Remove the marks of the conflict[ in {place}].",
        "resolving conflicts completely",
    ),
    "leaves_tree": Recipe(
        "remove_link",
        "[{place}|A link] leads out of the directory.",
        "Remove the link, or let it lead to a file in the directory.",
        "Remove the link[ {place}].",
        "using files in the directory only",
    ),
    "config": Recipe(
        "fix_configuration",
        "The job is configured wrongly[ ({place})][: {message}].",
        "A person must correct it.",
        "Correct the configuration of the job.",
        "correcting the job",
    ),
    "low_score": Recipe(
        "improve_quality",
        "The answer passes every check, but not well enough.",
        "Follow the task to the letter. Use exactly the format it asks for.",
        "Follow the task to the letter.",
        "following the task to the letter",
        temperature=COOLER,
    ),
}

_CONTEXT: dict[str, Recipe] = {
    "context_length": Recipe(
        "shorten_context",
        "",
        "Use only the parts of the task that the answer needs, and answer briefly.",
        "Answer with less text.",
        "a shorter request",
        show_last_answer=False,
    ),
}
_MISSING: dict[str, Recipe] = {
    "does_not_apply": Recipe(
        "match_the_file",
        "[{place}|The change] does not match the file[: {message}].",
        "Copy the lines that you change, and the lines around them, exactly from the file.",
        "Correct [{place}|the change] so that it matches the file.",
        "copying the lines of the file exactly",
    ),
}

_MISSING["merge_conflict"] = Recipe(
    "resolve_conflict",
    "Your change of [{place}|a file] conflicts with what was merged meanwhile.",
    "Change the file as it is now. Keep what both sides are for.",
    "Resolve the conflict[ in {place}].",
    "resolving the conflict with what was merged meanwhile",
)
_MISSING["rolled_back"] = Recipe(
    "do_it_again",
    "Your work was merged, but a rollback has taken it back from the branch.",
    "Do the task again, on the files as they are now.",
    "Do the task again.",
    "doing the task again on the branch as it is now",
)
_MISSING["apply_error"] = _MISSING["does_not_apply"]

#: By kind and finer cause. A cause that has no row of its own falls back to its kind's.
RECIPES: dict[Kind, dict[str, Recipe]] = {
    Kind.SCHEMA_INVALID: NOT_CONTRACT | SCHEMA,
    Kind.JSON_INVALID: NOT_OBJECT,
    Kind.TEST_FAILED: _TESTS,
    Kind.COMMAND_FAILED: _COMMANDS,
    Kind.REASONING_ERROR: _REASONING,
    Kind.TOOL_ERROR: _CONTEXT,
    Kind.MISSING_CONTEXT: _MISSING,
}

FALLBACKS: dict[Kind, Recipe] = {
    Kind.SCHEMA_INVALID: format_recipe(
        "fix_value",
        f"{VALUE} does not fit the schema[: {{message}}].[ {{is}} {{value}}.]",
        "",
        "Correct [{place}|the answer].",
        "correcting the value that does not fit the schema",
    ),
    Kind.JSON_INVALID: NOT_OBJECT["syntax"],
    Kind.TEST_FAILED: _TESTS["exception"],
    Kind.COMMAND_FAILED: _COMMANDS["exit"],
    Kind.MISSING_CONTEXT: Recipe(
        "use_given_context",
        "The answer needs something that is not available[ ({place})][: {message}].",
        "Use only what the task gives you. Do not guess the rest.",
        "Use only what the task gives you.",
        "using only what the task gives",
    ),
    Kind.REASONING_ERROR: Recipe(
        "reconsider",
        "Your last answer is wrong[ in {place}][: {message}].",
        "Read the task again and correct this error.",
        "Correct [{place}|the answer].",
        "reading the task again",
    ),
    Kind.REPEATED_FAILURE: Recipe(
        "change_approach",
        "The same error came back[: {message}].",
        "Start over and solve it in another way.",
        "Start over in another way.",
        "starting over in another way",
        show_last_answer=False,
    ),
    Kind.UNSAFE_REQUEST: Recipe(
        "stay_safe",
        "Part of this is not allowed.",
        "Leave that part out and do only what is safe.",
        "Leave out what is not allowed.",
        "leaving out what is not allowed",
        show_last_answer=False,
    ),
    # A provider's error is not the answer's fault: nothing about it enters the prompt.
    Kind.TOOL_ERROR: Recipe(
        "ask_again",
        "",
        "Do the task exactly as it is written.",
        "Do the task again.",
        "asking again",
        show_last_answer=False,
    ),
    Kind.UNKNOWN: Recipe(
        "fix_reported_problem",
        "{found}[ in {place}][: {message}].",
        "Correct it.",
        "Correct the reported problem.",
        "correcting the reported problem",
    ),
}


def recipe_for(
    kind: Kind, cause: str | None, *, from_verifier: bool = False, of_runner: bool = False
) -> Recipe:
    """Return the recipe for a failure. A ``tool_error`` from a verifier is about the answer.

    ``of_runner``: a program failed that is the runner itself.
    """
    if of_runner:
        return _RUNNERS.get((cause or "").partition(".")[0], _RUNNERS["exit"])
    if cause == "truncated":
        constrained = kind in (Kind.JSON_INVALID, Kind.SCHEMA_INVALID)
        return TRUNCATED._replace(constrained=constrained)
    if kind is Kind.TOOL_ERROR and from_verifier:
        kind = Kind.UNKNOWN
    return RECIPES.get(kind, {}).get(cause or "", FALLBACKS[kind])


def _every_recipe() -> list[Recipe]:
    causes = (recipe for recipes in RECIPES.values() for recipe in recipes.values())
    return [TRUNCATED, *FALLBACKS.values(), *_RUNNERS.values(), *causes]


#: What to call each part of a technique's name (see ``strategy``) when a prompt says what worked
#: before. The parts that are missing here mean nothing to the model.
TECHNIQUES: dict[str, str] = {
    **{recipe.action: recipe.technique for recipe in _every_recipe()},
    "fresh_context": "starting over from the task alone",
}
#: The actions that constraining the answer to the contract makes unnecessary.
RULED_OUT = frozenset(recipe.action for recipe in _every_recipe() if recipe.ruled_out)

#: A value of each format that small models get wrong.
FORMAT_EXAMPLES: dict[str, str] = {
    "date": "2026-01-31",
    "date-time": "2026-01-31T09:30:00Z",
    "time": "09:30:00Z",
    "duration": "P1DT2H",
    "email": "name@example.com",
    "hostname": "www.example.com",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "uri": "https://example.com/page",
    "uuid": "123e4567-e89b-42d3-a456-426614174000",
}
#: JSON's types, as a sentence names them.
TYPES: dict[str, str] = {
    "array": "an array",
    "boolean": "true or false",
    "integer": "an integer",
    "null": "null",
    "number": "a number",
    "object": "an object",
    "string": "a string",
}
#: What the messages of Python's JSON decoder mean.
DECODER: dict[str, str] = {
    "Expecting value": "a value is missing",
    "Expecting ',' delimiter": "a comma is missing",
    "Expecting ':' delimiter": "a colon is missing",
    "Expecting property name enclosed in double quotes": "a name is not in double quotes",
    "Extra data": "there is more text after the JSON",
    "Illegal trailing comma before end of object": "there is a comma before the closing brace",
    "Illegal trailing comma before end of array": "there is a comma before the closing bracket",
    "Invalid control character at": "a text contains a line break or a tab",
    "Invalid \\escape": "a text contains a wrong backslash",
    "Unterminated string starting at": "a text has no closing quote",
    "Several different JSON values": "there are several different values",
    "Number out of range": "a number is too large",
}
#: What to do about messages of the decoder that are not about quotes, commas or comments.
REMEDIES: dict[str, str] = {
    "Several different JSON values": "Write only one.",
    "Number out of range": "Write a smaller number.",
    "is not JSON": "Write a number or null instead.",
    "has two different values": "Write every name only once.",
    "levels deep": "Use fewer levels.",
}
#: The signals that end programs on every system.
SIGNALS: dict[int, str] = {
    2: "SIGINT", 4: "SIGILL", 6: "SIGABRT", 8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV",
    13: "SIGPIPE", 15: "SIGTERM", 24: "SIGXCPU", 25: "SIGXFSZ",
}  # fmt: skip
#: An attempt of a user's task that raised an exception.
ENDED = "The last attempt ended with an error"
