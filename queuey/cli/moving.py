"""``queuey queue move`` and what shows, follows and cancels moves."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from queuey import time_parsing
from queuey.cli.service_options import connected, queue_names
from queuey.terminal import output
from queuey.terminal.bars import bar
from queuey.terminal.output import Json
from queuey.terminal.texts import plural

if TYPE_CHECKING:
    from queuey.client import Client, Moving
    from queuey.client.results import Move

Identifier = Annotated[str, typer.Argument(help="Id of the move.", show_default=False)]
_COLUMNS = ["move", "from", "to", "state", "moved", "of about", "left", "began"]


@connected
def move(
    client: Client,
    source: Annotated[str, typer.Argument(metavar="FROM", help="Queue that is emptied.", autocompletion=queue_names)],
    target: Annotated[
        str, typer.Argument(metavar="TO", help="Queue that gets the messages.", autocompletion=queue_names)
    ],
    detach: Annotated[bool, typer.Option("--detach", help="Do not wait for the end.")] = False,
    json: Json = False,
) -> None:
    """Move the messages that a queue has now to another one. The service does it, also when this command ends."""
    moving = client.move(source, target)
    if detach:
        _say(moving.show(), json=json)
    else:
        _follow(moving, json=json)


@connected
def follow(client: Client, move: Identifier, json: Json = False) -> None:
    """Follow a move to its end."""
    _follow(client.moving(move), json=json)


@connected
def cancel(client: Client, move: Identifier, json: Json = False) -> None:
    """Cancel a move: what was moved stays in the target, the rest in the source."""
    _say(client.moving(move).cancel(), json=json)


@connected
def moves(client: Client, json: Json = False) -> None:
    """List moves, the newest first; with --json one a line."""
    output.listed(_COLUMNS, client.moves(), _row, json=json)


def _follow(moving: Moving, *, json: bool) -> None:
    try:
        with bar() as move_bar:
            found = moving.wait(told=partial(_show, move_bar))
    except KeyboardInterrupt:
        output.note(f"Move {moving.id} goes on. Follow it: queuey queue follow-move {moving.id}")
        output.note(f"Cancel it: queuey queue cancel-move {moving.id}")
        raise
    _say(found, json=json)
    if found.state != "done":
        raise typer.Exit(1)


def _show(move_bar: Callable[[str, int, int | None], None], found: Move) -> None:
    move_bar(f"{found.source} to {found.target}", found.moved, found.total)


def _say(found: Move, *, json: bool) -> None:
    if json:
        output.emit(found)
        return
    text = f"Move {found.id} from {found.source} to {found.target} is {found.state}"
    output.say(f"{text}: {plural(found.moved, 'message')} moved, {found.left} left because they are claimed.")
    if found.error:
        output.note(found.error)


def _row(found: Move) -> list[object]:
    began = time_parsing.iso(found.began)
    return [found.id, found.source, found.target, found.state, found.moved, found.total, found.left, began]
