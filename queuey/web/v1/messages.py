"""Views of messages: post, and everything by id."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import quote

from queuey import ids
from queuey.errors import InvalidRequest, NotFound
from queuey.ids import Position
from queuey.messages import Message, Queue
from queuey.service import Draft, Location, Service
from queuey.service.messages import ahead
from queuey.web import validators
from queuey.web.authorization import Authorization
from queuey.web.endpoint import Begun, Match, WouldBlock
from queuey.web.errors import BATCH
from queuey.web.requests import read_body, read_query
from queuey.web.responses import JSON, Environ, Header, Response, body_of, json_response
from queuey.web.v1 import schemas
from queuey.web.v1.message_json import read_batch, read_single, render_fetched, render_posted
from queuey.web.validators import Errors

FETCH_FIELDS = frozenset({"raw"})
_PLACE = re.compile(r"(?:([0-9]{1,9}):)?([0-9a-fA-F]{32})")


class MessageNotFound(NotFound):
    """No message has the id."""

    code = "InvalidMessageID"
    form = "Message {name} is not there: it was deleted, has expired, or lies in another partition."


def parse_locations(text: str, most: int) -> list[Location]:
    """Reads the ids in a path: ``<id>`` in partition 1, or ``<partition>:<id>``.

    Raises:
        InvalidRequest: One of them is malformed, or there are too many.
    """
    items = text.split(",")
    if len(items) > most:
        message = f"{len(items)} message ids; {most} at most. Ask in several requests."
        raise InvalidRequest({"InvalidMessageID": message}, code="InvalidMessageID")
    try:
        return [_location(item.strip()) for item in items]
    except ValueError as error:
        message = (
            f'"{validators.show(str(error))}" is not a message id: [<partition>:]<32 hex digits of a version 1 UUID>.'
        )
        raise InvalidRequest({"InvalidMessageID": message}, code="InvalidMessageID") from None


def _location(item: str) -> Location:
    match = _PLACE.fullmatch(item)
    if match is None:
        raise ValueError(item)
    try:
        return int(match[1] or 1), ids.parse_id(match[2])
    except ValueError:
        raise ValueError(item) from None


def _position(value: object) -> Position:
    """Reads the id that new ones must be above."""
    try:
        return ids.parse_position(validators.text(value).strip())
    except ValueError:
        raise validators.BadField(f'"{validators.show(value)}" is not a message id') from None


def _is_batch(environ: Environ) -> bool:
    kind: str = environ.get("CONTENT_TYPE", "")
    return kind == "application/json" or kind.partition(";")[0].strip().lower() == "application/json"


def raw_response(message: Message) -> Response:
    """Answers with a body as it was posted. It is somebody else's content, so no browser may act on it."""
    body, meta = message.body, message.meta
    kind = None if meta is None else meta.content_type
    if kind is None:
        if meta is not None and meta.json:
            kind = "application/json"
        else:
            kind = "text/plain; charset=utf-8" if isinstance(body, str) else "application/octet-stream"
    headers: list[Header] = [
        ("Content-Type", _header_text(kind)),
        ("Content-Disposition", "attachment"),
        ("X-Content-Type-Options", "nosniff"),
        ("X-Message-Id", message.id),
        ("X-Timestamp", message.timestamp),
        ("X-Partition", str(message.partition)),
    ]
    for name, value in () if meta is None else meta.headers:
        headers.append((f"X-Header-{name}", _header_text(value)))
    return Response(200, body.encode() if isinstance(body, str) else body, *headers)


def _header_text(text: str) -> str:
    """Returns text as a header's value, what is not ASCII percent-encoded: servers differ in how they encode it."""
    return text if text.isascii() else "".join(char if char.isascii() else quote(char) for char in text)


def _posted(locations: Sequence[Location]) -> Response:
    return Response(201, render_posted(locations), JSON)


class MessageViews:
    """Views of ``POST /v1/{app}/{queue}`` and of ``/v1/{app}/{queue}/{ids}``."""

    def __init__(self, service: Service, authorization: Authorization) -> None:
        self._messages = service.messages
        self._limits = service.limits
        self._authorization = authorization

    def post(self, environ: Environ, match: Match) -> Response:
        """Stores one message, or a batch if the body is JSON."""
        access = self._authorization.enter(environ, self._authorization.find(environ, match), "send")
        batch = _is_batch(environ)
        body = self._body(environ, batch=batch)
        try:
            drafts, after = self._read(environ, body, access.queue, batch=batch)
        except InvalidRequest:
            if not access.renew():
                raise
            drafts, after = self._read(environ, body, access.queue, batch=batch)
        return _posted(self._messages.post(access, drafts, after=after))

    def begin_post(self, environ: Environ, match: Match) -> Begun:
        """Is ``post`` without blocking."""
        if environ["QUERY_STRING"]:
            raise WouldBlock  # it has no fields, of which only the other way tells
        queue = self._authorization.enter_at_once(environ, match, "send")
        batch = _is_batch(environ)
        try:
            drafts, after = self._read(environ, self._body(environ, batch=batch), queue, batch=batch)
        except InvalidRequest:
            raise WouldBlock from None  # it may be the row that is wrong
        if after is not None and ahead(after) > 0:
            raise WouldBlock
        begin, stored = self._messages.begin_post(queue, drafts, after=after)
        return begin, lambda positions: _posted(stored(positions))

    def _body(self, environ: Environ, *, batch: bool) -> bytes:
        return read_body(environ, self._limits.max_batch_bytes if batch else self._limits.max_body)

    def _read(self, environ: Environ, body: bytes, queue: Queue, *, batch: bool) -> tuple[list[Draft], Position | None]:
        """Reads the messages of a post, and the id that theirs must be above."""
        after = environ.get("HTTP_X_AFTER")
        if not after:
            return self._drafts(environ, body, queue, batch=batch), None
        errors = Errors()
        position = errors.take("after", _position, after)
        try:
            drafts = self._drafts(environ, body, queue, batch=batch)
        except InvalidRequest as error:
            error.fields.update(errors)
            raise
        errors.check()
        return drafts, position

    def _drafts(self, environ: Environ, body: bytes, queue: Queue, *, batch: bool) -> list[Draft]:
        if not batch:
            return [read_single(environ, body, self._limits, queue)]
        drafts = read_batch(body, self._limits, queue)
        environ[BATCH] = len(drafts)
        return drafts

    def fetch(self, environ: Environ, match: Match) -> Response:
        """Returns messages by id, or the bytes of one."""
        queue = self._authorization.find(environ, match)
        locations = parse_locations(match["ids"], self._limits.max_ids)
        access = self._authorization.enter(environ, queue, "read")
        raw = validators.boolean(read_query(environ, FETCH_FIELDS).get("raw", ""))
        if raw and len(locations) > 1:
            raise InvalidRequest({"raw": "Takes one message id"})
        messages = self._messages.fetch(access, locations)
        if not raw:
            return Response(200, body_of(render_fetched(messages)), JSON)
        if not messages:
            raise MessageNotFound(match["ids"].strip())
        return raw_response(messages[0])

    def put(self, environ: Environ, match: Match) -> Response:
        """Writes one body at the ids, creating or overwriting each."""
        queue = self._authorization.find(environ, match)
        locations = parse_locations(match["ids"], self._limits.max_ids)
        access = self._authorization.enter(environ, queue, "overwrite")
        draft = read_single(environ, read_body(environ, self._limits.max_body), self._limits, None)
        self._messages.put(access, locations, draft)
        return json_response(schemas.Done())

    def delete(self, environ: Environ, match: Match) -> Response:
        """Deletes messages by id, whether they are there or not."""
        queue = self._authorization.find(environ, match)
        locations = parse_locations(match["ids"], self._limits.max_ids)
        self._messages.delete(self._authorization.enter(environ, queue, "delete"), locations)
        return json_response(schemas.Done())
