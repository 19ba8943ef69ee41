"""Messages in requests and responses: read from a body with its headers or from a batch, written as JSON.

Writing is fast, with one format string for a whole page. Most of a page repeats from message to message: the last
digits of the ids, the second they fall into, the partition, the metadata. So each message costs one look at whether
that still holds, five values and one encoded body.
"""

from __future__ import annotations

import binascii
import re
from base64 import b64decode, b64encode
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal

import msgspec

from queuey import ids
from queuey.errors import InvalidRequest
from queuey.ids import EPOCH_TICKS, LOW_MIN, TICKS_PER_SECOND
from queuey.messages import MAX_TTL, Message, Meta, Queue
from queuey.service import Draft, Limits, Location, Reading
from queuey.service.messages import partition_error
from queuey.web import validators
from queuey.web.requests import JSON_ERRORS, bad_json, decode_any, too_large
from queuey.web.responses import NO_OWN_HEADERS, OWN_HEADER, PIECE, Environ, encode
from queuey.web.validators import Errors

_MESSAGE = b"%b%08x%b%07d%b%b%b"
_FIRST = b'{"message_id":"'
_NEXT = b',{"message_id":"'
_POSTED = b'%b%08x%b","timestamp":"%d.%07d","partition":%d}'
_FIRST_POSTED = b'{"status":"ok","messages":[{"key":"'
_NEXT_POSTED = b',{"key":"'
_CACHED_TAILS = 1024

_tails: dict[Meta, bytes] = {}


def _tail(meta: Meta) -> bytes:
    """Returns what follows the body of a message with this metadata, the closing brace included."""
    tail = _tails.get(meta)
    if tail is None:
        tail = b""
        if meta.content_type is not None:
            tail += b',"content_type":' + encode(meta.content_type)
        if meta.headers:
            tail += b',"headers":' + encode(dict(meta.headers))
        tail += b"}"
        if len(_tails) >= _CACHED_TAILS:
            _tails.clear()
        _tails[meta] = tail
    return tail


def render_messages(messages: Sequence[Message]) -> list[bytes]:
    """Returns the messages as the inside of a JSON array, in pieces."""
    parts: list[bytes | int] = []
    pieces: list[bytes] = []
    size = 0
    separator = _FIRST
    low: int | None = None
    high = -1
    start = end = 0  # the ticks of the second that `middle` is about
    partition = 0
    rest = middle = location = b""
    for message in messages:
        ticks = message.ticks
        if ticks >> 32 != high or message.low != low:
            high, low = ticks >> 32, message.low
            rest = b'%b","timestamp":"' % _last_digits(high, low)
            end = 0
        if not start <= ticks < end:
            seconds = (ticks - EPOCH_TICKS) // TICKS_PER_SECOND
            start = seconds * TICKS_PER_SECOND + EPOCH_TICKS
            end = start + TICKS_PER_SECOND
            middle = b"%b%d." % (rest, seconds)
            if seconds < 0:
                # Before 1970 the fraction counts away from zero, so nothing can be kept for the next message.
                whole, fraction = divmod(EPOCH_TICKS - ticks, TICKS_PER_SECOND)
                middle, start, end = b"%b-%d." % (rest, whole), ticks - fraction, 0
        if message.partition != partition:
            partition = message.partition
            location = b'","partition":%d,"body":' % partition
        body, tail = message.body, b"}"
        if (meta := message.meta) is not None:
            tail = _tail(meta)
        if isinstance(body, bytes):
            text = b'"%b"' % b64encode(body)
            tail = tail[:-1] + b',"encoding":"base64"}'
        else:
            text = body.encode() if meta is not None and meta.json else encode(body)
        parts += (separator, ticks & 0xFFFFFFFF, middle, ticks - start, location, text, tail)
        separator = _NEXT
        size += len(text)
        if size > PIECE:
            pieces.append(_format(parts))
            parts, size = [], 0
    pieces.append(_format(parts))
    return pieces


def _format(parts: Sequence[bytes | int]) -> bytes:
    return _MESSAGE * (len(parts) // 7) % tuple(parts)


def render_fetched(messages: Sequence[Message]) -> list[bytes]:
    """Returns the response to a fetch by ids, in pieces."""
    return [b'{"status":"ok","messages":[', *render_messages(messages), b"]}"]


def render_reading(reading: Reading, queue_name: str | None = None) -> list[bytes]:
    """Returns the response to a range read, as one object, in pieces."""
    cursors = b",".join(
        b'"%d":null' % number if at is None else b'"%d":"%b"' % (number, ids.to_hex(at).encode())
        for number, at in reading.next.items()
    )
    name = b"" if queue_name is None else b',"queue_name":' + encode(queue_name)
    rest = b'],"horizon":"%b","next":{%b},"cursor":"%b","more":%b%b}' % (
        horizon_id(reading.horizon).encode(),
        cursors,
        reading.cursor.encode(),
        b"true" if reading.more else b"false",
        b"" if reading.cursor_safe else b',"cursor_safe":false',
    )
    return [b'{"status":"ok"%b,"messages":[' % name, *render_messages(reading.messages), rest]


def horizon_id(ticks: int) -> str:
    """Returns the lowest id of an instant."""
    return ids.to_hex((ticks, LOW_MIN))


def render_posted(locations: Sequence[Location]) -> bytes:
    """Returns the response to a post."""
    if not locations:
        return b'{"status":"ok","messages":[]}'
    parts: list[bytes | int] = []
    separator = _FIRST_POSTED
    for partition, (ticks, low) in locations:
        seconds, fraction = divmod(ticks - EPOCH_TICKS, TICKS_PER_SECOND)
        parts += (separator, ticks & 0xFFFFFFFF, _last_digits(ticks >> 32, low), seconds, fraction, partition)
        separator = _NEXT_POSTED
    return (_POSTED * len(locations) + b"]}") % tuple(parts)


@lru_cache(1024)
def _last_digits(high: int, low: int) -> bytes:
    """Returns all but the first eight digits of an id: ids that are minted together have them in common."""
    return b"%04x1%03x%b" % (high & 0xFFFF, high >> 16, ids.low_hex(low).encode())


_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_CACHED_TYPES = 1024
_types: dict[str, Meta] = {}


class _Item(msgspec.Struct, gc=False):
    """An item of the batches that nearly everybody sends: every value as the documentation has it."""

    body: str
    ttl: int | None = None
    partition: int | None = None
    message_key: str | None = None
    content_type: str | None = None
    headers: dict[str, str] | None = None
    delay: float | None = None
    encoding: Literal["base64"] | None = None


class _Batch(msgspec.Struct):
    messages: list[_Item]


class _LooseItem(msgspec.Struct):
    """Any item at all. ``body`` keeps its text, so that a JSON value is stored exactly as it was written."""

    body: msgspec.Raw = msgspec.Raw(b'""')
    ttl: Any = None
    partition: Any = None
    message_key: Any = None
    content_type: Any = None
    headers: Any = None
    delay: Any = None
    encoding: Any = None


class _LooseBatch(msgspec.Struct):
    messages: msgspec.Raw


_JSON = "application/json"

DEEPEST = 200
"""Lists and objects of a JSON body that may lie inside each other: every reader, in any language, must get along."""

_decode_batch = msgspec.json.Decoder(_Batch).decode
_decode_loose_batch = msgspec.json.Decoder(_LooseBatch).decode
_decode_items = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_loose_item = msgspec.json.Decoder(_LooseItem).decode


def text_or_bytes(body: bytes) -> str | bytes:
    """Returns the text that the bytes encode, or the bytes themselves if they encode none."""
    try:
        return body.decode()
    except UnicodeDecodeError:
        return body


def _number(value: object, queue: Queue) -> int:
    """Reads a partition to write to."""
    number = validators.integer(value, -(10**18), 10**18)
    if (error := partition_error(number, queue)) is not None:
        raise validators.BadField(error)
    return number


def _content_type(value: object, longest: int) -> str:
    kind = validators.text(value, longest)
    if _CONTROL.search(kind) is not None:
        raise validators.BadField("A content type has no control characters")
    return kind


def _headers(value: object, limits: Limits) -> tuple[tuple[str, str], ...]:
    """Reads the headers to keep with a message. They come back as HTTP headers, so they must be able to."""
    if not isinstance(value, dict):
        raise validators.BadField(f'"{validators.show(value)}" is not an object')
    found = {}
    for name, text in value.items():
        if _NAME.fullmatch(name) is None:
            raise validators.BadField(f'"{validators.show(name)}" is not a header name')
        if _CONTROL.search(validators.text(text)) is not None:
            raise validators.BadField("A header has no control characters")
        found[name.lower()] = text
    if len(found) > limits.max_headers:
        raise validators.BadField(f"Longer than maximum length {limits.max_headers}")
    if sum(len(name) + len(text.encode()) for name, text in found.items()) > limits.max_header_bytes:
        raise validators.BadField(f"Longer than maximum length {limits.max_header_bytes} bytes")
    return tuple(found.items())


def _meta(kind: str | None, headers: tuple[tuple[str, str], ...] | None, *, json: bool = False) -> Meta | None:
    """Returns metadata, the same object for the same content type alone. JSON is ``application/json`` unless named."""
    if headers or json:
        return Meta(kind or (_JSON if json else kind), headers or (), json)
    if not kind:
        return None
    meta = _types.get(kind)
    if meta is None:
        meta = Meta(kind)
        if len(_types) >= _CACHED_TYPES:
            _types.clear()
        _types[kind] = meta
    return meta


def _own_headers(environ: Environ) -> dict[str, str] | None:
    """Returns the X-Header-… of a request by lower-case name; values that are UTF-8 are read as that."""
    # Joining the names and searching once is far cheaper than looking at each name.
    if NO_OWN_HEADERS in environ or OWN_HEADER not in "\n".join(environ):
        return None
    return {
        name[len(OWN_HEADER) :].replace("_", "-").lower(): _header_text(value)
        for name, value in environ.items()
        if name.startswith(OWN_HEADER)
    }


_ABOUT_MESSAGES = ("HTTP_X_TTL", "HTTP_X_PARTITION", "HTTP_X_MESSAGE_KEY", "HTTP_X_DELAY", "HTTP_X_ENCODING")


def read_single(environ: Environ, body: bytes, limits: Limits, queue: Queue | None) -> Draft:
    """Reads a message from a request whose body it is.

    Args:
        environ: The request.
        body: Its body.
        limits: What is allowed.
        queue: Where it goes; None for a message that is put at given ids, which has no partition, key or delay.

    Raises:
        InvalidRequest: Naming every bad field.
    """
    get = environ.get
    kind, headers = get("CONTENT_TYPE"), _own_headers(environ)
    if body and headers is None and (not kind or kind in _types) and environ.keys().isdisjoint(_ABOUT_MESSAGES):
        return Draft(text_or_bytes(body), meta=_meta(kind, None))
    asked = (get("HTTP_X_TTL"), get("HTTP_X_PARTITION"), get("HTTP_X_MESSAGE_KEY"), get("HTTP_X_DELAY"))
    encoding = get("HTTP_X_ENCODING")
    draft = Draft(text_or_bytes(body))
    errors = Errors()
    json = False
    if not body:
        errors["body"] = validators.REQUIRED
    elif errors.take("encoding", validators.one_of, encoding, ("json",)):
        draft.body, json = _read_item_body(body, limits, errors, encoded=False)
    draft.ttl = errors.take("ttl", validators.integer, asked[0], 1, MAX_TTL)
    kept = errors.take("headers", _headers, headers, limits)
    draft.meta = _meta(errors.take("content_type", _content_type, kind, limits.max_content_type), kept, json=json)
    if queue is not None:
        _, partition, key, delay = asked
        _place(draft, partition, key and _header_text(key), delay, queue=queue, limits=limits, errors=errors)
    errors.check()
    return draft


def _header_text(value: str) -> str:
    """Reads a header's value, which WSGI gives as Latin-1, as UTF-8 if it is that."""
    text = text_or_bytes(value.encode("latin-1"))
    return text if isinstance(text, str) else value


def _place(
    draft: Draft, partition: object, key: object, delay: object, *, queue: Queue, limits: Limits, errors: Errors
) -> None:
    """Reads where a message goes and when it is due."""
    draft.partition = errors.take("partition", _number, partition, queue)
    draft.key = errors.take("message_key", validators.text, key, limits.max_message_key)
    draft.delay = errors.take("delay", validators.decimal, delay, 0, MAX_TTL) or 0.0
    if draft.partition is not None and draft.key is not None:
        errors["message_key"] = "Not together with partition"


def read_batch(body: bytes, limits: Limits, queue: Queue) -> list[Draft]:
    """Reads the messages of a JSON body.

    Raises:
        InvalidRequest: Naming every bad field of every item.
        TooLarge: Too many messages, or one of them too long.
    """
    try:
        batch = _decode_batch(body)
    except msgspec.ValidationError:
        return _read_loose_batch(body, limits, queue)
    except JSON_ERRORS as error:
        raise bad_json(error) from None
    _check_count(batch.messages, limits)
    drafts = []
    highest, longest = queue.partitions, limits.max_body // 4
    for item in batch.messages:
        text, ttl, partition = item.body, item.ttl, item.partition
        if (
            not 0 < len(text) <= longest
            or (ttl is not None and not 0 < ttl <= MAX_TTL)
            or (partition is not None and not 0 < partition <= highest)
            or item.message_key is not None
            or item.content_type is not None
            or item.headers is not None
            or item.delay is not None
            or item.encoding is not None
        ):
            return _read_loose_batch(body, limits, queue)
        drafts.append(Draft(text, ttl, partition))
    return drafts


def _check_count(messages: list[Any], limits: Limits) -> None:
    if len(messages) > limits.max_batch:
        raise too_large("messages", limits.max_batch, unit="messages")


def _read_loose_batch(body: bytes, limits: Limits, queue: Queue) -> list[Draft]:
    """Reads a batch item by item, taking numbers as text and any JSON value as a body."""
    try:
        raw = _decode_loose_batch(body).messages
    except msgspec.ValidationError:
        raise bad_json('It has no "messages"; one message alone goes by another Content-Type') from None
    except JSON_ERRORS as error:
        raise bad_json(error) from None
    try:
        items = _decode_items(raw)
    except JSON_ERRORS:
        raise InvalidRequest({"messages": "Is not a list"}) from None
    _check_count(items, limits)
    errors = Errors()
    drafts = [_read_item(item, index, limits, queue, errors) for index, item in enumerate(items)]
    if any(text.startswith("Longer") and name.endswith(".body") for name, text in errors.items()):
        raise _over(errors)
    errors.check()
    return drafts


def _over(errors: Errors) -> InvalidRequest:
    error = too_large("body", 0)
    error.fields = dict(errors)
    return error


def _read_item(raw: msgspec.Raw, index: int, limits: Limits, queue: Queue, errors: Errors) -> Draft:
    draft = Draft("")
    own = Errors()
    try:
        item = _decode_loose_item(raw)
    except JSON_ERRORS:
        errors[str(index)] = "Is not an object"
        return draft
    own.take("encoding", validators.one_of, item.encoding, ("base64",))
    body, json = _read_item_body(bytes(item.body), limits, own, encoded=item.encoding == "base64")
    draft.body = body
    draft.ttl = own.take("ttl", validators.integer, item.ttl, 1, MAX_TTL)
    _place(draft, item.partition, item.message_key, item.delay, queue=queue, limits=limits, errors=own)
    kind = own.take("content_type", _content_type, item.content_type, limits.max_content_type)
    draft.meta = _meta(kind, own.take("headers", _headers, item.headers, limits), json=json)
    errors.update({f"{index}.{field}": text for field, text in own.items()})
    return draft


def _deeper_than(value: object, most: int) -> bool:
    """Tells whether more lists and objects of a JSON value lie inside each other."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(most):
        inner = (one.values() if isinstance(one, dict) else one for one in level)
        level = [each for several in inner for each in several if isinstance(each, dict | list)]
        if not level:
            return False
    return True


def _read_item_body(raw: bytes, limits: Limits, errors: Errors, *, encoded: bool) -> tuple[str | bytes, bool]:
    """Returns an item's body and whether it is the text of a JSON value."""
    try:
        value = decode_any(raw)
    except JSON_ERRORS:
        errors["body"] = "Is no JSON that others could read"
        return "", False
    if raw.count(b"[") + raw.count(b"{") > DEEPEST and _deeper_than(value, DEEPEST):
        errors["body"] = f"Nested deeper than {DEEPEST} levels"
        return "", False
    body: str | bytes = value if isinstance(value, str) else raw.decode()
    if encoded:
        try:
            body = text_or_bytes(b64decode(validators.text(value), validate=True))
        except (ValueError, binascii.Error):
            errors["body"] = "Is not base64"
    if not body:
        errors["body"] = validators.REQUIRED
    elif len(body if isinstance(body, bytes) else body.encode()) > limits.max_body:
        errors["body"] = f"Longer than maximum length {limits.max_body} bytes"
    return body, not isinstance(value, str)
