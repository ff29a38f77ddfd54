"""The table of self-healing in docs/loops.md, one test per row and expectation.

Everything is real: the Redis, the worker processes, the repositories, the agents, the provider and
the receiver of alerts. Only the settings are shorter than the shipped ones.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.cli_process import new_shell
from support.coding_loop import (
    agent,
    check,
    check_passed_means_merged,
    coding_document,
    has_line,
    item,
    merges,
)
from support.flaky_provider import flaky_provider
from support.fleet import Fleet, running_fleet
from support.git_repositories import UserRepository, files_of
from support.inline_fleet import ADA
from support.loop_hosts import CONTROL, work_pool
from support.loops import document
from support.loops import item as plain_item
from support.waiting import wait_for
from support.webhook_receiver import Receiver, running_receiver

from mulligan.policies.loops.heal_record import HealRecord
from mulligan.policies.loops.health import ItemHealth
from mulligan.policies.loops.loop import LoopSnapshot
from mulligan.policies.loops.spec import LoopDocument
from mulligan.policies.regressions.bisect import most_steps
from mulligan.tasks.loops import heal
from mulligan.tasks.loops.change import create_loop, move
from mulligan.tasks.loops.monitor import check_health
from mulligan.tasks.loops.view import view_loop, why
from mulligan.tasks.ports.ledger import JobView, LiveItem

pytestmark = pytest.mark.real_models("command", "openai")

LEASE = 3.0
EVENTS = ("escalated", "breaker_opened", "out_of_credits", "loop_escalated", "loop_healed",
          "loop_regression")  # fmt: skip
#: An agent that does its items, but A only at a second try.
ONCE_WRONG = "write(f'{item}.txt', 'done\\n' if again or item != 'A' else 'half\\n')"
#: An agent that does A only after it was told about an earlier run.
NEEDS_ADVICE = """
told = "An earlier run of this task did not pass" in prompt
write(f'{item}.txt', 'done\\n' if told or item != 'A' else 'half\\n')
"""
#: An agent that never does A.
NEVER_A = "write(f'{item}.txt', 'half\\n' if item == 'A' else 'done\\n')"
#: An agent that does A only if it is told to go another way.
ANOTHER_WAY = """
way = "done" if "in another way" in prompt else "half"
write(f"{item}.txt", f"{way}\\n")
"""
#: An agent that stops itself and all its processes at its first try.
STOPS = """
import signal
write("half.txt", "half\\n")
if not again:
    os.killpg(0, signal.SIGSTOP)
write(f"{item}.txt", "done\\n")
"""
#: An agent that works until another one goes on with its work.
SLOW = """
if has("half.txt"):
    write(f"{item}.txt", "done\\n")
else:
    write("half.txt", "half\\n")
    time.sleep(60)
"""


@dataclass
class Healing:
    """A fleet of two workers and a control worker that all tests share, each with its own loop."""

    fleet: Fleet
    receiver: Receiver
    folder: Path
    made: int = 0

    def repository(self) -> UserRepository:
        self.made += 1
        return UserRepository.make(self.folder / f"user{self.made}")

    def start(self, made: LoopDocument) -> None:
        create_loop(self.fleet.services.loops, made, by="ada")
        move(self.fleet.services.loops, made.loop.name, "start", ADA)

    def code(self, name: str, *items: dict[str, Any], code: str, **config: Any) -> UserRepository:
        """Start a loop in a new repository."""
        user = self.repository()
        self.start(coding_document(user.path, *items, code=code, name=name, **config))
        return user

    def snapshot(self, name: str) -> LoopSnapshot:
        reading = self.fleet.ledger.read_loop(name)
        assert reading is not None
        return reading.snapshot

    def states(self, name: str) -> dict[str, str]:
        view = view_loop(self.fleet.services.loops, name)
        return {spec.id: view.state(spec.id) for spec in view.snapshot.specs}

    def wait(self, name: str, **states: str) -> None:
        """Wait until the items have these states."""
        self.wait_until(lambda: self.states(name) == states, f"{name} to be {states}")

    def wait_until(self, condition: Any, what: str) -> Any:
        def holds() -> Any:
            self.fleet.stack.watch()
            time.sleep(0.05)
            return condition()

        return wait_for(holds, what, seconds=90)

    def job(self, name: str, item: str = "A") -> JobView:
        view = self.fleet.ledger.job(self.snapshot(name).items[item].job_id)
        assert view is not None
        return view

    def heals(self, name: str, *actions: str) -> list[HealRecord]:
        """Return the healings of a loop, which must be of these actions."""
        found = list(self.snapshot(name).heals)
        assert [each.action for each in found] == list(actions)
        return found

    def live(self, name: str) -> LiveItem | None:
        """Return the item that a worker runs."""
        found = self.fleet.ledger.live_items()
        return next((each for each in found if each.loop == name and each.held), None)

    def health(self, name: str) -> Sequence[ItemHealth]:
        loops = self.fleet.services.loops
        return check_health(loops, view_loop(loops, name)).items

    def alert(self, event: str, **about: str) -> dict[str, Any]:
        """Wait for an alert and return it."""

        def found() -> dict[str, Any] | None:
            for body in list(self.receiver.bodies):
                if body["event"] == event and about.items() <= body.items():
                    return body
            return None

        alerted: dict[str, Any] = self.wait_until(found, f"the alert {event} {about}")
        return alerted

    def open_escalations(self) -> int:
        return sum(group.open for group in self.fleet.ledger.groups())

    def check_merged(self, name: str) -> None:
        """Check that an item of a loop has passed exactly if it is merged."""
        check_passed_means_merged(self.fleet.services.loops, self.snapshot(name))


@pytest.fixture(scope="module")
def healing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Healing]:
    folder = tmp_path_factory.mktemp("healing")
    config = folder / "mulligan.toml"
    with running_receiver() as receiver:
        hook = f"[[webhooks]]\nurl = {json.dumps(receiver.url)}\nevents = {json.dumps(EVENTS)}\n"
        config.write_text(hook)
        with running_fleet(
            folder / "fleet",
            pools=[CONTROL, work_pool(4, "one"), work_pool(4, "two")],
            environment={
                "MULLIGAN_CONFIG": str(config),
                "MULLIGAN_NO_MODELS": "except:command,openai",
            },
            lease=LEASE,
            max_claims=50,
            save_interval=1,
            loop_slots=8,
            stuck={"stopped": 2.0},
            repository_cache=folder / "cache",
        ) as fleet:
            yield Healing(fleet, receiver, folder)


# -- an item fails ---------------------------------------------------------------------------------


def test_an_item_that_fails_once_is_corrected_at_once(healing: Healing) -> None:
    user = healing.code("once", item("A"), item("B", "A"), code=ONCE_WRONG)
    healing.wait("once", A="passed", B="passed")
    _, second = healing.job("once").attempts
    assert second.plan.mode == "immediate_retry"
    assert "`grep -qsx done A.txt` failed with exit code 1" in (second.plan.prompt or "")
    healing.heals("once")  # none was necessary
    assert merges(user.path, "mulligan/once") == ["A", "B"]
    healing.check_merged("once")


def test_an_item_that_fails_three_times_is_analysed_and_done_in_another_way(
    healing: Healing,
) -> None:
    before = healing.open_escalations()
    healing.code("thrice", item("A"), item("B", "A"), code=NEEDS_ADVICE, auto_heal=True)
    healing.wait("thrice", A="passed", B="passed")
    (done,) = healing.heals("thrice", "change_strategy")
    assert "All 3 attempts failed in the same way" in done.reason
    assert healing.alert("loop_healed", loop="thrice")["action"] == "change_strategy"
    assert healing.open_escalations() == before  # what was healed needs nobody
    healing.check_merged("thrice")


def test_what_nothing_heals_is_escalated_with_an_analysis(healing: Healing) -> None:
    """Then one command does what the analysis suggests."""
    part = {"title": "", "prompt": "Item part.", "verifiers": [has_line("part.txt", "done")]}
    draft = json.dumps({"first": part, "second": {"title": "", "prompt": "Item A: the rest."}})
    code = f"""
if "Split it into two smaller tasks" in prompt:
    print({draft!r}); sys.exit()
too_large = item == "A" and not has("part.txt")
write(f"{{item}}.txt", "half\\n" if too_large else "done\\n")
"""
    whole = item("A", verifiers=[has_line("part.txt", "done"), has_line("A.txt", "done")])
    healing.code(
        "never", whole, item("B", "A"), code=code, auto_heal=["change_strategy", "escalate"]
    )
    told = healing.alert("loop_escalated", loop="never")
    assert (told["item"], told["action"]) == ("A", "escalate")
    healing.wait("never", A="failed", B="blocked")
    tried, escalated = healing.heals("never", "change_strategy", "escalate")
    assert (tried.outcome, escalated.parameter) == ("failed", "a person")
    advice = escalated.advice
    assert "All 3 attempts failed in the same way" in advice
    assert "change_strategy (fresh context)" in advice.partition("Tried so far: ")[2]
    command = advice.partition("Suggested: ")[2]
    assert command == "mulligan loops heal never A --action split"
    environment = {
        "MULLIGAN_BROKER_URL": healing.fleet.server.url,
        "MULLIGAN_ALLOW_INLINE": "true",
    }
    with new_shell(**environment) as shell:
        shell.invoke(*shlex.split(command)[1:])
    healing.wait("never", **{"A": "skipped", "A.1": "passed", "A.2": "passed", "B": "passed"})


# -- a dependency is blocked -----------------------------------------------------------------------


def test_a_blocked_dependency_is_healed_so_that_its_dependents_run(healing: Healing) -> None:
    """Given a loop that does not heal by itself, when an orchestrator repairs the chain."""
    user = healing.code("chain", item("A"), item("B", "A"), item("C", "B"), code=NEEDS_ADVICE)
    healing.wait("chain", A="failed", B="blocked", C="blocked")
    (done,) = heal.repair_dependency_chain(healing.fleet.services.loops, "chain", ADA)
    assert (done.item, done.action, done.by) == ("A", "change_strategy", "ada")
    healing.wait("chain", A="passed", B="passed", C="passed")
    assert merges(user.path, "mulligan/chain") == ["A", "B", "C"]


def test_dependents_are_rerouted_around_what_cannot_be_healed(healing: Healing) -> None:
    user = healing.code(
        "reroute",
        item("P"),
        item("A", "P"),
        item("B", "A"),
        code=NEVER_A,
        auto_heal=["repair_dependency_chain"],
        on_blocked="reroute",
    )
    healing.wait("reroute", P="passed", A="failed", B="passed")
    done, told = healing.heals("reroute", "repair_dependency_chain", "escalate")
    assert done.result == "B go on without it"
    assert told.parameter == "a person"
    assert merges(user.path, "mulligan/reroute") == ["P", "B"]


# -- the model's provider --------------------------------------------------------------------------


def test_a_loop_backs_off_from_a_provider_that_fails_and_goes_on_when_it_is_back(
    healing: Healing,
) -> None:
    names = ["A", "B", "C"]
    with flaky_provider(500, 529) as provider:
        healing.start(document(*map(plain_item, names), name="errors", runner=provider.runner))
        told = healing.alert("breaker_opened", provider=provider.name)
        assert told["text"].startswith(f"the breaker of {provider.name} opened")
        assert healing.fleet.ledger.breakers.all()[provider.name].faults >= 5
        assert why(healing.fleet.services.loops, "errors", "A").cause == "provider"
        provider.fails = False
        healing.wait("errors", **dict.fromkeys(names, "passed"))
        answers = provider.answers
    views = [healing.job("errors", each) for each in names]
    assert [len(view.attempts) for view in views] == [1, 1, 1]  # faults cost no attempt
    assert sum(view.attempts[0].faults for view in views) == len(answers) - len(names)
    assert set(answers) == {200, 500, 529}


def test_a_loop_without_credits_waits_and_goes_on(healing: Healing, tmp_path: Path) -> None:
    before = healing.open_escalations()
    account = tmp_path / "account"
    account.mkdir()
    code = f"""
if not has({str(account / "paid")!r}):
    sys.exit(75)
write(f"{{item}}.txt", "done\\n")
"""
    runner = agent(code, provider="trial", read=[str(account)], out_of_credits_exit_codes=[75])
    user = healing.code("credits", item("A"), item("B"), code="", runner=runner, auto_heal=True)
    told = healing.alert("out_of_credits", provider="trial")
    assert told["text"] == "trial is out of credits: its jobs wait"
    healing.wait("credits", A="waiting", B="waiting")
    loops = healing.fleet.services.loops
    assert why(loops, "credits", "A").cause == "provider"
    assert healing.open_escalations() == before
    (account / "paid").touch()
    healing.fleet.ledger.resume("provider:trial")
    healing.wait("credits", A="passed", B="passed")
    assert [len(healing.job("credits", each).attempts) for each in "AB"] == [1, 1]
    healing.heals("credits")
    assert sorted(merges(user.path, "mulligan/credits")) == ["A", "B"]


# -- a loop hangs ----------------------------------------------------------------------------------


def test_an_agent_that_is_stopped_is_ended_and_runs_again(healing: Healing) -> None:
    user = healing.code("stopped", item("A"), code=STOPS)

    def shown() -> ItemHealth | None:
        return next((each for each in healing.health("stopped") if each.stopped), None)

    health = healing.wait_until(shown, "health to say that the agent is stopped")
    assert (health.item, health.status, health.missing) == ("A", "degraded", "progress")
    healing.wait("stopped", A="passed")
    first, second = healing.job("stopped").attempts
    assert first.output is not None
    assert "stopped by a signal" in (first.output.ended or "")
    assert second.plan.mode == "immediate_retry"
    assert files_of(user.path, "mulligan/stopped").keys() >= {"A.txt", "half.txt"}
    healing.check_merged("stopped")


def test_an_item_of_a_frozen_worker_runs_elsewhere(healing: Healing) -> None:
    name = "frozen"
    user = healing.code(name, item("A"), code=SLOW)
    kept = f"refs/mulligan/attempts/{name}"
    healing.wait_until(lambda: user.git("for-each-ref", kept), "the work to be saved")
    live = healing.live(name)
    assert live is not None
    process = int(live.worker.rpartition(":")[2])
    os.kill(process, signal.SIGSTOP)
    try:

        def lease_is_missing() -> bool:
            found = healing.live(name)
            renewed = found.renewed_at if found and found.worker == live.worker else None
            return renewed is not None and healing.fleet.ledger.now() - renewed > LEASE / 2

        healing.wait_until(lease_is_missing, "the lease to be missing")
        healing.wait(name, A="passed")
    finally:
        os.kill(process, signal.SIGCONT)
    (attempt,) = healing.job(name).attempts  # a lost worker costs no attempt
    assert attempt.worker != live.worker
    assert files_of(user.path, f"mulligan/{name}")["half.txt"][1] == b"half\n"  # what was saved
    assert merges(user.path, f"mulligan/{name}") == ["A"]
    healing.check_merged(name)


# -- the same error again --------------------------------------------------------------------------


def test_an_error_that_loops_had_before_is_met_in_another_way(healing: Healing) -> None:
    """Given three loops whose plain correction did not help, then a fourth begins with what did."""
    names = ["first", "second", "third"]
    # Other tests have taught the fleet something about the check of other items.
    own = item("A", verifiers=[check("read('A.txt') == 'done\\n'")])
    for name in names:
        healing.code(name, own, code=ANOTHER_WAY)
    for name in names:
        healing.wait(name, A="passed")
    plain = healing.job("first").attempts[1].plan.technique
    for name in names:
        tried = [each.plan.technique for each in healing.job(name).attempts]
        assert tried == [None, plain, f"{plain}+fresh_context"]
    healing.code("fourth", own, code=ANOTHER_WAY)
    healing.wait("fourth", A="passed")
    learned = healing.job("fourth").attempts
    assert [each.plan.technique for each in learned] == [None, f"{plain}+fresh_context"]
    assert learned[1].plan.mode == "immediate_retry"


# -- a merge breaks what had passed ----------------------------------------------------------------

#: An agent whose item C breaks the file of A, which repairs it when it is told.
BREAKS_A = """
write(f"{item}.txt", "done\\n")
if item == "C" and "Regression:" not in prompt:
    write("A.txt", "broken\\n")
"""


def test_what_a_merge_broke_is_found_blamed_and_repaired(healing: Healing) -> None:
    """Given a merge among others that breaks an item, then nobody has to do anything."""
    items = [item("A"), item("B", "A"), item("C", "B"), item("D", "C"), item("E", "D")]
    user = healing.code("regress", *items, code=BREAKS_A)
    alert = healing.alert("loop_regression", loop="regress", status="repaired")
    assert (alert["item"], alert["culprit_item"]) == ("A", "C")
    (found,) = healing.snapshot("regress").loop.regressions.found
    assert found.culprit_item == "C"
    assert found.steps <= most_steps(found.commits)
    healing.wait("regress", **dict.fromkeys("ABCDE", "passed"))
    done = merges(user.path, "mulligan/regress")
    assert done[:3] == ["A", "B", "C"]
    assert done.count("A") == 2
    assert files_of(user.path, "mulligan/regress")["A.txt"][1] == b"done\n"
