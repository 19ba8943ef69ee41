"""Shared parts of the OpenAPI document of version 1: parameters, headers, bodies and error responses.

Also parses the header ``Idempotency-Key``. It names a post, so that repeating the post stores nothing.
"""

from __future__ import annotations

import re
from typing import Any

from queuey.api import errors
from queuey.model.errors import InvalidRequest
from queuey.model.messages import MAX_KEY_LENGTH, MAX_NAME_LENGTH, MAX_TTL
from queuey.model.partitions import MAX_PARTITIONS
from queuey.web import validators
from queuey.web.openapi import BOOLEAN, JSON, Content, Parameter, ResponseSpec
from queuey.web.responses import Header

REPLAYED_HEADER: Header = ("Idempotent-Replayed", "true")
"""Header of the answer to a post that was carried out before."""

KEY_PATTERN = r'[!#-+\--:<-\[\]-~]{1,255}|"(?:[ !#-\[\]-~]|\\["\\]){1,255}"'
"""A key, bare or quoted.

A bare key has no quotation marks, commas, semicolons or backslashes: several headers, which are joined by commas, are
not a key. A quoted key is a string of structured header fields (RFC 9651). Both forms name the same key.
"""
_KEY = re.compile(KEY_PATTERN)
_ESCAPED = re.compile(r"\\(.)")

ANY_TEXT: dict[str, Any] = {"type": "string"}
FORM = "application/x-www-form-urlencoded"
SECURITY = {
    "type": "apiKey",
    "in": "header",
    "name": "Authorization",
    "description": "`Application <key>`; several credentials are separated by `;`.",
}
ABOUT = (
    "Send, read and claim messages, and manage queues, from any language that speaks HTTP.\n\n"
    "Malformed HTTP gets a status of 400 to 431 without a body, and the connection is closed. All other answers are "
    "listed here. The header `Warning` names unknown fields of a query or body, and headers that the operation does "
    "not support; with `strict=1` they get 400. After a post it warns if a body that looks like a batch was stored as "
    "one message, because it was not sent as `application/json`. `/v1/{app}`, `/v1/{app}/{queue}` and "
    "`/v1/{app}/{queue}/{ids}` answer 404, with `Allow`, to methods that are not listed here, and 403 to requests "
    "without a credential. All other resources support OPTIONS, and HEAD wherever they support GET; other methods get "
    "405 with `Allow`, and requests without a credential get 401."
)
ID = "([0-9]{1,9}:)?[0-9a-fA-F]{32}"
STRICT = Parameter(
    name="strict",
    place="query",
    about="`1`: unknown fields of the query get 400; otherwise the header `Warning` names them",
    schema=BOOLEAN,
)
KEPT_HEADERS_TEXT = "Up to {max_headers} headers `X-Header-<name>` are kept with the message."
ANY_BODY: Content = {"*/*": {"description": "Up to {max_body} bytes"}}
EVENTS: Content = {"text/event-stream": {}}
STREAM_TEXT = (
    "Events (WHATWG HTML, 9.2): `data` is a message, `id` the position to resume from. `read`: the caller's mark in a "
    "queue moved; `gone`: a queue was deleted, or may not be read any more; `expiring`: the credential expires soon; "
    "`bye`: the stream ends, with the reason. HEAD returns the headers only."
)
STREAM_OF_ALL_TEXT = (
    f"Without `queues`, follows all that the credential may read, up to {{max_queues_per_stream}}. {STREAM_TEXT}"
)
RAW_HEADERS = {
    "X-Message-Id": "The message's id",
    "X-Timestamp": "Its time",
    "X-Partition": "Its partition",
    "Content-Disposition": "`attachment`",
    "X-Content-Type-Options": "`nosniff`",
}
RAW_JSON = {"description": "With raw: the JSON value that was posted"}
PLAIN = {"text/plain": ANY_TEXT}
PROBLEM = {"application/problem+json": errors.Problem}
FAILURE: Content = {JSON: errors.ErrorBody, **PROBLEM}
ERRORS = {
    400: ResponseSpec(FAILURE),
    401: ResponseSpec(FAILURE, {"WWW-Authenticate": "The scheme of credentials"}),
    403: ResponseSpec({**PLAIN, **PROBLEM}),
    404: ResponseSpec({**FAILURE, **PLAIN}),
    409: ResponseSpec(FAILURE, {"Retry-After": "Seconds after which to try again, if that can help"}),
    413: ResponseSpec(FAILURE),
    415: ResponseSpec(FAILURE, {"Accept-Encoding": "`identity`: bodies are not compressed"}),
    422: ResponseSpec(FAILURE),
    429: ResponseSpec(FAILURE, {"Retry-After": "Seconds after which to try again"}),
    500: ResponseSpec(FAILURE),
    503: ResponseSpec(FAILURE, {"Retry-After": "Seconds after which to try again"}),
}
USUAL_ERRORS = (400, 401, 403, 404, 429, 500, 503)
TOO_LONG_ERRORS = (*USUAL_ERRORS, 413)
BODY_ERRORS = (*TOO_LONG_ERRORS, 415)


def read_key(value: str) -> str:
    """Parses the value of the header ``Idempotency-Key``; of a quoted key it returns the text that is quoted.

    Raises:
        InvalidRequest: The key is malformed.
    """
    text = value.strip()
    if _KEY.fullmatch(text) is None:
        rule = f'use 1 to {MAX_KEY_LENGTH} visible ASCII characters without " , ; \\, or a quoted string'
        raise InvalidRequest({"idempotency_key": f'"{validators.show(text)}" is not a valid key: {rule}'})
    return _ESCAPED.sub(r"\1", text[1:-1]) if text[0] == '"' else text


def _pattern_schema(pattern: str) -> dict[str, Any]:
    return {"type": "string", "pattern": f"^{pattern}$"}


PATH_PARAMETERS = (
    Parameter(name="app", place="path", about="Application", schema=_pattern_schema("[^/]+")),
    Parameter(name="queue", place="path", about="Queue", schema=_pattern_schema("[^/_][^/]*")),
    Parameter(
        name="ids",
        place="path",
        about="Comma list of `<id>` (partition 1) or `<partition>:<id>`",
        schema=_pattern_schema(f"{ID}(,{ID})*"),
    ),
    Parameter(
        name="id", place="path", about="`<id>` in any partition, or `<partition>:<id>`", schema=_pattern_schema(ID)
    ),
    Parameter(
        name="name",
        place="path",
        about="Name of a message",
        schema=_pattern_schema("[^/]+") | {"maxLength": MAX_NAME_LENGTH},
    ),
    Parameter(name="move", place="path", about="Move", schema=_pattern_schema("[^/]+")),
    Parameter(name="schedule", place="path", about="Schedule", schema=_pattern_schema("[A-Za-z0-9._:@-]{1,100}")),
    Parameter(name="group", place="path", about="Consumer group", schema=_pattern_schema("[A-Za-z0-9._:@-]{1,100}")),
    Parameter(
        name="member",
        place="path",
        about="Member of a group: the `member` of its join",
        schema=_pattern_schema("[^/]+"),
    ),
)


def _number_schema(minimum: float, maximum: float, kind: str = "integer") -> dict[str, Any]:
    return {"type": kind, "minimum": minimum, "maximum": maximum}


def _header_parameter(name: str, about: str, schema: dict[str, Any]) -> Parameter:
    return Parameter(name=name, place="header", about=about, schema=schema)


TTL = _header_parameter(
    "X-TTL", "Seconds to live; by default the queue's `ttl`, or {default_ttl}", _number_schema(1, MAX_TTL)
)
ENCODING = _header_parameter(
    "X-Encoding", "`json`: the body is JSON, and readers get its value", {"type": "string", "enum": ["json"]}
)
POST_HEADERS = (
    TTL,
    _header_parameter("X-Partition", "Partition to write to", _number_schema(1, MAX_PARTITIONS)),
    _header_parameter(
        "X-Message-Key",
        "The hash of the key chooses the partition; not together with X-Partition",
        ANY_TEXT | {"x-limit": "max_message_key"},
    ),
    _header_parameter("X-Delay", "Seconds until the message is due", _number_schema(0, MAX_TTL, kind="number")),
    _header_parameter(
        "X-After", "Id of a message that the new ids are above", _pattern_schema("([0-9a-fA-F]{32}|[0-9a-fA-F-]{36})")
    ),
    ENCODING,
    _header_parameter(
        "Idempotency-Key",
        "Names the post: repeated with the same key, it stores nothing and gets the first answer",
        _pattern_schema(f"({KEY_PATTERN})"),
    ),
)
LAST_EVENT = _header_parameter("Last-Event-ID", "For a stream: the `id` of the last event received", ANY_TEXT)
