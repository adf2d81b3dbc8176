"""Command groups that import the module of a command only when it is used, so that help pages are fast.

To add a command, add a row to the group's table and a module with a typer application named ``app``.
"""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import typer
from typer.core import TyperGroup


@dataclass(frozen=True)
class Command:
    """A command of a group.

    Attributes:
        name: its name on the command line.
        module: the module that contains its ``app``, as named within `edl_workflows.pipelines.cli`.
        help: its line on the group's help page.
        group: whether ``app`` is a group (`edl local up`) rather than a module with a command of this name
            (`edl get`).
        extra: the extra to install if an import fails.
    """

    name: str
    module: str
    help: str
    group: bool = False
    extra: str = "controller"


class LazyGroup(TyperGroup):
    """A group that imports the module of a command when the command is used."""

    commands_table: tuple[Command, ...] = ()
    placeholders: tuple[tuple[str, str], ...] = ()
    """Names and help lines of commands that are handled elsewhere and only shown on the help page."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - the base class's signature
        """All names, in the order of the table."""
        return [command.name for command in self.commands_table] + [name for name, _ in self.placeholders]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command. For a help page or completion, only its name and help line."""
        command = next((command for command in self.commands_table if command.name == cmd_name), None)
        if command is None:
            text = dict(self.placeholders).get(cmd_name)
            return None if text is None else _placeholder(cmd_name, text)
        if getattr(ctx, "edl_listing", False):
            return _placeholder(command.name, command.help)
        return _load(command)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help page without importing any command."""
        ctx.edl_listing = True
        super().format_help(ctx, formatter)


def lazy_group(commands: Sequence[Command], placeholders: Sequence[tuple[str, str]] = ()) -> type[TyperGroup]:
    """Create the class of a group with these commands, for `typer.Typer(cls=...)`."""
    return type(
        "Group", (LazyGroup,), {"commands_table": tuple(commands), "placeholders": tuple(placeholders)}
    )


def _placeholder(name: str, text: str) -> Any:
    shown = typer.Typer(add_completion=False)
    shown.command(name, help=text)(lambda: None)
    command = typer.main.get_command(shown)
    command.name = name
    return command


def _load(command: Command) -> Any:
    app: typer.Typer = importlib.import_module(f"{__package__}.{command.module}").app
    group: Any = typer.main.get_group(app)
    if command.group:
        group.name = command.name
        return group
    return group.commands[command.name]
