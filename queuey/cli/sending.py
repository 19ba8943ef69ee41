"""``queuey send``: sends arguments, standard input or the lines of a file."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import msgspec
import typer

from queuey.cli.service_options import complete_queue_names, recorded
from queuey.model.texts import format_count
from queuey.terminal import output, times
from queuey.terminal.commands import name_and_value
from queuey.terminal.output import bar

if TYPE_CHECKING:
    from queuey.cli.feed import Buffered, Route
    from queuey.client import Client, Receipt

_STANDARD_INPUT = "-"

MAX_INPUT = 64 << 20
"""Max bytes of standard input in one message; the service's own limit is far lower."""


@recorded
def send(
    client: Client,
    queue: Annotated[
        str,
        typer.Argument(
            help="Queue; with --queue-field a template.", show_default=False, autocompletion=complete_queue_names
        ),
    ],
    body: Annotated[
        list[str] | None, typer.Argument(help="Messages; - for standard input as one message.", show_default="-")
    ] = None,
    source: Annotated[
        Path | None, typer.Option("--from", "-f", help="File with a message per line; - for standard input.")
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Send lines as text, not as JSON values.")] = False,
    message_key: Annotated[
        str | None, typer.Option(help="Key that picks the partition: messages of one key stay in order.")
    ] = None,
    ttl: Annotated[int | None, times.ttl("Time to live of the messages, such as 12h.")] = None,
    delay: Annotated[float | None, times.duration("Time to hide the messages from readers and claims.")] = None,
    at: Annotated[
        float | None,
        times.due("Time when they are due, instead of --delay: 2026-12-01T09:00 (local time, or with a zone)."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the message; at most one message has it.")] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace the message that has the name.")] = False,
    create: Annotated[bool, typer.Option("--create", help="Create queues that do not exist.")] = False,
    queue_field: Annotated[
        str | None, typer.Option(help="Field that replaces {} in QUEUE, such as net for quakes-{}.")
    ] = None,
    key_field: Annotated[str | None, typer.Option(help="Field whose value is the message key.")] = None,
    partition: Annotated[int | None, typer.Option("--partition", "-p", min=1, help="Partition.")] = None,
    content_type: Annotated[str | None, typer.Option(help="Content type of each message.")] = None,
    header: Annotated[list[str] | None, typer.Option(help="Header of each message: <name>=<value>.")] = None,
    partitions: Annotated[int, typer.Option(min=1, max=200, help="Partitions of the queues that --create makes.")] = 1,
    skip: Annotated[int, typer.Option(min=0, help="Skip this many lines at the start of --from.")] = 0,
    batch: Annotated[int, typer.Option(min=1, max=1000, help="Messages per request.")] = 1000,
) -> None:
    """Send messages from arguments, standard input, or the lines of a file of any length.

    Prints the id and partition of each message; with --from only the number of stored messages.
    """
    options: dict[str, Any] = {
        "partition": partition,
        "ttl": ttl,
        "delay": delay,
        "content_type": content_type,
        "headers": headers_of(header),
        "key": message_key,
    }
    if at is not None and delay is not None:
        raise typer.BadParameter("--at and --delay exclude each other")
    if create and queue_field is None:
        client.create_queue(queue, partitions=partitions if partitions > 1 else None)
    if name is not None or replace:
        if source is not None or name is None:
            raise typer.BadParameter("--name is for a single message, and --replace needs --name")
        _send_named(client, queue, (name, replace), body, options | times.make_delay_argument(at))
        return
    if source is None:
        _send_bodies(client, queue, body, options, at)
        return
    _require_feed_options(queue, body, queue_field, key_field, message_key, raw=raw)
    from queuey.cli.feed import Route

    route = Route(queue, raw, queue_field, key_field, options, at)
    existing = {queue} if not create or queue_field is None else set[str]()
    new_partitions = partitions if create else None
    with _open_source(source) as (stream, size), bar() as move_bar:

        def progress(messages: int, read: int) -> None:
            total = None if size is None else size >> 20
            move_bar(f"{format_count(messages, 'message')} (MiB)", read >> 20, total)

        _Feeding(client, route, progress, new_partitions, existing).run(stream, skip=skip, batch=batch)


@dataclass
class _Feeding:
    """One run of ``send --from``.

    Attributes:
        _client: An open client.
        _route: How a line becomes a message.
        _progress: Called with the numbers of messages stored and of bytes read.
        _partitions: Partitions of queues to create; None if queues must exist.
        _known_queues: Queues known to exist.
    """

    _client: Client
    _route: Route
    _progress: Callable[[int, int], None]
    _partitions: int | None
    _known_queues: set[str]
    _stored: Counter[str] = field(default_factory=Counter)
    _read: int = 0
    _blank: int = 0

    def run(self, stream: Iterable[bytes], *, skip: int, batch: int) -> None:
        """Sends all lines and prints how many messages were stored, and how many empty lines were skipped.

        Raises:
            typer.Exit: A line or request failed, or Ctrl-C was pressed; how to continue has been printed.
        """
        from queuey.cli.feed import BadLine, sort_into_batches
        from queuey.client.errors import ClientError

        began = time.monotonic()
        done = skip
        try:
            for buffered in sort_into_batches(self._lines(stream, skip), self._route, max_messages=batch):
                self._send(buffered)
                done = buffered.last_line
        except (BadLine, ClientError, KeyboardInterrupt) as error:
            self._explain_failure(error, done)
            raise typer.Exit(output.INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1) from error
        seconds = time.monotonic() - began
        if self._blank:
            output.print_note(f"{format_count(self._blank, 'empty line was', 'empty lines were')} skipped.")
        total = self._stored.total()
        rate = f", {total / seconds:,.0f} a second" if seconds > 0 else ""
        text = f"{format_count(total, 'message')} stored in {format_count(len(self._stored), 'queue')}{rate}"
        output.show({"sent": total, "queues": self._stored, "seconds": round(seconds, 3)}, text)

    def _lines(self, stream: Iterable[bytes], skip: int) -> Iterator[tuple[int, bytes]]:
        from queuey.cli.feed import number_lines

        for number, line in number_lines(self._count_bytes(stream), skip=skip):
            if self._route.is_blank(line):
                self._blank += 1
            else:
                yield number, line

    def _count_bytes(self, stream: Iterable[bytes]) -> Iterator[bytes]:
        for line in stream:
            self._read += len(line)
            yield line

    def _send(self, batch: Buffered) -> None:
        if self._partitions is not None and batch.queue not in self._known_queues:
            count = self._partitions if self._partitions > 1 else None
            self._client.create_queue(batch.queue, partitions=count)
            self._known_queues.add(batch.queue)
        delay = times.make_delay_argument(self._route.due)
        messages = (
            [msgspec.structs.replace(message, **delay) for message in batch.messages] if delay else batch.messages
        )
        self._stored[batch.queue] += len(self._client.send_many(batch.queue, messages))
        self._progress(self._stored.total(), self._read)

    def _explain_failure(self, error: BaseException, last_line_sent: int) -> None:
        interrupted = isinstance(error, KeyboardInterrupt)
        stored = self._stored.total() + len(getattr(error, "receipts", ()))
        if not interrupted:
            output.print_error(str(error))
        output.print_note(f"{format_count(stored, 'message was', 'messages were')} stored before.")
        if interrupted or getattr(error, "outcome", None) == "unknown":
            output.print_note("Some messages of the current batch may be stored as well.")
        if self._route.queue_field is None and last_line_sent:
            output.print_note(f"To continue after line {last_line_sent}: --skip {last_line_sent}")
        elif self._route.queue_field is not None:
            output.print_note("No --skip continues here: with --queue-field, lines are sent by queue and not in order.")


def _send_bodies(
    client: Client, queue: str, body: list[str] | None, options: dict[str, Any], due: float | None
) -> None:
    from queuey.client import Outgoing

    bodies = [_read_input() if text == _STANDARD_INPUT else text for text in body or [_STANDARD_INPUT]]
    options |= times.make_delay_argument(due)
    if len(bodies) == 1:  # An error of send_iter would speak of the first of several messages.
        _show_receipt(client.send(queue, bodies[0], **options))
        return
    for receipt in client.send_iter(queue, [Outgoing(text, **options) for text in bodies]):
        _show_receipt(receipt)


def _send_named(
    client: Client, queue: str, name: tuple[str, bool], body: list[str] | None, options: dict[str, Any]
) -> None:
    from queuey.client import NameTaken

    bodies = body or [_STANDARD_INPUT]
    if len(bodies) > 1:
        raise typer.BadParameter(f"--name is for a single message, and {len(bodies)} are given")
    named, (text, replace) = client.named(queue), name
    store = named.set if replace else named.create
    content = _read_input() if bodies[0] == _STANDARD_INPUT else bodies[0]
    try:
        receipt = store(text, content, **options)
    except NameTaken as error:
        text = f"{text!r} is the name of another message. Wait until that one is done, or replace it: --replace"
        raise output.Failed(text) from error
    _show_receipt(receipt)


def _show_receipt(receipt: Receipt) -> None:
    output.show(receipt, f"{receipt.id}  partition {receipt.partition}")


def _read_input() -> str | bytes:
    if sys.stdin.isatty():
        output.print_note("Type the message; end with Ctrl-D:")
    from queuey.cli.feed import text_or_bytes

    data = sys.stdin.buffer.read(MAX_INPUT)
    if not data:
        raise typer.BadParameter("standard input is empty: there is nothing to send")
    return text_or_bytes(data)


def _require_feed_options(
    queue: str,
    body: list[str] | None,
    queue_field: str | None,
    key_field: str | None,
    message_key: str | None,
    *,
    raw: bool,
) -> None:
    from queuey.cli.feed import PLACEHOLDER

    if body:
        raise typer.BadParameter("give messages either as arguments or with --from")
    if raw and (queue_field or key_field):
        raise typer.BadParameter("text has no fields: --raw excludes --queue-field and --key-field")
    if key_field and message_key:
        raise typer.BadParameter("--key-field and --message-key exclude each other")
    if queue_field is not None and PLACEHOLDER not in queue:
        raise typer.BadParameter(f"with --queue-field the queue needs a {PLACEHOLDER}, such as quakes-{PLACEHOLDER}")


@contextmanager
def _open_source(source: Path) -> Iterator[tuple[BinaryIO, int | None]]:
    if str(source) == _STANDARD_INPUT:
        yield sys.stdin.buffer, None
        return
    try:
        file = source.open("rb")
    except OSError as error:
        raise output.Failed(f"{source} cannot be read: {error.strerror}") from error
    with file:
        yield file, source.stat().st_size if source.is_file() else None


def headers_of(texts: list[str] | None) -> dict[str, str] | None:
    return dict(name_and_value(text, "<name>=<value>", "--header", empty=True) for text in texts or []) or None
