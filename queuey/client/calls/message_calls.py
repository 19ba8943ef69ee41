"""Calls about stored messages: read them by time, get them by id or name, explain and delete them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal, TypedDict

import msgspec

from queuey.api.messages import Explanation, Fetched, ManyRead, Range, RangeRead, ReadMessage
from queuey.client.calls.call import (
    JSON,
    Call,
    HttpAnswer,
    MessageLocation,
    Point,
    Seconds,
    decode,
    encode,
    id_text,
    location_text,
    named_error,
    nothing,
    number_text,
    partitions_text,
    point_text,
    queue_segment,
    reads,
    seconds,
)
from queuey.client.calls.send_calls import named_path
from queuey.client.errors import InvalidAnswer
from queuey.client.results import Message, Page, QueueRead, RawMessage, Receipt

IDS_PER_CALL = 200
"""Max ids in a request line, which stays below the 8 KiB that proxies commonly accept."""
_OWN_HEADER = "x-header-"
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


def get(queue: str, locations: Iterable[MessageLocation]) -> Iterator[Call[list[Message]]]:
    """Fetches messages by id, without missing ones; no call for no ids."""
    segment = queue_segment(queue)
    for part in _parts(locations):
        yield Call("GET", f"{segment}/{part}", messages_of, repeatable=True)


def delete(queue: str, locations: Iterable[MessageLocation]) -> Iterator[Call[None]]:
    """Deletes messages by id, whether or not they exist; no call for no ids."""
    segment = queue_segment(queue)
    for part in _parts(locations):
        yield Call("DELETE", f"{segment}/{part}", nothing, repeatable=True)


def get_raw(queue: str, location: MessageLocation) -> Call[RawMessage]:
    path = f"{queue_segment(queue)}/{location_text(location)}"
    return Call("GET", path, _raw, params=(("raw", "true"),), repeatable=True)


def explain(queue: str, location: MessageLocation) -> Call[Explanation]:
    """Asks why a message is not read or claimed."""
    path = f"{queue_segment(queue)}/explain/{place_text(location)}"
    return Call("GET", path, reads(Explanation), repeatable=True)


def place_text(location: MessageLocation) -> str:
    """Returns the text of a location. An id alone stands for the message in any partition."""
    return id_text(location) if isinstance(location, str) and ":" not in location else location_text(location)


def get_named(queue: str, name: str) -> Call[list[Message]]:
    return Call("GET", named_path(queue, name), messages_of, repeatable=True)


def delete_named(queue: str, name: str) -> Call[None]:
    return Call("DELETE", named_path(queue, name), nothing, repeatable=True)


def several(locations: MessageLocation | Iterable[MessageLocation]) -> list[MessageLocation]:
    """Returns a list of locations, given one or several. A pair of a number and an id is one."""
    match locations:
        case str() | Message() | Receipt():
            return [locations]
        case (int(number), str(identifier)):
            return [(number, identifier)]
    return list(locations)


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


def _parts(locations: Iterable[MessageLocation]) -> Iterator[str]:
    texts = [location_text(location) for location in locations]
    for start in range(0, len(texts), IDS_PER_CALL):
        yield ",".join(texts[start : start + IDS_PER_CALL])


def _raw(answer: HttpAnswer) -> RawMessage:
    headers = answer.headers
    try:
        return RawMessage(
            id=id_text(headers["x-message-id"]),
            timestamp=headers["x-timestamp"],
            partition=int(headers["x-partition"]),
            body=answer.content,
            content_type=headers.get("content-type", "application/octet-stream"),
            headers={
                name[len(_OWN_HEADER) :]: value for name, value in headers.items() if name.startswith(_OWN_HEADER)
            },
        )
    except (KeyError, ValueError) as error:
        raise InvalidAnswer(f"the answer lacks a usable header: {error}") from error
