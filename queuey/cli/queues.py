"""``queuey queue``: create, list, update, delete and purge queues, and move their messages."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from msgspec import structs

from queuey.api.claims import Backlog, backlog_text
from queuey.api.progress import Move
from queuey.api.queues import PartitionInfo, QueueInfo
from queuey.cli.service_options import Queue as Name
from queuey.cli.service_options import complete_queue_names, connected, on_existing
from queuey.model import time_parsing
from queuey.model.messages import RESETTABLE, QueueOptions, option_metas
from queuey.model.texts import format_count
from queuey.model.titles import Column, make_inner_columns
from queuey.terminal import output
from queuey.terminal.commands import make_group
from queuey.terminal.output import Block, ToStderr, Yes, bar
from queuey.terminal.struct_options import with_fields

if TYPE_CHECKING:
    from queuey.client import Client, Moving
    from queuey.client.results import Queue

app = make_group()

Principals = Annotated[
    list[str] | None,
    typer.Option("--principal", help="Caller that may read and delete: app:<name>, bid:<mail>, =read, =delete."),
]
_DETAIL_COLUMNS = ("partitions", "type", "consistency", "ttl", "read_delay", "principals", "created")
_BACKLOG_COLUMNS = make_inner_columns(
    "backlog", Backlog, "waiting", "delayed", "claimed", "retrying", "failed", "dead", "oldest"
)

Identifier = Annotated[str, typer.Argument(help="Id of the move.", show_default=False)]


_UNCHANGEABLE = tuple(name for name, option in option_metas().items() if not (option.extra or {})["changes"])


def _drop_unset(fields: dict[str, Any], principals: list[str] | None) -> dict[str, Any]:
    return {k: v for k, v in (fields | {"principals": principals or None}).items() if v is not None}


@app.command("create")
@with_fields(QueueOptions)
@connected
def create(
    client: Client,
    fields: dict[str, Any],
    name: Annotated[str | None, typer.Argument(help="Name of the queue.", show_default="made by the service")] = None,
    principal: Principals = None,
) -> None:
    """Create a queue. Does nothing if it exists with the same fields, and fails if it exists with others."""
    created = client.create_queue(name, **_drop_unset(fields, principal))
    if not created.new:
        output.print_note(f"{created.name} already exists.")
    output.show(created, _describe(client, created))


@app.command("list")
@connected
def list_queues(
    client: Client,
    details: Annotated[bool, typer.Option("--details", "-l", help="Show the fields of each queue.")] = False,
    count: Annotated[bool, typer.Option("--count", help="Show the number of messages of each queue.")] = False,
    backlog: Annotated[bool, typer.Option("--backlog", help="Show the job backlog of each queue.")] = False,
    start: Annotated[str | None, typer.Option(help="Name to start at.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Max queues.")] = None,
) -> None:
    """List queues by name; with --json one per line."""
    from itertools import islice

    if not (details or count or backlog):
        for name in islice(client.queue_names(start=start), limit):
            output.show({"queue_name": name}, name)
        return
    from queuey.client.results import Queue

    class ListedQueue(Queue, frozen=True, kw_only=True):
        backlog: Backlog | msgspec.UnsetType | None = msgspec.UNSET

    queues = (
        ListedQueue(**structs.asdict(queue), backlog=_read_backlog(client, queue.name) if backlog else msgspec.UNSET)
        for queue in islice(client.queues(start=start, count=count), limit)
    )
    columns = [
        *(_DETAIL_COLUMNS if details else ()),
        *(("count",) if count else ()),
        *(_BACKLOG_COLUMNS if backlog else ()),
    ]
    output.show_each(ListedQueue, queues, "name", *columns)


@app.command("info")
@connected
def info(client: Client, name: Name) -> None:
    """Show a queue: its fields, its guarantees, the number of messages, and the oldest and newest of each partition."""
    queue = client.info(name)
    output.show(queue, _describe_facts(client, queue))


@app.command("update")
@with_fields(QueueOptions, without=_UNCHANGEABLE)
@connected
def update(
    client: Client,
    name: Name,
    fields: dict[str, Any],
    principal: Principals = None,
    reset: Annotated[list[str] | None, typer.Option(help=f"Reset to the default: {', '.join(RESETTABLE)}.")] = None,
) -> None:
    """Change the given fields of a queue; the others stay."""
    changes = _drop_unset(fields, principal)
    for field in reset or []:
        if field not in RESETTABLE or field in changes:
            text = f"{field!r} cannot be reset: use {', '.join(RESETTABLE)}, and give no new value with it"
            raise typer.BadParameter(text, param_hint="--reset")
        changes[field] = None
    if not changes:
        raise typer.BadParameter("there is nothing to change: give a field, such as --ttl 7d, or --reset one")
    updated = client.update_queue(name, **changes)
    output.show(updated, _describe(client, updated))


@app.command("delete")
@on_existing
def delete(client: Client, name: Name, yes: Yes = False) -> None:
    """Delete a queue with all its messages and offsets."""
    output.confirm(f"Delete queue {name} with all its messages?", yes=yes)
    client.delete_queue(name)
    output.show({"queue_name": name, "deleted": True}, f"{name} is deleted.")


@app.command("purge")
@on_existing
def purge(client: Client, name: Name, yes: Yes = False) -> None:
    """Remove all messages of a queue; the queue, its fields and offsets stay."""
    output.confirm(f"Remove all messages of {name}?", yes=yes)
    client.purge_queue(name)
    output.show({"queue_name": name, "purged": True}, f"{name} is empty.")


@app.command("pause")
@on_existing
def pause(client: Client, name: Name) -> None:
    """Pause the claims of a queue: no new claim gets a message. Posts, reads and live claims continue."""
    client.job_queue(name).pause()
    output.show({"queue_name": name, "claims": "paused"}, f"Claims of {name} are paused.")


@app.command("resume")
@on_existing
def resume(client: Client, name: Name) -> None:
    """Resume the claims of a queue: waiting claims get messages within a few seconds."""
    client.job_queue(name).resume()
    output.show({"queue_name": name, "claims": "open"}, f"Claims of {name} are open.")


def _describe(client: Client, queue: Queue) -> Iterator[Block]:
    from queuey.client.errors import ClientError

    with suppress(ClientError):
        info = client.info(queue.name)
        queue = structs.replace(queue, ttl=info.ttl, read_delay=info.read_delay)
    created = () if queue.created is None else ("created",)
    yield output.fields(queue, "name", *_option_columns(queue), "principals", *created)


def _describe_facts(client: Client, queue: QueueInfo) -> Iterator[Block]:
    of_store = ("count", "created", "horizon", "store", "acknowledgement", "guarantee")
    facts = output.fields(queue, "name", "application", *_option_columns(queue), "principals", *of_store)
    backlog = _read_backlog(client, queue.name)
    jobs = [] if backlog is None else [("for claims", backlog_text(backlog, time.time()))]
    yield output.TitledValues([*facts.pairs, *jobs])
    yield ""
    yield output.table(PartitionInfo, queue.partition_info, "count", "oldest", "newest", key="partition")


def _option_columns(queue: Queue | QueueInfo) -> list[Column]:
    columns: list[Column] = [_BACKOFF_COLUMN if name == "backoff" else name for name in option_metas()]
    return columns if queue.description else columns[:-1]


def _delays_text(queue: Queue | QueueInfo) -> str:
    from queuey.model.messages import Backoff

    delays = queue.backoff or Backoff()
    first, longest = time_parsing.format_duration(delays.first), time_parsing.format_duration(delays.most)
    return f"{first} to {longest}, {delays.factor:g} times as long each time, up to {delays.jitter:.0%} less"


_BACKOFF_COLUMN = ("backoff", _delays_text)


def _read_backlog(client: Client, name: str) -> Backlog | None:
    from queuey.client import Conflict

    with suppress(Conflict):
        return client.job_queue(name).backlog()
    return None


@app.command("move")
@connected
def move(
    client: Client,
    source: Annotated[str, typer.Argument(metavar="FROM", help="Queue to empty.", autocompletion=complete_queue_names)],
    target: Annotated[
        str, typer.Argument(metavar="TO", help="Queue that gets the messages.", autocompletion=complete_queue_names)
    ],
    detach: Annotated[bool, typer.Option("--detach", help="Do not wait until the move is done.")] = False,
) -> None:
    """Move the present messages of a queue to another one. The service continues if this command ends."""
    moving = client.move(source, target)
    if detach:
        _show_move(moving.show())
    else:
        _follow_move(moving)


@app.command("moves")
@connected
def moves(client: Client) -> None:
    """List moves, newest first; with --json one per line."""
    shown = ("id", "source", "target", "state", "moved", "total", "left", "began")
    output.show_each(Move, client.moves(), *shown)


@app.command("follow-move")
@connected
def follow(client: Client, move: Identifier) -> None:
    """Follow a move until it is done."""
    _follow_move(client.moving(move))


@app.command("cancel-move")
@connected
def cancel(client: Client, move: Identifier) -> None:
    """Cancel a move: moved messages stay in the target, the others in the source."""
    _show_move(client.moving(move).cancel())


def _follow_move(moving: Moving) -> None:
    try:
        with bar() as move_bar:
            ended = moving.wait(told=lambda move: move_bar(f"{move.source} to {move.target}", move.moved, move.total))
    except KeyboardInterrupt:
        output.print_note(f"Move {moving.id} continues. Follow it: queuey queue follow-move {moving.id}")
        output.print_note(f"Cancel it: queuey queue cancel-move {moving.id}")
        raise
    _show_move(ended)
    if ended.state != "done":
        raise typer.Exit(1)


def _show_move(move: Move) -> None:
    text = f"Move {move.id} from {move.source} to {move.target} is {move.state}"
    text += f": {format_count(move.moved, 'message')} moved, {move.left} left because they are claimed."
    output.show(move, (text, *((ToStderr(move.error),) if move.error else ())))
