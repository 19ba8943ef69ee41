"""Live reads: the queries of a tail, and the requests of a stream.

A stream is one request for several queues. Its answer consists of server-sent events (WHATWG HTML, 9.2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from math import inf
from typing import Any

import msgspec

from queuey.api.messages import ReadMessage
from queuey.client.calls.call import (
    JSON,
    Call,
    HttpAnswer,
    Point,
    Seconds,
    check_string,
    encode,
    error_from_fields,
    find_decoder,
    ignore_answer,
    number_text,
    partitions_text,
    point_text,
    queue_segment,
    read_error,
    seconds,
)
from queuey.client.calls.message_calls import Query, ReadOptions, plain_messages, read
from queuey.client.errors import ConnectionLost, InvalidAnswer, InvalidArgument
from queuey.client.results import Message, Page, StreamedMessage
from queuey.model.ids import order_of

MAX_EARLY = 10_000
"""Max early messages remembered as yielded. With more, the oldest are dropped and may be yielded again."""
MAX_RETRY = 30.0
"""Max seconds that a stream's ``retry`` adds to a pause."""
MIN_TOKEN_SECONDS = 10.0
"""Min seconds between two renewals of a stream's token after which it connects again at once."""
MAX_LINE_BYTES = 64 << 20
"""Max bytes of a line in an event."""


def live_query(queue: str, options: ReadOptions) -> Query:
    """Returns a query, by default with ``merge``, which is also set in ``options``.

    Raises InvalidArgument for an end or a descending order.
    """
    options.setdefault("merge", True)
    query = Query(queue=queue, **options)
    if query.order != "ascending" or query.before is not None or query.until is not None:
        raise InvalidArgument("a live read goes forward and has no end: leave out order, before and until")
    return query


def read_newest(query: Query) -> Call[Page]:
    """Reads the newest message, for the page's horizon. Ignores the order and the limit of the query."""
    return read(msgspec.structs.replace(query, order="descending", limit=1, early=False))


def check_wait(wait: Seconds) -> float:
    """Returns the wait in seconds. Raises InvalidArgument for 0, where a read would spin, and above 20."""
    wait = seconds(wait)
    number_text("wait", wait)  # checks that it is a number
    if not 0 < wait <= 20:  # noqa: PLR2004 - the API's longest wait
        raise InvalidArgument(f"wait is {wait!r}: it must be above 0 and at most 20 seconds")
    return wait


class EarlyMessages:
    """Messages that were yielded early and have not come in order yet. Prevents a second yield of each."""

    def __init__(self) -> None:
        self._yielded: dict[tuple[str, int, str], tuple[int, int]] = {}

    def is_new(self, queue: str, message: Message) -> bool:
        """Returns whether the message was not yielded before.

        Remembers an early message, and forgets the oldest above :data:`MAX_EARLY`. Forgets a message that has now come
        in order.
        """
        key = queue, message.partition, message.id
        if not message.early:
            return self._yielded.pop(key, None) is None
        if key in self._yielded:
            return False
        if len(self._yielded) >= MAX_EARLY:
            del self._yielded[next(iter(self._yielded))]
        self._yielded[key] = order_of(message.id)
        return True

    def take_new(self, page: Page) -> tuple[Message, ...]:
        """Returns the page's messages that were not yielded before, and remembers the early ones.

        After the last page forgets early messages below the horizon.
        """
        messages = tuple(message for message in page.messages if self.is_new("", message))
        if not page.more:
            self.forget_below(page.horizon)
        return messages

    def forget_below(self, position: str) -> None:
        """Drops messages below the position that was read up to. They disappeared before their read delay was over.

        Ends at the first message, in the order in which they were yielded, that is not below.
        """
        reached = order_of(position) if self._yielded else None
        while self._yielded and reached:
            key, order = next(iter(self._yielded.items()))
            if order >= reached:
                break
            del self._yielded[key]

    def make_cursor(self) -> bool | str:
        """Returns ``early`` for the next read of the queue: a cursor at the last early message of each partition.

        True if there are no early messages.
        """
        last: dict[int, tuple[tuple[int, int], str]] = {}
        for (_, number, identifier), order in self._yielded.items():
            last[number] = max(last.get(number, (order, identifier)), (order, identifier))
        return ",".join(f"{number}:{identifier}" for number, (_, identifier) in last.items()) or True


class _Data(ReadMessage, frozen=True, gc=False):
    queue_name: str = ""


class _Notice(msgspec.Struct, frozen=True):
    """An event that is not a message."""

    status: int = 0
    error_msg: Any = None


class Streaming:
    """The state of a stream. The arguments are those of :meth:`~queuey.client.Client.stream`.

    ``begun`` is called at the first event of each answer, other than ``bye``: the service has then read the queues.

    Attributes:
        cursor: The position of the last message.
        was_refused: A token was refused since the last event.

    Raises:
        InvalidArgument: No queue is given, or a name, a position, the limit or the cursor is not valid.
    """

    def __init__(
        self,
        queues: str | Iterable[str] | None,
        since: Point | None,
        partitions: str | int | Iterable[int],
        limit: int | None,
        cursor: str | None,
        *,
        early: bool = False,
        begun: Callable[[], None],
    ) -> None:
        names = [queues] if isinstance(queues, str) else None if queues is None else list(queues)
        if names is not None and not names:
            raise InvalidArgument("a stream needs at least one queue")
        for name in names or ():
            queue_segment(name)  # Checks the name.
        self._body: dict[str, Any] = {"partitions": partitions_text(partitions)}
        if names is not None:
            self._body["queues"] = names
        if since is not None:
            self._body["since"] = since if since == "now" else point_text(since)
        if limit is not None:
            self._body["limit"] = int(number_text("limit", limit))
        if early:
            self._body["early"] = True
        self._early = EarlyMessages()
        self._begun = begun
        self._retry = 1.0
        self._renewed_at = -inf
        self.was_refused = False
        self._is_of_all = names is None
        self.cursor = "" if cursor is None else check_string("cursor", cursor)
        if self.cursor != self.cursor.strip() or not (self.cursor.isascii() and self.cursor.isprintable()):
            raise InvalidArgument(f"cursor is {cursor!r:.100}: use the cursor of a streamed message, unchanged")
        self._reset()

    def _reset(self) -> None:
        self._rest = b""
        self._kind, self._id, self._data = "", "", list[bytes]()
        self._has_begun = self._expires = False

    def begin_call(self) -> Call[None]:
        """Returns the request for the stream from the cursor on. Drops an unread rest of the previous answer."""
        self._reset()
        headers = {**JSON, "accept": "text/event-stream", "accept-encoding": "identity"}
        if self.cursor:
            headers["last-event-id"] = self.cursor
        return Call("POST", "_stream", ignore_answer, headers=headers, content=encode(self._body), repeatable=True)

    def read(self, part: bytes) -> Iterator[StreamedMessage]:
        """Reads a part of the answer and yields its messages.

        Skips messages that were yielded early. The cursor advances past a message when the next one is requested.

        Raises:
            ApiError: The server has ended the stream, or a named queue can no longer be read.
            InvalidAnswer: The answer is not a stream.
        """
        *lines, self._rest = (self._rest + part).split(b"\n")
        if len(self._rest) > MAX_LINE_BYTES:
            raise InvalidAnswer("an event of the stream is too long")
        for line in lines:
            if line:
                self._read_line(line)
                continue
            kind, position, data = self._kind or "message", self._id, b"\n".join(self._data)
            self._kind, self._id, self._data = "", "", []
            if not self._has_begun and (position or (data and kind != "bye")):
                self._has_begun, self.was_refused = True, False
                self._begun()
            if data and kind == "message":
                wire = _decode_event(data, _Data)
                [message] = plain_messages([wire])
                is_new = self._early.is_new(wire.queue_name, message)
                if position:
                    self._forget_below(position[:32])
                if is_new:
                    yield StreamedMessage(wire.queue_name, message, position)
            elif data:
                self._read_notice(kind, data)
            self.cursor = position or self.cursor

    def _forget_below(self, position: str) -> None:
        try:
            self._early.forget_below(position)
        except ValueError as error:
            raise InvalidAnswer(f"the stream has an event whose id is not a position: {position!r}") from error

    def _read_line(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._kind = _decode_text(value)
        elif name == b"id":
            self._id = _decode_text(value)
        elif name == b"retry" and value.isdigit():
            self._retry = min(int(value[:9]) / 1000, MAX_RETRY)

    def _read_notice(self, kind: str, data: bytes) -> None:
        notice = _decode_event(data, _Notice)
        if kind == "expiring":
            self._expires = True
        elif kind == "bye" and notice.status:
            raise read_error(HttpAnswer(notice.status, {}, data))
        elif kind == "gone" and not self._is_of_all:
            raise error_from_fields(notice.error_msg)

    def must_renew(self, now: float) -> bool:
        """Returns once whether the token expires soon. A new one is used for some time, even if it already does."""
        due = self._expires and now - self._renewed_at >= MIN_TOKEN_SECONDS
        self._expires = self._expires and not due
        return due

    def pause_after(self, now: float, draw: float, *, renewed: bool) -> float:
        """Returns the seconds until the next request: none after the token was renewed, but not soon after another.

        Raises ConnectionLost if the answer has ended before its first event.
        """
        at_once = renewed and now - self._renewed_at >= MIN_TOKEN_SECONDS
        if renewed:
            self._renewed_at = now
        elif not self._has_begun:
            raise ConnectionLost("the stream ended before its first event")
        return 0.0 if at_once else self.spread_retry(draw)

    def spread_retry(self, draw: float) -> float:
        """Returns the seconds that the service asks for, or up to half as many more, by a random number from 0 to 1."""
        return self._retry * (1 + draw / 2)


def _decode_text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise InvalidAnswer(f"the stream has a line that is not UTF-8: {value[:100]!r}") from error


def _decode_event(data: bytes, shape: Any) -> Any:  # noqa: ANN401 - of that shape
    try:
        return find_decoder(shape).decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidAnswer(f"the stream has an event that cannot be read: {error}") from error
