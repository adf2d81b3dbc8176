"""Groups of commands whose modules are imported when a command is used, so that a help page costs what typer
costs.

A new command is a row of a group's table and a module with a typer application called ``app``.
"""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import typer
from typer.core import TyperGroup


@dataclass(frozen=True)
class Command:
    """One word after the group's name.

    Attributes:
        name: the word.
        module: where its ``app`` is.
        help: its line on the group's help page.
        group: whether the whole ``app`` is meant (`edl local up`), or its command of this name (`edl get`).
        extra: what to install where an import fails.
    """

    name: str
    module: str
    help: str
    group: bool = False
    extra: str = "controller"


class LazyGroup(TyperGroup):
    """A group that imports a command's module when the command is used."""

    commands_table: tuple[Command, ...] = ()
    placeholders: tuple[tuple[str, str], ...] = ()
    """Names and lines of commands that others handle, shown on the help page only."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - the base class's signature
        """All names, in the table's order."""
        return [row.name for row in self.commands_table] + [name for name, _ in self.placeholders]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command; for a help page or a completion only its name and line."""
        row = next((row for row in self.commands_table if row.name == cmd_name), None)
        if row is None:
            text = dict(self.placeholders).get(cmd_name)
            return None if text is None else _placeholder(cmd_name, text)
        if getattr(ctx, "edl_listing", False):
            return _placeholder(row.name, row.help)
        return _load(row)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The help page, without importing any command."""
        ctx.edl_listing = True
        super().format_help(ctx, formatter)


def lazy_group(commands: Sequence[Command], placeholders: Sequence[tuple[str, str]] = ()) -> type[TyperGroup]:
    """The class of a group with these commands, for `typer.Typer(cls=...)`."""
    return type(
        "Group", (LazyGroup,), {"commands_table": tuple(commands), "placeholders": tuple(placeholders)}
    )


def _placeholder(name: str, text: str) -> Any:
    shown = typer.Typer(add_completion=False)
    shown.command(name, help=text)(lambda: None)
    command = typer.main.get_command(shown)
    command.name = name
    return command


def _load(row: Command) -> Any:
    app: typer.Typer = importlib.import_module(row.module).app
    group: Any = typer.main.get_group(app)
    if row.group:
        group.name = row.name
        return group
    return group.commands[row.name]
