"""Groups of commands whose modules are imported when they are run, so that ``--help`` stays quick."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup


class LazyGroup(TyperGroup):
    """Lists its commands from a table and imports the one that is run. Subclasses say which there are."""

    LISTED: ClassVar[Mapping[str, str]] = {}
    """The commands in the order shown, each with its line in the list."""
    MODULES: ClassVar[Mapping[str, str]] = {}
    """Where each is: ``package.module:attribute``."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 - whatever typer hands on
        super().__init__(**options)
        self.commands = {name: TyperCommand(name=name, help=text) for name, text in self.LISTED.items()}

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:  # noqa: ANN401 - typer's
        """Finds the command that the arguments name, and loads it."""
        name, stub, rest = super().resolve_command(ctx, args)
        return name, stub if name is None else self.load(name), rest

    @classmethod
    def load(cls, name: str) -> Any:  # noqa: ANN401 - a command of typer's
        """Imports a command's module and returns the command."""
        module, _, attribute = cls.MODULES[name].partition(":")
        command = typer.main.get_command(getattr(importlib.import_module(module), attribute))
        command.name = name
        return command
