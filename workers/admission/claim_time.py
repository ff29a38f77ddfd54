"""How long the parts of a job may take, and whether each fits into one claim.

A claim ends at ``hard_limit``. Work that goes on after it is lost and done again, so what cannot
fit is refused before anybody is asked.
"""

from __future__ import annotations

from collections.abc import Sequence

from mulligan.policies.jobs.job import Job, RunnerSpec
from mulligan.policies.problem import Problem
from mulligan.tasks.jobs.attempt import SLACK
from mulligan.tasks.jobs.recheck import recheck_time
from mulligan.tasks.jobs.verify import verification_time
from mulligan.tasks.ports.errors import BadInput
from mulligan.tasks.ports.runners import Runner
from mulligan.tasks.ports.verifiers import Verifier
from mulligan.workers.runners.runner_options import defaults_of
from mulligan.workers.runners.runner_registry import RunnerRegistry
from mulligan.workers.settings.model import Settings

_FIX = "lower it or raise MULLIGAN_HARD_LIMIT"


def answer_time(
    spec: RunnerSpec, runner: Runner, *, runners: RunnerRegistry, settings: Settings
) -> float:
    """The seconds that one answer of a resolved runner may take, or BadInput.

    A timeout that somebody chose must fit as it is; ``runner_timeout`` is cut to what does.
    """
    own, slack = defaults_of(runner).timeout, _slack(settings)
    if own is None:
        return min(settings.runner_timeout, settings.hard_limit - slack)
    overridden = "timeout" in spec.options
    if spec.profile is not None and overridden:
        _only_lowered(own, spec.profile, runners, settings)
    if own > settings.hard_limit - slack:
        message = (
            f"{own:g} s and {slack:g} s of slack is more than hard_limit {settings.hard_limit:g} s;"
            f" {_FIX}"
        )
        if spec.profile is not None and not overridden:
            where = f"[runners.{spec.profile}] of mulligan.toml: timeout"
            raise BadInput.at("runner.profile", f"{where}: {message}")
        raise BadInput.at("runner.timeout", message)
    return own


def _only_lowered(own: float, name: str, runners: RunnerRegistry, settings: Settings) -> None:
    """Jobs carry no authority: how long a profile may keep a slot is for its owner to say."""
    profile = runners.resolve(RunnerSpec(profile=name), allow_inline=settings.allow_inline)
    given = defaults_of(profile).timeout or settings.runner_timeout
    if own > given:
        message = (
            f"{own:g} s is more than the {given:g} s of the profile {name!r}, which a job may only"
            f" lower; leave it out, or raise it in [runners.{name}] of mulligan.toml"
        )
        raise BadInput.at("runner.timeout", message, "not_allowed")


def _slack(settings: Settings) -> float:
    """A claim of less than two minutes leaves half of it to the answer."""
    return min(SLACK, settings.hard_limit / 2)


def verifier_problem(verifier: Verifier, *, settings: Settings) -> Problem | None:
    """What is wrong with the time that a slow verifier may take.

    One that does not say how long it takes is believed to fit.
    """
    if not hasattr(verifier, "longest"):
        return None
    seconds = verification_time(verifier)
    if seconds <= settings.hard_limit:
        return None
    message = (
        f"with it a verification may take {seconds:g} s, more than hard_limit"
        f" {settings.hard_limit:g} s; {_FIX}"
    )
    return Problem.at("timeout", message)


def recheck_problem(
    job: Job, verifiers: Sequence[Verifier], *, answer: float, settings: Settings
) -> Problem | None:
    """A delayed verification runs everything in one claim; a type that is exempt has none."""
    if job.task_type in settings.exempt_task_types:
        return None
    asking = job.delayed_verification.mode == "reformulate"
    said = [verifier for verifier in verifiers if hasattr(verifier, "longest")]
    seconds = recheck_time(said, asking=answer + _slack(settings) if asking else 0.0)
    if seconds <= settings.hard_limit:
        return None
    message = (
        f"everything it runs may take {seconds:g} s together, more than hard_limit"
        f" {settings.hard_limit:g} s; lower the timeouts or raise MULLIGAN_HARD_LIMIT"
    )
    return Problem.at("delayed_verification", message)
