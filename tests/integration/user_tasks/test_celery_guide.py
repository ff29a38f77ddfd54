"""docs/celery.md: every block is run with a fake model: each `tasks.py` on a ledger, and each
`before` as it stands, among fakes of the libraries that it comes from."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from pydantic import BaseModel, ValidationError, create_model

from mulligan.tasks.ports.ledger import JobView
from mulligan.workers.ledger import job_ids
from mulligan.workers.ledger.redis_ledger import RedisLedger

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "celery.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
Guide = Callable[[str], dict[str, Any]]


class Model:
    """Answers in turn, the last answer for ever; remembers what it was asked."""

    def __init__(self) -> None:
        self.answers: list[str] = []
        self.prompts: list[str] = []

    def ask(self, prompt: str) -> str:
        self.prompts.append(prompt)
        return self.answers[min(len(self.prompts), len(self.answers)) - 1]

    def openai(self, **_: Any) -> Any:
        def create(*, messages: list[dict[str, str]], **_: Any) -> Any:
            message = SimpleNamespace(content=self.ask(messages[-1]["content"]))
            return SimpleNamespace(choices=[SimpleNamespace(message=message)])

        return SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=create)))


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Model:
    model = Model()
    module = ModuleType("my_models")
    module.ask = model.ask  # type: ignore[attr-defined] # made up here
    monkeypatch.setitem(sys.modules, "my_models", module)
    monkeypatch.setattr("openai.OpenAI", model.openai)
    return model


class Tenacity:
    """As much of tenacity as the guide shows: so many calls while it raises that."""

    @staticmethod
    def retry(*, stop: int, retry: type[Exception]) -> Callable[[Any], Any]:
        def decorate(function: Any) -> Any:
            def call(*args: Any) -> Any:
                for _ in range(stop - 1):
                    with suppress(retry):
                        return function(*args)
                return function(*args)

            return call

        return decorate


class Instructor:
    """As much of Instructor as the guide shows: what pydantic found is told in the same call."""

    @staticmethod
    def from_openai(client: Any) -> Any:
        def create(
            *, response_model: type[BaseModel], max_retries: int, messages: Any, **options: Any
        ) -> BaseModel:
            for _ in range(max_retries):
                told = client.chat.completions.create(messages=messages, **options)
                try:
                    return response_model.model_validate_json(told.choices[0].message.content)
                except ValidationError as error:
                    messages = [*messages, {"role": "user", "content": str(error)}]
            raise AssertionError("never an answer")

        return SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=create)))


def shown_in(title: str, first: str) -> str:
    """The first block of a section that begins so."""
    after = f"\n{GUIDE.read_text('utf-8')}".partition(f"\n{title}\n")[2] or pytest.fail(title)
    pattern = rf"^```python\n({first}\n.*?)^```$"
    return str(re.findall(pattern, after, re.MULTILINE | re.DOTALL)[0])


def run(code: str, title: str, scope: dict[str, Any]) -> dict[str, Any]:
    exec(compile(code, f"{GUIDE}: {title}", "exec"), scope)  # noqa: S102 - our own example
    return scope


@pytest.fixture
def guide(redis_url: str) -> Guide:
    """The module that a section of the guide shows, on the tests' Redis."""

    def load(title: str) -> dict[str, Any]:
        code = shown_in(title, r"# tasks\.py").replace("redis://localhost:6379/0", redis_url)
        return run(code, title, {"__name__": "guide"})

    return load


@pytest.fixture
def before(model: Model) -> Guide:
    """What a section shows as `before`, in the module that it is a piece of."""

    def load(title: str) -> dict[str, Any]:
        scope = {
            "__name__": f"before {title}",
            "app": Celery("before", broker="memory://", set_as_current=False),
            "ask": model.ask,
            "json": json,
            "OpenAI": model.openai,
            "retry": Tenacity.retry,
            "stop_after_attempt": int,
            "retry_if_exception_type": lambda kind: kind,
            "instructor": Instructor,
            "ValidationError": ValidationError,
            "Invoice": create_model("Invoice", number=(str, ...), total=(float, ...)),
            "Person": create_model("Person", name=(str, ...), age=(int, ...)),
        }
        return run(shown_in(title, "# before"), title, scope)

    return load


def view_of(ledger: RedisLedger, message_id: str) -> JobView:
    view = ledger.job(job_ids.own_job_id(message_id, partitions=1))
    assert view is not None
    return view


def test_every_block_is_run_here() -> None:
    firsts = [block.splitlines()[0] for block in BLOCKS]
    assert firsts.count("# before") == 3
    assert firsts.count("# tasks.py") == len(firsts) - 3 == 6
    sections = GUIDE.read_text("utf-8").split("\n## ")
    moving = [section for section in sections if section.startswith("Moving from ")]
    assert len(moving) == 3
    assert all("\n# before\n" in each and "\n# tasks.py\n" in each for each in moving)


def test_the_first_screen(guide: Guide, model: Model, ledger: RedisLedger) -> None:
    model.answers = ['{"name": "Alice", "age": 310}', '{"name": "Alice", "age": 31}']
    result = guide("# Your own Celery tasks")["extract"].apply(args=("Alice is 31.",))
    assert result.get() == '{"name": "Alice", "age": 31}'
    assert "must be at most 130" in model.prompts[1]
    assert view_of(ledger, result.id).job.task_type == "extract"


def test_functions_and_dicts_are_verifiers(guide: Guide, model: Model) -> None:
    model.answers = ["She " * 13, "Alice has a dog."]
    task = guide("## Options of the task")["summarise"]
    assert task.apply(args=("…",)).get() == "Alice has a dog."
    assert "at most 12 words" in model.prompts[1]
    assert "Alice" in model.prompts[1]


def test_by_hand_and_scored(guide: Guide, model: Model, ledger: RedisLedger) -> None:
    tasks = guide("## Options of the task")
    model.answers = [" ", "Guten Tag", "fast", "fast, quick, swift"]
    assert tasks["by_hand"].apply(args=("Hello",)).get() == "Guten Tag"
    assert "the answer is empty" in model.prompts[1]
    result = tasks["scored"].apply(args=("rapid",))
    assert result.get() == "fast, quick, swift"
    assert "and not 3" in model.prompts[3]
    scores = [attempt.score for attempt in view_of(ledger, result.id).attempts]
    assert scores == [33.4, 100]


def test_observing_changes_nothing(guide: Guide, model: Model, ledger: RedisLedger) -> None:
    model.answers = ["Alice, 31"]
    result = guide('## A first week with `mode="observe"`')["extract"].apply(args=("…",))
    assert result.get() == "Alice, 31"
    assert len(model.prompts) == 1
    assert view_of(ledger, result.id).reason == "observed"


@pytest.mark.usefixtures("model")
def test_observing_leaves_autoretry_as_it_was(
    guide: Guide, ledger: RedisLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def away(prompt: str) -> str:
        tried.append(prompt)
        if len(tried) < 3:
            raise OSError("away")
        return "{}"

    monkeypatch.setattr(sys.modules["my_models"], "ask", away)
    task = guide('## A first week with `mode="observe"`')["extract"]
    result = task.apply(args=("…",))
    assert result.get() == "{}"
    assert len(tried) == 3
    # Each of Celery's own retries is a job of its own; only the last one has a verdict.
    seen = [view.state for view in ledger.jobs()]
    assert seen == ["succeeded", "cancelled", "cancelled"]


# -- moving: each section's before and after, with the same answers of the model ------------------


def test_from_autoretry(before: Guide, guide: Guide, model: Model) -> None:
    title = "## Moving from `autoretry_for`"
    model.answers = ["Alice is 31", '{"age": "31"}', '{"age": 31}']
    assert before(title)["extract"].apply(args=("Alice is 31.",)).get() == {"age": 31}
    # The same prompt again, for a model that never hears what was wrong.
    assert len(model.prompts) == 3
    assert len(set(model.prompts)) == 1
    model.prompts.clear()
    assert guide(title)["extract"].apply(args=("Alice is 31.",)).get() == {"age": 31}
    assert "JSON" in model.prompts[1].partition("Alice is 31.")[2]
    assert "without quotes" in model.prompts[2]


def test_autoretry_counts_as_the_guide_says(before: Guide, guide: Guide, model: Model) -> None:
    """`max_retries=3` was three more runs; `max_attempts: 4` counts all of them."""
    title = "## Moving from `autoretry_for`"
    model.answers = [f"no JSON, {number}" for number in range(9)]
    assert before(title)["extract"].apply(args=("…",)).state == "FAILURE"
    assert len(model.prompts) == 4
    task = guide(title)["extract"]
    assert task.policy["max_attempts"] == 4


def test_from_tenacity(before: Guide, guide: Guide, model: Model) -> None:
    title = "## Moving from tenacity around an SDK call"
    model.answers = ['{"number": "7"}', '{"number": "7", "total": 12.5}']
    told = before(title)["read_invoice"].apply(args=("…",)).get()
    assert told == {"number": "7", "total": 12.5}
    assert len(model.prompts) == 2
    assert len(set(model.prompts)) == 1
    model.prompts.clear()
    assert guide(title)["read_invoice"].apply(args=("…",)).get() == model.answers[1]
    assert "total" in model.prompts[1]


def test_from_instructor(before: Guide, guide: Guide, model: Model) -> None:
    title = "## Moving from Instructor"
    model.answers = ['{"name": "Alice", "age": "thirty"}', '{"name": "Alice", "age": 31}']
    told = before(title)["extract"].apply(args=("Alice is 31.",)).get()
    assert told == {"name": "Alice", "age": 31}
    assert "valid integer" in model.prompts[1]
    model.prompts.clear()
    module = guide(title)
    answer = module["extract"].apply(args=("Alice is 31.",)).get()
    assert module["Person"].model_validate_json(answer).age == 31
    assert "$.age" in model.prompts[1]
