"""docs/celery.md: every block runs with a fake model. Each `tasks.py` runs on a ledger, and each
`before` with fakes of its libraries."""

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
from support.user_tasks import job_of

from mulligan.workers.ledger.redis_ledger import RedisLedger

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "celery.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
Guide = Callable[[str], dict[str, Any]]


class Model:
    """A model that returns its answers in turn, repeats the last and records the prompts."""

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
    module.ask = model.ask  # type: ignore[attr-defined] # a fake module
    monkeypatch.setitem(sys.modules, "my_models", module)
    monkeypatch.setattr("openai.OpenAI", model.openai)
    return model


class Tenacity:
    """The part of tenacity that the guide shows."""

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
    """The part of Instructor that the guide shows: it sends pydantic's errors back to the model."""

    @staticmethod
    def from_openai(client: Any) -> Any:
        def create(
            *, response_model: type[BaseModel], max_retries: int, messages: Any, **options: Any
        ) -> BaseModel:
            for _ in range(max_retries):
                response = client.chat.completions.create(messages=messages, **options)
                try:
                    return response_model.model_validate_json(response.choices[0].message.content)
                except ValidationError as error:
                    messages = [*messages, {"role": "user", "content": str(error)}]
            raise AssertionError("no valid answer")

        return SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=create)))


def block_in(title: str, first: str) -> str:
    """Return the first block of a section that starts with this line."""
    after = f"\n{GUIDE.read_text('utf-8')}".partition(f"\n{title}\n")[2] or pytest.fail(title)
    pattern = rf"^```python\n({first}\n.*?)^```$"
    return str(re.findall(pattern, after, re.MULTILINE | re.DOTALL)[0])


def run(code: str, title: str, scope: dict[str, Any]) -> dict[str, Any]:
    exec(compile(code, f"{GUIDE}: {title}", "exec"), scope)  # noqa: S102 - the project's example
    return scope


@pytest.fixture
def guide(redis_url: str) -> Guide:
    """Load the module that a section of the guide shows, on the tests' Redis."""

    def load(title: str) -> dict[str, Any]:
        code = block_in(title, r"# tasks\.py").replace("redis://localhost:6379/0", redis_url)
        return run(code, title, {"__name__": "guide"})

    return load


@pytest.fixture
def before(model: Model) -> Guide:
    """Load a section's `before` with the names that it uses."""

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
        return run(block_in(title, "# before"), title, scope)

    return load


def test_every_block_is_tested() -> None:
    firsts = [block.splitlines()[0] for block in BLOCKS]
    assert firsts.count("# before") == 3
    assert firsts.count("# tasks.py") == len(firsts) - 3 == 6
    sections = GUIDE.read_text("utf-8").split("\n## ")
    moving = [section for section in sections if section.startswith("Moving from ")]
    assert len(moving) == 3
    assert all("\n# before\n" in each and "\n# tasks.py\n" in each for each in moving)


def test_the_first_example_repairs_an_answer(
    guide: Guide, model: Model, ledger: RedisLedger
) -> None:
    model.answers = ['{"name": "Alice", "age": 310}', '{"name": "Alice", "age": 31}']
    result = guide("# Your own Celery tasks")["extract"].apply(args=("Alice is 31.",))
    assert result.get() == '{"name": "Alice", "age": 31}'
    assert "must be at most 130" in model.prompts[1]
    assert job_of(ledger, result.id).job.task_type == "extract"


def test_functions_and_dicts_are_verifiers(guide: Guide, model: Model) -> None:
    model.answers = ["She " * 13, "Alice has a dog."]
    task = guide("## Options of the task")["summarise"]
    assert task.apply(args=("…",)).get() == "Alice has a dog."
    assert "at most 12 words" in model.prompts[1]
    assert "Alice" in model.prompts[1]


def test_repairs_by_hand_and_scores_work(guide: Guide, model: Model, ledger: RedisLedger) -> None:
    tasks = guide("## Options of the task")
    model.answers = ["Hello", "Guten Tag", "fast", "fast, quick, swift"]
    assert tasks["by_hand"].apply(args=("Hello",)).get() == "Guten Tag"
    assert "not its translation" in model.prompts[1]
    assert model.prompts[1].count("Hello") == 2  # the task and the rejected answer
    result = tasks["scored"].apply(args=("rapid",))
    assert result.get() == "fast, quick, swift"
    assert "and not 3" in model.prompts[3]
    scores = [attempt.score for attempt in job_of(ledger, result.id).attempts]
    assert scores == [33.4, 100]


def test_observing_changes_nothing(guide: Guide, model: Model, ledger: RedisLedger) -> None:
    model.answers = ["Alice, 31"]
    result = guide('## A first week with `mode="observe"`')["extract"].apply(args=("…",))
    assert result.get() == "Alice, 31"
    assert len(model.prompts) == 1
    assert job_of(ledger, result.id).reason == "observed"


@pytest.mark.usefixtures("model")
def test_observing_keeps_autoretry(
    guide: Guide, ledger: RedisLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def away(prompt: str) -> str:
        calls.append(prompt)
        if len(calls) < 3:
            raise OSError("away")
        return "{}"

    monkeypatch.setattr(sys.modules["my_models"], "ask", away)
    task = guide('## A first week with `mode="observe"`')["extract"]
    result = task.apply(args=("…",))
    assert result.get() == "{}"
    assert len(calls) == 3
    # Each of Celery's retries is a separate job; only the last one has a verdict.
    states = [view.state for view in ledger.jobs()]
    assert states == ["succeeded", "cancelled", "cancelled"]


# -- moving: before and after, with the same answers -----------------------------------------------


def test_moving_from_autoretry_corrects_the_prompt(
    before: Guide, guide: Guide, model: Model
) -> None:
    title = "## Moving from `autoretry_for`"
    model.answers = ["Alice is 31", '{"age": "31"}', '{"age": 31}']
    assert before(title)["extract"].apply(args=("Alice is 31.",)).get() == {"age": 31}
    # The same prompt again, without what was wrong.
    assert len(model.prompts) == 3
    assert len(set(model.prompts)) == 1
    model.prompts.clear()
    assert guide(title)["extract"].apply(args=("Alice is 31.",)).get() == {"age": 31}
    assert "JSON" in model.prompts[1].partition("Alice is 31.")[2]
    assert "without quotes" in model.prompts[2]


def test_autoretry_counts_as_the_guide_says(before: Guide, guide: Guide, model: Model) -> None:
    """`max_retries=3` allowed three more runs; `max_attempts: 4` counts all runs."""
    title = "## Moving from `autoretry_for`"
    model.answers = [f"no JSON, {number}" for number in range(9)]
    assert before(title)["extract"].apply(args=("…",)).state == "FAILURE"
    assert len(model.prompts) == 4
    task = guide(title)["extract"]
    assert task.policy["max_attempts"] == 4


def test_moving_from_tenacity_corrects_the_prompt(
    before: Guide, guide: Guide, model: Model
) -> None:
    title = "## Moving from tenacity around an SDK call"
    model.answers = ['{"number": "7"}', '{"number": "7", "total": 12.5}']
    invoice = before(title)["read_invoice"].apply(args=("…",)).get()
    assert invoice == {"number": "7", "total": 12.5}
    assert len(model.prompts) == 2
    assert len(set(model.prompts)) == 1
    model.prompts.clear()
    assert guide(title)["read_invoice"].apply(args=("…",)).get() == model.answers[1]
    assert "total" in model.prompts[1]


def test_moving_from_instructor_corrects_the_prompt(
    before: Guide, guide: Guide, model: Model
) -> None:
    title = "## Moving from Instructor"
    model.answers = ['{"name": "Alice", "age": "thirty"}', '{"name": "Alice", "age": 31}']
    person = before(title)["extract"].apply(args=("Alice is 31.",)).get()
    assert person == {"name": "Alice", "age": 31}
    assert "valid integer" in model.prompts[1]
    model.prompts.clear()
    module = guide(title)
    answer = module["extract"].apply(args=("Alice is 31.",)).get()
    assert module["Person"].model_validate_json(answer).age == 31
    assert "$.age" in model.prompts[1]
