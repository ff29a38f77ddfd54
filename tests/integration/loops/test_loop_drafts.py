"""A goal becomes a loop: the draft is verified, repaired, created and done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.coding_loop import GOOD as WORKS
from support.coding_loop import LOOP, CodingLoop, check, check_merged
from support.drafts import DEFECTIVE, GOOD, PROGRAMS, drafted, drafter, loop_config, runs, spec
from support.git_repositories import UserRepository
from support.inline_fleet import ADA

from mulligan.policies.jobs.job import RunnerSpec
from mulligan.policies.loops.draft import PYTEST
from mulligan.policies.loops.spec import LoopConfig
from mulligan.tasks.jobs.submit import submit_jobs
from mulligan.tasks.loops import draft
from mulligan.tasks.loops.change import LoopConflict, create_loop
from mulligan.tasks.ports.errors import BadInput

pytestmark = pytest.mark.real_models("command")
ONE = spec(drafted("A"))


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return UserRepository.make(tmp_path / "user").path


@pytest.fixture
def fleet(tmp_path: Path, repository: Path) -> CodingLoop:
    return CodingLoop(tmp_path, repository)


def ask(fleet: CodingLoop, *answers: str, auto_start: bool = False, **config: Any) -> str:
    """Ask for a draft that is answered by these answers, and return its job."""
    asked = draft.DraftRequest(
        goal="make the files",
        loop=LoopConfig.model_validate(loop_config(fleet.repository, code=WORKS, **config)),
        runner=RunnerSpec.model_validate(drafter(*answers)),
        programs=PROGRAMS,
        auto_start=auto_start,
    )
    return draft.request_draft(fleet.services.loops, asked).id


def view(fleet: CodingLoop, job_id: str) -> draft.DraftView:
    return draft.read_draft(fleet.services.loops, job_id)


def state(fleet: CodingLoop) -> str:
    return fleet.loop.state


def test_each_defect_of_a_draft_is_found_and_repaired_and_its_loop_runs_to_the_end(
    fleet: CodingLoop, repository: Path
) -> None:
    """Given a draft with four defects, then each is named to the drafter, and the next one runs."""
    job_id = ask(fleet, DEFECTIVE, GOOD, auto_start=True)
    fleet.run()
    found = view(fleet, job_id)
    first, second = found.attempts
    assert len(first.problems) == 4
    unknown, cycle, cannot_run, passes = first.problems
    assert unknown == "C depends on Z, which does not exist"
    assert cycle == "A: the dependencies form a cycle: A → B → A"
    assert cannot_run.startswith("D: pytest tests/nowhere.py cannot run: ")
    assert passes.startswith("E: python -I -S -c pass passes before the work")
    corrected = found.job.attempts[1].plan
    assert corrected.mode == "immediate_retry"
    assert all(each in (corrected.prompt or "") for each in first.problems)
    assert (second.score, second.problems) == (100, [])
    assert found.is_created
    assert fleet.states(LOOP) == dict.fromkeys("ABCDE", "passed")
    assert fleet.loop.state == "completed"
    check_merged(fleet, repository)


def test_a_draft_waits_for_a_person_unless_it_starts_by_itself(fleet: CodingLoop) -> None:
    job_id = ask(fleet, GOOD)
    fleet.run()
    found = view(fleet, job_id)
    assert not found.is_created
    assert found.document is not None
    assert [each.id for each in found.document.items] == list("ABCDE")
    for _ in range(2):  # twice is once
        draft.create_drafted(fleet.services.loops, found, ADA)
    assert state(fleet) == "created"
    draft.create_drafted(fleet.services.loops, found, ADA, start=True)
    fleet.run()
    assert state(fleet) == "completed"


def test_a_draft_that_never_passes_is_escalated_and_creates_nothing(fleet: CodingLoop) -> None:
    job_id = ask(fleet, DEFECTIVE, auto_start=True)
    fleet.run()
    found = view(fleet, job_id)
    assert (found.job.state, found.is_created, found.document) == ("escalated", False, None)
    with pytest.raises(LoopConflict, match="no spec that passed"):
        draft.create_drafted(fleet.services.loops, found, ADA)


def test_a_loop_of_that_name_is_left_alone(fleet: CodingLoop) -> None:
    """Given a loop of the draft's name, then the draft succeeds and says what happened."""
    fleet.start(drafted("other"))
    job_id = ask(fleet, GOOD, auto_start=True, branch="mulligan/other")
    fleet.run()
    found = view(fleet, job_id)
    assert (found.job.state, found.is_created) == ("succeeded", False)
    assert found.problem == "another loop has this name"
    assert fleet.states(LOOP) == {"other": "passed"}


@pytest.mark.parametrize("answer", [ONE, spec(drafted("Z"))])
def test_of_two_drafts_of_one_name_one_has_the_loop(fleet: CodingLoop, answer: str) -> None:
    """Whatever the second one answers: it never says that the loop of the first one is its own."""
    one, other = ask(fleet, ONE, auto_start=True), ask(fleet, answer, auto_start=True)
    fleet.run()
    found = [view(fleet, each) for each in (one, other)]
    assert sorted((each.is_created, each.problem) for each in found) == [
        (False, "another loop has this name"),
        (True, ""),
    ]


def test_a_death_between_the_last_check_and_its_settlement_creates_one_loop(
    fleet: CodingLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a worker that dies after it created the loop, then another one settles the job."""
    calls: list[str] = []

    def create_and_die(*arguments: Any, **options: Any) -> Any:
        made = create_loop(*arguments, **options)
        calls.append(made.status)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return made

    monkeypatch.setattr(draft, "create_loop", create_and_die)
    job_id = ask(fleet, GOOD, auto_start=True)
    with pytest.raises(KeyboardInterrupt):
        fleet.run()
    assert view(fleet, job_id).job.state == "running"
    for _ in range(10):  # after a pause of the sweep, holders get another lease
        fleet.wait(fleet.settings.lease / 3)
    assert calls == ["written", "seen"]
    assert view(fleet, job_id).job.state == "succeeded"
    assert fleet.loop.state == "completed"


@pytest.mark.parametrize(
    ("item", "problem"),
    [
        ({"runner": "stronger"}, "A: runner: a draft may not choose this field"),
        ({"workspace": {"path": "/etc"}}, "A: workspace: a draft may not choose this field"),
        ({"emits": ["ready"]}, "A: emits: a draft may not choose this field"),
        (
            {"depends_on": ["api/B"]},
            "A: depends_on[0]: a draft may only depend on items of its own",
        ),
        (
            {"verifiers": [{"id": "command.subprocess", "argv": ["bash", "-c", "id"]}]},
            "A: verifiers[0].argv: a draft may not run 'bash'",
        ),
        (
            {"verifiers": [{"id": "loop.draft"}]},
            "A: verifiers[0].id: a draft may only use pytest.subprocess and command.subprocess",
        ),
        (
            {"verifiers": [{**check("True"), "network": ["a.example:80"]}]},
            "A: verifiers[0].network: a draft may not choose this option",
        ),
        (
            {"verifiers": [{**check("False"), "required": False}]},
            "A: verifiers[0].required: a draft may not choose this option",
        ),
        ({"verifiers": [check("True", role="guard")]}, "every verifier is a guard"),
    ],
)
def test_a_draft_carries_no_authority(
    fleet: CodingLoop, item: dict[str, Any], problem: str
) -> None:
    job_id = ask(fleet, spec(drafted("A", **item)), GOOD)
    fleet.run()
    first, *_ = view(fleet, job_id).attempts
    assert any(problem in each for each in first.problems), first.problems


@pytest.mark.parametrize(("items", "fields", "more"), [(30, 0, 10), (90, 3, 250), (2, 5000, 9980)])
def test_the_next_prompt_names_problems_one_by_one_and_says_how_many_more_there_are(
    fleet: CodingLoop, items: int, fields: int, more: int
) -> None:
    """Given many problems of one form, then none hides behind another one."""
    wrong = ({f"x{n}": 1 for n in range(fields)} for _ in range(items))
    many = [drafted(f"I{n}", f"GONE{n}", **each) for n, each in enumerate(wrong)]
    job_id = ask(fleet, spec(*many), ONE)
    fleet.run()
    told = (view(fleet, job_id).job.attempts[1].plan.prompt or "").split("Do this now:")[1]
    assert "\n20. " in told
    assert told.rstrip().endswith(f"and {more} more")


@pytest.mark.parametrize(
    ("item", "problem"),
    [
        ({"verifiers": [{"id": PYTEST, "args": ["../../etc/passwd"]}]}, "must stay inside"),
        ({"verifiers": [{"id": PYTEST, "args": ["/etc/passwd"]}]}, "must stay inside"),
        ({"verifiers": [{"id": PYTEST, "args": ["--rootdir=/"]}]}, "is not allowed"),
        ({"verifiers": [{**runs("input()"), "timeout": 1e999}]}, "not JSON"),
        ({"verifiers": [{**runs("import os; os.read(os.pipe()[0], 1)"), "timeout": 0.5}]},
         "does not end on the code base"),
        ({"title": "\x1b[31mred"}, "without control characters"),
        ({"id": "A\x1b]0;x\x07"}, "may contain only letters"),
        ({"prompt": "\ud800"}, "half a surrogate pair"),
        ({"touches": "[" * 1000}, "touches"),
    ],
)  # fmt: skip
def test_a_hostile_draft_is_only_corrected(
    fleet: CodingLoop, item: dict[str, Any], problem: str
) -> None:
    """Whatever a model answers, the next prompt says what is wrong in plain text."""
    job_id = ask(fleet, spec(drafted("A", **item)), ONE)
    fleet.run()
    found = view(fleet, job_id)
    said = found.attempts[0].problems
    assert any(problem in each for each in said), said
    assert not any("\x1b" in each for each in said)
    assert found.job.state == "succeeded"


def test_a_draft_of_too_many_items_or_a_huge_prompt_ends(fleet: CodingLoop) -> None:
    many = spec(*(drafted(f"I{n}") for n in range(2000)))
    job_id = ask(fleet, many, spec(drafted("A", prompt="x" * 1_000_000)))
    fleet.run()
    found = view(fleet, job_id)
    assert found.attempts[0].problems == ["there are 2000 items; at most 100 are allowed"]
    assert found.job.state == "succeeded"


@pytest.mark.parametrize("answer", ["no JSON", "[]", '{"items": []}', '{"items": 1}'])
def test_an_answer_that_is_no_spec_is_corrected(fleet: CodingLoop, answer: str) -> None:
    job_id = ask(fleet, answer, GOOD)
    fleet.run()
    found = view(fleet, job_id)
    assert found.attempts[0].problems
    assert found.job.state == "succeeded"


def test_a_request_is_refused_with_every_problem(fleet: CodingLoop) -> None:
    asked = draft.DraftRequest(goal=" ", loop=LoopConfig(name="x"))
    with pytest.raises(BadInput) as caught:
        draft.request_draft(fleet.services.loops, asked)
    assert [each.field for each in caught.value.problems] == ["goal", "loop.repo"]


def test_no_other_job_may_have_the_check_of_drafts(fleet: CodingLoop, tmp_path: Path) -> None:
    """Its loop may be created by itself, as the one who asks could not create it."""
    view_of = fleet.ledger.job(ask(fleet, GOOD))
    assert view_of is not None
    job, other = view_of.job, UserRepository.make(tmp_path / "other").path
    space = job.workspace
    assert space is not None
    decides = job.verifiers[-1]
    optional = decides.model_copy(update={"required": False})
    loop = {**decides.options["loop"], "setup": {"run": [["sh", "-c", "exit 1"]]}}
    changes: list[dict[str, Any]] = [
        {"workspace": space.model_copy(update={"git": str(other), "commit": None})},
        {"verifiers": (*job.verifiers[:-1], optional)},
        {"verifiers": job.verifiers[-1:]},
        {"verifiers": (*job.verifiers[:-1], decides.model_copy(update={"loop": loop}))},
        {"task_type": "other"},
    ]
    for change in changes:
        with pytest.raises(BadInput, match="belongs to drafts of loops alone"):
            submit_jobs(fleet.services.intake, [job.model_copy(update=change)])
