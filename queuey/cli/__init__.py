"""The command line.

Each command's module is imported when that command runs, so that ``queuey --help`` stays quick.

Exit codes: 0 success, 1 failure, 2 wrong usage or settings; ``queuey serve`` has further ones (see docs/cli.md).
Results go to standard output, notes, progress and errors to standard error.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from queuey.cli import output
from queuey.errors import QueueyError

__all__ = ["main"]

COMMANDS = {
    "serve": "Serve. Needs nothing: the first start makes the store, a key and a profile for the client.",
    "migrate": "Prepare the keyspace of a Cassandra store, or bring it up to date.",
    "doctor": "Check the store: what it rests on, and what its promises are worth.",
    "settings": "Show every setting, its value and where that comes from.",
    "send": "Send messages: arguments, standard input, or the lines of a file, however long it is.",
    "read": "Read messages by time, all partitions merged. Nothing is removed.",
    "tail": "Follow a queue live.",
    "queue": "Create, list, update, delete and purge queues.",
    "offsets": "Show and set how far consumer groups have processed a queue.",
    "app": "Manage applications and their keys, on the store itself.",
}
"""The commands in the order shown, each with its line in the list."""

_MODULES = {
    "serve": "serving:serve_app",
    "migrate": "migrating:app",
    "doctor": "doctor:app",
    "settings": "serving:settings_app",
    "send": "sending:app",
    "read": "reading:read_app",
    "tail": "reading:tail_app",
    "queue": "queues:app",
    "offsets": "offsets:app",
    "app": "apps:app",
}


class LazyGroup(TyperGroup):
    """Lists the commands from ``COMMANDS`` and imports the one that is run."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 - whatever typer hands on
        super().__init__(**options)
        self.commands = {name: TyperCommand(name=name, help=text) for name, text in COMMANDS.items()}

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:  # noqa: ANN401 - typer's
        """Finds the command that the arguments name, and loads it."""
        name, stub, rest = super().resolve_command(ctx, args)
        return name, stub if name is None else load(name), rest


def load(name: str) -> Any:  # noqa: ANN401 - a command of typer's
    """Imports a command's module and returns the command."""
    module, _, attribute = _MODULES[name].partition(":")
    command = typer.main.get_command(getattr(importlib.import_module(f"queuey.cli.{module}"), attribute))
    command.name = name
    return command


app = typer.Typer(
    name="queuey",
    cls=LazyGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _root() -> None:
    """A partitioned message store behind a REST API."""


def main() -> None:
    """Runs the command line and ends the process."""
    code: int | str | None = 1
    try:
        app()
    except SystemExit as ended:
        code = ended.code
    except QueueyError as error:
        output.note(f"queuey: {output.printable(str(error))}")
        code = 2 if error.code == "InvalidArgument" else 1
    finally:
        output.close_quietly()
    sys.exit(code)
