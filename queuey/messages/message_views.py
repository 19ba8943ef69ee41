"""Views of messages: post, and the operations by id. The parsers of posted messages follow the views."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from queuey.access.authorization import Authorization
from queuey.access.operations import QUEUE, Views, declare
from queuey.access.queue_access import QueueAccess
from queuey.api.messages import Fetched, FetchQuery, MessagesToPost, Posted
from queuey.api.values import Done
from queuey.messages.message_json import render_fetched
from queuey.messages.posts import AnyDraft, Draft, MessageUseCases, PlainDraft, hash_content
from queuey.model import ids
from queuey.model.errors import InvalidRequest, MessageNotFound
from queuey.model.ids import EPOCH_TICKS, TICKS_PER_SECOND, Position
from queuey.model.messages import MAX_TTL, Location, Message, Meta, PostResult, Queue
from queuey.model.partitions import MAX_PARTITIONS, partition_error
from queuey.model.rights import Action
from queuey.runtime.limits import Limits
from queuey.web import openapi, validators
from queuey.web.endpoint import WARNING, Match
from queuey.web.json_values import make_list_decoder, read_value
from queuey.web.openapi import Content, ResponseSpec, Tag
from queuey.web.parameters import (
    ANY_TEXT,
    KEY_PATTERN,
    REPLAYED_HEADER,
    header_parameter,
    number_schema,
    pattern_schema,
    read_key,
)
from queuey.web.requests import MAX_SHORT_BODY, OWN_HEADER_PREFIX, Request, read_body, record_unknown_names, too_large
from queuey.web.responses import JSON, Header, Response, json_response
from queuey.web.validators import JSON_ERRORS, Errors, bad_json

T = TypeVar("T")
_NOT_IN_HEADER = re.compile(r"[^ -~]+")
_PLACE = re.compile(r"(?:([0-9]{1,9}):)?([0-9a-fA-F]{32})")


def parse_locations(text: str, max_ids: int) -> list[Location]:
    """Parses the ids in a path, separated by commas: ``<id>`` in partition 1, or ``<partition>:<id>``.

    Raises:
        InvalidRequest: An id is malformed, or there are too many.
    """
    items = text.split(",")
    if len(items) > max_ids:
        message = f"{len(items)} message ids; at most {max_ids} are allowed. Send several requests."
        raise InvalidRequest({"InvalidMessageID": message}, code="InvalidMessageID")
    return [(1 if number is None else number, place) for number, place in map(parse_place, items)]


def parse_place(text: str) -> tuple[int | None, Position]:
    """Parses ``<id>`` or ``<partition>:<id>``; without a partition, the first value is None."""
    match = _PLACE.fullmatch(text.strip())
    if match is not None:
        with suppress(ValueError):
            return None if match[1] is None else int(match[1]), ids.parse_id(match[2])
    message = (
        f'"{validators.show(text.strip())}" is not a message id: [<partition>:]<32 hex digits of a version 1 UUID>.'
    )
    raise InvalidRequest({"InvalidMessageID": message}, code="InvalidMessageID")


def format_place(partition: int, position: Position) -> str:
    return f"{partition}:{ids.to_hex(position)}"


def _read_position(value: object) -> Position:
    try:
        return ids.parse_position(validators.parse_text(value).strip())
    except ValueError:
        raise validators.BadField(f'"{validators.show(value)}" is not a message id') from None


def make_raw_response(message: Message) -> Response:
    """Answers with a body as it was posted. It is untrusted, so the headers keep browsers from interpreting it."""
    body, meta = message.body, message.meta
    kind = None if meta is None else meta.content_type
    if kind is None:
        if meta is not None and meta.json:
            kind = "application/json"
        else:
            kind = "text/plain; charset=utf-8" if isinstance(body, str) else "application/octet-stream"
    headers: list[Header] = [
        ("Content-Type", _encode_header_value(kind)),
        ("Content-Disposition", "attachment"),
        ("X-Content-Type-Options", "nosniff"),
        ("X-Message-Id", message.id),
        ("X-Timestamp", message.timestamp),
        ("X-Partition", str(message.partition)),
    ]
    if meta is not None and meta.key is not None:
        headers.append(("X-Message-Key", _encode_header_value(meta.key)))
    for name, value in () if meta is None else meta.headers:
        headers.append((f"X-Header-{name}", _encode_header_value(value)))
    return Response(200, body.encode() if isinstance(body, str) else body, *headers)


def _encode_header_value(text: str) -> str:
    """Percent-encodes all but printable ASCII, because servers differ in how they send other characters."""
    return _NOT_IN_HEADER.sub(lambda match: quote(match[0]), text)


class MessageViews(Views):
    """Views of ``POST /v1/{app}/{queue}`` and of ``/v1/{app}/{queue}/{ids}``."""

    def __init__(self, authorization: Authorization, limits: Limits, messages: MessageUseCases) -> None:
        super().__init__(authorization, limits)
        self._messages = messages

    async def post(self, request: Request, match: Match) -> Response:
        """Stores one message, or a batch if the content type is JSON; answers 201 with their ids.

        A post with the Idempotency-Key of an earlier one stores nothing and gets its answer. A single message that
        looks like a batch gets a warning.
        """
        access = await self._authorization.admit(request, match, "send")
        header = request.headers.get("idempotency-key")
        key = None if header is None else read_key(header)
        kind = request.headers.get("content-type", "")
        batch = kind == _JSON or kind.partition(";")[0].strip().lower() == _JSON
        body = read_body(request, self._limits.max_batch_bytes if batch else self._limits.max_body)

        async def post(queue: Queue) -> PostResult:
            if len(body) <= MAX_SHORT_BODY:
                drafts, after, content = self._parse_post(request, body, queue, batch=batch)
            else:
                parse = partial(self._parse_post, request, body, queue, batch=batch)
                drafts, after, content = await request.in_thread(parse)
            return await self._messages.post(queue, drafts, after=after, key=key, content=content)

        posted = await access.apply(post)
        response = Response(
            201, render_posted(posted.locations), JSON, *((REPLAYED_HEADER,) if posted.replayed else ())
        )
        if not batch and _LIKE_A_BATCH.match(body) is not None:
            response.headers += (_STORED_AS_ONE,)
        return response

    def _parse_post(
        self, request: Request, body: bytes, queue: Queue, *, batch: bool
    ) -> tuple[Sequence[AnyDraft], Position | None, bytes]:
        errors = Errors()
        after = request.headers.get("x-after")
        position = errors.parse_field("after", _read_position, after) if after else None
        try:
            drafts: Sequence[AnyDraft]
            if batch:
                drafts = self._parse_batch(request, body, queue)
            else:
                drafts = [parse_single(request, body, self._limits, queue)]
        except InvalidRequest as error:
            error.fields.update(errors)
            raise
        if errors:
            errors.check()
        return drafts, position, hash_content(drafts) if "idempotency-key" in request.headers else b""

    def _parse_batch(self, request: Request, body: bytes, queue: Queue) -> Sequence[AnyDraft]:
        if request.has_own_headers or not request.headers.keys().isdisjoint(_MESSAGE_HEADERS):
            misplaced = [
                name for name in request.headers if name in _MESSAGE_HEADERS or name.startswith(OWN_HEADER_PREFIX)
            ]
            record_unknown_names(request, misplaced, "header", "batch", ("x-after", "idempotency-key"))
        drafts = parse_batch(body, self._limits, queue, request)
        request.batch = len(drafts)
        return drafts

    async def _enter_ids(self, request: Request, match: Match, action: Action) -> tuple[QueueAccess, list[Location]]:
        return await self.enter(request, match, action, lambda: parse_locations(match["ids"], self._limits.max_ids))

    async def fetch(self, request: Request, match: Match) -> Response:
        access, locations = await self._enter_ids(request, match, "read")
        raw = self.fields(FetchQuery).query(request).raw
        if raw and len(locations) > 1:
            raise InvalidRequest({"raw": "Takes one message id"})

        async def fetch() -> Response:
            messages = await self._messages.fetch(access, locations)
            if not raw:
                return Response(200, render_fetched(messages), JSON)
            if not messages:
                raise MessageNotFound(match["ids"].strip())
            return make_raw_response(messages[0])

        return await request.read_in_thread(fetch, page=True)

    async def put(self, request: Request, match: Match) -> Response:
        access, locations = await self._enter_ids(request, match, "overwrite")
        body = read_body(request, self._limits.max_body)
        draft = await request.parse_body(lambda: parse_single(request, body, self._limits, None))
        await self._messages.put(access, locations, draft)
        return json_response(Done())

    async def delete(self, request: Request, match: Match) -> Response:
        await self._messages.delete(*await self._enter_ids(request, match, "delete"))
        return json_response(Done())


# Reading messages from requests

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
_MAX_CACHED_TYPES = 1024
_types: dict[str, Meta] = {}


class _PlainItem(PlainDraft, gc=False, forbid_unknown_fields=True):
    """An item with only the common fields, which most batches have. Any other item ends the decoding."""

    message_key: None = None
    content_type: None = None
    headers: None = None
    no_delay: None = msgspec.field(default=None, name="delay")
    encoding: None = None


class _Batch(msgspec.Struct, forbid_unknown_fields=True):
    messages: list[_PlainItem]


class _ItemBody(msgspec.Struct):
    """The body of an item as JSON text."""

    body: msgspec.Raw = msgspec.Raw(b'""')


class _LooseItem(_ItemBody):
    """An item with any fields. ``body`` keeps its JSON text, so that a value is stored exactly as it was written."""

    ttl: Any = None
    partition: Any = None
    message_key: Any = None
    content_type: Any = None
    headers: Any = None
    delay: Any = None
    encoding: Any = None


class _ExactItem(_LooseItem, forbid_unknown_fields=True):
    """An item with known fields only."""


class _LooseBatch(msgspec.Struct):
    messages: msgspec.Raw


class _ExactBatch(_LooseBatch, forbid_unknown_fields=True):
    """A batch with no other fields than ``messages``."""


_JSON = "application/json"
_LIKE_A_BATCH = re.compile(rb'\s*\{\s*"messages"\s*:\s*\[')
_STORED_AS_ONE: Header = (
    WARNING,
    '299 - "Stored as one message. For a batch, send it with the header Content-Type: application/json"',
)
_LARGE_BATCH, _MAX_BRACES = 1024 * 1024, 64
"""A batch is decoded at once if it has at most this many bytes, or at most this many ``{`` per allowed message.

Every message has one ``{``, and its text may have more. The bound limits the memory of decoded messages.
"""
_MAX_ITEM_FIELDS = 128 * 1024
"""Max bytes of an item without its body: far more than valid fields take, even if every character is escaped."""
_MAX_JSON_EXPANSION, _JSON_OVERHEAD_BYTES = 8, 32
"""Max JSON bytes per body byte (escaped as ``\\u0041``, or base64 of it), and a constant on top."""
_decode_batch = msgspec.json.Decoder(_Batch).decode
_BATCH_DECODERS = msgspec.json.Decoder(_ExactBatch).decode, msgspec.json.Decoder(_LooseBatch).decode
_decode_item_body = msgspec.json.Decoder(_ItemBody).decode
_ITEM_DECODERS = msgspec.json.Decoder(_ExactItem).decode, msgspec.json.Decoder(_LooseItem).decode
_UNKNOWN_FIELD_ERROR = re.compile("unknown field `(.*?)`", re.DOTALL)


def text_or_bytes(body: bytes) -> str | bytes:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return body


def _read_partition(value: object, queue: Queue) -> int:
    number = validators.parse_integer(value, -(10**18), 10**18)
    if (error := partition_error(number, queue.partitions)) is not None:
        raise validators.Misfit(error)
    return number


def _read_content_type(value: object, max_length: int) -> str:
    kind = validators.parse_text(value, max_length)
    if validators.CONTROL_CHARACTER.search(kind) is not None:
        raise validators.BadField("A content type must not have control characters")
    return kind


def _read_message_headers(value: object, limits: Limits) -> tuple[tuple[str, str], ...]:
    """Reads the headers to keep with a message, whose names become lower-case.

    Readers get them as HTTP headers, so they must be valid ones, and not too many or too long.
    """
    if not isinstance(value, dict):
        raise validators.BadField(f'"{validators.show(value)}" is not an object')
    headers = {}
    for name, text in value.items():
        if _NAME.fullmatch(name) is None:
            raise validators.BadField(f'"{validators.show(name)}" is not a header name')
        if validators.CONTROL_CHARACTER.search(validators.parse_text(text)) is not None:
            raise validators.BadField("A header must not have control characters")
        headers[name.lower()] = text
    if len(headers) > limits.max_headers:
        raise validators.BadField(f"Longer than maximum length {limits.max_headers}")
    if sum(len(name) + len(text.encode()) for name, text in headers.items()) > limits.max_header_bytes:
        raise validators.BadField(f"Longer than maximum length {limits.max_header_bytes} bytes")
    return tuple(headers.items())


def _make_meta(kind: str | None, headers: tuple[tuple[str, str], ...] | None, *, json: bool = False) -> Meta | None:
    """Returns metadata, cached if it is only a content type. JSON is ``application/json`` unless ``kind`` is given."""
    if headers or json:
        return Meta(kind or (_JSON if json else kind), headers or (), json)
    if not kind:
        return None
    meta = _types.get(kind)
    if meta is None:
        meta = Meta(kind)
        if len(_types) >= _MAX_CACHED_TYPES:
            _types.clear()
        _types[kind] = meta
    return meta


def _own_headers_without_prefix(request: Request) -> dict[str, str]:
    return {
        name[len(OWN_HEADER_PREFIX) :]: value
        for name, value in request.headers.items()
        if name.startswith(OWN_HEADER_PREFIX)
    }


_MESSAGE_HEADERS = frozenset({"x-ttl", "x-partition", "x-message-key", "x-delay", "x-encoding"})
_POST_HEADERS = ("x-partition", "x-message-key", "x-delay", "x-after", "idempotency-key")


def parse_single(request: Request, body: bytes, limits: Limits, queue: Queue | None) -> Draft:
    """Parses a message whose body is the body of the request, and whose fields are headers.

    Args:
        queue: Queue that the message is posted to; None for a message that is put at given ids or named, which has no
            partition, key or delay.

    Raises:
        InvalidRequest: Fields are not valid; the error names every one.
    """
    get = request.headers.get
    kind = get("content-type")
    headers = _own_headers_without_prefix(request) if request.has_own_headers else None
    errors = Errors()
    if queue is None:
        text = "Is only allowed for messages posted to the queue, which get new ids"
        errors.update({name.removeprefix("x-").replace("-", "_"): text for name in _POST_HEADERS if get(name)})
    is_plain = not errors and headers is None and request.headers.keys().isdisjoint(_MESSAGE_HEADERS)
    meta = _types.get(kind) if kind else None
    if body and is_plain and (not kind or meta is not None):
        return Draft(text_or_bytes(body), meta=meta)
    fields = (get("x-ttl"), get("x-partition"), get("x-message-key"), get("x-delay"))
    encoding = get("x-encoding")
    draft = Draft(text_or_bytes(body))
    json = False
    if not body:
        errors["body"] = validators.REQUIRED
    elif errors.parse_field("encoding", validators.parse_choice, encoding, ("json",)):
        draft.body, json = _read_item_body(body, limits, errors, encoded=False)
    draft.ttl = errors.parse_field("ttl", validators.parse_integer, fields[0], 1, MAX_TTL)
    custom = errors.parse_field("headers", _read_message_headers, headers, limits)
    kind = errors.parse_field("content_type", _read_content_type, kind, limits.max_content_type)
    draft.meta = _make_meta(kind, custom, json=json)
    if queue is not None:
        _, partition, key, delay = fields
        _read_placement(draft, partition, key, delay, queue=queue, limits=limits, errors=errors)
    errors.check()
    return draft


def _read_placement(
    draft: Draft, partition: object, key: object, delay: object, *, queue: Queue, limits: Limits, errors: Errors
) -> None:
    draft.partition = errors.parse_field("partition", _read_partition, partition, queue)
    draft.key = errors.parse_field("message_key", validators.parse_text, key, limits.max_message_key)
    draft.delay = errors.parse_field("delay", validators.parse_decimal, delay, 0, MAX_TTL) or 0.0
    if draft.partition is not None and draft.key is not None:
        errors["message_key"] = "Not together with partition"


def _decode(
    decoders: tuple[Callable[..., T], Callable[..., T]],
    raw: bytes | msgspec.Raw,
    unknown: list[str],
    index: int | None = None,
) -> T:
    exact, loose = decoders
    try:
        return exact(raw)
    except msgspec.ValidationError as error:
        prefix = "" if index is None else f"{index}."
        unknown += [prefix + name for name in _UNKNOWN_FIELD_ERROR.findall(str(error))]
        return loose(raw)


def parse_batch(body: bytes, limits: Limits, queue: Queue, request: Request) -> Sequence[AnyDraft]:
    """Parses the messages of a JSON body. Records unknown fields in the request, for the header ``Warning``.

    Raises:
        InvalidRequest: Fields are not valid; the error names every field of every item.
        TooLarge: The batch has too many messages, or one of them is too long.
    """
    if len(body) > _LARGE_BATCH and body.count(b"{") > _MAX_BRACES * limits.max_batch:
        return _parse_loose_batch(body, limits, queue, request)
    try:
        batch = _decode_batch(body)
    except msgspec.ValidationError:
        return _parse_loose_batch(body, limits, queue, request)
    except JSON_ERRORS as error:
        raise bad_json(error) from None
    if len(batch.messages) > limits.max_batch:
        raise too_large("messages", limits.max_batch, unit="messages")
    highest, longest = queue.partitions, limits.max_body // 4
    for item in batch.messages:
        text, ttl, partition = item.body, item.ttl, item.partition
        if (
            not 0 < len(text) <= longest
            or (ttl is not None and not 0 < ttl <= MAX_TTL)
            or (partition is not None and not 0 < partition <= highest)
        ):
            return _parse_loose_batch(body, limits, queue, request)
    return batch.messages


def _parse_loose_batch(body: bytes, limits: Limits, queue: Queue, request: Request) -> list[Draft]:
    """Parses a batch item by item. Accepts numbers as text, and any JSON value as a body.

    Records unknown fields in the request. Raises as :func:`parse_batch`.
    """
    unknown: list[str] = []
    try:
        raw = _decode(_BATCH_DECODERS, body, unknown).messages
    except msgspec.ValidationError:
        raise bad_json(
            'It has no "messages". A batch is {"messages": [{"body": ...}]}; send one message alone with another '
            "Content-Type, such as text/plain"
        ) from None
    except JSON_ERRORS as error:
        raise bad_json(error) from None
    if memoryview(raw)[0] != ord("["):
        raise InvalidRequest({"messages": "Is not a list"})
    try:
        items = make_list_decoder(limits.max_batch)(raw)
    except msgspec.ValidationError:
        raise too_large("messages", limits.max_batch, unit="messages") from None
    errors = Errors()
    drafts = [_read_item(item, index, limits, queue, errors, unknown) for index, item in enumerate(items)]
    if unknown:
        record_unknown_names(request, unknown, "field", "body", ("messages", *_LooseItem.__struct_fields__))
    if any(text.startswith("Longer") and name.endswith(".body") for name, text in errors.items()):
        raise _make_too_large(errors)
    errors.check()
    return drafts


def _make_too_large(errors: Errors) -> InvalidRequest:
    error = too_large("body", 0)
    error.fields = dict(errors)
    return error


def _read_item(raw: msgspec.Raw, index: int, limits: Limits, queue: Queue, errors: Errors, unknown: list[str]) -> Draft:
    """Reads an item of a batch, whose errors go into ``errors`` under its index.

    A bad item gives a draft that must not be stored.
    """
    draft = Draft("")
    item_errors = Errors()
    size = memoryview(raw).nbytes
    try:
        if size > _MAX_ITEM_FIELDS and size - memoryview(_decode_item_body(raw).body).nbytes > _MAX_ITEM_FIELDS:
            errors[str(index)] = f"Longer than maximum length {_MAX_ITEM_FIELDS} bytes without its body"
            return draft
        item = _decode(_ITEM_DECODERS, raw, unknown, index)
    except JSON_ERRORS:
        errors[str(index)] = "Is not an object"
        return draft
    item_errors.parse_field("encoding", validators.parse_choice, item.encoding, ("base64",))
    draft.body, json = _read_item_body(bytes(item.body), limits, item_errors, encoded=item.encoding == "base64")
    draft.ttl = item_errors.parse_field("ttl", validators.parse_integer, item.ttl, 1, MAX_TTL)
    _read_placement(draft, item.partition, item.message_key, item.delay, queue=queue, limits=limits, errors=item_errors)
    kind = item_errors.parse_field("content_type", _read_content_type, item.content_type, limits.max_content_type)
    draft.meta = _make_meta(
        kind, item_errors.parse_field("headers", _read_message_headers, item.headers, limits), json=json
    )
    errors.include(item_errors, f"{index}.")
    return draft


def _read_item_body(raw: bytes, limits: Limits, errors: Errors, *, encoded: bool) -> tuple[str | bytes, bool]:
    """Returns a body, and whether it is the text of a JSON value. ``encoded`` bodies are decoded from base64.

    Puts an error into ``errors`` if it is empty or too long, or cannot be decoded.
    """
    longer = f"Longer than maximum length {limits.max_body} bytes"
    if len(raw) > _MAX_JSON_EXPANSION * limits.max_body + _JSON_OVERHEAD_BYTES:
        errors["body"] = longer
        return "", False
    body: str | bytes
    try:
        body, json = read_value(raw)
    except validators.BadField as error:
        errors["body"] = str(error)
        return "", False
    if encoded:
        try:
            body = text_or_bytes(b64decode(validators.parse_text(None if json else body), validate=True))
        except ValueError:
            errors["body"] = "Is not base64"
    if not body:
        errors["body"] = validators.REQUIRED
    elif len(body if isinstance(body, bytes) else body.encode()) > limits.max_body:
        errors["body"] = longer
    return body, json


_POSTED = b'%b%08x%b","timestamp":"%d.%07d","partition":%d}'
_FIRST_POSTED = b'{"status":"ok","messages":[{"key":"'
_NEXT_POSTED = b',{"key":"'


def render_posted(locations: Sequence[Location]) -> bytes:
    if not locations:
        return b'{"status":"ok","messages":[]}'
    parts: list[bytes | int] = []
    separator = _FIRST_POSTED
    for partition, (ticks, low) in locations:
        seconds, fraction = divmod(ticks - EPOCH_TICKS, TICKS_PER_SECOND)
        parts += (separator, ticks & 0xFFFFFFFF, ids.last_digits(ticks >> 32, low), seconds, fraction, partition)
        separator = _NEXT_POSTED
    return (_POSTED * len(locations) + b"]}") % tuple(parts)


MESSAGES_TAG = Tag("Messages", "Send messages, read them by time as often as you like, and follow queues live.")
IDS = QUEUE + "/{ids}"
KEPT_HEADERS_TEXT = "Up to {max_headers} headers `X-Header-<name>` are kept with the message."
ANY_BODY: Content = {"*/*": {"description": "Up to {max_body} bytes"}}
TTL = header_parameter(
    "X-TTL", "Seconds to live; by default the queue's `ttl`, or {default_ttl}", number_schema(1, MAX_TTL)
)
ENCODING = header_parameter(
    "X-Encoding", "`json`: the body is JSON, and readers get its value", {"type": "string", "enum": ["json"]}
)
POST_HEADERS = (
    TTL,
    header_parameter("X-Partition", "Partition to write to", number_schema(1, MAX_PARTITIONS)),
    header_parameter(
        "X-Message-Key",
        "The hash of the key chooses the partition; not together with X-Partition",
        ANY_TEXT | {"x-limit": "max_message_key"},
    ),
    header_parameter("X-Delay", "Seconds until the message is due", number_schema(0, MAX_TTL, kind="number")),
    header_parameter(
        "X-After", "Id of a message that the new ids are above", pattern_schema("([0-9a-fA-F]{32}|[0-9a-fA-F-]{36})")
    ),
    ENCODING,
    header_parameter(
        "Idempotency-Key",
        "Names the post: repeated with the same key, it stores nothing and gets the first answer",
        pattern_schema(f"({KEY_PATTERN})"),
    ),
)
STORED: dict[str, Any] = {"parameters": (TTL, ENCODING), "body": ANY_BODY}
"""A body that is stored as one message, and its headers."""
RAW_HEADERS = {
    "X-Message-Id": "The message's id",
    "X-Timestamp": "Its time",
    "X-Partition": "Its partition",
    "Content-Disposition": "`attachment`",
    "X-Content-Type-Options": "`nosniff`",
}
RAW_JSON = {"description": "With raw: the JSON value that was posted"}
MESSAGE_OR_RAW = {200: ResponseSpec({openapi.JSON: (Fetched, RAW_JSON), "*/*": {}}, RAW_HEADERS)}
POST_MESSAGES = declare(
    MESSAGES_TAG,
    f"POST {QUEUE}",
    "Post messages, one with any body or a batch as JSON",
    {201: ResponseSpec({openapi.JSON: Posted}, {"Idempotent-Replayed": "`true`: stored before, with this key"})},
    MessageViews.post,
    about=f"{KEPT_HEADERS_TEXT} With an Idempotency-Key, 409 means that a post with this key is still running, and "
    "422 that the key belongs to another post.",
    parameters=POST_HEADERS,
    body={openapi.JSON: MessagesToPost, **ANY_BODY},
    further_errors=(409, 422),
)
OPERATIONS_BY_ID = (
    declare(
        MESSAGES_TAG,
        f"GET {IDS}",
        "Get messages, by id",
        MESSAGE_OR_RAW,
        MessageViews.fetch,
        query=FetchQuery,
        further_errors=(413,),
        ends_with_client=True,
    ),
    declare(
        MESSAGES_TAG,
        f"PUT {IDS}",
        "Put messages, one body at all ids",
        Done,
        MessageViews.put,
        about=KEPT_HEADERS_TEXT,
        **STORED,
    ),
    declare(MESSAGES_TAG, f"DELETE {IDS}", "Delete messages, by id", Done, MessageViews.delete),
)
