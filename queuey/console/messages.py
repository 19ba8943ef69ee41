"""Views of messages: lists and scans, which consume nothing, and a single message with its explanation."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from queuey.access.queue_access import QueueAccess
from queuey.console import pages
from queuey.console.queue import read_head_values
from queuey.console.sessions import PageRequest
from queuey.messages.message_views import format_place, parse_place
from queuey.messages.ranges import parse_bound
from queuey.model import ids
from queuey.model.deadletters import decode_stored_dead_letter
from queuey.model.errors import MessageNotFound
from queuey.model.messages import Message, Meta, Queue
from queuey.model.partitions import by_key
from queuey.model.time_parsing import parse_point
from queuey.operations.message_search import MessageFilter, SearchStep
from queuey.web import validators
from queuey.web.responses import Response
from queuey.web.validators import Errors

PAGE_SIZE = 50
SCAN_SIZE = 500
"""Max messages that one request of a scan reads."""
MAX_SCANNED = 100_000
"""Max messages that a scan reads before the user must continue it."""
MAX_TEXT = 200
MAX_PARTITIONS = 16
"""Max partitions read together unless one is chosen."""
FIELDS = frozenset(
    {"partition", "since", "cursor", "key", "header", "value", "text", "id", "scanned", "matched", "delayed"}
)


class ListRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request for a list of messages.

    Attributes:
        wanted: The filter.
        partition: The partition; 0 for all partitions.
        since: The time or id to begin at, as it was typed.
        begin: The beginning of this page: a time, an id or a cursor, or blank for the newest message.
        scanned: Number of messages that previous pages have scanned.
        matched: Number of messages that previous pages have shown.
        delayed: Whether to list messages that are not due yet, next one first, instead of the others, newest first.
    """

    wanted: MessageFilter
    partition: int
    since: str
    begin: str
    scanned: int
    matched: int
    delayed: bool


async def show_list(page_request: PageRequest) -> Response:
    """Shows messages, newest first, or the next ones of a scan. Consumes nothing. With ``id`` it redirects to that.

    Without a filter it reads :data:`PAGE_SIZE` messages, else :data:`SCAN_SIZE` in one request; the page goes on by
    itself until it has shown enough or read :data:`MAX_SCANNED`. A part of a page has only the rows.
    """
    access, fields = await page_request.enter("read"), page_request.given
    if fields.get("id"):
        place = _complete_place(fields["id"], fields.get("partition", ""))
        return pages.redirect(pages.link("a", page_request.application, page_request.name, "messages", place))
    query = _parse_request(fields, access)
    result = await page_request.service.browsing.scan(
        access,
        query.wanted,
        partitions=(query.partition,) if query.partition else None,
        since=query.begin,
        limit=PAGE_SIZE if query.wanted.matches_all else SCAN_SIZE,
        upcoming=query.delayed,
    )
    return await page_request.render(
        "rows.html" if pages.is_part(page_request.request) else "messages.html",
        "Messages of",
        page_request.name,
        **(
            {"queue": access.queue}
            if pages.is_part(page_request.request)
            else await read_head_values(page_request, access)
        ),
        asked=query,
        columns=_list_columns(access.queue, "Due" if query.delayed else "Sent"),
        rows=[_make_row(message) for message in result.messages],
        scanned=query.scanned + result.scanned,
        matched=query.matched + len(result.messages),
        reached=None if result.reached is None else ids.ticks_to_seconds(result.reached),
        following=_next_address(access, query, result),
        everywhere=_list_address(access, query, partition=0),
        others=_list_address(access, replace(query, delayed=not query.delayed), partition=query.partition),
        newest=_list_address(access, query, partition=query.partition) if _is_newest(query) else None,
        goes_on=not query.wanted.matches_all and not _is_pause(query, result),
    )


_ENDED = {"dead_letter", "done", "moved", "not_claimable", "superseded"}
"""Explanations of messages that claims do not get, so that nothing can be cancelled or retried."""


async def show(page_request: PageRequest) -> Response:
    """Shows a message, and explains why it is read or not. A message that does not exist gets 404 with that reason."""
    access = await page_request.enter("read")
    partition, position = parse_place(page_request.match["place"])
    message = await _fetch(page_request, access, partition, position)
    number = message.partition if message else partition
    reasons = (await page_request.service.explaining.explain(access, position, partition)).reasons
    codes, rights = {reason.code for reason in reasons}, page_request.rights(access.queue)
    is_dead = message is not None and decode_stored_dead_letter(message, page_request.name) is not None
    may_work = "claim" in rights and not is_dead and not codes & _ENDED
    return await page_request.render(
        "message.html",
        "Message",
        ids.to_hex(position),
        status=200 if message else 404,
        id=ids.to_hex(position),
        sent=ids.ticks_to_seconds(position[0]),
        message=message,
        meta=(message.meta if message else None) or Meta(),
        expires=ids.ticks_to_seconds(message.expires) if message else None,
        body=pages.make_shown_body(message.body) if message else None,
        reasons=reasons,
        rights=rights,
        is_dead=is_dead,
        can_cancel=may_work,
        can_retry=may_work and bool(codes & {"delayed", "retrying"}),
        number=number,
        neighbours=(None, None)
        if number is None
        else await page_request.service.browsing.find_neighbours(access, number, position),
    )


async def download(page_request: PageRequest) -> Response:
    """Sends the body of a message as a download, which browsers do not open: the body is untrusted.

    Raises:
        MessageNotFound: The message does not exist.
    """
    message = await _fetch(page_request, await page_request.enter("read"), *parse_place(page_request.match["place"]))
    if message is None:
        raise MessageNotFound(page_request.match["place"])
    return Response(
        200,
        message.body.encode() if isinstance(message.body, str) else message.body,
        ("Content-Type", "application/octet-stream"),
        ("Content-Disposition", f'attachment; filename="message-{message.id}.bin"'),
        ("Content-Security-Policy", "default-src 'none'; sandbox"),
        *pages.HEADERS,
    )


async def _fetch(
    page_request: PageRequest, access: QueueAccess, partition: int | None, position: ids.Position
) -> Message | None:
    step = max(1, page_request.service.limits.page_bytes // page_request.service.limits.longest)
    numbers = range(1, access.queue.partitions + 1) if partition is None else [partition]
    for start in range(0, len(numbers), step):
        places = [(number, position) for number in numbers[start : start + step]]
        messages = await page_request.service.messages.fetch(access, places, charted=False)
        if messages:
            return messages[0]
    return None


def _complete_place(text: str, partition: str) -> str:
    """Returns ``partition:id`` if the text or, without one in it, the form names a partition, else only the id."""
    text = text.strip()
    is_chosen = partition.strip() not in {"", "0"} and ":" not in text
    number, position = parse_place(f"{partition.strip()}:{text}" if is_chosen else text)
    return ids.to_hex(position) if number is None else format_place(number, position)


def _parse_request(form: Mapping[str, str], access: QueueAccess) -> ListRequest:
    """Parses the fields of a list; a cursor takes the place of ``since``.

    A key decides the partition, also against a chosen one, but filters only if the queue keeps keys. Without both, all
    partitions are read if they are at most :data:`MAX_PARTITIONS`, else the first.

    Raises:
        InvalidRequest: A field is invalid.
    """
    errors = Errors()
    queue = access.queue
    partition = errors.parse_field("partition", validators.parse_integer, form.get("partition"), 0, queue.partitions)
    counts = [
        errors.parse_field(name, validators.parse_integer, form.get(name), 0, 1 << 53)
        for name in ("scanned", "matched")
    ]
    texts = {name: form.get(name, "").strip() for name in ("text", "header", "value", "key")}
    errors.update({name: f"Longer than {MAX_TEXT} characters" for name, text in texts.items() if len(text) > MAX_TEXT})
    since = form.get("since", "").strip()
    begin = (
        errors.parse_field("cursor", _parse_cursor, form.get("cursor"))
        or errors.parse_field("since", _parse_point, since)
        or ""
    )
    errors.check()
    key = texts.pop("key")
    if partition is None:
        partition = 0 if queue.partitions <= MAX_PARTITIONS else 1
    if key:
        partition = by_key(key, queue.partitions)
    # Only some queues keep the key with the message; in others it only chooses the partition.
    message_filter = MessageFilter(**texts, key=key if queue.traits.stores_keys else "")
    return ListRequest(
        wanted=message_filter,
        partition=partition,
        since=since,
        begin=begin,
        scanned=counts[0] or 0,
        matched=counts[1] or 0,
        delayed=bool(form.get("delayed")),
    )


def _parse_cursor(value: object) -> str:
    text = validators.parse_text(value)
    try:
        parse_bound(text)
    except ValueError as error:
        raise validators.BadField(str(error)) from None
    return text


def _parse_point(value: object) -> str:
    try:
        return parse_point(validators.parse_text(value), time.time())
    except ValueError as error:
        raise validators.BadField(str(error)) from None


def _next_address(access: QueueAccess, query: ListRequest, result: SearchStep) -> str | None:
    if not result.cursor:
        return None
    return _list_address(
        access,
        query,
        partition=query.partition,
        cursor=result.cursor,
        scanned=query.scanned + result.scanned,
        matched=query.matched + len(result.messages),
    )


def _list_address(access: QueueAccess, query: ListRequest, **fields: object) -> str:
    """Returns the address of a list with the filter of the query and further fields; the filter has precedence."""
    queue, filter_fields = access.queue, msgspec.structs.asdict(query.wanted)
    fields |= filter_fields | {"since": query.since, "delayed": "on" if query.delayed else ""}
    return pages.link("a", queue.application, queue.name, "messages", **fields)


def _is_newest(query: ListRequest) -> bool:
    return query.wanted.matches_all and not query.begin and not query.delayed


def _is_pause(query: ListRequest, result: SearchStep) -> bool:
    """Returns whether a scan has read or shown enough messages to stop until the user continues it.

    That is at each multiple of :data:`MAX_SCANNED` messages read, or of :data:`PAGE_SIZE` shown.
    """
    scanned, matched = query.scanned + result.scanned, query.matched + len(result.messages)
    return scanned // MAX_SCANNED != query.scanned // MAX_SCANNED or matched // PAGE_SIZE != query.matched // PAGE_SIZE


def _list_columns(queue: Queue, first: str) -> list[str | tuple[str, ...]]:
    keys = ["Key"] if queue.traits.stores_keys else []
    partitions = [("Partition", "number")] if queue.partitions > 1 else []
    return [first, "Body", *keys, *partitions, "Content", "Id"]


def _make_row(message: Message) -> dict[str, Any]:
    meta, preview = message.meta or Meta(), pages.make_preview(message)
    return {
        "place": f"{message.partition}:{message.id}",
        "id": message.id,
        "partition": message.partition,
        "sent": ids.ticks_to_seconds(message.ticks),
        "kind": "JSON" if meta.json else "bytes" if isinstance(message.body, bytes) else "text",
        "headers": len(meta.headers),
        "key": meta.key or "",
        "preview": preview,
        "is_json": meta.json or preview.startswith(("{", "[")),
    }
