"""Calls that read messages by time, and how one read leads to the next."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, TypedDict

import msgspec

from queuey.api.messages import Fetched, ManyRead, Range, RangeRead, ReadMessage
from queuey.client.calls.call import (
    JSON,
    Call,
    HttpAnswer,
    Point,
    Seconds,
    decode,
    encode,
    number_text,
    partitions_text,
    point_text,
    queue_segment,
    seconds,
)
from queuey.client.calls.error_answers import named_error
from queuey.client.errors import InvalidAnswer, InvalidArgument
from queuey.client.positions import order_of
from queuey.client.results import Message, Page, QueueRead

MOST_EARLY = 10_000
"""Max messages of which it is remembered that they were given early; older ones may be given again."""
Order = Literal["ascending", "descending"]
Partitions = str | int | Iterable[int]


class ReadOptions(TypedDict, total=False):
    """Which messages to read. Every option is that of :class:`Query`.

    Example:
        >>> client.read("orders", order="descending", limit=1).messages[0].body
        'two eggs'
    """

    partitions: Partitions
    limit: int
    order: Order
    since: Point | None
    after: Point | None
    before: Point | None
    until: Point | None
    delay: bool
    early: bool | str
    merge: bool


class Query(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which messages of one queue to read, for ``read_queues``.

    Example:
        >>> from queuey.client import Query
        >>> Query(queue="orders", partitions=[1, 2], limit=10, merge=True).order
        'ascending'

    Attributes:
        queue: Its name.
        partitions: ``"*"`` for all, a number, or several.
        limit: Messages per partition, with ``merge`` in all; None: 100.
        order: ``ascending`` (oldest first) or ``descending``.
        since: Where to start, inclusive, in the direction of ``order``.
        after, before, until: Bounds in time whatever the order: above, below, at or below.
        delay: False ignores the queue's read delay; the page's cursor is then not safe to keep.
        early: True: give as well what is stored and may vanish yet, behind all else; each comes again in its place. A
            cursor: only what lies above it.
        merge: One list in time order instead of partition after partition.
    """

    queue: str
    partitions: Partitions = "*"
    limit: int | None = None
    order: Order = "ascending"
    since: Point | None = None
    after: Point | None = None
    before: Point | None = None
    until: Point | None = None
    delay: bool = True
    early: bool | str = False
    merge: bool = False

    def __post_init__(self) -> None:
        """Copies an iterable of partitions, because each page names them."""
        if not isinstance(self.partitions, str | int | tuple):
            msgspec.structs.force_setattr(self, "partitions", tuple(self.partitions))


def read(query: Query, wait: Seconds = 0.0) -> Call[Page]:
    """Reads one page; the server waits up to ``wait`` seconds for messages if there are none."""
    params = tuple((name, "true" if value is True else str(value)) for name, value in _options(query).items())
    wait = seconds(wait)
    if wait != 0:
        params += (("wait", number_text("wait", wait)),)
    return Call("GET", queue_segment(query.queue), _page, params=params, repeatable=True, wait=wait)


def read_queues(queries: Iterable[str | Query], wait: Seconds = 0.0) -> Call[tuple[QueueRead, ...]]:
    """Reads one page of each of several queues. Though a POST it changes nothing, so it may be repeated."""
    items, wait = [], seconds(wait)
    for query in queries:
        asked = Query(queue=query) if isinstance(query, str) else query
        queue_segment(asked.queue)
        items.append({"queue_name": asked.queue, **_options(asked)})
    body: dict[str, Any] = {"queues": items, **({"wait": float(number_text("wait", wait))} if wait != 0 else {})}
    return Call("POST", "_read", _reads, headers=JSON, content=encode(body), repeatable=True, wait=wait)


def onward(query: Query, page: Page) -> Query | None:
    """Returns the query of the page after ``page``; None: there is none now."""
    if not page.more or not page.cursor:
        return None
    return resumed(query, page)


def resumed(query: Query, page: Page) -> Query:
    """Returns the query that continues after ``page``, whether or not there is anything yet.

    The cursor leaves out the partitions that a descending read has finished, and the server then leaves them out too.
    An ascending one names all; partitions added meanwhile are read from their beginning.

    Raises:
        InvalidAnswer: The page's cursor does not advance: reading on would never end.
    """
    stands = query.since is not None and point_text(query.since) == page.cursor
    if (stands or not page.cursor) and (page.more or not all(message.early for message in page.messages)):
        raise InvalidAnswer(
            f"the read of queue {query.queue!r} stands still: there is more, but it goes on at {page.cursor!r} again"
        )
    return msgspec.structs.replace(query, since=page.cursor)


def live_query(queue: str, options: ReadOptions) -> Query:
    """Returns the query to follow a queue with: by default its partitions are merged by time."""
    options.setdefault("merge", True)
    query = Query(queue=queue, **options)
    if query.order != "ascending" or query.before is not None or query.until is not None:
        raise InvalidArgument("a live read goes forwards and has no end: leave out order, before and until")
    return query


def newest(query: Query) -> Call[Page]:
    return read(msgspec.structs.replace(query, order="descending", limit=1, early=False))


class EarlyMessages:
    """The messages that were given early and have not come in their place yet: each is given once."""

    def __init__(self) -> None:
        self._given: dict[tuple[str, int, str], tuple[int, int]] = {}

    def is_new(self, queue: str, message: Message) -> bool:
        """Returns whether the message was not given before, and remembers an early one."""
        key = queue, message.partition, message.id
        if not message.early:
            return self._given.pop(key, None) is None
        if key in self._given:
            return False
        if len(self._given) >= MOST_EARLY:
            del self._given[next(iter(self._given))]
        self._given[key] = order_of(message.id)
        return True

    def new_ones(self, page: Page) -> tuple[Message, ...]:
        """Returns the messages of a page of one queue that were not given before."""
        messages = tuple(message for message in page.messages if self.is_new("", message))
        if not page.more:
            self.forget_below(page.horizon)
        return messages

    def forget_below(self, position: str) -> None:
        """Forgets messages below a position that was read up to: those that have not come by then have vanished."""
        reached = order_of(position) if self._given else None
        while self._given and reached:
            first, at = next(iter(self._given.items()))
            if at >= reached:
                break
            del self._given[first]

    def marks(self) -> bool | str:
        """Returns ``early`` of the next read of their queue: above the last of each partition."""
        last: dict[int, tuple[tuple[int, int], str]] = {}
        for (_, number, identifier), at in self._given.items():
            last[number] = max(last.get(number, (at, identifier)), (at, identifier))
        return ",".join(f"{number}:{identifier}" for number, (_, identifier) in last.items()) or True


def messages_of(answer: HttpAnswer) -> list[Message]:
    return plain_messages(decode(answer, Fetched).messages)


def _options(query: Query) -> dict[str, Any]:
    """Returns the options that differ from the API's defaults, as JSON values."""
    options: dict[str, Any] = {"partitions": partitions_text(query.partitions)}
    if query.limit is not None:
        options["limit"] = int(number_text("limit", query.limit))
    if query.order != "ascending":
        options["order"] = query.order
    for name in ("since", "after", "before", "until"):
        point = getattr(query, name)
        if point is not None:
            options[name] = point_text(point)
    if not query.delay:
        options["delay"] = 0
    if query.early:
        options["early"] = True if query.early is True else point_text(query.early)
    if query.merge:
        options["merge"] = True
    return options


def plain_messages(wires: Iterable[ReadMessage]) -> list[Message]:
    """Returns messages for callers. Raises InvalidAnswer if one has no usable id or body."""
    try:
        bytes.fromhex("".join([wire.message_id for wire in wires]))  # one check for all
    except ValueError as error:
        raise InvalidAnswer(f"the answer has a message whose id is none: {error}") from error
    return [
        Message(
            wire.message_id,
            wire.timestamp,
            wire.partition,
            wire.body if wire.encoding is None else _decoded(wire),
            wire.content_type,
            wire.headers,
            wire.message_key,
            wire.early,
        )
        for wire in wires
    ]


def _decoded(wire: ReadMessage) -> bytes:
    import base64  # noqa: PLC0415 - only for bodies that are not text

    if wire.encoding != "base64" or not isinstance(wire.body, str):
        raise InvalidAnswer(f"message {wire.message_id} has the unknown encoding {wire.encoding!r}")
    try:
        return base64.b64decode(wire.body, validate=True)
    except ValueError as error:
        raise InvalidAnswer(f"message {wire.message_id} is not base64: {error}") from error


def _page(answer: HttpAnswer) -> Page:
    return _plain(decode(answer, RangeRead))


def _plain(page: Range) -> Page:
    return Page(tuple(plain_messages(page.messages)), page.horizon, page.next, page.cursor, page.more, page.cursor_safe)


def _reads(answer: HttpAnswer) -> tuple[QueueRead, ...]:
    return tuple(
        QueueRead(part.queue_name, page=_plain(part))
        if isinstance(part, Range)
        else QueueRead(part.queue_name, error=named_error(part.error_msg))
        for part in decode(answer, ManyRead).queues
    )


def checked_wait(wait: Seconds) -> float:
    """Raises InvalidArgument for a ``wait`` with which reading on would spin or be refused."""
    wait = seconds(wait)
    number_text("wait", wait)  # It is checked.
    if not 0 < wait <= 20:  # noqa: PLR2004 - the API's longest wait
        raise InvalidArgument(f"wait is {wait!r}: it must be above 0 and at most 20 seconds")
    return wait
