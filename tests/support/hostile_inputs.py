"""Jobs, answers and files that once stopped, stalled or ended a process."""

from __future__ import annotations

import json
from typing import Any

from support.jobs import GOOD, scripted

#: Each level refers to the next one twice: 2 to the power of 40 checks.
DOUBLING = {
    "$defs": {
        **{f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(40)},
        "a40": {"type": "string"},
    },
    "$ref": "#/$defs/a0",
}
#: A tree with eight kinds of nodes: one wrong leaf is an error of every path to it.
TREE = {
    "$defs": {
        "node": {
            "anyOf": [
                {
                    "type": "object",
                    "properties": {"child": {"$ref": "#/$defs/node"}},
                    "required": ["child", f"k{n}"],
                }
                for n in range(8)
            ]
        }
    },
    "$ref": "#/$defs/node",
}
#: A pattern that many patterns like it take a second each to compile.
LARGE_PATTERN = "(?=" + "(?:a{1,99}b{1,99}c?){1,50}" + ")" + r"\p{L}{200}"
LOOKAROUND = "(?=.*x)(?!.*y)a.*z$"
#: With the flag x, spaces hide a possessive repetition and the number of repetitions.
SPACED = "(?x)(?:.*b|.*c)* +d"
SPACED_REPETITION = "(?x)(?:[a-z]{ 1000 }){ 60 }N"
#: Each wrong item is an error of the branch.
BRANCH = {"anyOf": [{"items": {"type": "string"}}]}


def tree(depth: int) -> Any:
    """Return a value for TREE whose leaf is wrong."""
    value: Any = "typo"
    for _ in range(depth):
        value = {"child": value, **{f"k{n}": 0 for n in range(8)}}
    return value


def contract(schema: Any) -> dict[str, Any]:
    return {"id": "contract.schema", "schema": schema}


def job_text(field: str, value: str, **changes: Any) -> str:
    """Return a job as JSON whose field is this text, which need not be JSON that Python writes."""
    return json.dumps({**scripted(GOOD, **changes), field: "@"}).replace('"@"', value)


def nested(depth: int) -> str:
    return '{"a":' * depth + "1" + "}" * depth


def option_text(value: str) -> str:
    return '{"kind": "scripted", "answers": ["{}"], "extra": ' + value + "}"


def verifier_text(value: str) -> str:
    return '[{"id": "contract.schema", "schema": ' + value + "}]"


#: Bodies of POST /api/jobs that must be refused with 400 or 422.
REFUSED_BODIES = {
    "a broken and costly pattern list": json.dumps(
        scripted(verifiers=[{"id": "text.match", "regex": [LARGE_PATTERN] * 50 + ["("]}])
    ),
    "a costly pattern with an example": json.dumps(
        scripted(verifiers=[{"id": "text.match", "regex": SPACED, "example": "a" * 200_000}])
    ),
    "large patterns with spaces": json.dumps(
        scripted(
            verifiers=[
                contract({"properties": {f"p{n}": {"pattern": SPACED_REPETITION}}})
                for n in range(30)
            ]
        )
    ),
    **{
        f"runner options, {depth} deep": job_text("runner", option_text(nested(depth)))
        for depth in (210, 800, 100_000)
    },
    "a schema, 800 deep": job_text("verifiers", verifier_text(nested(800))),
    "labels, 100,000 deep": job_text("labels", nested(100_000)),
    "half a pair in an option": job_text("runner", option_text('"\\ud800"')),
    "half a pair as a name": job_text("runner", option_text('{"\\ud800": 1}')),
    "half a pair in a schema": job_text("verifiers", verifier_text('{"title": "\\ud800"}')),
    "half a pair in the key": job_text("idempotency_key", '"\\ud800"'),
    "half a pair in a label": job_text("labels", '{"tenant": "\\ud800"}'),
    "seconds that are no number": job_text("budget", '{"seconds": NaN}'),
    "infinite seconds": job_text("budget", '{"seconds": Infinity}'),
    "seconds without end": job_text("budget", '{"seconds": 1e308}'),
    "tokens without end": job_text("budget", '{"tokens": ' + "9" * 400 + "}"),
    "a number of 5,000 digits": job_text("deadline", "1" * 5_000),
    "a far deadline": job_text("deadline", "1e300"),
    "a far verification": job_text("delayed_verification", '{"after": 1e300}'),
}


def bomb(line: str) -> str:
    """Return YAML in which each line repeats the one before ten times."""
    lines = ["a0: &a0 {x: 1}"]
    for n in range(1, 20):
        lines.append(line.format(n, ", ".join([f"*a{n - 1}"] * 10)))
    return "\n".join(lines) + "\n"


#: Job files with what their message must say.
REFUSED_FILES = {
    "aliases": (bomb("a{0}: &a{0} [{1}]"), "expands to too much"),
    "merge keys": (bomb("a{0}: &a{0} {{<<: [{1}]}}"), "expands to too much"),
    "an alias of itself": ("a: &a [*a]", "expands to too much"),
    "deep lists": ("[" * 100_000, "nested too deeply"),
    "deep dashes": ("- " * 20_000 + "x", "nested too deeply"),
    "a long number": ("a: 0o" + "7" * 50_000, "cannot be kept as JSON"),
    "a costly schema": (
        json.dumps(scripted(verifiers=[contract({"pattern": "(?:" * 3000 + ")" * 3000})])),
        "schema",
    ),
}
