"""The one builder of corrected prompts.

It starts from the task, never from an earlier prompt: new feedback replaces the old, so that a
prompt does not grow with the number of attempts. Every part that comes from outside is cut to a
fixed size and put between delimiters that it cannot contain.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence

from mulligan.policies.failures.classify import classify_failure
from mulligan.policies.failures.failure import (
    UNLISTED,
    FailureRecord,
    VerificationResult,
    VerificationStatus,
)
from mulligan.policies.repair import wording
from mulligan.policies.repair.free_repair import extract_json
from mulligan.policies.repair.instruction import (
    Correction,
    RepairInstruction,
    corrections_of,
    is_of_runner,
    one_line,
    without_advice,
)
from mulligan.policies.repair.recipes import RULED_OUT, TECHNIQUES
from mulligan.policies.value import Json

#: Maximum characters of the last answer, from its start and from its end.
ANSWER_HEAD = 3000
ANSWER_TAIL = 1500
#: Maximum number of errors, and characters of each.
MAX_ERRORS = 20
MAX_ERROR = 500
#: Maximum characters of a check's output.
MAX_OUTPUT = 1200
#: Maximum characters of failed tests, as pytest shows them.
MAX_REPORT = 2000
#: Maximum characters of conflicts.
MAX_CONFLICTS = 6000
#: Maximum number of fields listed as correct, and of techniques that worked before.
MAX_KEPT = 20
MAX_WORKED = 3

#: The form of a technique's name. Text of another job does not have it.
_TECHNIQUE = re.compile(r"[a-z][a-z_]{0,39}(?:\+[a-z][a-z_]{0,39}){0,5}")
_PASSED = (VerificationStatus.PASS, VerificationStatus.WARN)
#: The form of an answer that is shown needs no praise.
_ABOUT_FORM = ("json.object", "text.match")
_FIELD = re.compile(r"\$(?:\.([^.\[\]]{1,100})|\['([^']{1,100})'\])")


def build_corrected_prompt(
    *,
    task_text: str,
    contract: Mapping[str, Json] | None,
    last_answer: str | None,
    results: Sequence[VerificationResult],
    instruction: RepairInstruction,
    failure: FailureRecord | None = None,
    worked_before: Sequence[str] = (),
    coercions: Sequence[str] = (),
    becomes_file: bool = False,
    truncated: bool = False,
    constrained: bool = False,
    fresh: bool = False,
    in_directory: bool = False,
    goes_on: bool = False,
    ended: str | None = None,
    stuck: str | None = None,
    tried: str | None = None,
) -> str:
    """Build the prompt of the next attempt from the task and the last attempt's errors.

    ``failure``: that of an attempt without results, which raised an exception.
    ``becomes_file``: the answer is the content of a file. ``truncated``: the last one was cut off.
    ``in_directory``: the next attempt changes files, and its answer is only a remark. ``goes_on``:
    they have the changes of an earlier attempt. ``ended``: how the last one broke off. ``stuck``:
    what it repeated, and what to do instead. ``constrained``: the next answer can only be one that
    fits the contract, so that the prompt has no word about its form. ``fresh``: start over, without
    anything of the last answer. Only in a repository, say what was found and what was ``tried``: a
    technique, empty for none.
    """
    bare = fresh or constrained or in_directory or not instruction.show_last_answer
    shown = last_answer if not bare and (last_answer or "").strip() else None
    records = [classify_failure(r, source="verify", truncated=truncated) for r in _failed(results)]
    records = records or ([failure] if failure is not None else [])
    corrections = [each for record in records for each in corrections_of(record)]
    if constrained:
        corrections = [each for each in corrections if not each.ruled_out]
    if fresh:
        lines = list(dict.fromkeys(each.requirement for each in corrections if each.requirement))
    else:
        ruled_out = constrained and instruction.action in RULED_OUT
        lines = _lines(None if ruled_out else instruction, corrections)
    if in_directory:
        lines = [_for_directory(line) for line in lines]
    known = wording.FILE_COERCIONS if becomes_file else wording.COERCIONS
    reminders = [known[name] for name in dict.fromkeys(coercions) if name in known]
    hints = [] if fresh or constrained else _worked(worked_before)
    unlisted = sum(_unlisted(record) for record in records)
    parts = [
        task_text.strip(),
        "" if constrained else _contract(contract),
        f"{wording.LAST_ANSWER}\n{fenced(_shortened(shown))}" if shown else "",
        " ".join(_so_far(None if fresh else ended, stuck, goes_on)),
        _other_way(corrections, tried, in_directory) if fresh and tried is not None else "",
        *([] if fresh else _outputs(records, lines, in_directory)),
        _listed(wording.KEEP, [f"- {item}" for item in _kept(results, contract, shown)]),
        _listed(wording.WORKED_BEFORE, [f"- {item}" for item in hints]),
        _listed(wording.DO_NOW, [*_numbered(lines, unlisted), *([] if constrained else reminders)]),
    ]
    return "\n\n".join(part for part in parts if part)


def _so_far(ended: str | None, stuck: str | None, goes_on: bool) -> Iterator[str]:
    """Say how the last session ended, if not by itself, and what is left of it."""
    if stuck:
        yield wording.STUCK.format(stuck=one_line(stuck, MAX_ERROR).rstrip(" .:"))
    elif ended:
        yield wording.BROKE_OFF.format(ended=one_line(without_advice(ended)).rstrip(" .:"))
    if goes_on:
        yield wording.GOES_ON


def _other_way(corrections: Sequence[Correction], tried: str, in_directory: bool) -> str:
    """Say in a sentence or two what earlier attempts were wrong about."""
    fact = next((each.fact for each in corrections if each.fact), "")
    fact = _for_directory(fact) if in_directory else fact
    techniques = ", ".join(_worked([tried]))
    more = wording.TRIED.format(techniques=techniques) if techniques else ""
    said = wording.OTHER_WAY.format(fact=one_line(fact, MAX_ERROR), tried=more)
    return " ".join(said.split())


def _for_directory(line: str) -> str:
    for answer, work in wording.IN_DIRECTORY.items():
        line = line.replace(answer, work)
    return line


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


def _lines(instruction: RepairInstruction | None, corrections: Sequence[Correction]) -> list[str]:
    """Say what to correct: the instruction, then every other error, without repeating advice."""
    lines = dict.fromkeys([instruction.prompt_suffix] if instruction else [])
    advised = {instruction.action} if instruction else set[str]()
    for correction in corrections:
        action = correction.recipe.action
        if correction.sentences in lines or (correction.recipe.whole and action in advised):
            continue
        if "answer_with_object" in advised and action == "fix_type" and not correction.place:
            continue  # it says the same
        line = correction.fact if action in advised else correction.sentences
        lines[line[: MAX_ERROR - 1] + "…" if len(line) > MAX_ERROR else line] = None
        advised.add(action)
    return [line for line in lines if line]


def _numbered(lines: Sequence[str], unlisted: int) -> list[str]:
    if len(lines) < 2:
        return list(lines)
    shown = [f"{number}. {line}" for number, line in enumerate(lines[:MAX_ERRORS], 1)]
    if more := max(0, len(lines) - MAX_ERRORS) + unlisted:
        shown.append(wording.MORE.format(count=more))
    return shown


def _unlisted(record: FailureRecord) -> int:
    """Return how many errors a verifier found beyond those that it lists."""
    count = record.evidence.get(UNLISTED)
    return count if type(count) is int and count > 0 else 0


def _outputs(
    records: Sequence[FailureRecord], lines: Sequence[str], in_directory: bool
) -> Iterator[str]:
    """Quote failed tests, and what commands print beyond the lines that name their errors."""
    title = wording.CONFLICTS_IN_DIRECTORY if in_directory else wording.CONFLICTS
    said = "\n".join(lines)
    for record in records[:2]:
        if isinstance(conflicts := record.evidence.get("conflicts"), str) and conflicts:
            yield f"{title}\n{fenced(conflicts[:MAX_CONFLICTS])}"
            continue
        if isinstance(report := record.evidence.get("report"), str) and report.strip():
            yield f"{wording.FAILED_TESTS}\n{fenced(report[:MAX_REPORT])}"
            continue
        if is_of_runner(record):
            continue  # no check said that
        tails = (record.evidence.get(name) for name in ("stderr_tail", "stdout_tail"))
        tail = next((t for t in tails if isinstance(t, str) and t.strip()), "")
        rest = [
            line for line in tail.strip().splitlines() if one_line(line).rstrip(".") not in said
        ]
        if any(line.strip() for line in rest):
            yield f"{wording.OUTPUT}\n{fenced(_end(rest))}"


def _end(lines: Sequence[str]) -> str:
    return "\n".join(lines).strip("\n")[-MAX_OUTPUT:]


# -- what is correct, what worked before ----------------------------------------------------------


def _kept(
    results: Sequence[VerificationResult],
    contract: Mapping[str, Json] | None,
    last_answer: str | None,
) -> Iterator[str]:
    """List what is correct: fields without an error, tests that pass, checks that pass.

    Nothing if the answer is not shown: the model cannot keep what it does not see.
    """
    if last_answer is None:
        return
    if fields := _correct_fields(results, contract, last_answer):
        names = ", ".join(fields[:MAX_KEPT])
        yield one_line(wording.KEEP_FIELDS.format(names=names), MAX_ERROR)
    for result in results[:MAX_KEPT]:
        passed, collected = result.evidence.get("passed"), result.evidence.get("collected")
        if isinstance(passed, int) and isinstance(collected, int):
            if passed:
                yield wording.KEEP_TESTS.format(passed=passed, collected=collected)
        elif result.status in _PASSED and result.verifier_id not in _ABOUT_FORM:
            yield one_line(result.summary or f"{result.verifier_id} passes", 160)


def _correct_fields(
    results: Sequence[VerificationResult], contract: Mapping[str, Json] | None, last_answer: str
) -> list[str]:
    """Name the fields of the contract that the answer has without an error."""
    failed = [result for result in _failed(results) if result.verifier_id == "contract.schema"]
    known = (contract or {}).get("properties")
    if not failed or not isinstance(known, Mapping):
        return []
    wrong = {_field(finding.path) for result in failed for finding in result.errors}
    # An error about the whole object or an unknown place may be about any field.
    if any(name is None for name in wrong):
        return []
    value = extract_json(last_answer, truncated=True).value
    names = value if isinstance(value, dict) else {}
    return [one_line(name, 60) for name in names if name in known and name not in wrong]


def _field(path: str | None) -> str | None:
    match = _FIELD.match(path or "")
    return (match[1] or match[2]) if match else None


def _worked(techniques: Sequence[str]) -> list[str]:
    """Describe the techniques. Leave out anything that is not the name of one."""
    known: dict[str, None] = {}
    for technique in techniques:
        if _TECHNIQUE.fullmatch(technique):
            words = [TECHNIQUES.get(part) for part in technique.split("+")]
            known |= dict.fromkeys(word for word in words if word)
    return list(known)[:MAX_WORKED]
