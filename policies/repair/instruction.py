"""The repair instruction: what the next attempt asks and changes, decided without a model."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from mulligan.policies.failures.command_output import first_error
from mulligan.policies.failures.failure import FailureKind, FailureRecord, Finding
from mulligan.policies.repair.recipe import Recipe
from mulligan.policies.repair.recipes import (
    DECODER,
    ENDED,
    FORMAT_EXAMPLES,
    REMEDIES,
    SIGNALS,
    TYPES,
    recipe_for,
)
from mulligan.policies.value import Json, Value

#: Longer values are cut: an instruction is a few sentences, whatever the answer was.
MAX_VALUE = 160
MAX_MESSAGE = 300
#: Texts that the answer must copy, and patterns.
MAX_COPIED = 400
#: More errors that differ only in an index are one line of a prompt.
MOST_ALIKE = 3

#: Keywords that servers ignore when they turn a schema into a grammar, with all below them.
_NOT_IN_GRAMMARS = frozenset({
    "allOf", "contains", "dependencies", "dependentRequired", "dependentSchemas", "else", "if",
    "not", "patternProperties", "propertyNames", "then", "unevaluatedItems",
    "unevaluatedProperties",
})  # fmt: skip
#: What a quoted text cannot show.
_ESCAPED = {"\\n": "\\n is a line break", "\\t": "\\t is a tab"}
#: Where a test's message names the line.
_LINE = re.compile(r", line \d+\)$")
#: What ``git.diff`` says of a file that the branch does not have.
_ADDED = "it must not be added"
#: What a recipe counts, in the plural.
_COUNTED = re.compile(r"(\{expected\} (?:item|character|field))s\b")
_INDEX = re.compile(r"\[\d+\]")
_CHOICES = re.compile(r"\[([^\[\]]*)\]")
_PLACEHOLDER = re.compile(r"\{(\w+)[^{}]*\}")


class RepairInstruction(Value):
    """How to repair one failure."""

    #: A stable verb phrase, for statistics and people: ``fix_type``, ``raise_token_cap``…
    action: str
    #: The sentences for the corrected prompt, which name the exact place.
    prompt_suffix: str
    #: The one thing to do next, in a sentence.
    minimal_next_step: str
    #: Whether the next attempt constrains decoding.
    constrained: bool = False
    #: Factors for the failed attempt's temperature and token cap.
    temperature_factor: float = 1.0
    token_cap_factor: float = 1.0
    #: Whether showing the last answer helps (not after truncation or in a fresh start).
    show_last_answer: bool = True


class Correction(NamedTuple):
    """One error of a failure, or several that differ only in their place, in sentences."""

    recipe: Recipe
    fact: str
    advice: str
    next_step: str
    #: What holds for every answer; empty if nothing does.
    requirement: str
    #: Where the error is; empty if it is about the whole answer.
    place: str = ""
    #: Whether constraining the answer to the contract rules this error out.
    ruled_out: bool = False

    @property
    def sentences(self) -> str:
        return f"{self.fact} {self.advice}".strip()


def reduce_failure_to_repair(record: FailureRecord) -> RepairInstruction:
    """Return the instruction for a failure: by kind and cause, about its deciding finding."""
    first = corrections_of(record)[0]
    recipe = first.recipe
    return RepairInstruction(
        action=recipe.action,
        prompt_suffix=first.sentences,
        minimal_next_step=first.next_step,
        constrained=recipe.constrained,
        temperature_factor=recipe.temperature,
        token_cap_factor=recipe.token_cap,
        show_last_answer=recipe.show_last_answer,
    )


def corrections_of(record: FailureRecord) -> list[Correction]:
    """Return what to correct after a failure, the deciding finding first."""
    groups = _same_shape(record.findings)
    if not groups:
        return [_correction(record, record.cause, Finding(message=record.message), 1)]
    decides = next((i for i, (found, _) in enumerate(groups) if found.code == record.cause), 0)
    deciding, count = groups.pop(decides)
    first = _correction(record, record.cause, deciding, count)
    if first.recipe.whole:
        return [first]
    return [first, *(_correction(record, found.code, found, n) for found, n in groups)]


def _same_shape(findings: Sequence[Finding]) -> list[tuple[Finding, int]]:
    """Join many findings that differ only in an index, ``$[*].id``, and messages that repeat."""
    shapes: dict[tuple[Any, ...], dict[Any, Finding]] = {}
    for finding in findings:
        path, code, message = finding.path or "", finding.code, finding.message
        in_json = path.startswith("$")
        shape = _INDEX.sub("[*]", path) if in_json else path
        # Without a rule of a schema, the messages say whether the errors are the same.
        key = (in_json and shape, code, (in_json and finding.schema_path) or message)
        shapes.setdefault(key, {}).setdefault((path, message), finding)
    groups = list[tuple[Finding, int]]()
    for (shape, *_), same in shapes.items():
        first = next(iter(same.values()))
        count = sum(finding.count for finding in same.values())
        if count > MOST_ALIKE and shape:
            groups.append((first.model_copy(update={"path": shape}), count))
        elif count > 1 and not shape and first.path:
            more = f"{first.path} and {count - 1} more"
            groups.append((first.model_copy(update={"path": more}), 1))
        else:
            groups += [(finding, 1) for finding in same.values()]
    return groups


def _correction(
    record: FailureRecord, cause: str | None, finding: Finding, count: int
) -> Correction:
    of_runner = is_of_runner(record)
    recipe = recipe_for(
        record.kind,
        str(record.evidence.get("class") or cause) if of_runner else cause,
        from_verifier=record.verifier_id is not None,
        of_runner=of_runner,
    )
    words = _words(record, finding, count)
    lasting = {**words, "place": _words(record, finding, 1)["place"], "message": ""}
    if recipe.action != "remove_text":  # which names what the check forbids
        lasting["actual"] = ""
    return Correction(
        recipe,
        fact=_render(recipe.fact, words),
        advice=_render(recipe.advice, words),
        next_step=_render(recipe.next_step, words),
        requirement=_render(recipe.requirement, lasting),
        place=words["place"],
        ruled_out=recipe.ruled_out and (recipe.whole or _can_constrain(finding.schema_path)),
    )


def is_of_runner(record: FailureRecord) -> bool:
    """Whether a program failed that is the runner itself, such as an agent."""
    is_runner = record.verifier_id is None and record.evidence.get("exception") == "RunnerError"
    return is_runner and record.kind is FailureKind.COMMAND_FAILED


def without_advice(text: str) -> str:
    """Return what a runner says about its program, without what follows for its operator."""
    return text.partition("; ")[0]


def _can_constrain(schema_path: str | None) -> bool:
    """Whether grammars enforce this rule. None do if it depends on another part of the answer.

    A model's validators have no place in the schema.
    """
    parts = (schema_path or "").split("/")[1:]
    names = {at + 1 for at, part in enumerate(parts) if part in ("properties", "$defs")}
    rules = {part for at, part in enumerate(parts) if at not in names}
    return bool(parts) and rules.isdisjoint(_NOT_IN_GRAMMARS)


def _render(template: str, words: Mapping[str, str]) -> str:
    """Fill in a recipe's sentence: take the first choice in brackets that is complete."""

    def complete(choices: re.Match[str]) -> str:
        for choice in choices[1].split("|"):
            if all(words[name] for name in _PLACEHOLDER.findall(choice)):
                return choice
        return ""

    chosen = _CHOICES.sub(complete, template)
    if words["expected"] == "1":
        chosen = _COUNTED.sub(r"\1", chosen)
    return chosen.format_map(words)


def repair_instruction_to_dict(instruction: RepairInstruction) -> dict[str, Any]:
    """Return the JSON form, which ``repair_instruction_from_dict`` reads back."""
    return instruction.model_dump(mode="json")


def repair_instruction_from_dict(data: Mapping[str, Any]) -> RepairInstruction:
    """Read a stored instruction. Ignore the fields of another version."""
    return RepairInstruction.model_validate(data, extra="ignore")


def one_line(text: str, limit: int = MAX_MESSAGE) -> str:
    """Put a text on one line and cut it, so that it cannot imitate another part of a prompt."""
    line = " ".join(text[: limit * 4].split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def in_words(value: Json) -> str:
    """Write a value as JSON on one line."""
    return _cut(_json(value), MAX_VALUE)


def in_quotes(text: str) -> str:
    """Quote a text as an answer has to write it: only line breaks and tabs are escaped."""
    shown = _cut(text, MAX_COPIED)
    if len(shown.splitlines()) > 1 or "\t" in shown:
        escaped = _json(shown)
        said = [words for mark, words in _ESCAPED.items() if mark in escaped]
        return f"{escaped} ({' and '.join(said)})" if said else escaped
    mark = next((mark for mark in "\"'`" if mark not in shown), '"')
    return f"{mark}{shown}{mark}"


def _json(value: Json) -> str:
    # JSON does not escape every character that begins a line.
    return " ".join(json.dumps(value, ensure_ascii=False, default=str).splitlines())


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _words(record: FailureRecord, finding: Finding, count: int) -> dict[str, str]:
    """Return the values of a recipe's placeholders; empty if they are not known."""
    evidence = record.evidence
    place = one_line(_place(finding, evidence), MAX_VALUE)
    message = one_line(_message(record, finding)).rstrip(" .:;,")
    actual = _actual(record, finding)
    program = "The program" if evidence.get("argv") else "The last attempt"
    program = "The check" if record.verifier_id else program
    return {
        "place": f"{place} ({count} times)" if place and count > 1 else place,
        "expected": _expected(record, finding),
        "actual": actual,
        "is": "It is" if count == 1 else "The first is",
        "example": _example(record, finding),
        "line": "1" if _LINE.search(message) else "",
        "added": "1" if finding.message == _ADDED else "",
        "remedy": _remedy(evidence),
        "message": message,
        # A message that quotes the value need not be followed by it.
        "value": "" if actual and actual in message else actual,
        "hint": _hint(finding),
        "found": "A check found an error" if record.verifier_id else ENDED,
        "program": program,
    }


def _place(finding: Finding, evidence: Mapping[str, Json]) -> str:
    argv = evidence.get("argv")
    if isinstance(argv, list) and argv:
        return "`" + " ".join(map(str, argv)) + "`"
    if finding.path:
        # The whole answer is no place in it.
        return finding.path if finding.path != "$" else ""
    if failed := _first_failed(evidence):
        return str(failed.get("nodeid") or "")
    return argv if isinstance(argv, str) else ""


def _first_failed(evidence: Mapping[str, Json]) -> Mapping[str, Json]:
    failed = evidence.get("failed")
    first = failed[0] if isinstance(failed, list) and failed else None
    return first if isinstance(first, Mapping) else {}


def _remedy(evidence: Mapping[str, Json]) -> str:
    decoder = str(evidence.get("decoder") or "")
    return next((words for end, words in REMEDIES.items() if decoder.endswith(end)), "")


def _is_text(record: FailureRecord, value: Json) -> bool:
    """Whether an answer has to write this text itself, not as JSON."""
    return record.kind is FailureKind.REASONING_ERROR and isinstance(value, str)


def _expected(record: FailureRecord, finding: Finding) -> str:
    evidence = record.evidence
    if finding.expected is None and isinstance(number := evidence.get("signal"), int):
        return SIGNALS.get(number, f"signal {number}")
    if finding.expected is None and finding.code == "const" and finding.schema_path:
        return "null"
    if finding.expected is None and finding.code == "format":
        return ""
    if finding.expected is None:
        # pydantic has no field for it, only "Input should be a valid integer, unable to parse…".
        rest = finding.message.removeprefix("Input should be ")
        return "" if rest == finding.message else one_line(rest.partition(",")[0], MAX_VALUE)
    if finding.code in ("type", "anyOf", "oneOf"):
        types = finding.expected if isinstance(finding.expected, list) else [finding.expected]
        return one_line(" or ".join(TYPES.get(str(t), str(t)) for t in types), MAX_VALUE)
    if finding.code == "enum" and isinstance(finding.expected, str):
        # pydantic writes the choices as a text: 'red' or 'blue'.
        choices = one_line(finding.expected, MAX_VALUE)
        return choices if '"' in choices else choices.replace("'", '"')
    if finding.code == "enum" and isinstance(finding.expected, list):
        # Of too many choices, the schema in the prompt has all.
        return "" if "…" in finding.expected else ", ".join(map(in_words, finding.expected))
    if finding.code == "choice" and isinstance(finding.expected, list):
        return ", ".join(map(in_quotes, map(str, finding.expected)))
    if _is_text(record, finding.expected) or finding.code == "pattern":
        return in_quotes(str(finding.expected))
    return in_words(finding.expected)


def _actual(record: FailureRecord, finding: Finding) -> str:
    evidence = record.evidence
    if finding.code in (None, "exit_code") and evidence.get("exit_code") is not None:
        wanted = finding.expected if finding.code == "exit_code" else None
        instead = f" instead of {wanted}" if wanted else ""
        return f"exit code {evidence['exit_code']}{instead}"
    if finding.actual is None:
        # A null that the schema does not allow is an actual value.
        return "null" if finding.code in ("type", "enum", "const") and finding.schema_path else ""
    if _is_text(record, finding.actual):
        return in_quotes(finding.actual)
    shown = in_words(finding.actual)
    is_string = finding.code == "type" and isinstance(finding.actual, str)
    return f"{shown} (a string)" if is_string else shown


def _example(record: FailureRecord, finding: Finding) -> str:
    if finding.code == "format":
        return FORMAT_EXAMPLES.get(str(finding.expected), "")
    if _is_text(record, finding.example):
        return in_quotes(finding.example)
    return "" if finding.example is None else in_words(finding.example)


def _hint(finding: Finding) -> str:
    """Return advice on quotes: quoting a number is the most frequent error of small models."""
    expected, actual = finding.expected, finding.actual
    types = expected if isinstance(expected, list) else [expected]
    if finding.code == "enum":
        quoted = isinstance(actual, str) and any(actual == in_words(each) for each in types)
        return "Write the value without quotes." if quoted else ""
    if isinstance(actual, str) and any(_reads_as(actual, name) for name in types):
        return "Write the value without quotes."
    if expected == "string" and isinstance(actual, int | float):
        return "Put it in double quotes."
    return ""


def _reads_as(text: str, name: Json) -> bool:
    """Whether a text without its quotes is a JSON value of this type."""
    try:
        value = json.loads(text)
    except ValueError:
        return False
    match name:
        case "boolean" | "null":
            return isinstance(value, bool) if name == "boolean" else value is None
        case "integer":
            return isinstance(value, int) and not isinstance(value, bool)
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
    return False


def _message(record: FailureRecord, finding: Finding) -> str:
    """Return the most specific line: a program's first error, an assertion, the finding."""
    if error := _program_error(record.evidence):
        return without_advice(error) if is_of_runner(record) else error
    if record.evidence.get("argv"):
        return ""  # the program, its exit code and its signal are named anyway
    decoder = record.evidence.get("decoder")
    if isinstance(decoder, str) and decoder:
        return DECODER.get(decoder, decoder)
    failed = {} if record.findings else _first_failed(record.evidence)
    message = str(failed.get("assertion") or failed.get("exception") or finding.message)
    if record.evidence.get("report"):
        message = message.partition("\n")[0]  # the prompt quotes the rest with its white space
    if message == str(record.evidence.get("exit_code")):
        return ""  # SystemExit(2), whose code is named anyway
    # The classifier writes this where a failure has no message of its own.
    return "" if message == f"{record.kind} without a message" else message


def _program_error(evidence: Mapping[str, Json]) -> str:
    """Return a program's own first error, from its whole output or else from the end of it."""
    error = evidence.get("error")
    if isinstance(error, str) and error:
        return error
    tails = (evidence.get(name) for name in ("stderr_tail", "stdout_tail"))
    return first_error(*(tail if isinstance(tail, str) else "" for tail in tails))
