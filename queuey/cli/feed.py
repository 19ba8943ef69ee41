"""Turns the lines of a feed into messages, without holding the whole feed in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from queuey.client import Outgoing

PLACEHOLDER = "{}"


class BadLine(ValueError):
    """A line cannot be sent. The text is the reason."""


class Route(NamedTuple):
    """How a line becomes a message.

    Attributes:
        queue: Name of the queue; with ``queue_field`` its ``{}`` is replaced by that field.
        raw: Whether lines are text, not JSON.
        queue_field, key_field: Fields of the line that choose the queue, and the key that chooses the partition.
        options: Fields of :class:`Outgoing`, the same for all messages.
        due: When all messages are due, in seconds since 1970. The sender computes the delay; :meth:`make_message`
            ignores this. If None, ``options`` decides.
    """

    queue: str
    raw: bool = False
    queue_field: str | None = None
    key_field: str | None = None
    options: Mapping[str, Any] = {}
    due: float | None = None

    def is_blank(self, line: bytes) -> bool:
        return not (line if self.raw else line.strip())

    def make_message(self, line: bytes) -> tuple[str, Outgoing]:
        """Returns the queue and the message of a line without its line end.

        With ``raw`` the fields are ignored, and a line that is not UTF-8 becomes bytes.

        Raises:
            BadLine: Without ``raw``, the line is not JSON, not UTF-8, or lacks a required field.
        """
        if self.raw:
            return self.queue, Outgoing(text_or_bytes(line), **self.options)
        try:
            value = msgspec.json.decode(line)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise BadLine(f"it is not JSON ({error}); --raw sends lines as text") from error
        queue = self.queue
        if self.queue_field is not None:
            queue = queue.replace(PLACEHOLDER, _field_text(value, self.queue_field))
        options = dict(self.options)
        if self.key_field is not None:
            options["key"] = _field_text(value, self.key_field)
        # Keep the text verbatim, so that large numbers and the order of keys survive.
        return queue, Outgoing(json=msgspec.Raw(line), **options)


class Buffered(NamedTuple):
    """Messages for one queue, in the order of their lines."""

    queue: str
    messages: list[Outgoing]
    last_line: int


def sort_into_batches(
    lines: Iterable[tuple[int, bytes]], route: Route, *, max_messages: int = 1000, max_bytes: int = 4 << 20
) -> Iterator[Buffered]:
    """Sorts lines into batches by queue. Each queue's messages keep their order.

    Args:
        lines: Pairs of line number and line.
        route: How a line becomes a message.
        max_messages: Max messages in a batch.
        max_bytes: Max bytes of lines read since all batches were last yielded; at that size all are yielded again.

    Raises:
        BadLine: A line cannot be sent; everything before it has been yielded.
    """
    held: dict[str, list[Outgoing]] = {}
    used = 0
    number = 0
    for number, line in lines:
        try:
            queue, message = route.make_message(line)
        except BadLine as error:
            yield from _flush_all(held, number - 1)
            raise BadLine(f"line {number}: {error}") from error
        messages = held.setdefault(queue, [])
        messages.append(message)
        used += len(line)
        if len(messages) >= max_messages:
            yield Buffered(queue, held.pop(queue), number)
        if used >= max_bytes:
            yield from _flush_all(held, number)
            used = 0
    yield from _flush_all(held, number)


def number_lines(stream: Iterable[bytes], *, skip: int = 0) -> Iterator[tuple[int, bytes]]:
    for number, line in enumerate(stream, 1):
        if number > skip:
            yield number, line.rstrip(b"\r\n")


def _flush_all(held: dict[str, list[Outgoing]], number: int) -> Iterator[Buffered]:
    while held:
        queue = next(iter(held))
        yield Buffered(queue, held.pop(queue), number)


def _field_text(value: object, name: str) -> str:
    """Returns a text, number or bool as text; ``a.b`` is field ``b`` of field ``a``. Raises BadLine without a value."""
    field: object = value
    for key in name.split("."):
        field = field.get(key) if isinstance(field, dict) else None
    if isinstance(field, str) and field:
        return field
    if isinstance(field, int | float):
        return str(field).lower() if isinstance(field, bool) else str(field)
    raise BadLine(f"field {name!r} is missing, or is not text or a number")


def text_or_bytes(line: bytes) -> str | bytes:
    try:
        return line.decode()
    except UnicodeDecodeError:
        return line
