"""Building blocks of command lines: groups that import a command only when it runs, and parameters."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from queuey.terminal.output import FAILED, WRONG_USAGE, choose_json, is_json_in_argv, print_error, print_line

MAX_COMPLETIONS, COMPLETION_TIMEOUT = 100, 1.0
"""Max names that are offered for completion; timeout for them, in seconds."""
_SAFE_NAME = re.compile(r"[A-Za-z0-9_.@][A-Za-z0-9_.@+-]*")
MAX_TOP_OPTIONS = 10
"""Max options at the top of a command's help; the others follow in a panel below."""
_JSON = typer.Option("--json", help="Print JSON and nothing else on standard output.", callback=choose_json)
JSON = inspect.Parameter("json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, _JSON])
"""The option that makes :func:`queuey.terminal.output.show` print JSON. Commands do not receive it."""


def safe_completions(names: Iterable[str]) -> list[str]:
    """Returns the names that are safe for completion: a shell might run what others wrote into a name."""
    return list(filter(_SAFE_NAME.fullmatch, names))


def make_group() -> typer.Typer:
    return typer.Typer(no_args_is_help=True, add_completion=False)


class LazyGroup(TyperGroup):
    """A group that imports a command only when it runs. Subclasses have a table of their commands.

    A command is a function or a group of typer's. Beyond :data:`MAX_TOP_OPTIONS`, its options move to a panel below.
    With ``--json``, it reports wrong usage as a JSON document.
    """

    PACKAGE: ClassVar[str] = ""
    COMMANDS: ClassVar[Mapping[str, tuple[str, str]]] = {}
    """Maps each command, in the order shown, to ``module:attribute`` in the package and its line in the help."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 - whatever typer hands on
        super().__init__(**options)
        self.commands = {name: TyperCommand(name=name, help=text) for name, (_, text) in self.COMMANDS.items()}

    def main(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401 - typer's
        if not is_json_in_argv():
            return super().main(*args, **options)
        try:
            sys.exit(super().main(*args, **options | {"standalone_mode": False}))
        except typer.TyperException as error:
            print_error(error.format_message(), "InvalidArgument", WRONG_USAGE)
            sys.exit(WRONG_USAGE)
        except typer.Abort:
            sys.exit(FAILED)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:  # noqa: ANN401 - typer's
        name, stub, rest = super().resolve_command(ctx, args)
        return name, stub if name is None else self.load(name), rest

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 - typer's
        """Adds the given value to errors of typer that lack it, and removes a prefix without a meaning."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix("Value error, ")
            for detail in getattr(error.__cause__, "errors", list)()[:1]:
                value = repr(detail["input"])
                if value not in error.message:
                    error.message = f"{error.message}; {value} is given"
            raise

    @classmethod
    def load(cls, name: str) -> Any:  # noqa: ANN401 - a command of typer's
        place, text = cls.COMMANDS[name]
        module, _, attribute = place.partition(":")
        app = getattr(importlib.import_module(f"{cls.PACKAGE}.{module}"), attribute)
        if not isinstance(app, typer.Typer):
            run, app = app, typer.Typer(add_completion=False)
            app.command()(run)
        command = typer.main.get_command(app)
        command.name, shown = name, [command]
        if isinstance(command, TyperGroup):
            command.help, shown = text, [*command.commands.values()]
        for subcommand in shown:
            _move_further_options(subcommand)
        return command


def _move_further_options(command: Any) -> None:  # noqa: ANN401 - a command of typer's
    options = [option for option in command.params if isinstance(option, TyperOption) and not option.hidden]
    own = [option for option in options if option.rich_help_panel is None]
    others = [option for option in own if option.name != JSON.name]
    for option in others[MAX_TOP_OPTIONS - len(own) + len(others) :]:
        option.rich_help_panel = "More options"


def command_line(program: str, commands: type[LazyGroup], *, release: str, about: str) -> typer.Typer:
    """Returns the root of a command line, which has ``--version``.

    Args:
        program: Name of the program.
        commands: The group of its commands.
        release: The version that ``--version`` prints.
        about: The first line of the help.
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
            print_line(f"{program} {release}")
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
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def name_and_value(text: str, form: str, option: str, *, empty: bool = False) -> tuple[str, str]:
    """Splits the value of an option at ``=``; with ``empty`` the second part may be empty.

    Raises:
        typer.BadParameter: The text does not have the form ``NAME=VALUE``.
    """
    name, equals, value = text.partition("=")
    if not (name and equals and (value or empty)):
        raise typer.BadParameter(f"{text!r} is not {form}", param_hint=option)
    return name, value


def fill_first_argument(
    command: Callable[..., Any], fill: Callable[[dict[str, Any]], Any], parameters: Iterable[inspect.Parameter]
) -> Callable[..., None]:
    """Adds parameters to a command, and makes its first argument of their values.

    Args:
        command: Does the work; may be a coroutine function.
        fill: Removes the values of these parameters from all values, and returns the argument.
        parameters: The parameters to add.
    """
    first, *own = inspect.signature(command, eval_str=True).parameters.values()

    def run(**values: Any) -> None:  # noqa: ANN401 - the parameters of any command
        values.pop(JSON.name, None)
        done = command(**{first.name: fill(values)}, **values)
        if inspect.iscoroutine(done):
            import asyncio

            asyncio.run(done)

    return with_parameters(run, command, [*own, *parameters])


def with_json(command: Callable[..., None]) -> Callable[..., None]:
    """Adds ``--json`` to a command, which does not receive it."""

    def run(**values: Any) -> None:  # noqa: ANN401 - the parameters of any command
        del values[JSON.name]
        command(**values)

    return with_parameters(run, command, [*inspect.signature(command, eval_str=True).parameters.values(), JSON])


def with_parameters(
    run: Callable[..., None], command: Callable[..., None], parameters: Iterable[inspect.Parameter]
) -> Callable[..., None]:
    """Sets the signature and help of a function that users call as a command. All parameters become keyword-only.

    Args:
        run: The function, which calls ``command``; it is returned.
        command: Does the work, and has the help.
        parameters: The parameters, in the order of the help.
    """
    keyword = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    run.__doc__ = command.__doc__
    run.__signature__ = inspect.Signature(keyword)  # type: ignore[attr-defined]
    return run
