"""A ledger filled by real workers, for the browser tests and for manual inspection.

``python tests/browser/stage.py`` serves a console over it until Ctrl-C.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.console_server import running_console
from support.fleet import Fleet, running_fleet
from support.provider_calls import open_breaker
from support.waiting import wait_for

from mulligan.console.cli.exit_codes import stop_on_signals
from mulligan.workers.figures.fold import Fold
from mulligan.workers.ledger import keys
from mulligan.workers.settings.model import Settings

INVOICE = {
    "type": "object",
    "required": ["number", "total"],
    "properties": {"number": {"type": "string"}, "total": {"type": "number"}},
}
PERSON = {
    "type": "object",
    "required": ["name", "age"],
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
}
PRICES = '{"scripted": {"prompt": 2.0, "completion": 8.0}}'
NAMES = ("Alice", "Bertha", "Chen", "Dmitri", "Esperanza", "Farid")


@dataclass(frozen=True)
class Filled:
    """Ids of jobs and the signature of a group in the filled ledger."""

    repaired: str
    escalated: str
    waiting: str
    signature: str


def answer(text: str, tokens: int = 220) -> dict[str, Any]:
    usage = {"prompt_tokens": tokens - 40, "completion_tokens": 40, "total_tokens": tokens}
    return {"text": text, "usage": usage}


def person(name: str, *, slips: bool = False, **fields: Any) -> dict[str, Any]:
    good = json.dumps({"name": name, "age": 31})
    wrong = json.dumps({"name": name, "age": "31"})
    answers = [answer(wrong), answer(good, 310)] if slips else [answer(good)]
    return {
        "task_type": "extract_person",
        "name": f"person-{name.lower()}",
        "prompt": f"Extract the person as JSON with name and age.\n\nText: {name} is 31 years old.",
        "runner": {"kind": "scripted", "answers": answers},
        "verifiers": ["json.object", {"id": "contract.schema", "weight": 2, "schema": PERSON}],
        "delayed_verification": {"after": 0.2},
        "labels": {"tenant": "acme"},
        **fields,
    }


def invoice(number: int) -> dict[str, Any]:
    """Return a job that never succeeds: the total stays a string."""
    wrong = json.dumps({"number": f"2026-{number:03d}", "total": "12 EUR"})
    return {
        "task_type": "extract_invoice",
        "name": f"invoice-{number:03d}",
        "prompt": f"Extract number and total of invoice 2026-{number:03d} as JSON.",
        "runner": {"kind": "scripted", "answers": [answer(wrong, 260)]},
        "verifiers": ["json.object", {"id": "contract.schema", "weight": 2, "schema": INVOICE}],
        "delayed_verification": {"after": 0.2},
        "labels": {"tenant": "globex" if number % 3 else "acme"},
    }


def reply(number: int, *answers: str) -> dict[str, Any]:
    return {
        "task_type": "answer_ticket",
        "name": f"ticket-{number}",
        "prompt": f"Answer ticket {number} politely, and end with the word Regards.",
        "runner": {"kind": "scripted", "answers": [answer(text, 480) for text in answers]},
        "verifiers": [{"id": "text.match", "contains": "Regards", "not_contains": "lorem"}],
        "delayed_verification": {"after": 0.2},
        "labels": {"tenant": "globex", "team": "support"},
    }


def aloud(number: int) -> dict[str, Any]:
    return {
        "task_type": "read_aloud",
        "name": f"chapter-{number}",
        "prompt": f"Read chapter {number} aloud.",
        "runner": {"kind": "scripted", "answers": [answer("Once upon a time.")]},
        "verifiers": [{"id": "text.match", "contains": "Once"}],
        "labels": {"tenant": "acme"},
    }


def mixture(scale: int) -> Iterator[dict[str, Any]]:
    """Yield jobs with first-try successes, repairs and two kinds of escalations."""
    for number in range(scale):
        name = NAMES[number % len(NAMES)]
        yield person(name, slips=number % 3 == 0)
        if number % 3 == 1:
            yield reply(number, "Dear customer, it is on its way.", "It is on its way. Regards")
        if number % 4 == 2:
            yield invoice(number)
        if number % 10 == 7:
            yield reply(number, "No.")


def fill(fleet: Fleet, *, scale: int = 8) -> Filled:
    """Run the mixture to its end, with a pause, an open breaker and waiting jobs."""
    fleet.ledger.pause("task_type:read_aloud")
    jobs = list(mixture(scale))
    ids = fleet.submit(*jobs)
    waiting = fleet.submit(*(aloud(number) for number in range(1, 4)))
    open_breaker(fleet.ledger, "openai-eu", retry_after=300)
    views = fleet.wait_until_finished(ids)
    wait_for(lambda: all(_state(fleet, each) == "waiting" for each in waiting), "jobs to be parked")
    repaired = next(v for v in views if v.state == "succeeded" and len(v.attempts) > 1)
    escalated = next(v for v in views if v.state == "escalated")
    group = max(
        fleet.ledger.groups(), key=lambda each: each.open
    )  # the newest group may have one member
    return Filled(repaired.id, escalated.id, waiting[0], group.signature)


def _state(fleet: Fleet, job_id: str) -> str:
    view = fleet.ledger.job(job_id)
    return view.state if view else "gone"


def history(fleet: Fleet, *, minutes: int = 57, per_minute: int = 12) -> None:
    """Write the events of the last hour, older than those that workers will add."""
    dice = random.Random(7)
    stream = keys.partition_prefix("mulligan", "p00") + "events"
    now = time.time()
    for minute in range(minutes, 0, -1):
        at = int((now - minute * 60) * 1000)
        for place in range(dice.randint(per_minute * 2 // 3, per_minute)):
            job = f"p00-past{minute:02d}{place:02d}"
            for step, data in enumerate(_past(dice, job)):
                name = f"{at + place * 60_000 // per_minute + step * 40}-0"
                fleet.ledger.calls.run("XADD", stream, name, "data", json.dumps(data))
    Fold(fleet.ledger).run(batches=100)


def _past(dice: random.Random, job: str) -> Iterator[dict[str, Any]]:
    """Yield the events of one job that ended."""
    chance = dice.random()
    attempts = 1 if chance < 0.62 else 2
    state = "escalated" if chance > 0.97 else "succeeded"
    task_type = dice.choice(
        ["extract_person", "extract_person", "extract_invoice", "answer_ticket"]
    )
    tenant = dice.choice(["acme", "globex"])
    same = {"job": job, "task_type": task_type, "tenant": tenant}
    kind, cause = dice.choice([("json_invalid", "fence"), ("schema_invalid", "type")])
    for number in range(1, attempts + 1):
        good = number == attempts and state == "succeeded"
        yield {"type": "attempt", **same, "attempt": number, "state": "running",
               "mode": "initial" if number == 1 else "immediate_retry",
               "waited": dice.choice([3, 4, 5, 5, 6, 9, 18])}  # fmt: skip
        yield {"type": "attempt", **same, "attempt": number, "state": "settled",
               "score": 100 if good else 40, "success": good, "kind": None if good else kind,
               "cause": None if good else cause, "next": None if number == attempts else "retry",
               "mode": "initial" if number == 1 else "immediate_retry", "labels": {},
               "runner": "scripted", "model": "scripted", "prompt_tokens": 240 * number,
               "completion_tokens": 48, "total_tokens": 240 * number + 48,
               "signature": None if good else f"v1:{kind}:{cause}", "technique":
               "drop_fence" if number == 2 else None, "cures": f"v1:{kind}:{cause}" if
               number == 2 else None, "seconds": 1.2}  # fmt: skip
    yield {"type": "job", **same, "state": state, "reason": "max_attempts" if state != "succeeded"
           else "", "attempts": attempts, "tokens": 300 * attempts,
           "first_try": attempts == 1}  # fmt: skip


def console_settings(fleet: Fleet) -> Settings:
    """Return the settings of the console, with links to a Flower that need not exist."""
    return fleet.services.settings.model_copy(update={"flower_url": "http://127.0.0.1:5555"})


def trickle(fleet: Fleet) -> None:
    """Submit a new job every two seconds."""
    for number in count(1):
        fleet.submit(person(NAMES[number % len(NAMES)], slips=number % 3 == 0))
        time.sleep(2)


def main() -> None:
    os.environ["MULLIGAN_PRICES"] = PRICES
    os.environ["MULLIGAN_QUOTAS"] = '{"*": {"tokens_per_day": 2000000}}'
    stop_on_signals()
    with (
        suppress(KeyboardInterrupt),
        tempfile.TemporaryDirectory(prefix="mulligan-stage-") as folder,
        running_fleet(Path(folder)) as fleet,
    ):
        history(fleet, per_minute=70)
        print(fill(fleet, scale=24))
        with running_console(console_settings(fleet)) as console:
            print(console.url, flush=True)
            trickle(fleet)


if __name__ == "__main__":
    main()
