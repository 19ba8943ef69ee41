"""``queuey queue``: create, list, update, delete and purge queues, and move their messages."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import typer

from queuey import ids, time_parsing
from queuey.cli import moving
from queuey.cli.service_options import connected, on_existing, queue_names
from queuey.messages import RESETTABLE, options
from queuey.terminal import output, times
from queuey.terminal.commands import group, optional, with_parameters
from queuey.terminal.output import Json, Yes
from queuey.terminal.texts import plural

if TYPE_CHECKING:
    from queuey.client import Backlog, Client
    from queuey.client.results import Queue, QueueInfo
    from queuey.messages import Backoff

app = group()

Name = Annotated[str, typer.Argument(help="Name of the queue.", show_default=False, autocompletion=queue_names)]
Principals = Annotated[
    list[str] | None,
    typer.Option("--principal", help="Who may read and delete: app:<name>, bid:<mail>, =read, =delete."),
]
_DETAILS = ("partitions", "type", "consistency", "ttl", "read_delay")
_BACKLOG = ["waiting", "delayed", "claimed", "failed", "dead", "oldest"]


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
    json: Json = False,
    *,
    fields: Mapping[str, Any],
) -> None:
    """Create a queue. One that is there with the same fields is fine; with others it is an error."""
    created = client.create_queue(name, **fields)
    if not created.new:
        output.note(f"{created.name} was there already.")
    _show_queue(created if json else _in_force(client, created), json=json)


@app.command("list")
@connected
def list_queues(
    client: Client,
    details: Annotated[bool, typer.Option("--details", "-l", help="Show the fields of each.")] = False,
    count: Annotated[bool, typer.Option("--count", help="Show how many messages each has.")] = False,
    backlog: Annotated[bool, typer.Option("--backlog", help="Show how much of each is to be done by claims.")] = False,
    start: Annotated[str | None, typer.Option(help="Name to start at.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many.")] = None,
    json: Json = False,
) -> None:
    """List queues by name; with --json one a line."""
    from itertools import islice

    if not (details or count or backlog):
        for name in islice(client.queue_names(start=start), limit):
            output.emit({"queue_name": name}) if json else output.say(name)
        return
    found = islice(client.queues(start=start, count=count), limit)
    if json:
        for queue in found:
            more = {"backlog": msgspec.to_builtins(_asked(client, queue.name))} if backlog else {}
            output.emit(msgspec.to_builtins(queue) | more)
        return
    columns = [
        "queue",
        *([options()[name].title or name for name in _DETAILS] if details else []),
        *(["principals", "created"] if details else []),
        *(["messages"] if count else []),
        *(_BACKLOG if backlog else []),
    ]
    rows = (
        [
            *(_row(queue) if details else [queue.name]),
            *([queue.count] if count else []),
            *(_counts(_asked(client, queue.name)) if backlog else []),
        ]
        for queue in found
    )
    output.table(columns, rows)


@app.command("info")
@connected
def info(client: Client, name: Name, json: Json = False) -> None:
    """Show a queue: its fields, what it guarantees, how many messages it has and since when."""
    found = client.info(name)
    if json:
        output.emit(found)
        return
    output.pairs([*_facts(found), *_backlog(client, name)])
    rows = [
        (number, about(part.count, exact=part.exact), when(part.oldest), when(part.newest))
        for number, part in sorted(found.partition_info.items())
    ]
    output.say()
    output.table(["partition", "messages", "oldest", "newest"], rows)


@app.command("update")
@connected
@partial(_with_fields, changes=True)
def update(
    client: Client,
    name: Name,
    reset: Annotated[list[str] | None, typer.Option(help=f"Back to the default: {', '.join(RESETTABLE)}.")] = None,
    json: Json = False,
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
    _show_queue(updated if json else _in_force(client, updated), json=json)


@app.command("delete")
@on_existing
def delete(client: Client, name: Name, yes: Yes = False, json: Json = False) -> None:
    """Delete a queue with all its messages and offsets."""
    output.confirm(f"Delete queue {name} with all its messages?", yes=yes)
    client.delete_queue(name)
    output.emit({"queue_name": name, "deleted": True}) if json else output.say(f"{name} is deleted.")


@app.command("purge")
@on_existing
def purge(client: Client, name: Name, yes: Yes = False, json: Json = False) -> None:
    """Remove all messages of a queue; the queue, its fields and offsets stay."""
    output.confirm(f"Remove all messages of {name}?", yes=yes)
    client.purge_queue(name)
    output.emit({"queue_name": name, "purged": True}) if json else output.say(f"{name} is empty.")


app.command("move")(moving.move)
app.command("moves")(moving.moves)
app.command("follow-move")(moving.follow)
app.command("cancel-move")(moving.cancel)


def _show_queue(queue: Queue, *, json: bool) -> None:
    if json:
        output.emit(queue)
    else:
        created = [] if queue.created is None else [("created", time_parsing.iso(queue.created))]
        output.pairs([("queue", queue.name), *_options(queue), ("principals", ", ".join(queue.principals)), *created])


def _in_force(client: Client, queue: Queue) -> Queue:
    """Returns a queue with the service's defaults for fields that are not set, if the defaults can be read."""
    from queuey.client.errors import ClientError

    with suppress(ClientError):
        found = client.info(queue.name)
        return msgspec.structs.replace(queue, ttl=found.ttl, read_delay=found.read_delay)
    return queue


def _options(queue: Queue | QueueInfo) -> list[tuple[str, Any]]:
    """Returns the options of a queue for people; a description only if there is one."""
    shown = [(option.title or name, _text(queue, name, option)) for name, option in options().items()]
    return shown if queue.description else shown[:-1]


def _text(queue: Queue | QueueInfo, name: str, option: msgspec.Meta) -> Any:  # noqa: ANN401 - of any option
    value = getattr(queue, name)
    if name == "backoff":
        return _delays(value)
    if name == "dead_letter":
        return value or f"{queue.name}.dead"
    if (option.extra or {})["seconds"]:
        return None if value is None else time_parsing.length(value)
    return "no limit" if value == 0 else value


def _delays(backoff: Backoff | None) -> str:
    from queuey.messages import Backoff

    delays = backoff or Backoff()
    first, most = time_parsing.length(delays.first), time_parsing.length(delays.most)
    return f"{first} to {most}, {delays.factor:g} times as long each time, up to {delays.jitter:.0%} less"


def _row(queue: Queue) -> list[Any]:
    shown = [_text(queue, name, options()[name]) for name in _DETAILS]
    created = None if queue.created is None else time_parsing.iso(queue.created)
    return [queue.name, *shown, ", ".join(queue.principals), created]


def backlog_text(backlog: Backlog, now: float) -> str:
    age = "" if backlog.oldest is None else f"; the oldest is {age_text(backlog, now)} old"
    about = "" if backlog.exact else "about "
    due = "" if backlog.due is None else f" (the next is due at {time_parsing.iso(backlog.due)})"
    return (
        f"{about}{backlog.waiting} waiting ({backlog.failed} failed before), {backlog.delayed} delayed{due}, "
        f"{backlog.claimed} claimed, {plural(backlog.dead, 'dead letter')}{age}"
    )


def age_text(backlog: Backlog, now: float) -> str | None:
    """Returns the age of the oldest message that is not acknowledged."""
    return None if backlog.oldest is None else time_parsing.length(round(max(0.0, now - backlog.oldest)))


def _asked(client: Client, name: str) -> Backlog | None:
    """Returns the backlog of a queue; None: the queue cannot be claimed from."""
    from queuey.client import Conflict

    with suppress(Conflict):
        return client.job_queue(name).backlog()
    return None


def _backlog(client: Client, name: str) -> list[tuple[str, str]]:
    found = _asked(client, name)
    return [] if found is None else [("for claims", backlog_text(found, time.time()))]


def _counts(found: Backlog | None) -> list[Any]:
    if found is None:
        return [None] * len(_BACKLOG)
    return [*(getattr(found, name) for name in _BACKLOG[:-1]), age_text(found, time.time())]


def _facts(found: QueueInfo) -> list[tuple[str, Any]]:
    return [
        ("queue", found.name),
        ("application", found.application),
        *_options(found),
        ("principals", found.principals or None),
        ("messages", about(found.count, exact=found.exact)),
        ("created", time_parsing.iso(found.created)),
        ("readable until", when(found.horizon)),
        ("store", found.store),
        ("acknowledged means", f"{found.acknowledgement.level}: {found.acknowledgement.text}"),
        ("guarantee", found.guarantee),
    ]


def about(count: int, *, exact: bool) -> str:
    """Formats a count; "about" if it is not exact."""
    return str(count) if exact else f"about {count}"


def when(identifier: str | None) -> str | None:
    if identifier is None:
        return None
    return time_parsing.iso(ids.ticks_to_seconds(ids.parse_position(identifier)[0]))
