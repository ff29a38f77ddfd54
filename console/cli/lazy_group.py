"""Commands that are declared by name and help, and imported only when they are used."""

from __future__ import annotations

import re
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


#: Words for the types that typer prints in help texts.
_WORDS = {"str": "TEXT", "path": "FILE", "int range": "NUMBER", "float range": "NUMBER"}
_TYPE = re.compile("<(.+)>")


class PlainHelpCommand(TyperCommand):
    """A command whose help uses the usual notation and does not show Python types."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:  # noqa: ARG002 - typer calls it
        return ["[OPTIONS]", *map(_usage_of, self._arguments())]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            cause: Any = error.__cause__
            if hasattr(cause, "errors"):
                # Imported here because only an error needs it.
                from mulligan.tasks.jobs.validation_errors import problem_of

                item = cause.errors()[0]
                error.message = problem_of(item, show_value=True).message.rstrip(".")
            raise

    def format_options(self, ctx: Any, formatter: Any) -> None:
        rows: dict[str, list[tuple[str, str]]] = {"argument": [], "option": []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                kind = param.param_type_name
                name = str(param.metavar) if kind == "argument" else _plain(record[0])
                rows[kind].append((name, record[1]))
        for kind, found in rows.items():
            if found:
                with formatter.section(f"{kind.capitalize()}s"):
                    formatter.write_dl(found)

    def _arguments(self) -> list[Any]:
        return [param for param in self.params if param.param_type_name == "argument"]


def _plain(option: str) -> str:
    return _TYPE.sub(lambda kind: _WORDS.get(kind[1], kind[1]), option)


def _usage_of(argument: Any) -> str:
    name = argument.metavar if argument.required else f"[{argument.metavar}]"
    return name if argument.nargs == 1 else f"{name}..."


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
        cli.command(self.entry.name, cls=PlainHelpCommand)(callback)
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
