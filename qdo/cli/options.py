"""Command-line options for settings; each command lists the settings that it uses."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import Annotated, Any

import typer

from qdo.cli import settings
from qdo.cli.opening import open_client, open_group
from qdo.cli.settings import CONFIG_VARIABLE, POSITIONAL, WorkSettings, load
from qdo.errors import QdoError
from queuey.client import ClientError
from queuey.settings.setting_values import Setting, SettingsError
from queuey.terminal.commands import (
    COMPLETION_TIMEOUT,
    JSON,
    MAX_COMPLETIONS,
    fill_first_argument,
    optional,
    safe_completions,
)
from queuey.terminal.struct_options import make_config_option, make_setting_option

COORDINATION = ("coordination",)
GROUP = ("group", *COORDINATION)
QUEUES = ("queue", "pattern")
_MAIN_SETTINGS = frozenset({*GROUP, *QUEUES, "claim", "processes", "threads", "attempts", "metrics"})
"""Settings at the top of the help of ``qdo work``."""


def _complete_queue_names(ctx: typer.Context, incomplete: str) -> list[str]:
    async def ask(settings: WorkSettings) -> Iterable[str]:
        async with open_client(settings, notice=None) as client:  # Notes would spoil the line.
            return (await client.name_page(start=incomplete or None, limit=MAX_COMPLETIONS)).names

    return _complete_names(ctx, ask)


def _complete_group_names(ctx: typer.Context) -> list[str]:
    async def ask(settings: WorkSettings) -> Iterable[str]:
        async with open_group(settings, "any") as coordinator:
            return await coordinator.groups()

    return _complete_names(ctx, ask)


def _complete_names(ctx: typer.Context, ask: Callable[[WorkSettings], Awaitable[Iterable[str]]]) -> list[str]:
    with suppress(ClientError, QdoError, SettingsError, TimeoutError):
        options = {name: ctx.params.get(name) for name in (*settings.SERVICE, *COORDINATION)}
        loaded = load(options, os.environ, ctx.params.get("config"))
        return safe_completions(asyncio.run(asyncio.wait_for(ask(loaded), COMPLETION_TIMEOUT)))
    return []


_COMPLETIONS: Mapping[str, Callable[..., Iterable[str]]] = {
    "queue": _complete_queue_names,
    "group": _complete_group_names,
}


def with_settings(*names: str, shows: bool = True) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Decorates a command, whose first parameter is the loaded settings, with options for some settings.

    All settings of the environment and the file are loaded, so that one file serves all commands.

    Args:
        names: Names of the settings with options.
        shows: Whether the command prints a result and so has ``--json``.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., None]:
        lines = settings.table()

        def fill(values: dict[str, Any]) -> WorkSettings:
            return load({name: values.pop(name) for name in names}, os.environ, values.pop("config"))

        parameters = [make_config_option(CONFIG_VARIABLE), *(_make_parameter(lines[name]) for name in names)]
        return fill_first_argument(command, fill, [*((JSON,) if shows else ()), *parameters])

    return decorate


def _make_parameter(setting: Setting) -> inspect.Parameter:
    if setting.name == POSITIONAL:
        argument = typer.Argument(help=setting.help.replace("`", ""), show_default=False)
        return optional(setting.name, Annotated[str | None, argument])
    panel = None if setting.name in _MAIN_SETTINGS else setting.group
    return make_setting_option(setting, panel, switch=True, complete=_COMPLETIONS.get(setting.name))
