"""Settings as options: a command names those that it uses."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from qdo.cli import settings
from qdo.cli.loading import CONFIG, load
from qdo.cli.settings import WorkSetting
from queuey.terminal.commands import optional, with_parameters

MEETING = ("coordination",)
"""Where groups meet."""
GROUP = ("group", *MEETING)
"""Which group."""
QUEUES = ("queue", "pattern")
"""Which queues."""


def with_settings(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command, whose first parameter is the settings in force, options for some of them.

    Settings of the environment and the file are in force too, so that one file serves all commands.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        first, *own = inspect.signature(command, eval_str=True).parameters.values()
        lines = settings.table()

        def run(**values: Any) -> None:  # noqa: ANN401 - the options of any command
            config = values.pop("config")
            chosen = {name: values.pop(name) for name in names}
            command(**{first.name: load(chosen, os.environ, config)}, **values)

        return with_parameters(run, command, [*own, *_parameters(lines[name] for name in names)])

    return decorate


def _parameters(lines: Iterable[WorkSetting]) -> list[inspect.Parameter]:
    file = typer.Option("--config", help="TOML file with settings.", show_default=f"${CONFIG}")
    parameters = [optional("config", Annotated[Path | None, file])]
    for line in lines:
        several, switch = line.type == "texts", line.kind is bool
        if line.positional:
            argument = typer.Argument(help=line.help.replace("`", ""), show_default=False)
            parameters.append(optional(line.name, Annotated[str | None, argument]))
            continue
        option = typer.Option(
            f"{line.option}/--no-{line.name}" if switch else line.option,
            help=line.help.replace("`", ""),
            metavar=None if switch else line.name.upper(),
            show_default=line.default or False,
            rich_help_panel=line.panel,
        )
        kind: Any = list[str] | None if several else bool | None if switch else str | None
        parameters.append(optional(line.name, Annotated[kind, option]))
    return parameters
