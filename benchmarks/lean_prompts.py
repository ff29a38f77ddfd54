"""What a short prompt saves when decoding is constrained to the contract.

`python -m benchmarks.lean_prompts`: the bundled model extracts facts that no test, demo or wording
was made with. Both sides share the first answer and the constrained decoding of the retries; only
the corrected prompts differ. Success needs the contract and the right values.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from mulligan.policies.failures.memory import RetryMemory
from mulligan.policies.jobs.job import AttemptPlan, Decoding, Job, Message, Output
from mulligan.policies.repair.retry import Retry
from mulligan.policies.repair.strategy import contract_of, plan_next
from mulligan.policies.repair.verdict import Verdict, judge
from mulligan.tasks.ports.runners import Request
from mulligan.tasks.ports.verifiers import Candidate
from mulligan.workers.runners.local import LocalRunner, stop_local_server
from mulligan.workers.verifiers.verifier_registry import VerifierRegistry

Side = Literal["full", "lean"]
SIDES: tuple[Side, ...] = ("full", "lean")
TEXT, WHOLE, NUMBER, FLAG = (
    {"type": "string", "minLength": 1},
    {"type": "integer"},
    {"type": "number"},
    {"type": "boolean"},
)
#: A text, the fields to extract, and what a right answer contains.
TASKS: tuple[tuple[str, dict[str, Any], tuple[str, ...]], ...] = (
    ("The Vasa sank in 1628 after sailing 1300 metres.",
     {"ship": TEXT, "year": WHOLE, "metres": WHOLE}, ("Vasa", "1628", "1300")),
    ("Room 214 is free and costs 89.50 euros a night.",
     {"room": WHOLE, "price": NUMBER, "free": FLAG}, ("214", "89.5", "true")),
    ("Mount Kenya is 5199 metres high and lies in Kenya.",
     {"mountain": TEXT, "height": WHOLE, "country": TEXT}, ("5199", "Kenya")),
    ("Ingrid paid 42 crowns for two tickets to Bergen.",
     {"buyer": TEXT, "city": TEXT, "price": WHOLE}, ("Ingrid", "Bergen", "42")),
    ("The bridge was opened on a Monday in 1932. It is 1149 metres long.",
     {"weekday": TEXT, "opened": WHOLE, "length": WHOLE}, ("Monday", "1932", "1149")),
    ("Sensor K7 reports 21.5 degrees. The door is closed.",
     {"sensor": TEXT, "degrees": NUMBER, "open": FLAG}, ("K7", "21.5", "false")),
    ("Flight LH 455 leaves from gate B12 with 180 passengers.",
     {"gate": TEXT, "passengers": WHOLE, "flight": TEXT}, ("B12", "180", "455")),
    ("The recipe serves 6 and needs 250 grams of rice and 2 onions.",
     {"serves": WHOLE, "rice_grams": WHOLE, "onions": WHOLE}, ("6", "250", "2")),
    ("Order 9001 by Mr Okafor was shipped to Lagos.",
     {"order": WHOLE, "customer": TEXT, "city": TEXT}, ("9001", "Okafor", "Lagos")),
    ("The lake is 310 metres deep and is called Como.",
     {"lake": TEXT, "depth": WHOLE}, ("Como", "310")),
    ("Train 76 was 14 minutes late in Lyon.",
     {"train": WHOLE, "minutes": WHOLE, "city": TEXT}, ("76", "14", "Lyon")),
    ("The museum opens at 9 and closes at 17. Entry is free.",
     {"opens": WHOLE, "closes": WHOLE, "free": FLAG}, ("9", "17", "true")),
)  # fmt: skip


@dataclass
class Tally:
    """What one side used and reached."""

    jobs: int = 0
    solved: int = 0
    calls: int = 0
    tokens: int = 0
    prompt_characters: int = 0

    @property
    def per_success(self) -> float:
        return self.tokens / self.solved if self.solved else float("inf")


@dataclass(frozen=True)
class Attempt:
    plan: AttemptPlan
    output: Output
    verdict: Verdict


def job_of(text: str, fields: dict[str, Any], values: Sequence[str]) -> Job:
    names = ", ".join(fields)
    return Job.model_validate({
        "task_type": "extract",
        "prompt": f"Extract {names} as JSON from this text: {text}",
        "runner": {"kind": "local"},
        "verifiers": [
            "json.object",
            {"id": "contract.schema", "weight": 2, "schema": {
                "type": "object", "required": list(fields), "properties": fields,
                "additionalProperties": False}},
            {"id": "text.match", "contains": list(values)},
        ],
    })  # fmt: skip


class Model:
    """The bundled model with one seed."""

    def __init__(self, seed: int) -> None:
        self.asked_with = Decoding(temperature=0.7, max_tokens=120)
        options = {"temperature": 0.7, "max_tokens": 120, "seed": seed}
        self._runner = LocalRunner.from_options(options)
        self._verifiers = VerifierRegistry()

    def attempt(self, job: Job, plan: AttemptPlan, memory: RetryMemory) -> Attempt:
        request = Request(
            messages=(Message(role="user", content=plan.prompt or job.task_text),),
            decoding=plan.decoding,
            json_schema=contract_of(job),
            attempt=plan.number,
        )
        output = self._runner.answer(request)
        candidate = Candidate(output=output, text=output.text)
        results = [self._verifiers.build(spec).verify(candidate) for spec in job.verifiers]
        verdict = judge(job, plan, results, memory, truncated=output.truncated)
        return Attempt(plan, output, verdict)

    def retries(self, job: Job, first: Attempt, side: Side) -> Iterator[Attempt]:
        """Yield the attempts after the first one, until one succeeds or the policy stops."""
        last, memory = first, RetryMemory()
        while isinstance(last.verdict.decision, Retry):
            asked = last.plan.decoding if last.plan.number > 1 else self.asked_with
            plan = plan_next(
                job,
                last.plan,
                last.verdict,
                last.verdict.decision,
                output=last.output,
                asked_with=asked,
                constrains=lambda decoding, _: side == "lean" and decoding.constrained,
            )
            if last.verdict.failure is not None:
                memory = memory.record(last.verdict.failure)
            last = self.attempt(job, plan, memory)
            yield last


def run_round(seed: int, console: Console) -> dict[Side, Tally]:
    """Run the tasks that fail at first, on both sides in alternating order."""
    model, tallies = Model(seed), {side: Tally() for side in SIDES}
    for number, task in enumerate(TASKS):
        job = job_of(*task)
        first = model.attempt(job, AttemptPlan(), RetryMemory())
        if first.verdict.success:
            continue
        for side in SIDES if number % 2 else reversed(SIDES):
            with console.status(f"seed {seed}, task {number + 1}, {side}"):
                _count(tallies[side], first, list(model.retries(job, first, side)))
    return tallies


def _count(tally: Tally, first: Attempt, retries: Sequence[Attempt]) -> None:
    tally.jobs += 1
    tally.solved += bool(retries) and retries[-1].verdict.success
    tally.calls += len(retries)
    tally.tokens += sum(each.output.usage.total_tokens or 0 for each in (first, *retries))
    tally.prompt_characters += sum(len(each.plan.prompt or "") for each in retries)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="Seeds to run. Default: 5.")
    rounds = parser.parse_args().rounds
    console = Console(width=110)
    found = [run_round(seed, console) for seed in range(1, rounds + 1)]
    stop_local_server()
    table = Table(title=f"jobs that fail at first, {rounds} rounds; median (range) of the rounds")
    for column in ("prompt", "jobs", "solved", "retries", "characters per prompt"):
        table.add_column(column, justify="right" if table.columns else "left")
    for column in ("tokens per success", "of all rounds"):
        table.add_column(column, justify="right")
    for side in SIDES:
        sides = [tallies[side] for tallies in found]
        calls = sum(tally.calls for tally in sides)
        each = [tally.per_success for tally in sides]
        total = sum(tally.tokens for tally in sides) / max(1, sum(t.solved for t in sides))
        table.add_row(
            side,
            str(sum(tally.jobs for tally in sides)),
            str(sum(tally.solved for tally in sides)),
            str(calls),
            f"{sum(tally.prompt_characters for tally in sides) / max(1, calls):.0f}",
            f"{median(each):.0f} ({min(each):.0f}–{max(each):.0f})",
            f"{total:.0f}",
        )
    console.print(table)


if __name__ == "__main__":
    main()
