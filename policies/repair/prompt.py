"""The one builder of corrected prompts.

It starts from the task, never from an earlier prompt: new feedback replaces the old, so that a
prompt does not grow with the number of attempts. Every part that comes from outside is cut to a
fixed size and put between delimiters that it cannot contain.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence

from mulligan.policies.failures.failure import Finding, VerificationResult, VerificationStatus
from mulligan.policies.repair import wording
from mulligan.policies.repair.free_repair import extract_json
from mulligan.policies.repair.instruction import RepairInstruction, in_words, one_line
from mulligan.policies.value import Json

#: Maximum characters of the last answer, from its start and from its end.
ANSWER_HEAD = 3000
ANSWER_TAIL = 1500
#: Maximum number of errors, and characters of each.
MAX_ERRORS = 20
MAX_ERROR = 300
#: Maximum characters of a check's output.
MAX_OUTPUT = 1200
#: Maximum number of fields listed as correct, and of techniques that worked before.
MAX_KEPT = 20
MAX_WORKED = 3

#: The form of a technique's name. Text of another job does not have it.
_TECHNIQUE = re.compile(r"[a-z][a-z_]{0,39}(?:\+[a-z][a-z_]{0,39}){0,5}")
_FIELD = re.compile(r"\$(?:\.([^.\[\]]{1,100})|\['([^']{1,100})'\])")


def build_corrected_prompt(
    *,
    task_text: str,
    contract: Mapping[str, Json] | None,
    last_answer: str | None,
    results: Sequence[VerificationResult],
    instruction: RepairInstruction,
    worked_before: Sequence[str] = (),
    coercions: Sequence[str] = (),
    becomes_file: bool = False,
) -> str:
    """Build the prompt of the next attempt from the task and the last attempt's errors.

    ``becomes_file``: the answer is the content of a file.
    """
    shown = last_answer if instruction.show_last_answer and (last_answer or "").strip() else None
    errors = _errors(results)
    known = wording.FILE_COERCIONS if becomes_file else wording.COERCIONS
    reminders = [known[name] for name in dict.fromkeys(coercions) if name in known]
    if len(errors) > 1:
        reminders.insert(0, wording.DO_ALL)
    parts = [
        task_text.strip(),
        _contract(contract),
        f"{wording.LAST_ANSWER}\n{fenced(_shortened(shown))}" if shown else "",
        _listed(wording.ERRORS if shown else wording.ERRORS_WITHOUT_ANSWER, _numbered(errors)),
        *_outputs(results),
        _listed(wording.KEEP, [f"- {item}" for item in _kept(results, shown)]),
        _listed(wording.WORKED_BEFORE, [f"- {item}" for item in _worked(worked_before)]),
        _listed(wording.DO_NOW, [instruction.prompt_suffix, *reminders]),
    ]
    return "\n\n".join(part for part in parts if part)


def fenced(text: str, tag: str = "") -> str:
    """Put the text in a fence longer than any run of backticks in it."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{tag}\n{text}\n{fence}"


def _contract(contract: Mapping[str, Json] | None) -> str:
    if contract is None:
        return ""
    # Never cut: half a contract would ask for something else.
    text = json.dumps(contract, ensure_ascii=False, default=str)
    return f"{wording.CONTRACT}\n{fenced(text, 'json')}"


def _shortened(text: str) -> str:
    left_out = len(text) - ANSWER_HEAD - ANSWER_TAIL
    if left_out <= 0:
        return text.strip("\n")
    mark = wording.LEFT_OUT.format(count=left_out)
    return f"{text[:ANSWER_HEAD]}\n{mark}\n{text[-ANSWER_TAIL:]}"


def _listed(title: str, lines: Sequence[str]) -> str:
    return "\n".join([title, *lines]) if lines else ""


# -- errors ---------------------------------------------------------------------------------------


def _failed(results: Sequence[VerificationResult]) -> list[VerificationResult]:
    return [result for result in results if result.status is VerificationStatus.FAIL]


def _errors(results: Sequence[VerificationResult]) -> list[str]:
    """List every verified error once, in the order of the verifiers."""
    lines: dict[str, None] = {}
    for result in _failed(results):
        found = [_error(finding) for finding in result.errors]
        summary = one_line(result.summary or f"{result.verifier_id} failed", MAX_ERROR)
        lines |= dict.fromkeys(found or [summary])
    return list(lines)


def _error(finding: Finding) -> str:
    place = f"{one_line(finding.path, 120)}: " if finding.path and finding.path != "$" else ""
    message = one_line(finding.message, MAX_ERROR - len(place))
    if finding.code == "type" and isinstance(finding.expected, str):
        # A validator's message may name the value but not the expected type.
        message = f"must be {finding.expected}, is {in_words(finding.actual)}"
    return one_line(place + message, MAX_ERROR)


def _numbered(errors: Sequence[str]) -> list[str]:
    lines = [f"{number}. {error}" for number, error in enumerate(errors[:MAX_ERRORS], 1)]
    if len(errors) > MAX_ERRORS:
        lines.append(wording.MORE.format(count=len(errors) - MAX_ERRORS))
    return lines


def _outputs(results: Sequence[VerificationResult]) -> Iterator[str]:
    """Quote the last output of failed commands: it says more than our summary."""
    for result in _failed(results)[:2]:
        tails = (result.evidence.get(name) for name in ("stderr_tail", "stdout_tail"))
        tail = next((t for t in tails if isinstance(t, str) and t.strip()), None)
        if tail:
            title = wording.OUTPUT.format(name=one_line(result.verifier_id, 100))
            yield f"{title}\n{fenced(tail.strip()[-MAX_OUTPUT:])}"


# -- what is correct, what worked before ----------------------------------------------------------


def _kept(results: Sequence[VerificationResult], last_answer: str | None) -> Iterator[str]:
    """List what is correct: fields without an error, tests that pass, checks that pass.

    Nothing if the answer is not shown: the model cannot keep what it does not see.
    """
    if last_answer is None:
        return
    if fields := _correct_fields(results, last_answer):
        names = ", ".join(fields[:MAX_KEPT])
        yield one_line(wording.KEEP_FIELDS.format(names=names), MAX_ERROR)
    for result in results[:MAX_KEPT]:
        passed, collected = result.evidence.get("passed"), result.evidence.get("collected")
        if result.status in (VerificationStatus.PASS, VerificationStatus.WARN):
            yield one_line(f"{result.verifier_id}: {result.summary or 'passes'}", 160)
        elif isinstance(passed, int) and isinstance(collected, int) and 0 < passed < collected:
            yield wording.KEEP_TESTS.format(passed=passed, collected=collected)


def _correct_fields(results: Sequence[VerificationResult], last_answer: str) -> list[str]:
    """Name the answer's fields without an error, if the contract failed."""
    failed = [result for result in _failed(results) if result.verifier_id == "contract.schema"]
    if not failed:
        return []
    wrong = {_field(finding.path) for result in failed for finding in result.errors}
    # An error about the whole object or an unknown place may be about any field.
    if any(name is None for name in wrong):
        return []
    value = extract_json(last_answer, truncated=True).value
    names = value if isinstance(value, dict) else {}
    return [one_line(name, 60) for name in names if name not in wrong]


def _field(path: str | None) -> str | None:
    match = _FIELD.match(path or "")
    return (match[1] or match[2]) if match else None


def _worked(techniques: Sequence[str]) -> list[str]:
    """Describe the techniques. Leave out anything that is not the name of one."""
    known: dict[str, None] = {}
    for technique in techniques:
        if _TECHNIQUE.fullmatch(technique):
            words = [wording.TECHNIQUES.get(part) for part in technique.split("+")]
            known |= dict.fromkeys(word for word in words if word)
    return list(known)[:MAX_WORKED]
