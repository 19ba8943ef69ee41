"""Calls about queues: create, list, update, delete, purge, info."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, Literal, TypedDict, Unpack

import msgspec

from queuey.api.queues import QueueExplanation, QueueInfo, Rights
from queuey.client.calls.call import (
    JSON,
    Call,
    HttpAnswer,
    Seconds,
    decode,
    encode,
    ignore_answer,
    make_parser,
    number_text,
    queue_segment,
    seconds,
)
from queuey.client.errors import InvalidAnswer, InvalidArgument
from queuey.client.results import CreatedQueue, NamePage, Queue, QueuePage
from queuey.model.messages import Backoff, QueueOptions, option_metas

_CREATED = 201


class QueueFields(TypedDict, total=False):
    """The settings of a queue.

    Example:
        >>> queue = client.create_queue("pictures", partitions=4, ttl=86_400, max_deliveries=5)
        >>> queue.partitions, queue.max_deliveries
        (4, 5)

    Attributes:
        partitions: 1 to 200. The number can only grow.
        type: ``user`` or ``public``.
        consistency: ``weak``, ``strong`` or ``very_strong``.
        principals: Other callers that may read and delete, such as ``app:reports`` or ``bid:ann@example.org=read``.
        ttl: Default TTL of the queue's messages in seconds.
        read_delay: Seconds that range reads stay behind the clock.
        max_deliveries: Max deliveries of a message by claims, up to 1000, before it becomes a dead letter. 0 means no
            limit.
        backoff: The delay after a failed delivery: a :class:`Backoff`, or text such as ``first=5,most=600``.
        dead_letter: The queue of dead letters. By default the queue's name and ``.dead``.
        on_ack: ``keep`` acknowledged messages for range reads, or ``delete`` them.
        on_expiry: ``drop`` messages whose TTL ends, or make those without a TTL of their own dead letters
            (``dead-letter``, needs ``on_ack="delete"``).
        kind: ``plain``, ``dedup`` (only one of several waiting messages with equal bodies is delivered) or ``ordered``
            (messages of one key are claimed one after another). The kind never changes, nor does the number of
            partitions of a queue that is not plain.
        max_claimed: Max live claims, divided among the partitions, so at least the number of partitions. 0 means no
            limit.
        max_claimed_per_key: Max live claims of one message key, up to 1000. 0 means no limit. Only for a plain queue,
            and only if set at its creation. The limit can change later, but the number of partitions cannot.
        claims: ``open`` or ``paused``. No messages of a paused queue are claimed. Sends, reads and live claims go on.
        result_ttl: Seconds, up to 7 days, for which the results of jobs are kept. 0 keeps no results.
        description: The purpose of the queue, one line of up to 200 characters.
    """

    partitions: int | None
    type: str | None
    consistency: str | None
    principals: Iterable[str] | str | None
    ttl: int | timedelta | None
    read_delay: Seconds | None
    max_deliveries: int | None
    backoff: Backoff | str | None
    dead_letter: str | None
    on_ack: Literal["keep", "delete"] | None
    on_expiry: Literal["drop", "dead-letter"] | None
    kind: Literal["plain", "dedup", "ordered"] | None
    max_claimed: int | None
    max_claimed_per_key: int | None
    claims: Literal["open", "paused"] | None
    result_ttl: int | timedelta | None
    description: str | None


class _WireQueue(Queue, frozen=True, kw_only=True):
    """A queue as the server sends it: ``principles`` is a list, a comma-separated text, or absent."""

    principles: tuple[str, ...] | str | None = None


class _Listed(msgspec.Struct, frozen=True):
    queues: tuple[_WireQueue, ...]
    next: str | None = None
    patterns: tuple[str, ...] = ()


class _Name(msgspec.Struct, frozen=True):
    queue_name: str


class _Names(msgspec.Struct, frozen=True):
    queues: tuple[_Name, ...]
    next: str | None = None


def check_options(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options of a queue that are not None, with durations in seconds.

    Raises:
        InvalidArgument: An option does not exist, or its value is not valid.
    """
    times = {"ttl", "result_ttl"}
    checked = {name: seconds(value) if name in times else value for name, value in fields.items() if value is not None}
    for name, value in checked.items():
        try:
            checked[name] = getattr(msgspec.convert({name: value}, QueueOptions), name)
        except msgspec.ValidationError as error:
            raise InvalidArgument(f"{name} is {value!r}: {error}") from error
        words = (option_metas()[name].extra_json_schema or {}).get("enum", [value])
        if value not in words:
            raise InvalidArgument(f"{name} is {value!r}: use {' or '.join(words)}")
    return checked


def create(name: str | None, fields: QueueFields) -> Call[CreatedQueue]:
    body = {key: value for key, value in _make_body(**fields).items() if value is not None}
    if name is not None:
        queue_segment(name)
        body["queue_name"] = name
    return Call("POST", "", _read_created, headers=JSON, content=encode(body))


def update(name: str, fields: QueueFields) -> Call[Queue]:
    return Call("PUT", queue_segment(name), _read_updated, headers=JSON, content=encode(_make_body(**fields)))


def delete(name: str) -> Call[None]:
    return Call("DELETE", queue_segment(name), ignore_answer)


def purge(name: str) -> Call[None]:
    return Call("DELETE", f"{queue_segment(name)}/messages", ignore_answer)


def info(name: str) -> Call[QueueInfo]:
    return Call("GET", f"{queue_segment(name)}/info", make_parser(QueueInfo), repeatable=True)


def explain(name: str) -> Call[QueueExplanation]:
    return Call("GET", f"{queue_segment(name)}/explain", make_parser(QueueExplanation), repeatable=True)


def names(start: str | None, limit: int | None) -> Call[NamePage]:
    return Call("GET", "", _read_names, params=_page_params(start, limit), repeatable=True)


def queues(start: str | None, limit: int | None, *, count: bool) -> Call[QueuePage]:
    params = (*_page_params(start, limit), ("details", "true"), *((("include_count", "true"),) if count else ()))
    return Call("GET", "", _read_queues, params=params, repeatable=True)


def rights(names: Iterable[str]) -> Call[dict[str, frozenset[str]]]:
    def read(answer: HttpAnswer) -> dict[str, frozenset[str]]:
        return {queue.queue_name: frozenset(queue.actions) for queue in decode(answer, Rights).queues}

    return Call("POST", "_rights", read, headers=JSON, content=encode({"queues": list(names)}), repeatable=True)


def next_start(start: str | None, page: QueuePage | NamePage) -> str | None:
    """Returns where the next page starts, or None after the last page.

    Raises InvalidAnswer if that is ``start`` again.
    """
    if page.next is not None and page.next == start:
        raise InvalidAnswer(f"the list of queues does not advance: the page from {start!r} is followed by {start!r}")
    return page.next


def _make_body(**fields: Unpack[QueueFields]) -> dict[str, Any]:
    unknown = fields.keys() - QueueFields.__annotations__.keys()
    if unknown:
        raise TypeError(f"a queue has no field {', '.join(sorted(unknown))}")
    body: dict[str, Any] = {
        name: seconds(value) if isinstance(value, timedelta) else value for name, value in fields.items()
    }
    principals = body.get("principals")
    if principals is not None and not isinstance(principals, str):
        body["principals"] = list(principals)
    if isinstance(backoff := body.get("backoff"), Backoff):
        body["backoff"] = msgspec.to_builtins(backoff)
    return body


def _page_params(start: str | None, limit: int | None) -> tuple[tuple[str, str], ...]:
    params = [("offset", start)] if start else []
    return (*params, *([("limit", number_text("limit", limit))] if limit is not None else []))


def _make_queue_fields(wire: _WireQueue) -> dict[str, Any]:
    """Returns the arguments of ``Queue``. Its ``principals`` are the ``principles`` on the wire, always as a tuple."""
    fields = {name: getattr(wire, name) for name in Queue.__struct_fields__}
    principals = wire.principles or ()
    fields["principals"] = tuple(principals.split(",")) if isinstance(principals, str) else principals
    return fields


def _read_created(answer: HttpAnswer) -> CreatedQueue:
    return CreatedQueue(**_make_queue_fields(decode(answer, _WireQueue)), new=answer.status == _CREATED)


def _read_updated(answer: HttpAnswer) -> Queue:
    return Queue(**_make_queue_fields(decode(answer, _WireQueue)))


def _read_queues(answer: HttpAnswer) -> QueuePage:
    listed = decode(answer, _Listed)
    return QueuePage(tuple(Queue(**_make_queue_fields(wire)) for wire in listed.queues), listed.next, listed.patterns)


def _read_names(answer: HttpAnswer) -> NamePage:
    listed = decode(answer, _Names)
    return NamePage(tuple(queue.queue_name for queue in listed.queues), listed.next)
