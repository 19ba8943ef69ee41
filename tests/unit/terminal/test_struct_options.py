"""Options of commands that are declared by a struct."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import msgspec
import pytest
import typer

from queuey.terminal.struct_options import option, read_descriptions, with_fields


class Options(msgspec.Struct, kw_only=True):
    """What a command may be asked for.

    Attributes:
        place: Where things are,
            on this machine.
        span (1h): How long.
        whole: How many seconds.
        most: How many.
        names: Whose.
        again: Do it again.
        careful: Look twice.
        inner: For programs only.
    """

    place: Annotated[str, option(argument=True)]
    span: Annotated[float, option("--for", seconds=True, le=7200)] = 3600.0
    whole: Annotated[int | None, option(seconds=True)] = None
    most: Annotated[int, option(ge=1, le=5)] = 2
    names: Annotated[tuple[str, ...], option("--name")] = ()
    again: Annotated[bool, option()] = False
    careful: Annotated[bool, option()] = True
    inner: int = 7


Ask = Callable[..., Options]


@pytest.fixture
def ask() -> Ask:
    """Returns a function that runs a command with arguments, and returns the options that it was given."""

    @with_fields(Options)
    def command(prefix: str, fields: dict[str, Any]) -> None:
        made.append(Options(**fields))

    made: list[Options] = []
    app = typer.Typer(add_completion=False)
    app.command()(command)

    def run(*arguments: str) -> Options:
        typer.main.get_command(app)(["x", *arguments], standalone_mode=False)
        return made[-1]

    return run


def test_what_is_not_given_is_the_default_of_the_field(ask: Ask) -> None:
    """A missing option, or a field without one, has the default of the field."""
    assert ask("here") == Options(place="here")


def test_values_have_the_type_of_the_field(ask: Ask) -> None:
    """Durations have units, lists become tuples, switches work in both directions."""
    arguments = [
        "--for",
        "90m",
        "--whole",
        "2m",
        "--most",
        "5",
        "--name",
        "a",
        "--name",
        "b",
        "--again",
        "--no-careful",
    ]
    made = ask("here", *arguments)
    want = Options(place="here", span=5400.0, whole=120, most=5, names=("a", "b"), again=True, careful=False)
    assert made == want


@pytest.mark.parametrize("arguments", [["--for", "3h"], ["--whole", "1.5s"], ["--most", "6"], ["--most", "0"], []])
def test_bounds_are_those_of_the_field(ask: Ask, arguments: list[str]) -> None:
    """A value out of bounds, and a missing required value, are wrong usage."""
    with pytest.raises(typer.TyperException):
        ask(*(["here", *arguments] if arguments else []))


def test_help_is_in_the_docstring() -> None:
    """A description may have several lines; brackets behind the name are the default in words."""
    described = read_descriptions(Options)
    assert described["place"] == ("", "Where things are, on this machine.")
    assert described["span"] == ("1h", "How long.")
