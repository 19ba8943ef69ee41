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
    error_from_fields,
    ignore_answer,
    location_text,
    make_parser,
    normalize_id,
    number_text,
    partitions_text,
    point_text,
    queue_segment,
    seconds,
)
from queuey.client.calls.send_calls import named_path
from queuey.client.errors import InvalidAnswer
from queuey.client.results import Message, Page, QueueRead, RawMessage, Receipt
from queuey.model.deadletters import Redriven

IDS_PER_CALL = 200
"""Max ids in a request line. The line stays below the 8 KiB that proxies commonly accept."""
_OWN_HEADER_PREFIX = "x-header-"
Order = Literal["ascending", "descending"]
Partitions = str | int | Iterable[int]


class ReadOptions(TypedDict, total=False):
    """Which messages to read. For the options see :class:`Query`.

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
        queue: Name of the queue.
        partitions: ``"*"`` for all, a number, or several.
        limit: Max messages per partition, or with ``merge`` in total. 100 by default.
        order: ``ascending`` (oldest first) or ``descending``.
        since: Where to start, inclusive, in the direction of ``order``.
        after, before, until: Bounds in time in either order. ``after`` and ``before`` are exclusive, ``until`` is
            inclusive.
        delay: False ignores the queue's read delay. The page's cursor is then not safe to keep.
        early: True also reads stored messages whose read delay is not over, after all others. They can still disappear,
            and are read again in order later. A cursor limits this to messages after it.
        merge: Read one list in time order instead of one partition after another.
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
        # Copies an iterable of partitions, because each page's request needs them.
        if not isinstance(self.partitions, str | int | tuple):
            msgspec.structs.force_setattr(self, "partitions", tuple(self.partitions))


def read(query: Query, wait: Seconds = 0.0) -> Call[Page]:
    params = tuple((name, "true" if value is True else str(value)) for name, value in _make_read_options(query).items())
    wait = seconds(wait)
    if wait != 0:
        params += (("wait", number_text("wait", wait)),)
    return Call("GET", queue_segment(query.queue), _read_page, params=params, repeatable=True, wait=wait)


def read_queues(queries: Iterable[str | Query], wait: Seconds = 0.0) -> Call[tuple[QueueRead, ...]]:
    """Reads one page of each queue. This POST changes nothing, so it may be repeated."""
    items, wait = [], seconds(wait)
    for query in queries:
        full_query = Query(queue=query) if isinstance(query, str) else query
        queue_segment(full_query.queue)
        items.append({"queue_name": full_query.queue, **_make_read_options(full_query)})
    body: dict[str, Any] = {"queues": items, **({"wait": float(number_text("wait", wait))} if wait != 0 else {})}
    return Call("POST", "_read", _read_results, headers=JSON, content=encode(body), repeatable=True, wait=wait)


def next_query(query: Query, page: Page) -> Query | None:
    if not page.more or not page.cursor:
        return None
    return query_after(query, page)


def query_after(query: Query, page: Page) -> Query:
    """Returns the query that continues after ``page``, even if there are no more messages yet.

    The cursor of a descending read leaves out finished partitions, and so does the next page. The cursor of an
    ascending read names all partitions; partitions added meanwhile are read from their beginning.

    Raises:
        InvalidAnswer: The page says that more messages follow, but its cursor does not advance.
    """
    is_stuck = query.since is not None and point_text(query.since) == page.cursor
    if (is_stuck or not page.cursor) and (page.more or not all(message.early for message in page.messages)):
        raise InvalidAnswer(
            f"the read of queue {query.queue!r} does not advance: there are more messages, "
            f"but the cursor is {page.cursor!r} again"
        )
    return msgspec.structs.replace(query, since=page.cursor)


def get(queue: str, locations: Iterable[MessageLocation]) -> Iterator[Call[list[Message]]]:
    segment = queue_segment(queue)
    for texts in _id_chunks(locations):
        yield Call("GET", f"{segment}/{texts}", messages_of, repeatable=True)


def delete(queue: str, locations: Iterable[MessageLocation]) -> Iterator[Call[None]]:
    segment = queue_segment(queue)
    for texts in _id_chunks(locations):
        yield Call("DELETE", f"{segment}/{texts}", ignore_answer, repeatable=True)


def redrive(
    queue: str, locations: Iterable[MessageLocation], ttl: Seconds | None, *, trusted: bool, dry_run: bool
) -> Iterator[Call[Redriven]]:
    path = f"{queue_segment(queue)}/redrive"
    options = {"trusted": trusted, "dry_run": dry_run} | (
        {} if ttl is None else {"ttl": int(number_text("ttl", seconds(ttl)))}
    )
    for texts in _id_chunks(locations):
        body = {"ids": texts.split(","), **options}
        yield Call("POST", path, make_parser(Redriven), headers=JSON, content=encode(body), repeatable=True)


def get_raw(queue: str, location: MessageLocation) -> Call[RawMessage]:
    path = f"{queue_segment(queue)}/{location_text(location)}"
    return Call("GET", path, _read_raw, params=(("raw", "true"),), repeatable=True)


def explain(queue: str, location: MessageLocation) -> Call[Explanation]:
    path = f"{queue_segment(queue)}/explain/{place_text(location)}"
    return Call("GET", path, make_parser(Explanation), repeatable=True)


def place_text(location: MessageLocation) -> str:
    """Returns ``partition:id``, or only the id if it has no partition: the service then searches all partitions."""
    return normalize_id(location) if isinstance(location, str) and ":" not in location else location_text(location)


def get_named(queue: str, name: str) -> Call[list[Message]]:
    return Call("GET", named_path(queue, name), messages_of, repeatable=True)


def delete_named(queue: str, name: str) -> Call[None]:
    return Call("DELETE", named_path(queue, name), ignore_answer, repeatable=True)


def list_locations(locations: MessageLocation | Iterable[MessageLocation]) -> list[MessageLocation]:
    """Returns one location or several as a list. A pair of a number and an id is one location."""
    match locations:
        case str() | Message() | Receipt():
            return [locations]
        case (int(number), str(identifier)):
            return [(number, identifier)]
    return list(locations)


def messages_of(answer: HttpAnswer) -> list[Message]:
    return plain_messages(decode(answer, Fetched).messages)


def _make_read_options(query: Query) -> dict[str, Any]:
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
    """Converts the API's messages. Bodies in base64 become bytes. Raises InvalidAnswer for an invalid id or body."""
    try:
        bytes.fromhex("".join([wire.message_id for wire in wires]))  # checks all ids at once
    except ValueError as error:
        raise InvalidAnswer(f"the answer has a message with an invalid id: {error}") from error
    return [
        Message(
            wire.message_id,
            wire.timestamp,
            wire.partition,
            wire.body if wire.encoding is None else _decode_base64_body(wire),
            wire.content_type,
            wire.headers,
            wire.message_key,
            wire.early,
        )
        for wire in wires
    ]


def _decode_base64_body(wire: ReadMessage) -> bytes:
    import base64  # noqa: PLC0415 - only needed for binary bodies

    if wire.encoding != "base64" or not isinstance(wire.body, str):
        raise InvalidAnswer(f"message {wire.message_id} has the unknown encoding {wire.encoding!r}")
    try:
        return base64.b64decode(wire.body, validate=True)
    except ValueError as error:
        raise InvalidAnswer(f"message {wire.message_id} is not base64: {error}") from error


def _read_page(answer: HttpAnswer) -> Page:
    return _plain_page(decode(answer, RangeRead))


def _plain_page(page: Range) -> Page:
    return Page(tuple(plain_messages(page.messages)), page.horizon, page.next, page.cursor, page.more, page.cursor_safe)


def _read_results(answer: HttpAnswer) -> tuple[QueueRead, ...]:
    return tuple(
        QueueRead(part.queue_name, page=_plain_page(part))
        if isinstance(part, Range)
        else QueueRead(part.queue_name, error=error_from_fields(part.error_msg))
        for part in decode(answer, ManyRead).queues
    )


def _id_chunks(locations: Iterable[MessageLocation]) -> Iterator[str]:
    """Yields the locations joined by commas, at most :data:`IDS_PER_CALL` at a time, and nothing without locations."""
    texts = [location_text(location) for location in locations]
    for start in range(0, len(texts), IDS_PER_CALL):
        yield ",".join(texts[start : start + IDS_PER_CALL])


def _read_raw(answer: HttpAnswer) -> RawMessage:
    headers = answer.headers
    try:
        return RawMessage(
            id=normalize_id(headers["x-message-id"]),
            timestamp=headers["x-timestamp"],
            partition=int(headers["x-partition"]),
            body=answer.content,
            content_type=headers.get("content-type", "application/octet-stream"),
            headers={
                name[len(_OWN_HEADER_PREFIX) :]: value
                for name, value in headers.items()
                if name.startswith(_OWN_HEADER_PREFIX)
            },
        )
    except (KeyError, ValueError) as error:
        raise InvalidAnswer(f"the answer lacks a usable header: {error}") from error
