"""Building blocks of command lines: groups that import a command when it is run, and parameters."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

from queuey.terminal import fail, say, wants_json


class LazyGroup(TyperGroup):
    """A group that imports a command only when it is run. Subclasses have a table of their commands."""

    LISTED: ClassVar[Mapping[str, str]] = {}
    """The commands in the order shown, each with its line in the list."""
    MODULES: ClassVar[Mapping[str, str]] = {}
    """Where each is: ``package.module:attribute``."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 - whatever typer hands on
        super().__init__(**options)
        self.commands = {name: TyperCommand(name=name, help=text) for name, text in self.LISTED.items()}

    def main(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401 - typer's
        if not wants_json():
            return super().main(*args, **options)
        try:
            sys.exit(super().main(*args, **options | {"standalone_mode": False}))
        except typer.TyperException as error:
            fail(error.format_message(), "InvalidArgument")
            sys.exit(2)
        except typer.Abort:
            sys.exit(1)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:  # noqa: ANN401 - typer's
        name, stub, rest = super().resolve_command(ctx, args)
        return name, stub if name is None else self.load(name), rest

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 - typer's
        """Names the value in errors that typer finds."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            for detail in getattr(error.__cause__, "errors", list)()[:1]:
                value = repr(detail["input"])
                if value not in error.message:
                    error.message = f"{error.message}; {value} is given"
            raise

    @classmethod
    def load(cls, name: str) -> Any:  # noqa: ANN401 - a command of typer's
        module, _, attribute = cls.MODULES[name].partition(":")
        command = typer.main.get_command(getattr(importlib.import_module(module), attribute))
        command.name = name
        return command


def command_line(program: str, commands: type[LazyGroup], *, release: str, about: str) -> typer.Typer:
    """Returns the root of a command line, which has ``--version``.

    Args:
        program: Its name.
        commands: What it can do.
        release: What ``--version`` says.
        about: The first line of its help.
    """
    app = typer.Typer(
        name=program,
        cls=commands,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    def say_version(wanted: bool) -> None:  # noqa: FBT001 - what typer hands on
        if wanted:
            say(f"{program} {release}")
            raise typer.Exit

    option = typer.Option(
        False,  # noqa: FBT003 - the default
        "--version",
        callback=say_version,
        is_eager=True,
        help="Show the version and exit.",
    )

    @app.callback(help=about)
    def _root(version: bool = option) -> None:  # noqa: FBT001 - an option
        pass

    return app


def optional(name: str, annotation: Any) -> inspect.Parameter:  # noqa: ANN401 - a type with an option of typer's
    """Returns a parameter whose default is None."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def with_parameters(
    run: Callable[..., None], command: Callable[..., None], parameters: Iterable[inspect.Parameter]
) -> Callable[..., None]:
    """Makes a function the command that users call: it takes these parameters, by keyword, and has the command's help.

    Args:
        run: Calls the command; it is returned.
        command: Does the work.
        parameters: In the order of the help.
    """
    keyword = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    run.__doc__ = command.__doc__
    run.__signature__ = inspect.Signature(keyword)  # type: ignore[attr-defined]
    return run
