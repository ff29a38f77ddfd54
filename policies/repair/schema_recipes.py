"""The recipes for answers that are not JSON or do not fit the contract."""

from __future__ import annotations

from functools import partial

from mulligan.policies.repair.recipe import COOLER, Recipe, format_recipe


def _not_json(what: str, rule: str) -> dict[str, Recipe]:
    """Return the recipes for answers that are not JSON at all, by their shape."""
    only = f"Answer with {what} and no other words. {rule}"
    recipe = partial(format_recipe, requirement=only, ruled_out=True, whole=True)
    return {
        "fence": recipe(
            "drop_fence",
            "Your last answer has a code fence, but no JSON.",
            f"Answer with {what}, without ``` around it. {rule}",
            f"Answer with {what}, without a code fence.",
            "writing JSON without a code fence",
        ),
        "prose": recipe(
            "drop_prose",
            "Your last answer is not JSON.",
            only,
            f"Answer with only {what}.",
            "writing only the JSON",
        ),
        "empty": recipe(
            "answer_at_all",
            "Your last answer was empty.",
            f"Answer with {what}. {rule}",
            f"Write {what}.",
            "writing the JSON straight away",
            show_last_answer=False,
        ),
        "not_object": recipe(
            "answer_with_object",
            "Your last answer is JSON, but not an object.",
            f"Put it into one object. {rule}",
            "Answer with a JSON object.",
            "answering with one object",
        ),
        "syntax": recipe(
            "fix_json_syntax",
            "Your last answer is not valid JSON[: {message}].",
            "[{remedy}|Use double quotes for every name and text, no trailing comma, no comment.]"
            f" {rule}",
            "Write the same content as valid JSON.",
            "writing strictly valid JSON",
        ),
    }


NOT_OBJECT = _not_json(
    "one JSON object", "Begin with {{ and end with }}. Write nothing before or after it."
)
#: A contract may ask for an array or a number as well.
NOT_CONTRACT = _not_json("the JSON that the schema asks for", "Write nothing before or after it.")

#: The value that is wrong, as the subject of a sentence.
VALUE = "[{place}|The answer]"
_IS = "[ {is} {actual}.]"


def _bound(action: str, words: str, otherwise: str, next_step: str, technique: str) -> Recipe:
    """Return the recipe for a value that must be within a bound."""
    return format_recipe(
        action,
        f"{VALUE} [{words}|{otherwise}: {{message}}|{otherwise}].{_IS}",
        "",
        next_step,
        technique,
        requirement=f"[{{place}} {words}.]",
    )


_range = partial(
    _bound,
    "fix_range",
    otherwise="is out of range",
    next_step="Bring [{place}|the answer] into range.",
    technique="keeping the value in range",
)
_size = partial(
    _bound,
    "fix_size",
    otherwise="has the wrong size",
    next_step="Give [{place}|the answer] the right size.",
    technique="giving the value the right size",
)
SCHEMA: dict[str, Recipe] = {
    "required": format_recipe(
        "add_missing_field",
        "[The field {place}|A required field] is missing.",
        "Add it.",
        "Add [{place}|the missing field].",
        "adding the missing field",
        ruled_out=True,
    ),
    "type": format_recipe(
        "fix_type",
        f"{VALUE} [must be {{expected}}|has the wrong type].{_IS}[ {{hint}}]",
        "",
        "Write [{place}|the answer] as [{expected}|the schema asks].",
        "using exactly the type that the schema asks for",
        ruled_out=True,
    ),
    "additionalProperties": format_recipe(
        "remove_extra_field",
        "[The field {place}|A field] is not allowed by the schema.",
        "Remove it. Add no other fields.",
        "Remove [{place}|the extra field].",
        "leaving out fields that the schema does not name",
        ruled_out=True,
    ),
    "enum": format_recipe(
        "choose_allowed_value",
        f"{VALUE} must be exactly one of [these: {{expected}}|the allowed values].{_IS}[ {{hint}}]",
        "",
        "Choose an allowed value for [{place}|the answer].",
        "copying one of the allowed values",
        ruled_out=True,
    ),
    "const": format_recipe(
        "choose_allowed_value",
        f"{VALUE} must be exactly [{{expected}}|the allowed value].{_IS}",
        "",
        "Set [{place}|the answer] to [{expected}|the allowed value].",
        "copying one of the allowed values",
        ruled_out=True,
    ),
    "pattern": format_recipe(
        "fix_format",
        f"{VALUE} must match [the pattern {{expected}}|the schema's pattern]"
        f"[, as {{example}} does].{_IS}",
        "",
        "Rewrite [{place}|the answer] so that it matches the pattern.",
        "writing the value in the required format",
        requirement="[{place} must match the pattern {expected}, as {example} does."
        "|{place} must match the pattern {expected}.]",
    ),
    "format": format_recipe(
        "fix_format",
        f"{VALUE} [must have the format {{expected}}, for example {{example}}"
        "|must have the format {expected}|has the wrong format: {message}"
        f"|must have the format that the schema names].{_IS}",
        "",
        "Rewrite [{place}|the answer] in the required format.",
        "writing the value in the required format",
        requirement="[{place} must have the format {expected}, for example {example}."
        "|{place} must have the format {expected}.]",
    ),
    "multipleOf": _range("must be a multiple of {expected}"),
    "uniqueItems": format_recipe(
        "fix_size",
        f"{VALUE} contains the same item more than once.{_IS}",
        "Remove the repeated items.",
        "Remove the repeated items[ from {place}].",
        "giving the value the right size",
    ),
    **{
        code: _range(words)
        for code, words in {
            "minimum": "must be {expected} or more",
            "maximum": "must be {expected} or less",
            "exclusiveMinimum": "must be more than {expected}",
            "exclusiveMaximum": "must be less than {expected}",
        }.items()
    },
    **{
        code: _size(words)
        for code, words in {
            "minLength": "must have at least {expected} characters",
            "maxLength": "must have at most {expected} characters",
            "minItems": "must have at least {expected} items",
            "maxItems": "must have at most {expected} items",
            "minProperties": "must have at least {expected} fields",
            "maxProperties": "must have at most {expected} fields",
        }.items()
    },
}
#: A field that code looked for. The contract may not know it, so constraining cannot rule it out.
SCHEMA["missing_key"] = Recipe(
    "add_missing_key",
    "[The field {place}|A field] is missing.",
    "Add it.",
    "Add [{place}|the missing field].",
    "adding the missing field",
)
SCHEMA["not_a_plan"] = Recipe(
    "write_plan",
    "Your last answer is not a plan of edits.",
    "Write YAML or JSON with a list of `edits`, each with `id`, `op`, `target` and `payload`, and"
    " no other words.",
    "Write a plan with a list of edits.",
    "writing only the plan of edits",
    whole=True,
    temperature=COOLER,
)
SCHEMA["unevaluatedProperties"] = SCHEMA["additionalProperties"]
SCHEMA["falseSchema"] = format_recipe(
    "remove_extra_field",
    f"{VALUE} is not allowed by the schema.",
    "[{place:.0}Remove it.]",
    "Remove [{place}|what the schema does not allow].",
    "leaving out fields that the schema does not name",
)
SCHEMA["propertyNames"] = format_recipe(
    "rename_field",
    "The name of a field[ in {place}] is not allowed[: {message}].",
    "Rename it.",
    "Rename the field[ in {place}].",
    "giving every field an allowed name",
)
#: Alternatives that are only types, or else the errors of the closest one.
SCHEMA["anyOf"] = SCHEMA["oneOf"] = format_recipe(
    "fix_value",
    f"{VALUE} [must be {{expected}}. {{is}} {{actual}}.|must be {{expected}}."
    "|does not fit the schema: {message}. {is} {value}.|does not fit the schema: {message}."
    "|does not fit the schema.][ {hint}]",
    "",
    "Correct [{place}|the answer].",
    "correcting the value that does not fit the schema",
)
SCHEMA |= {
    code: format_recipe(
        "fix_value",
        f"{VALUE} must [{words} {{expected}}|{words} what the schema says].{_IS}",
        "",
        "Correct [{place}|the answer].",
        "correcting the value that does not fit the schema",
        requirement=f"[{{place}} must {words} {{expected}}.]",
    )
    for code, words in {
        "contains": "have an item that fits",
        "minContains": "have more items that fit",
        "maxContains": "have fewer items that fit",
        "not": "not fit",
    }.items()
}
