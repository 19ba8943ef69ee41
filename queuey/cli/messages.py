"""``queuey read``, ``tail``, ``get``, ``delete`` and ``peek``.

They select messages by time, by id or name, or those that are not acknowledged.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from queuey.cli.service_options import Queue, connected, on_existing
from queuey.model import ids, time_parsing
from queuey.model.texts import format_count, printable
from queuey.terminal import output, times

if TYPE_CHECKING:
    from collections.abc import Iterable

    from queuey.client import Client, ClientError
    from queuey.client.results import Message, Page

PAGE_SIZE = 1000

Raw = Annotated[bool, typer.Option("--raw", help="Print only the bodies, verbatim, one per line.")]
Early = Annotated[
    bool, typer.Option("--early", help="Also show messages before the read delay is over; they may still vanish.")
]
_POSITION_HELP = f"Position: {time_parsing.ACCEPTED_FORMS}."
Ids = Annotated[
    list[str] | None, typer.Argument(help="Messages: ids, in any partition, or partition:id.", show_default=False)
]
Name = Annotated[str | None, typer.Option(help="Name of a message, instead of ids.")]


def _validate_partitions(text: str) -> str:
    for number in () if text.strip() == "*" else text.split(","):
        if not (number.strip().isdecimal() and int(number) > 0):
            raise typer.BadParameter(f"{number!r} is not a partition: use a number from 1, or * for all")
    return text


Partitions = Annotated[
    str,
    typer.Option(
        "--partitions", "-p", help="* for all, or numbers separated by commas.", callback=_validate_partitions
    ),
]


@connected
def read(
    client: Client,
    queue: Queue,
    partitions: Partitions = "*",
    since: Annotated[str | None, times.position(f"Start here, inclusive. {_POSITION_HELP}")] = None,
    after: Annotated[str | None, times.position("Only messages after this position.")] = None,
    before: Annotated[str | None, times.position("Only messages before this position.")] = None,
    until: Annotated[str | None, times.position("Only messages up to this position, inclusive.")] = None,
    descending: Annotated[bool, typer.Option("--descending", "-r", help="Newest first.")] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Max messages.")] = 100,
    everything: Annotated[bool, typer.Option("--all", "-a", help="No limit.")] = False,
    raw: Raw = False,
    delay: Annotated[bool, typer.Option("--delay/--no-delay", help="Respect the queue's read delay.")] = True,
    early: Early = False,
) -> None:
    """Read messages in time order, all partitions merged; with --json one per line. Removes nothing."""
    from queuey.client.calls.message_calls import Query, next_query

    report_missing_partitions(client, queue, partitions)
    bounds = {"since": since, "after": after, "before": before, "until": until}
    options: dict[str, Any] = {name: point for name, point in bounds.items() if point is not None}
    options.update(partitions=partitions, order="descending" if descending else "ascending")
    options.update(delay=delay, early=early, merge=True)
    remaining = sys.maxsize if everything else limit
    page = None
    while remaining > 0:
        page = client.read(queue, limit=min(remaining, PAGE_SIZE), **options)
        show(page.messages, raw=raw)
        remaining -= len(page.messages)
        query = next_query(Query(queue=queue, since=options.get("since")), page)
        if query is None:
            break
        options["since"] = query.since
    if page is not None and page.more and page.cursor and remaining <= 0:
        output.print_note(f"There are more messages: --since {page.cursor}")
    elif page is not None and not descending and not before and not until:
        _report_unreadable(client, queue, page)


@connected
def tail(
    client: Client,
    queue: Queue,
    partitions: Partitions = "*",
    last: Annotated[
        int, typer.Option("--last", "-n", min=0, max=PAGE_SIZE, help="Number of the newest messages to begin with.")
    ] = 10,
    since: Annotated[str | None, times.position(f"Begin here instead. {_POSITION_HELP}")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Stop after this many messages.")] = None,
    early: Early = False,
    raw: Raw = False,
) -> None:
    """Follow a queue live until Ctrl-C, all partitions merged by time; with --json one per line."""
    report_missing_partitions(client, queue, partitions)
    remaining = sys.maxsize if limit is None else limit
    start = since
    if start is None:
        page = client.read(queue, partitions=partitions, order="descending", limit=max(last, 1), merge=True)
        shown = page.messages[:last][::-1][:remaining]
        show(shown, raw=raw)
        remaining -= len(shown)
        start = page.horizon
    if remaining <= 0:
        return
    stream = client.stream([queue], partitions=partitions, since=start, early=early, notice=report_outage)
    for streamed in islice(stream, remaining):
        show([streamed.message], raw=raw)


def report_missing_partitions(client: Client, queue: str, partitions: str) -> None:
    if partitions.strip() == "*":
        return
    count = client.info(queue).partitions
    missing = sorted({int(part) for part in partitions.split(",")} - set(range(1, count + 1)))
    if missing:
        output.print_note(
            f"Queue {queue} has {format_count(count, 'partition')}. Not found: {', '.join(map(str, missing))}."
        )


def report_outage(error: ClientError | None) -> None:
    output.print_note(
        "The service answers again." if error is None else f"The service cannot be reached; waiting for it: {error}"
    )


def show(messages: Iterable[Message], *, raw: bool) -> None:
    if raw:
        data = b"".join(body_bytes(message.body) + b"\n" for message in messages)
    elif output.is_json_chosen():
        data = b"".join(msgspec.json.encode(json_fields(message)) + b"\n" for message in messages)
    else:
        data = "".join(f"{_message_line(message)}\n" for message in messages).encode("utf-8", "replace")
    if data:
        output.write(data, json=output.is_json_chosen() and not raw)


def _message_line(message: Message) -> str:
    moment = time_parsing.format_instant(message.time.timestamp())
    return f"{moment}  {message.partition:>3}  {message.id}  {printable(body_text(message.body))}"


def body_text(body: object) -> str:
    return f"<{len(body)} bytes>" if isinstance(body, bytes) else body_bytes(body).decode("utf-8", "replace")


def body_bytes(body: object) -> bytes:
    if isinstance(body, bytes):
        return body
    return body.encode("utf-8", "surrogatepass") if isinstance(body, str) else msgspec.json.encode(body)


def json_fields(message: Message) -> dict[str, Any]:
    fields = msgspec.to_builtins(message)
    if isinstance(message.body, bytes):
        fields["encoding"] = "base64"
    if not message.early:
        del fields["early"]
    return {name: value for name, value in fields.items() if value not in (None, {})}


def _report_unreadable(client: Client, queue: str, page: Page) -> None:
    info = client.info(queue)
    newest = [ids.parse_position(part.newest) for part in info.partition_info.values() if part.newest is not None]
    if not newest or max(newest) < ids.parse_position(page.horizon):
        return
    readable = ids.ticks_to_seconds(max(newest)[0]) + info.read_delay
    wait = max(0.0, readable - time.time())
    why = f"read delay {time_parsing.format_duration(info.read_delay)}" if info.read_delay else "delayed messages"
    output.print_note(
        f"Newer messages are stored; the last becomes readable in {time_parsing.format_duration(wait)} ({why})."
    )


@on_existing
def get(client: Client, queue: Queue, ids: Ids = None, name: Name = None, raw: Raw = False) -> None:
    """Print messages by id or name; with --json one per line. Ignores the read delay.

    Exits with 1 if a message does not exist.
    """
    _require_ids_or_name(ids, name, f"To read the queue: queuey read {queue}")
    if name is None:
        messages = client.get(queue, _find_places(client, queue, ids or []))
        show(messages, raw=raw)
        _require_found(queue, messages, ids or [])
    elif (message := client.named(queue).get(name)) is not None:
        show([message], raw=raw)
    else:
        raise output.Failed(f"Queue {queue!r} has no message named {name!r}.")


@on_existing
def delete(client: Client, queue: Queue, ids: Ids = None, name: Name = None) -> None:
    """Delete messages by id or name.

    Refuses an id that messages of several partitions have. Fails if no message has a given id.
    """
    _require_ids_or_name(ids, name, f"To delete the queue: queuey queue delete {queue}")
    if name is not None:
        client.named(queue).delete(name)
        output.show({"name": name}, f"No message has the name {name} now.")
        return
    normalized = dict.fromkeys(text.replace("-", "").lower() for text in ids or [])
    places = [text for text in normalized if ":" in text]
    if bare_ids := [text for text in normalized if ":" not in text]:
        messages = client.get(queue, _find_places(client, queue, bare_ids))
        _require_found(queue, messages, bare_ids)
        places += [f"{message.partition}:{message.id}" for message in messages]
        if len(messages) > len(bare_ids):
            text = f"an id stands for several messages. Name those to delete: {' '.join(sorted(places))}"
            raise typer.BadParameter(text, param_hint="ids")
    places = list(dict.fromkeys(places))
    client.delete(queue, places)
    output.show({"deleted": places}, f"{format_count(len(places), 'message')} deleted.")


@on_existing
def peek(
    client: Client,
    queue: Queue,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="Max messages.")] = 10,
    raw: Raw = False,
) -> None:
    """Print the oldest unacknowledged messages, claimed or not; with --json one per line. Claims nothing."""
    show(client.job_queue(queue).peek(limit), raw=raw)


def _require_ids_or_name(ids: list[str] | None, name: str | None, otherwise: str) -> None:
    if bool(ids) == (name is not None):
        raise typer.BadParameter(f"give either ids or --name. {otherwise}", param_hint="ids")


def _find_places(client: Client, queue: str, ids: Iterable[str]) -> list[str]:
    requested = list(dict.fromkeys(ids))
    any_bare = any(":" not in text for text in requested)
    numbers = range(1, client.info(queue).partitions + 1) if any_bare else ()
    return [place for text in requested for place in ([text] if ":" in text else [f"{n}:{text}" for n in numbers])]


def _require_found(queue: str, messages: list[Message], requested: list[str]) -> None:
    existing = {text for message in messages for text in (message.id, f"{message.partition}:{message.id}")}
    if missing := [text for text in requested if text.replace("-", "").lower() not in existing]:
        reason = f"was deleted, has expired, or never existed. To find out: queuey explain {queue} ID"
        raise output.Failed(f"Queue {queue!r} has no message {', '.join(missing)}: it {reason}")
