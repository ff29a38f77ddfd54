"""Settings: the environment (MULLIGAN_…) overrides mulligan.toml, which overrides the defaults.

A group of settings is a mixin in a module of this package: names stay flat for people, and a
function can take only its group (docs/decisions/0016).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import PrivateAttr, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from mulligan.policies.problem import Problem
from mulligan.policies.suggestions import did_you_mean
from mulligan.tasks.jobs.validation_errors import problem_of
from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.settings.alert_settings import AlertSettings
from mulligan.workers.settings.config_file import read_file
from mulligan.workers.settings.console_settings import ConsoleSettings
from mulligan.workers.settings.edit_settings import EditSettings
from mulligan.workers.settings.job_settings import (
    JobSettings,
    PatienceSettings,
    RepairLimitSettings,
)
from mulligan.workers.settings.ledger_settings import (
    ConnectionSettings,
    LeaseSettings,
    RetentionSettings,
    SizeSettings,
)
from mulligan.workers.settings.loop_settings import LoopSettings
from mulligan.workers.settings.pool_settings import PoolSettings
from mulligan.workers.settings.repository_settings import RepositorySettings
from mulligan.workers.settings.sandbox_settings import SandboxSettings
from mulligan.workers.settings.stuck_settings import StuckSettings
from mulligan.workers.settings.tenant_settings import TenantSettings


# Pydantic collects the fields of the last base first, so this is the order of
# docs/configuration.md from the bottom up.
class Settings(
    RepairLimitSettings,
    RepositorySettings,
    LoopSettings,
    EditSettings,
    AlertSettings,
    TenantSettings,
    ConsoleSettings,
    PoolSettings,
    PatienceSettings,
    StuckSettings,
    SandboxSettings,
    JobSettings,
    SizeSettings,
    RetentionSettings,
    LeaseSettings,
    ConnectionSettings,
    BaseSettings,
):
    """All settings. Each limit is enforced, and a test shows it."""

    model_config = SettingsConfigDict(
        env_prefix="MULLIGAN_", env_nested_delimiter="__", extra="forbid", frozen=True
    )

    _set_by_code: frozenset[str] = PrivateAttr(default=frozenset())

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        self._set_by_code = frozenset(values)

    @model_validator(mode="after")
    def _caches_outside_of_home(self) -> Settings:
        if self.repository_folder.resolve().is_relative_to(self.home.resolve()):
            raise ValueError("repository_cache must not be below home: programs never see home")
        return self

    @property
    def set_by_code(self) -> frozenset[str]:
        """The names of values set by code, which neither the environment nor the file changes."""
        return self._set_by_code

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - pydantic's signature
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - pydantic's signature
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, InitSettingsSource(settings_cls, read_file())


@dataclass(frozen=True)
class SettingProblem(Problem):
    """A problem of a setting."""

    def __str__(self) -> str:
        return f"setting {super().__str__()}"


def load_settings(**overrides: Any) -> Settings:
    """Load the settings. Raises BadInput with every bad value."""
    try:
        return Settings(**overrides)
    except ValidationError as error:
        raise BadInput(*map(_setting_problem, error.errors())) from None


def _setting_problem(item: Any) -> SettingProblem:
    # Our own messages need no value, and an address may contain a password.
    problem = problem_of(item, what="setting", show_value=item["type"] != "value_error")
    hint = ""
    if problem.code == "unknown_field":
        hint = did_you_mean(str(problem.path[-1]), Settings.model_fields)
    return SettingProblem(problem.message + hint, problem.path, problem.code)
