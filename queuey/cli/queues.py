"""``queuey queue``: create, list, update, delete and purge queues, and move their messages."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from queuey.cli import moving, output
from queuey.cli.output import Json, Yes
from queuey.cli.service_options import connected, existing
from queuey.terminal import time_parsing, times

if TYPE_CHECKING:
    from queuey.client import Backlog, Client
    from queuey.client.results import Queue, QueueInfo
    from queuey.messages import Backoff

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Create, list, update, delete and purge queues; move messages."
)

Name = Annotated[str, typer.Argument(help="Name of the queue.", show_default=False)]
Partitions = Annotated[int | None, typer.Option(min=1, max=200, help="Number of partitions; can only grow.")]
Type = Annotated[str | None, typer.Option(help="user, or public: everybody may read.")]
Consistency = Annotated[str | None, typer.Option(help="weak, strong or very_strong.")]
Principals = Annotated[
    list[str] | None,
    typer.Option("--principal", help="Who may read and delete: app:<name>, bid:<mail>, =read, =delete."),
]
Ttl = Annotated[str | None, typer.Option(help="How long messages live, such as 12h.")]
ReadDelay = Annotated[str | None, typer.Option(help="How far range reads stay behind the clock, such as 5s.")]
MaxDeliveries = Annotated[
    int | None, typer.Option(min=0, max=1000, help="Deliveries by claims before a dead letter; 0: endlessly.")
]
Delays = Annotated[
    str | None,
    typer.Option(help="Delay after a delivery that has failed, such as first=5,factor=2,most=600,jitter=0.1."),
]
DeadLetter = Annotated[str | None, typer.Option(help="Queue of dead letters, else the queue's name and .dead.")]
OnAck = Annotated[
    Literal["keep", "delete"] | None, typer.Option(help="keep acknowledged messages for reads by time, or delete them.")
]
Kind = Annotated[
    Literal["plain", "dedup", "ordered"] | None,
    typer.Option(
        help="plain; dedup: of messages with equal bodies that wait one is delivered; "
        "or ordered: messages of one key are claimed one after another."
    ),
]
MaxClaimed = Annotated[
    int | None, typer.Option(min=0, help="Live claims at most, divided among the partitions; 0: no limit.")
]
MaxClaimedPerKey = Annotated[
    int | None,
    typer.Option(min=0, max=1000, help="Live claims of one message key at most, from creation on; 0: no limit."),
]

_RESETTABLE = ("ttl", "read_delay", "principals", "max_deliveries", "backoff", "dead_letter", "on_ack", "max_claimed")
_DETAILS = ["queue", "partitions", "type", "consistency", "ttl", "read delay", "principals", "created"]
_BACKLOG = ["waiting", "delayed", "claimed", "failed", "dead", "oldest"]
_CLAIMS = ["max deliveries", "backoff", "dead letters to", "on ack", "kind", "claimed at most"]


@app.command("create")
@connected
def create(
    client: Client,
    name: Annotated[str | None, typer.Argument(help="Its name.", show_default="one that the service makes up")] = None,
    partitions: Partitions = None,
    type: Type = None,  # noqa: A002 - the option's name
    consistency: Consistency = None,
    principal: Principals = None,
    ttl: Ttl = None,
    read_delay: ReadDelay = None,
    max_deliveries: MaxDeliveries = None,
    backoff: Delays = None,
    dead_letter: DeadLetter = None,
    on_ack: OnAck = None,
    kind: Kind = None,
    max_claimed: MaxClaimed = None,
    max_claimed_per_key: MaxClaimedPerKey = None,
    json: Json = False,
) -> None:
    """Create a queue. One that is there with the same fields is fine; with others it is an error."""
    fields = {"partitions": partitions, "type": type, "consistency": consistency, "kind": kind}
    claims = {"max_deliveries": max_deliveries, "backoff": backoff, "dead_letter": dead_letter, "on_ack": on_ack}
    most = {"max_claimed": max_claimed, "max_claimed_per_key": max_claimed_per_key}
    created = client.create_queue(name, **_given(fields | claims | most, principal, ttl, read_delay))
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
        from msgspec import to_builtins

        for queue in found:
            more = {"backlog": to_builtins(_asked(client, queue.name))} if backlog else {}
            output.emit(to_builtins(queue) | more)
        return
    columns = [
        *(_DETAILS if details else _DETAILS[:1]),
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
def update(
    client: Client,
    name: Name,
    partitions: Partitions = None,
    type: Type = None,  # noqa: A002 - the option's name
    consistency: Consistency = None,
    principal: Principals = None,
    ttl: Ttl = None,
    read_delay: ReadDelay = None,
    max_deliveries: MaxDeliveries = None,
    backoff: Delays = None,
    dead_letter: DeadLetter = None,
    on_ack: OnAck = None,
    max_claimed: MaxClaimed = None,
    max_claimed_per_key: MaxClaimedPerKey = None,
    reset: Annotated[list[str] | None, typer.Option(help=f"Back to the default: {', '.join(_RESETTABLE)}.")] = None,
    json: Json = False,
) -> None:
    """Change what is given; the rest stays."""
    fields = {"partitions": partitions, "type": type, "consistency": consistency}
    claims = {"max_deliveries": max_deliveries, "backoff": backoff, "dead_letter": dead_letter, "on_ack": on_ack}
    most = {"max_claimed": max_claimed, "max_claimed_per_key": max_claimed_per_key}
    given = _given(fields | claims | most, principal, ttl, read_delay)
    for field in reset or []:
        if field not in _RESETTABLE or field in given:
            text = f"{field!r} cannot be reset: {', '.join(_RESETTABLE)} can, where no value is given"
            raise typer.BadParameter(text, param_hint="--reset")
        given[field] = None
    if not given:
        raise typer.BadParameter("nothing to change was given: name a field, such as --ttl 7d, or --reset one")
    updated = client.update_queue(name, **given)
    _show_queue(updated if json else _in_force(client, updated), json=json)


@app.command("delete")
@connected
def delete(client: Client, name: Name, yes: Yes = False, json: Json = False) -> None:
    """Delete a queue with all its messages and offsets."""
    output.confirm(f"Delete queue {name} with all its messages?", yes=yes)
    with existing(name):
        client.delete_queue(name)
    output.emit({"queue_name": name, "deleted": True}) if json else output.say(f"{name} is deleted.")


@app.command("purge")
@connected
def purge(client: Client, name: Name, yes: Yes = False, json: Json = False) -> None:
    """Remove all messages of a queue; the queue, its fields and offsets stay."""
    output.confirm(f"Remove all messages of {name}?", yes=yes)
    with existing(name):
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
        rows = zip((*_DETAILS, *_CLAIMS), (*_row(queue), *_claims(queue)), strict=True)
        output.pairs((name, value) for name, value in rows if name != "created" or value is not None)


def _in_force(client: Client, queue: Queue) -> Queue:
    """Returns a queue with the service's defaults for fields that are not set, if the defaults can be read."""
    from msgspec.structs import replace

    from queuey.client.errors import ClientError

    with suppress(ClientError):
        found = client.info(queue.name)
        return replace(queue, ttl=found.ttl, read_delay=found.read_delay)
    return queue


def _claims(queue: Queue | QueueInfo) -> list[Any]:
    dead = queue.dead_letter or f"{queue.name}.dead"
    most = f"{queue.max_claimed or 'no limit'}, of one key {queue.max_claimed_per_key or 'no limit'}"
    return [queue.max_deliveries or "no limit", _delays(queue.backoff), dead, queue.on_ack, queue.kind, most]


def _delays(backoff: Backoff | None) -> str:
    from queuey.messages import Backoff

    delays = backoff or Backoff()
    first, most = time_parsing.length(delays.first), time_parsing.length(delays.most)
    return f"{first} to {most}, {delays.factor:g} times as long each time, up to {delays.jitter:.0%} less"


def _row(queue: Queue) -> list[Any]:
    ttl = None if queue.ttl is None else time_parsing.length(queue.ttl)
    delay = None if queue.read_delay is None else time_parsing.length(queue.read_delay)
    created = None if queue.created is None else time_parsing.iso(queue.created)
    principals = ", ".join(queue.principals)
    return [queue.name, queue.partitions, queue.type, queue.consistency, ttl, delay, principals, created]


def backlog_text(backlog: Backlog, now: float) -> str:
    age = "" if backlog.oldest is None else f"; the oldest is {age_text(backlog, now)} old"
    about = "" if backlog.exact else "about "
    due = "" if backlog.due is None else f" (the next is due at {time_parsing.iso(backlog.due)})"
    return (
        f"{about}{backlog.waiting} waiting ({backlog.failed} failed before), {backlog.delayed} delayed{due}, "
        f"{backlog.claimed} claimed, {output.plural(backlog.dead, 'dead letter')}{age}"
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
        ("partitions", found.partitions),
        ("type", found.type),
        ("consistency", found.consistency),
        ("principals", found.principals or None),
        ("messages", about(found.count, exact=found.exact)),
        ("messages live", None if found.ttl is None else time_parsing.length(found.ttl)),
        ("read delay", time_parsing.length(found.read_delay)),
        *zip(_CLAIMS, _claims(found), strict=True),
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
    from queuey import ids

    if identifier is None:
        return None
    return time_parsing.iso(ids.ticks_to_seconds(ids.parse_position(identifier)[0]))


def _given(
    fields: dict[str, Any], principals: list[str] | None, ttl: str | None, read_delay: str | None
) -> dict[str, Any]:
    fields["principals"] = principals or None
    fields["ttl"] = None if ttl is None else times.ttl(ttl)
    fields["read_delay"] = None if read_delay is None else times.seconds(read_delay, "--read-delay")
    return {name: value for name, value in fields.items() if value is not None}
