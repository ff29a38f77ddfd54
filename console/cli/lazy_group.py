"""Commands that are declared by name and help, and imported only when they are used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command


@dataclass(frozen=True)
class CommandEntry:
    """A command: ``target`` is ``module:function``, the module below `mulligan.console.cli`."""

    name: str
    help: str
    target: str


@dataclass(frozen=True)
class GroupEntry:
    name: str
    help: str
    commands: tuple[CommandEntry | GroupEntry, ...]


class DeclaredCommand(TyperCommand):
    """A placeholder for a command in help texts and completions."""

    def __init__(self, entry: CommandEntry) -> None:
        super().__init__(name=entry.name, help=entry.help, rich_markup_mode=None)
        self.entry = entry

    def load(self) -> Any:
        """Import the module and return the command that its function declares."""
        module, _, function = self.entry.target.partition(":")
        callback = getattr(import_module(f"mulligan.console.cli.{module}"), function)
        cli = typer.Typer(
            add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
        )
        cli.command(self.entry.name)(callback)
        return get_command(cli)


class LazyGroup(TyperGroup):
    """A group of declared commands. Only the one that is resolved is loaded."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        if isinstance(command, DeclaredCommand):
            command = command.load()
        return name, command, rest


def declare(entries: Sequence[CommandEntry | GroupEntry]) -> dict[str, Any]:
    """Return the commands of a group, in the order of the table."""
    return {
        entry.name: DeclaredCommand(entry) if isinstance(entry, CommandEntry) else _group(entry)
        for entry in entries
    }


def _group(entry: GroupEntry) -> LazyGroup:
    return LazyGroup(
        name=entry.name,
        help=entry.help,
        commands=declare(entry.commands),
        no_args_is_help=True,
        rich_markup_mode=None,
    )
