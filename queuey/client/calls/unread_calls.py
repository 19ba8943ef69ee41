"""Calls about the caller's own read marks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from queuey.api.messages import UnreadQueue, UnreadQueues
from queuey.client.calls.call import (
    JSON,
    Call,
    HttpAnswer,
    decode,
    encode,
    id_text,
    location_text,
    number_text,
    queue_segment,
    reads,
    string,
)
from queuey.client.calls.error_answers import named_error
from queuey.client.errors import InvalidArgument
from queuey.client.positions import order_of
from queuey.client.results import Message, ReadMark, Receipt, Unread

Seen = str | Message | Receipt
"""A message that was read: as a call returned it, or as ``partition:id``; or an id alone, for all partitions."""


def mark_read(queue: str, seen: Iterable[Seen], cursor: str | None, *, back: bool) -> Call[ReadMark]:
    asked: dict[str, Any] = {"back": True} if back else {}
    if cursor is None:
        asked["until"] = _until(list(seen))
    elif any(True for _ in seen):
        raise InvalidArgument("give messages or a cursor, not both")
    else:
        asked["cursor"] = string("cursor", cursor)
    path = f"{queue_segment(queue)}/read"
    # The mark does not go back, so a repetition is harmless; one that goes back goes where it was told.
    return Call("PUT", path, reads(ReadMark), headers=JSON, content=encode(asked), repeatable=True)


def _until(seen: list[Seen]) -> str:
    """Returns the last message of each partition."""
    last: dict[str, str] = {}
    for each in seen:
        if isinstance(each, str) and ":" not in each:
            partition, identifier = "", id_text(each)
        else:
            partition, _, identifier = location_text(each).partition(":")
        last[partition] = max(last.get(partition, identifier), identifier, key=order_of)
    if not last:
        raise InvalidArgument("name at least one message that was read, or a cursor")
    whole = [last.pop("")] if "" in last else []
    return ",".join(whole + [f"{partition}:{identifier}" for partition, identifier in last.items()])


def unread(queues: Iterable[str] | None, limit: int | None) -> Call[tuple[Unread, ...]]:
    """Counts unread messages. Though a POST it changes nothing, so it may be repeated."""
    asked: dict[str, Any] = {}
    if queues is not None:
        asked["queues"] = [queues] if isinstance(queues, str) else list(queues)
        for name in asked["queues"]:
            queue_segment(name)  # It is checked.
    if limit is not None:
        asked["limit"] = int(number_text("limit", limit))
    return Call("POST", "_unread", _unread, headers=JSON, content=encode(asked), repeatable=True)


def _unread(answer: HttpAnswer) -> tuple[Unread, ...]:
    return tuple(
        Unread(queue=each.queue_name, read=each.read, unread=each.unread, more=each.more)
        if isinstance(each, UnreadQueue)
        else Unread(queue=each.queue_name, error=named_error(each.error_msg))
        for each in decode(answer, UnreadQueues).queues
    )
