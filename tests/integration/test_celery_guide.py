"""docs/celery.md: every block that is a whole `tasks.py` is run, on a ledger, with a fake model."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from mulligan.tasks.ledger import JobView
from mulligan.workers import keys
from mulligan.workers.redis_ledger import RedisLedger

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "celery.md"
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


@pytest.fixture
def guide(redis_url: str) -> Guide:
    """The module that a section of the guide shows, on the tests' Redis."""

    def load(title: str) -> dict[str, Any]:
        after = f"\n{GUIDE.read_text('utf-8')}".partition(f"\n{title}\n")[2] or pytest.fail(title)
        shown = re.findall(r"^```python\n(# tasks\.py\n.*?)^```$", after, re.MULTILINE | re.DOTALL)
        code = shown[0].replace("redis://localhost:6379/0", redis_url)
        scope: dict[str, Any] = {"__name__": "guide"}
        exec(compile(code, f"{GUIDE}: {title}", "exec"), scope)  # noqa: S102 - our own example
        return scope

    return load


def view_of(ledger: RedisLedger, message_id: str) -> JobView:
    view = ledger.job(keys.own_job_id(message_id, partitions=1))
    assert view is not None
    return view


def test_every_block_is_either_run_here_or_shown_as_before() -> None:
    firsts = [block.splitlines()[0] for block in BLOCKS]
    assert firsts.count("# before") == 3
    assert firsts.count("# tasks.py") == len(firsts) - 3 == 6


def test_the_first_screen(guide: Guide, model: Model, ledger: RedisLedger) -> None:
    model.answers = ['{"name": "Alice", "age": 310}', '{"name": "Alice", "age": 31}']
    result = guide("# Your own Celery tasks")["extract"].apply(args=("Alice is 31.",))
    assert result.get() == '{"name": "Alice", "age": 31}'
    assert "nobody is that old" in model.prompts[1]
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
    scores = [attempt.verdict["score"] for attempt in view_of(ledger, result.id).attempts]
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


def test_from_autoretry(guide: Guide, model: Model) -> None:
    model.answers = ["Alice is 31", '{"age": "31"}', '{"age": 31}']
    task = guide("## Moving from `autoretry_for`")["extract"]
    assert task.apply(args=("Alice is 31.",)).get() == {"age": 31}
    assert "JSON" in model.prompts[1].partition("Alice is 31.")[2]
    assert "without quotes" in model.prompts[2]


def test_from_tenacity(guide: Guide, model: Model) -> None:
    model.answers = ['{"number": "7"}', '{"number": "7", "total": 12.5}']
    task = guide("## Moving from tenacity around an SDK call")["read_invoice"]
    assert task.apply(args=("…",)).get() == model.answers[1]
    assert "total" in model.prompts[1]


def test_from_instructor(guide: Guide, model: Model) -> None:
    model.answers = ['{"name": "Alice", "age": "thirty"}', '{"name": "Alice", "age": 31}']
    module = guide("## Moving from Instructor")
    answer = module["extract"].apply(args=("Alice is 31.",)).get()
    assert module["Person"].model_validate_json(answer).age == 31
    assert "$.age" in model.prompts[1]
