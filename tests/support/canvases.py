"""A table of Celery's canvases, and tasks to build them from: with repairs, or without mulligan.

Both kinds of tasks must give a canvas the same outcome, in a worker and inline.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from celery import Celery, chain, chord, group
from celery.exceptions import ChordError

from mulligan import Repair, RepairingTask
from mulligan.workers.celery.state_task import Escalated

Tasks = Any
Canvas = Callable[[Tasks, str], Any]


class Hopeless(Exception):
    """What the hopeless task without mulligan raises."""


def register(app: Celery, notes: Path) -> tuple[Tasks, Tasks]:
    """Add the tasks to an app. Return those with repairs, and the same ones without mulligan."""

    def ordinary(function: Callable[..., Any], name: str, **options: Any) -> Any:
        return app.task(name=name, shared=False, **options)(function)

    def note(*values: Any) -> Any:
        """Record the last argument, which names the canvas, and what came before it."""
        said = " ".join(str(value) for value in values[:-1])
        with (notes / str(values[-1])).open("a") as file:
            file.write(f"{said}\n")
        return values[0] if len(values) > 1 else None

    def failed(_task_id: str, key: str) -> None:
        note(FAILED, key)

    def upper(text: str) -> str:
        return text.upper()

    def join(texts: list[str]) -> str:
        return "+".join(texts)

    shared = {
        "upper": ordinary(upper, "upper"),
        "join": ordinary(join, "join"),
        "note": ordinary(note, "note"),
        "failed": ordinary(failed, "failed"),
    }

    def repaired(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(self: Any, value: Any) -> Any:
            if self.repair is None:
                raise Repair("say please", score=40)
            return function(self, value)

        return run

    def please(self: Any, drink: str) -> str:
        return f"please {drink}"

    def join_politely(self: Any, drinks: list[str]) -> str:
        return f"please {'+'.join(drinks)}"

    def swap(self: Any, drink: str) -> Any:
        return self.replace(shared["upper"].s(drink))

    def hopeless(self: Any, drink: str) -> str:
        raise Hopeless(drink)

    def stubborn(self: Any, drink: str) -> str:
        """Fail until a person has allowed it."""
        if not (notes / "allowed").exists():
            raise Hopeless(drink)
        return drink

    own: dict[str, Any] = {}
    own["stubborn"] = app.task(base=RepairingTask, name="stubborn", shared=False)(stubborn)
    plain: dict[str, Any] = {}
    for name, function in (("please", please), ("politely", join_politely), ("swap", swap)):
        own[name] = app.task(base=RepairingTask, name=name, shared=False)(repaired(function))
        plain[name] = ordinary(function, f"plain_{name}", bind=True)
    own["good"] = app.task(base=RepairingTask, name="good", shared=False)(please)
    plain["good"] = plain["please"]
    own["hopeless"] = app.task(base=RepairingTask, name="hopeless", shared=False)(hopeless)
    plain["hopeless"] = ordinary(hopeless, "plain_hopeless", bind=True)
    return SimpleNamespace(**shared, **own), SimpleNamespace(**shared, **plain)


@dataclass(frozen=True)
class Case:
    """A canvas and its outcome."""

    build: Canvas
    value: Any
    notes: tuple[str, ...] = ()


FAILED = "failed"
POLITE = "please tea+please milk+please water"
CANVASES: dict[str, Case] = {
    "a chain": Case(
        lambda t, key: chain(t.please.s("tea"), t.upper.s(), t.note.s(key)),
        "PLEASE TEA",
        ("PLEASE TEA",),
    ),
    "a chain of repaired steps": Case(
        lambda t, _: chain(t.upper.s("tea"), t.please.s(), t.good.s(), t.please.s(), t.upper.s()),
        "PLEASE PLEASE PLEASE TEA",
    ),
    "a chain that stops": Case(
        lambda t, key: chain(
            t.please.s("tea"), t.hopeless.s().on_error(t.failed.s(key)), t.note.s(key)
        ),
        FAILED,
        (FAILED,),
    ),
    "a link": Case(
        lambda t, key: t.please.s("tea").set(link=t.note.s(key)), "please tea", ("please tea",)
    ),
    "links to repaired tasks": Case(
        lambda t, key: t.please.s("tea").set(
            link=[t.note.s(key), t.please.s().set(link=t.note.s(key))]
        ),
        "please tea",
        ("please please tea", "please tea"),
    ),
    "a link_error that is not needed": Case(
        lambda t, key: t.please.s("tea").on_error(t.failed.s(key)), "please tea"
    ),
    "a link_error": Case(
        lambda t, key: t.hopeless.s("tea").on_error(t.failed.s(key)), FAILED, (FAILED,)
    ),
    "a group": Case(
        lambda t, _: group(t.please.s("tea"), t.good.s("milk"), t.please.s("water")),
        POLITE.split("+"),
    ),
    "a group with a failure": Case(
        lambda t, key: group(t.please.s("tea"), t.hopeless.s("milk").on_error(t.failed.s(key))),
        FAILED,
        (FAILED,),
    ),
    "a chord": Case(
        lambda t, key: (
            chord([t.please.s("tea"), t.good.s("milk"), t.please.s("water")], t.join.s())
            | t.note.s(key)
        ),
        POLITE,
        (POLITE,),
    ),
    "a chord with a repaired body": Case(
        lambda t, _: chord([t.please.s("tea"), t.upper.s("milk")], t.politely.s()),
        "please please tea+MILK",
    ),
    "a chord with a failure": Case(
        lambda t, key: chord([t.please.s("tea"), t.hopeless.s("milk")], t.note.s(key)), FAILED
    ),
    "a group in a chain": Case(
        lambda t, _: chain(
            t.please.s("tea"), group(t.please.s(), t.upper.s()), t.politely.s(), t.upper.s()
        ),
        "PLEASE PLEASE PLEASE TEA+PLEASE TEA",
    ),
    "a chord in a chord": Case(
        lambda t, _: chord(
            [chord([t.please.s("tea"), t.good.s("milk")], t.politely.s()), t.please.s("water")],
            t.join.s(),
        ),
        f"please {POLITE}",
    ),
    "a task that replaces itself": Case(
        lambda t, key: chain(t.swap.s("tea"), t.note.s(key)), "TEA", ("TEA",)
    ),
    "a chain of immutable steps": Case(
        lambda t, _: chain(t.please.si("tea"), t.please.si("milk")), "please milk"
    ),
}


def start(case: Case, tasks: Tasks, key: str) -> Any:
    """Send a canvas. Inline, it ends here, and may fail here."""
    try:
        return case.build(tasks, key).apply_async()
    except (Hopeless, Escalated) as error:
        return error


def outcome(result: Any, *, seconds: float = 60.0) -> Any:
    """Return the value of a canvas, or that it failed: classes of errors differ by kind of task."""
    try:
        return FAILED if isinstance(result, Exception) else result.get(timeout=seconds)
    except (Hopeless, Escalated, ChordError):
        return FAILED


def noted(notes: Path, key: str) -> tuple[str, ...]:
    """Return what the links of a canvas recorded."""
    found = notes / key
    return tuple(sorted(found.read_text().splitlines())) if found.exists() else ()
