"""``queuey queue move`` and what shows, follows and cancels moves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from queuey.api.progress import Move
from queuey.cli.service_options import connected, queue_names
from queuey.terminal import output
from queuey.terminal.bars import bar
from queuey.terminal.output import ToStderr
from queuey.terminal.texts import plural

if TYPE_CHECKING:
    from queuey.client import Client, Moving

Identifier = Annotated[str, typer.Argument(help="Id of the move.", show_default=False)]


@connected
def move(
    client: Client,
    source: Annotated[str, typer.Argument(metavar="FROM", help="Queue that is emptied.", autocompletion=queue_names)],
    target: Annotated[
        str, typer.Argument(metavar="TO", help="Queue that gets the messages.", autocompletion=queue_names)
    ],
    detach: Annotated[bool, typer.Option("--detach", help="Do not wait for the end.")] = False,
) -> None:
    """Move the messages that a queue has now to another one. The service does it, also when this command ends."""
    moving = client.move(source, target)
    if detach:
        _show(moving.show())
    else:
        _follow(moving)


@connected
def follow(client: Client, move: Identifier) -> None:
    """Follow a move to its end."""
    _follow(client.moving(move))


@connected
def cancel(client: Client, move: Identifier) -> None:
    """Cancel a move: what was moved stays in the target, the rest in the source."""
    _show(client.moving(move).cancel())


@connected
def moves(client: Client) -> None:
    """List moves, the newest first; with --json one a line."""
    shown = ("id", "source", "target", "state", "moved", "total", "left", "began")
    output.show_each(Move, client.moves(), *shown)


def _follow(moving: Moving) -> None:
    try:
        with bar() as move_bar:
            found = moving.wait(told=lambda move: move_bar(f"{move.source} to {move.target}", move.moved, move.total))
    except KeyboardInterrupt:
        output.note(f"Move {moving.id} goes on. Follow it: queuey queue follow-move {moving.id}")
        output.note(f"Cancel it: queuey queue cancel-move {moving.id}")
        raise
    _show(found)
    if found.state != "done":
        raise typer.Exit(1)


def _show(found: Move) -> None:
    text = f"Move {found.id} from {found.source} to {found.target} is {found.state}"
    text += f": {plural(found.moved, 'message')} moved, {found.left} left because they are claimed."
    output.show(found, (text, *((ToStderr(found.error),) if found.error else ())))
