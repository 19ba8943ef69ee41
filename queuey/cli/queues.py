"""``queuey queue``: create, list, update, delete and purge queues, and move their messages."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import typer
from msgspec import structs

from queuey import time_parsing
from queuey.api.claims import Backlog, backlog_text
from queuey.api.progress import Move
from queuey.api.queues import PartitionInfo, QueueInfo
from queuey.cli.service_options import connected, on_existing, queue_names
from queuey.messages import RESETTABLE, options
from queuey.terminal import output, times
from queuey.terminal.commands import group, optional, with_parameters
from queuey.terminal.output import Block, ToStderr, Yes, bar
from queuey.terminal.texts import plural
from queuey.titles import Column, within

if TYPE_CHECKING:
    from queuey.client import Client, Moving
    from queuey.client.results import Queue

app = group()

Name = Annotated[str, typer.Argument(help="Name of the queue.", show_default=False, autocompletion=queue_names)]
Principals = Annotated[
    list[str] | None,
    typer.Option("--principal", help="Who may read and delete: app:<name>, bid:<mail>, =read, =delete."),
]
_DETAILS = ("partitions", "type", "consistency", "ttl", "read_delay", "principals", "created")
_BACKLOG = within("backlog", Backlog, "waiting", "delayed", "claimed", "retrying", "failed", "dead", "oldest")

Identifier = Annotated[str, typer.Argument(help="Id of the move.", show_default=False)]


def _with_fields(command: Callable[..., None], *, changes: bool) -> Callable[..., None]:
    """Gives a command, whose last parameter takes fields of a queue, an option for each.

    Args:
        command: Creates or updates a queue; its first parameter is an open client.
        changes: It updates one.
    """
    del command.__annotations__["client"]
    client, *own, _ = inspect.signature(command, eval_str=True).parameters.values()
    chosen = {name: option for name, option in options().items() if not changes or (option.extra or {})["changes"]}

    def run(**values: Any) -> None:  # noqa: ANN401 - the options of any command
        given = {name: values.pop(name) for name in chosen}
        given["principals"] = values.pop("principal") or None
        command(**values, fields={name: value for name, value in given.items() if value is not None})

    added = [optional(name, _option(name, option)) for name, option in chosen.items()]
    run.__annotations__ = {"client": Any}
    return with_parameters(run, command, [client, *own, *added, optional("principal", Principals)])


def _option(name: str, option: msgspec.Meta) -> Any:  # noqa: ANN401 - a type with an option of typer's
    about = option.description or ""
    if (option.extra or {})["seconds"]:
        return Annotated[float | None, times.ttl(about) if name == "ttl" else times.duration(about)]
    if words := (option.extra_json_schema or {}).get("enum"):
        return Annotated[Literal[tuple(words)] | None, typer.Option(help=about)]
    if option.le is not None:
        return Annotated[int | None, typer.Option(min=option.ge, max=option.le, help=about)]
    return Annotated[str | None, typer.Option(help=about)]


@app.command("create")
@connected
@partial(_with_fields, changes=False)
def create(
    client: Client,
    name: Annotated[str | None, typer.Argument(help="Its name.", show_default="one that the service makes up")] = None,
    *,
    fields: Mapping[str, Any],
) -> None:
    """Create a queue. One that is there with the same fields is fine; with others it is an error."""
    created = client.create_queue(name, **fields)
    if not created.new:
        output.note(f"{created.name} was there already.")
    output.show(created, _described(client, created))


@app.command("list")
@connected
def list_queues(
    client: Client,
    details: Annotated[bool, typer.Option("--details", "-l", help="Show the fields of each.")] = False,
    count: Annotated[bool, typer.Option("--count", help="Show how many messages each has.")] = False,
    backlog: Annotated[bool, typer.Option("--backlog", help="Show how much of each is to be done by claims.")] = False,
    start: Annotated[str | None, typer.Option(help="Name to start at.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many.")] = None,
) -> None:
    """List queues by name; with --json one a line."""
    from itertools import islice

    if not (details or count or backlog):
        for name in islice(client.queue_names(start=start), limit):
            output.show({"queue_name": name}, name)
        return
    from queuey.client.results import Queue

    class ListedQueue(Queue, frozen=True, kw_only=True):
        backlog: Backlog | msgspec.UnsetType | None = msgspec.UNSET

    queues = (
        ListedQueue(**structs.asdict(queue), backlog=_backlog(client, queue.name) if backlog else msgspec.UNSET)
        for queue in islice(client.queues(start=start, count=count), limit)
    )
    columns = [*(_DETAILS if details else ()), *(("count",) if count else ()), *(_BACKLOG if backlog else ())]
    output.show_each(ListedQueue, queues, "name", *columns)


@app.command("info")
@connected
def info(client: Client, name: Name) -> None:
    """Show a queue: its fields, what it guarantees, how many messages it has and since when."""
    found = client.info(name)
    output.show(found, _facts(client, found))


@app.command("update")
@connected
@partial(_with_fields, changes=True)
def update(
    client: Client,
    name: Name,
    reset: Annotated[list[str] | None, typer.Option(help=f"Back to the default: {', '.join(RESETTABLE)}.")] = None,
    *,
    fields: Mapping[str, Any],
) -> None:
    """Change what is given; the rest stays."""
    given: dict[str, Any] = dict(fields)
    for field in reset or []:
        if field not in RESETTABLE or field in given:
            text = f"{field!r} cannot be reset: {', '.join(RESETTABLE)} can, where no value is given"
            raise typer.BadParameter(text, param_hint="--reset")
        given[field] = None
    if not given:
        raise typer.BadParameter("nothing to change was given: name a field, such as --ttl 7d, or --reset one")
    updated = client.update_queue(name, **given)
    output.show(updated, _described(client, updated))


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
    """Pause the claims of a queue: nobody gets a message of it; posts, reads and live claims go on."""
    client.job_queue(name).pause()
    output.show({"queue_name": name, "claims": "paused"}, f"Claims of {name} are paused.")


@app.command("resume")
@on_existing
def resume(client: Client, name: Name) -> None:
    """End a pause: claims that wait get messages within some seconds."""
    client.job_queue(name).resume()
    output.show({"queue_name": name, "claims": "open"}, f"Claims of {name} are open.")


def _described(client: Client, queue: Queue) -> Iterator[Block]:
    """Describes a queue, with the service's defaults for fields that are not set if these can be read."""
    from queuey.client.errors import ClientError

    with suppress(ClientError):
        found = client.info(queue.name)
        queue = structs.replace(queue, ttl=found.ttl, read_delay=found.read_delay)
    created = () if queue.created is None else ("created",)
    yield output.fields(queue, "name", *_options(queue), "principals", *created)


def _facts(client: Client, found: QueueInfo) -> Iterator[Block]:
    of_store = ("count", "created", "horizon", "store", "acknowledgement", "guarantee")
    facts = output.fields(found, "name", "application", *_options(found), "principals", *of_store)
    backlog = _backlog(client, found.name)
    jobs = [] if backlog is None else [("for claims", backlog_text(backlog, time.time()))]
    yield output.Fields([*facts.pairs, *jobs])
    yield ""
    yield output.table(PartitionInfo, found.partition_info, "count", "oldest", "newest", key="partition")


def _options(queue: Queue | QueueInfo) -> list[Column]:
    """Returns the columns of a queue's options; that of a description only if there is one."""
    shown: list[Column] = [_BACKOFF if name == "backoff" else name for name in options()]
    return shown if queue.description else shown[:-1]


def _delays(queue: Queue | QueueInfo) -> str:
    from queuey.messages import Backoff

    delays = queue.backoff or Backoff()
    first, most = time_parsing.length(delays.first), time_parsing.length(delays.most)
    return f"{first} to {most}, {delays.factor:g} times as long each time, up to {delays.jitter:.0%} less"


_BACKOFF = ("backoff", _delays)


def _backlog(client: Client, name: str) -> Backlog | None:
    """Returns the backlog of a queue; None: the queue cannot be claimed from."""
    from queuey.client import Conflict

    with suppress(Conflict):
        return client.job_queue(name).backlog()
    return None


@app.command("move")
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


@app.command("moves")
@connected
def moves(client: Client) -> None:
    """List moves, the newest first; with --json one a line."""
    shown = ("id", "source", "target", "state", "moved", "total", "left", "began")
    output.show_each(Move, client.moves(), *shown)


@app.command("follow-move")
@connected
def follow(client: Client, move: Identifier) -> None:
    """Follow a move to its end."""
    _follow(client.moving(move))


@app.command("cancel-move")
@connected
def cancel(client: Client, move: Identifier) -> None:
    """Cancel a move: what was moved stays in the target, the rest in the source."""
    _show(client.moving(move).cancel())


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
