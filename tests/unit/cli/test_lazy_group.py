"""The table of commands, and the group that imports a command only when it is used."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence

import pytest
from typer.testing import CliRunner

from mulligan.console.cli.command_table import COMMANDS
from mulligan.console.cli.lazy_group import CommandEntry, DeclaredCommand, GroupEntry
from mulligan.console.cli.main import create_cli

#: Prints the modules of mulligan that are loaded after `mulligan ARGV`.
_LOADED = """
import json, sys
from typer.testing import CliRunner
from mulligan.console.cli.main import create_cli
result = CliRunner().invoke(create_cli(), sys.argv[1:])
assert result.exit_code == 0, result.output
print(json.dumps([name for name in sys.modules if name.startswith("mulligan.")]))
"""


def entries(
    table: Sequence[CommandEntry | GroupEntry], path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], CommandEntry | GroupEntry]]:
    for entry in table:
        yield (*path, entry.name), entry
        if isinstance(entry, GroupEntry):
            yield from entries(entry.commands, (*path, entry.name))


COMMAND_ENTRIES = [
    pytest.param(path, entry, id=" ".join(path))
    for path, entry in entries(COMMANDS)
    if isinstance(entry, CommandEntry)
]


@pytest.mark.parametrize(("path", "entry"), COMMAND_ENTRIES)
def test_the_table_has_the_help_of_the_command(path: tuple[str, ...], entry: CommandEntry) -> None:
    command = DeclaredCommand(entry).load()
    assert command.name == entry.name
    assert (command.help or "").partition("\n")[0] == entry.help
    shown = CliRunner().invoke(create_cli(), [*path, "--help"])
    assert shown.exit_code == 0
    assert entry.help in " ".join(shown.output.split())


def test_lists_of_commands_show_the_help_in_full() -> None:
    groups = [path for path, entry in entries(COMMANDS) if isinstance(entry, GroupEntry)]
    for path in [(), *groups]:
        shown = CliRunner().invoke(create_cli(), [*path, "--help"], env={"COLUMNS": "80"})
        (_, _, listed) = shown.output.partition("Commands:")
        assert listed
        assert "..." not in listed, path


@pytest.mark.parametrize("argv", [["--help"], ["jobs", "--help"], ["edits", "review", "--help"]])
def test_help_of_a_group_imports_no_command(argv: list[str]) -> None:
    loaded = _modules_after(*argv)
    assert not [name for name in loaded if name.startswith("mulligan.console.cli.commands.")]
    # Every command hides its process and keeps its logs plain.
    own = ("mulligan.workers.sandbox.", "mulligan.workers.plain_logs")
    rooms = [name for name in loaded if re.match(r"mulligan\.workers\.\w+\.", name)]
    assert not [name for name in rooms if not name.startswith(own)]


def test_help_of_a_command_imports_only_that_command() -> None:
    loaded = _modules_after("jobs", "lint", "--help")
    assert "mulligan.console.cli.commands.lint" in loaded
    assert "mulligan.console.cli.commands.jobs" not in loaded


def _modules_after(*argv: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", _LOADED, *argv], capture_output=True, text=True, check=True
    )
    loaded: list[str] = json.loads(done.stdout)
    return loaded


def test_a_misspelled_command_gets_a_suggestion() -> None:
    result = CliRunner().invoke(create_cli(), ["jobs", "wotch"])
    assert result.exit_code == 2
    assert "Did you mean 'watch'" in result.output


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("mulligan ", ["init", "jobs", "doctor"]),
        ("mulligan jobs ", ["lint", "list", "show", "watch", "cancel"]),
        ("mulligan jobs lint --", ["--allow-inline", "--json"]),
    ],
)
def test_a_shell_completes_commands_and_their_options(typed: str, offered: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mulligan.console"],
        env={"_MULLIGAN_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": typed},
        capture_output=True,
        text=True,
        check=False,
    )
    for word in offered:
        assert word in done.stdout, done
