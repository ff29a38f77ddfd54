"""The maximum times of a job's parts, and whether each fits into one claim.

A claim ends at ``hard_limit``, the setting or the profile's own. Work that takes longer is lost and
done again, so a job that cannot fit is refused before its runner is called.
"""

from __future__ import annotations

from collections.abc import Sequence

from mulligan.policies.jobs.exemption import is_exempt
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
from mulligan.workers.settings.profile_pools import claim_limit, profile_pool

_SETTING = "MULLIGAN_HARD_LIMIT"


def answer_time(
    spec: RunnerSpec, runner: Runner, *, runners: RunnerRegistry, settings: Settings
) -> float:
    """Return the seconds that one answer of a runner may take. Raises BadInput.

    An explicit timeout must fit; the default ``runner_timeout`` is shortened to fit.
    """
    limit = claim_limit(spec.profile, settings)
    timeout, slack = defaults_of(runner).timeout, _slack(limit)
    if timeout is None:
        return min(settings.runner_timeout, limit - slack)
    overridden = "timeout" in spec.options
    if spec.profile is not None and overridden:
        _refuse_longer(timeout, spec.profile, runners, settings)
    if timeout > limit - slack:
        message = (
            f"{timeout:g} s and {slack:g} s of slack are more than hard_limit {limit:g} s;"
            f" lower it or raise {_limit_name(spec.profile, settings)}"
        )
        if spec.profile is not None and not overridden:
            where = f"[runners.{spec.profile}] of mulligan.toml: timeout"
            raise BadInput.at("runner.profile", f"{where}: {message}")
        raise BadInput.at("runner.timeout", message)
    return timeout


def _refuse_longer(timeout: float, name: str, runners: RunnerRegistry, settings: Settings) -> None:
    """Raise BadInput if a job's timeout exceeds its profile's: a job may not take a slot longer."""
    profile = runners.resolve(RunnerSpec(profile=name), allow_inline=settings.allow_inline)
    limit = defaults_of(profile).timeout or settings.runner_timeout
    if timeout > limit:
        message = (
            f"{timeout:g} s is more than the {limit:g} s of the profile {name!r}, which a job may"
            f" only lower; leave it out, or raise it in [runners.{name}] of mulligan.toml"
        )
        raise BadInput.at("runner.timeout", message, "not_allowed")


def _limit_name(profile: str | None, settings: Settings) -> str:
    """Return where the limit of a profile's claims is set."""
    if profile_pool(settings.runners.get(profile or "", {})) != "agent":
        return _SETTING
    return f"hard_limit in [runners.{profile}] of mulligan.toml, up to 4 h"


def _slack(limit: float) -> float:
    """Return the slack of a claim: at most half of it, so that time for the answer remains."""
    return min(SLACK, limit / 2)


def verifier_problem(verifier: Verifier, *, settings: Settings) -> Problem | None:
    """Return the problem of a slow verifier that takes too long for one claim.

    A verifier without a declared maximum is assumed to fit.
    """
    if not hasattr(verifier, "longest"):
        return None
    seconds = verification_time(verifier)
    if seconds <= settings.hard_limit:
        return None
    message = (
        f"this verification may take {seconds:g} s, more than hard_limit"
        f" {settings.hard_limit:g} s; lower it or raise {_SETTING}"
    )
    return Problem.at("timeout", message)


def recheck_problem(
    job: Job, verifiers: Sequence[Verifier], *, answer: float, settings: Settings
) -> Problem | None:
    """Return the problem of a delayed verification that takes too long: it is a single claim.

    Exempt types have no delayed verification.
    """
    if is_exempt(job.task_type, settings.exempt_task_types):
        return None
    asking = job.delayed_verification.mode == "reformulate"
    profile = job.runner.profile if asking else None
    limit, where = claim_limit(profile, settings), _limit_name(profile, settings)
    timed = [verifier for verifier in verifiers if hasattr(verifier, "longest")]
    seconds = recheck_time(timed, asking=answer + _slack(limit) if asking else 0.0)
    if seconds <= limit:
        return None
    message = (
        f"all its steps together may take {seconds:g} s, more than hard_limit {limit:g} s;"
        f" lower the timeouts or raise {where}"
    )
    return Problem.at("delayed_verification", message)
