"""Calls that store messages: one, a batch, or any number in batches of limited size."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any, TypeAlias, TypedDict

import msgspec
from msgspec import UNSET, UnsetType, structs

from queuey.client.calls import tracing
from queuey.client.calls.call import (
    JSON,
    Call,
    HttpAnswer,
    MessageLocation,
    Seconds,
    check_string,
    decode,
    encode_value,
    ignore_answer,
    location_text,
    normalize_id,
    number_text,
    path_segment,
    queue_segment,
    seconds,
)
from queuey.client.calls.tracing import CallSpan
from queuey.client.errors import InvalidAnswer, InvalidArgument
from queuey.client.results import Message, Receipt
from queuey.model import ids
from queuey.model.messages import MAX_NAME_LENGTH

MAX_BATCH_MESSAGES = 1000
"""Max messages in a batch. This is the server's limit."""
MAX_BATCH_BYTES = 8 << 20
"""Max bytes of a batch's body. This is the server's limit."""

After = str | Message | Receipt
"""A message that new messages must come after, or its id."""

_BATCH_START = b'{"messages":['
_BATCH_END = b"]}"
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^`|~-]+")
_HEADER_VALUE = re.compile(r"[!-~](?:[ -~]*[!-~])?")
_KEY = re.compile(r"[ -~]{1,255}")
_QUOTED = re.compile(r'["\\]')


class SendOptions(TypedDict, total=False):
    """Properties of a message. For the options see :class:`Outgoing`.

    Example:
        >>> receipt = client.send("orders", "six pears", ttl=3600, headers={"shop": "berlin"})
        >>> client.get("orders", receipt)[0].headers
        {'shop': 'berlin'}
    """

    json: Any
    ttl: int | timedelta | None
    partition: int | None
    key: str | None
    delay: Seconds | None
    headers: Mapping[str, str] | None
    content_type: str | None


class Outgoing(msgspec.Struct, frozen=True):
    """A message to send: a ``body`` or a ``json`` value, and properties.

    Example:
        >>> from queuey.client import Outgoing
        >>> Outgoing(json={"order": 5}, key="customer 7", ttl=3600).key
        'customer 7'

    Attributes:
        body: Text or bytes, not empty.
        json: Any JSON value, instead of a body. Readers get the value back. The default content type is
            ``application/json``. A string is kept as its text. A ``msgspec.Raw`` is sent unchanged.
        ttl: Seconds until the message expires. By default the queue decides.
        partition: 1 to the queue's number of partitions. By default ``key`` decides; without a key, any partition.
        key: Messages with the same key go to the same partition, in order.
        delay: Seconds until range reads show the message. Its TTL starts then.
        headers: Up to 16 short texts stored with the message. Names are lower-cased.
        content_type: Content type stored with the message.

    Raises:
        InvalidArgument: Both a body and a JSON value are given, or neither, or a property has a wrong type.
    """

    body: str | bytes | UnsetType = UNSET
    json: Any = UNSET
    ttl: int | timedelta | None = None
    partition: int | None = None
    key: str | None = None
    delay: Seconds | None = None
    headers: Mapping[str, str] | None = None
    content_type: str | None = None

    def __post_init__(self) -> None:
        if (self.body is UNSET) == (self.json is UNSET):
            present = "neither is" if self.body is UNSET else "both are"
            raise InvalidArgument(f"a message has either a body or a JSON value; {present} given")
        if self.body is not UNSET and not isinstance(self.body, str | bytes):
            raise InvalidArgument(f"a body is str or bytes, not {type(self.body).__name__}; pass a JSON value as json=")
        for field in ("key", "content_type"):
            if getattr(self, field) is not None:
                check_string(field, getattr(self, field))
        for field in ("partition", "ttl", "delay"):
            if isinstance(value := getattr(self, field), timedelta):
                value = seconds(value)
                structs.force_setattr(self, field, value)
            if value is not None:
                number_text(field, value)
        if self.headers is not None:
            _check_headers(self.headers)


def _check_headers(headers: Mapping[str, str]) -> None:
    if not isinstance(headers, Mapping):
        raise InvalidArgument(f"headers is {headers!r:.100}: give a mapping of names to strings")
    for name, value in headers.items():
        check_string(f"header {check_string('the name of a header', name)!r}", value)


ToSend: TypeAlias = str | bytes | Outgoing
Messages: TypeAlias = Iterable[ToSend]
AsyncMessages: TypeAlias = Iterable[ToSend] | AsyncIterable[ToSend]


class _BatchItem(msgspec.Struct, omit_defaults=True):
    """A message of a batch in the API's format."""

    body: Any
    encoding: str | None = None
    ttl: int | timedelta | None = None
    partition: int | None = None
    message_key: str | None = None
    delay: Seconds | None = None
    headers: Mapping[str, str] | None = None
    content_type: str | None = None


class _Stored(msgspec.Struct, frozen=True):
    messages: list[Receipt]


class BatchBody(msgspec.Struct, frozen=True):
    """The body of one batch, and its messages.

    Attributes:
        content: The JSON body.
        undelayed_flags: True for each message that is not delayed, in order.
        messages: The messages.
        span: The trace span of the send, or None.
    """

    content: bytes
    undelayed_flags: tuple[bool, ...]
    messages: tuple[Outgoing, ...]
    span: CallSpan | None = None


class Batcher:
    """Collects messages into batches within the server's limits. Keeps one batch in memory.

    Args:
        messages: Max messages in a batch, at least 1. The server's limit applies, too.
        size: Max bytes of a batch's body. A larger message is sent alone, and the server accepts or refuses it.
        traced: Whether messages get the trace context while tracing is on.
    """

    def __init__(self, messages: int = MAX_BATCH_MESSAGES, size: int = MAX_BATCH_BYTES, *, traced: bool = True) -> None:
        if messages < 1:
            raise InvalidArgument(f"batch is {messages}: use at least 1")
        self._max_messages = min(messages, MAX_BATCH_MESSAGES)
        self._max_bytes = size - len(_BATCH_START) - len(_BATCH_END)
        self._items: list[bytes] = []
        self._messages: list[Outgoing] = []
        self._size = 0
        self._traced = traced
        self._span: CallSpan | None = None

    def add(self, message: str | bytes | Outgoing) -> BatchBody | None:
        """Adds a message. If it does not fit into the current batch, returns that batch and starts a new one."""
        outgoing = message if isinstance(message, Outgoing) else Outgoing(message)
        if self._traced and tracing.is_enabled():
            self._span = self._span or tracing.start_call_span("send")
            outgoing = _with_trace_context(outgoing, self._span)
        item = batch_item(outgoing)
        full = len(self._items) >= self._max_messages or self._size + len(item) > self._max_bytes
        chunk = self.flush() if full else None
        self._items.append(item)
        self._messages.append(outgoing)
        self._size += len(item) + 1
        return chunk

    def flush(self) -> BatchBody | None:
        if not self._items:
            return None
        content = _BATCH_START + b",".join(self._items) + _BATCH_END
        undelayed_flags = tuple(not message.delay for message in self._messages)
        chunk = BatchBody(content, undelayed_flags, tuple(self._messages), self._span)
        self._items, self._messages, self._size, self._span = [], [], 0, None
        return chunk


def check_messages(messages: Iterable[ToSend]) -> Iterable[ToSend]:
    """Returns the messages. Raises InvalidArgument for a single body, whose characters would be sent one by one."""
    if isinstance(messages, str | bytes):
        raise InvalidArgument(f"messages is {messages!r:.100}, which is one body: give a list, or call send")
    return messages


async def check_messages_async(messages: AsyncMessages) -> AsyncIterator[ToSend]:
    if isinstance(messages, AsyncIterable):
        async for message in messages:
            yield message
    else:
        for message in check_messages(messages):
            yield message


def make_batch(messages: Iterable[ToSend]) -> BatchBody:
    """Makes one batch, without trace contexts.

    Raises InvalidArgument without messages, for a single body, and if the messages do not fit into one request.
    """
    batcher = Batcher(traced=False)  # A trace context would make a repeated send differ, and its key would be refused.
    full = any(batcher.add(message) is not None for message in check_messages(messages))
    batch = batcher.flush()
    if full or batch is None:
        raise InvalidArgument(
            f"An idempotency key is for one request of 1 to {MAX_BATCH_MESSAGES:,} messages and at most "
            f"{MAX_BATCH_BYTES >> 20} MiB. These are {'more' if full else 'none'}."
        )
    return batch


def new_idempotency_key() -> str:
    """Returns a new idempotency key. It begins with the time, so the store keeps recent keys next to each other."""
    return f"{time.time_ns():016x}{secrets.token_hex(8)}"


def send(
    queue: str, message: Outgoing, after: After | None = None, key: str | None = None, *, traced: bool = True
) -> Call[Receipt]:
    """Stores one message: as its plain bytes if HTTP headers can carry its properties, else as a batch of one.

    With an idempotency key, the call may be repeated. With ``traced``, the message gets the trace context.
    """
    span = tracing.start_call_span("send", queue) if traced else None
    message = _with_trace_context(message, span)
    headers, parse = _headers_for_plain_send(message), _read_receipt
    if headers is None:
        batcher = Batcher(traced=False)
        batcher.add(message)
        content = batcher.flush()
        assert content is not None  # noqa: S101 - a message was just added
        call = Call("POST", queue_segment(queue), parse, content=content.content, alone=True)
        headers = _batch_headers(after)
    else:
        call = Call("POST", queue_segment(queue), parse, content=_encode_body(message.body))
        headers |= _after_header(after)
    return structs.replace(call, headers=headers | _idempotency_header(key), repeatable=key is not None, span=span)


def send_batch(queue: str, chunk: BatchBody, after: After | None = None, key: str | None = None) -> Call[list[Receipt]]:
    parse = partial(_read_receipts, count=len(chunk.messages))
    headers = _batch_headers(after) | _idempotency_header(key)
    span = None if chunk.span is None else chunk.span.describe("send", queue, len(chunk.messages))
    repeatable, path = key is not None, queue_segment(queue)
    return Call("POST", path, parse, headers=headers, content=chunk.content, repeatable=repeatable, span=span)


def _with_trace_context(message: Outgoing, span: CallSpan | None) -> Outgoing:
    return message if span is None else structs.replace(message, headers=span.add_to_headers(message.headers))


def find_latest(chunk: BatchBody, receipts: Iterable[Receipt], after: After | None) -> After | None:
    """Returns the message that the next batch must come after, so that batches keep their order across servers.

    Ignores delayed messages: their ids are in the future, and new messages cannot come after them. Returns ``after`` if
    all messages are delayed.
    """
    ids_stored = [
        receipt.id for receipt, is_undelayed in zip(receipts, chunk.undelayed_flags, strict=False) if is_undelayed
    ]
    return max(ids_stored, key=ids.parse_position, default=after)


def put(queue: str, locations: Iterable[MessageLocation], message: Outgoing) -> Call[None]:
    segment = ",".join(location_text(location) for location in locations)
    if not segment:
        raise InvalidArgument("put needs the id of at least one message")
    if message.partition is not None or message.key is not None or message.delay is not None:
        raise InvalidArgument("put takes no partition, key or delay: the id determines partition and time")
    headers, body = _encode_put(message)
    return Call(
        "PUT", f"{queue_segment(queue)}/{segment}", ignore_answer, headers=headers, content=body, repeatable=True
    )


def write_named(method: str, queue: str, name: str, message: Outgoing) -> Call[Receipt]:
    """Stores a message by name: POST creates it, PUT replaces the present one. Always repeatable.

    Raises InvalidArgument for a partition, key or delay.
    """
    if message.partition is not None or message.key is not None or message.delay is not None:
        raise InvalidArgument("a named message has no partition, key or delay: the name determines the partition")
    headers, body = _encode_put(message)
    return Call(method, named_path(queue, name), _read_receipt, headers=headers, content=body, repeatable=True)


def named_path(queue: str, name: str) -> str:
    if not 0 < len(check_string("name", name)) <= MAX_NAME_LENGTH or "/" in name or name in {".", ".."}:
        rule = f'use 1 to {MAX_NAME_LENGTH} characters without "/", but not "." or ".."'
        raise InvalidArgument(f"{name[:50]!r} is not a valid name of a message: {rule}")
    return f"{queue_segment(queue)}/named/{path_segment(name)}"


def _encode_put(message: Outgoing) -> tuple[dict[str, str], bytes]:
    """Returns the headers and body of a put or named message.

    Raises InvalidArgument if headers cannot carry a property.
    """
    headers = _make_headers(message, message.content_type or "")
    if headers is None:
        options = f"content_type is {message.content_type!r:.100}, headers are {dict(message.headers or {})!r:.100}"
        raise InvalidArgument(f"{options}: put and named messages allow only printable ASCII here")
    if message.json is UNSET:
        return headers, _encode_body(message.body)
    return headers | {"x-encoding": "json"}, bytes(_encode_json(message.json))


def _encode_body(body: str | bytes | UnsetType) -> bytes:
    if isinstance(body, bytes):
        return body
    try:
        return str(body).encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument("the body cannot be encoded as UTF-8") from error


def _encode_json(value: Any) -> msgspec.Raw:  # noqa: ANN401 - any JSON value
    return value if isinstance(value, msgspec.Raw) else msgspec.Raw(encode_value(value))


def batch_item(message: Outgoing) -> bytes:
    """Returns the JSON of a message in a batch. Bytes become base64, and text stays as it is.

    Raises InvalidArgument if a property has no JSON form.
    """
    body: Any = message.body
    if body is UNSET:
        body = _encode_json(message.json)
    try:
        return msgspec.json.encode(
            _BatchItem(
                body,
                "base64" if isinstance(body, bytes) else None,
                message.ttl,
                message.partition,
                message.key,
                message.delay,
                message.headers,
                message.content_type,
            )
        )
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"the message has no JSON form: {error}") from error


def _headers_for_plain_send(message: Outgoing) -> dict[str, str] | None:
    """Returns the headers of a message sent as its plain bytes.

    Returns None for JSON, a JSON content type, or a text that headers cannot carry.
    """
    kind = message.content_type or ""
    if message.body is UNSET or kind.lower().startswith("application/json"):
        return None
    headers = _make_headers(message, kind)
    if headers is None:
        return None
    if message.key is not None:
        if _HEADER_VALUE.fullmatch(message.key) is None:
            return None
        headers["x-message-key"] = message.key
    if message.partition is not None:
        headers["x-partition"] = number_text("partition", message.partition)
    if message.delay:
        headers["x-delay"] = number_text("delay", seconds(message.delay))
    return headers


def _make_headers(message: Outgoing, kind: str) -> dict[str, str] | None:
    headers: dict[str, str] = {}
    for name, value in (message.headers or {}).items():
        if _HEADER_NAME.fullmatch(name) is None or _HEADER_VALUE.fullmatch(value) is None:
            return None
        headers[f"x-header-{name}"] = value
    if kind:
        if _HEADER_VALUE.fullmatch(kind) is None:
            return None
        headers["content-type"] = kind
    if message.ttl is not None:
        headers["x-ttl"] = number_text("ttl", seconds(message.ttl))
    return headers


def _after_header(after: After | None) -> dict[str, str]:
    if after is None:
        return {}
    return {"x-after": normalize_id(after if isinstance(after, str) else after.id)}


def _idempotency_header(key: object) -> dict[str, str]:
    if key is None:
        return {}
    if not isinstance(key, str) or _KEY.fullmatch(key) is None:
        raise InvalidArgument(f"idempotency_key is {key!r:.100}: use 1 to 255 printable ASCII characters")
    return {"idempotency-key": '"' + _QUOTED.sub(r"\\\g<0>", key) + '"'}


def _batch_headers(after: After | None) -> dict[str, str]:
    return {**JSON, **_after_header(after)}


def _read_receipt(answer: HttpAnswer) -> Receipt:
    return _read_receipts(answer, 1)[0]


def _read_receipts(answer: HttpAnswer, count: int) -> list[Receipt]:
    """Returns the receipts. Raises InvalidAnswer, which has the receipts, unless their number is ``count``."""
    receipts = decode(answer, _Stored).messages
    if len(receipts) != count:
        error = InvalidAnswer(f"the answer has receipts for {len(receipts)} of {count} messages")
        error.receipts = tuple(receipts)
        raise error
    return receipts
