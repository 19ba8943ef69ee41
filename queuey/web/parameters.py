"""Shared parts of the OpenAPI document of version 1: parameters in paths, and error responses.

Also parses the header ``Idempotency-Key``. It names a post, so that repeating the post stores nothing.
"""

from __future__ import annotations

import re
from typing import Any

from queuey.api import errors
from queuey.model.errors import InvalidRequest
from queuey.model.messages import MAX_KEY_LENGTH, MAX_NAME_LENGTH
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
    "listed here. Unknown fields of a query or body, and headers that the operation does not support, get 400 unless "
    "the query has `strict=0`. `/v1/{app}`, `/v1/{app}/{queue}` and `/v1/{app}/{queue}/{ids}` are those of Mozilla's "
    "Queuey: there the header `Warning` names such fields, unless the query has `strict=1` or the body is JSON that "
    "creates or changes a queue. After a post it warns if a body that looks like a batch was stored as one message, "
    "because it was not sent as `application/json`. These three answer 404, with `Allow`, to methods that are not "
    "listed here, and 403 to requests without a credential. All other resources support OPTIONS, and HEAD wherever "
    "they support GET; other methods get 405 with `Allow`, and requests without a credential get 401."
)
ID = "([0-9]{1,9}:)?[0-9a-fA-F]{32}"
STRICT = Parameter(
    name="strict",
    place="query",
    about="`1`: unknown fields get 400; `0`: the header `Warning` names them",
    schema=BOOLEAN,
)
PLAIN = {"text/plain": ANY_TEXT}
PROBLEM = {"application/problem+json": errors.Problem}
FAILURE: Content = {JSON: errors.ErrorBody, **PROBLEM}
ERRORS = {
    400: ResponseSpec(FAILURE),
    401: ResponseSpec(FAILURE, {"WWW-Authenticate": "The scheme of credentials"}),
    403: ResponseSpec({**PLAIN, **PROBLEM}),
    404: ResponseSpec(FAILURE),
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


def pattern_schema(pattern: str) -> dict[str, Any]:
    return {"type": "string", "pattern": f"^{pattern}$"}


PATH_PARAMETERS = (
    Parameter(name="app", place="path", about="Application", schema=pattern_schema("[^/]+")),
    Parameter(name="queue", place="path", about="Queue", schema=pattern_schema("[^/_][^/]*")),
    Parameter(
        name="ids",
        place="path",
        about="Comma list of `<id>` (partition 1) or `<partition>:<id>`",
        schema=pattern_schema(f"{ID}(,{ID})*"),
    ),
    Parameter(
        name="id", place="path", about="`<id>` in any partition, or `<partition>:<id>`", schema=pattern_schema(ID)
    ),
    Parameter(
        name="name",
        place="path",
        about="Name of a message",
        schema=pattern_schema("[^/]+") | {"maxLength": MAX_NAME_LENGTH},
    ),
    Parameter(name="move", place="path", about="Move", schema=pattern_schema("[^/]+")),
    Parameter(name="schedule", place="path", about="Schedule", schema=pattern_schema("[A-Za-z0-9._:@-]{1,100}")),
    Parameter(name="group", place="path", about="Consumer group", schema=pattern_schema("[A-Za-z0-9._:@-]{1,100}")),
    Parameter(
        name="member", place="path", about="Member of a group: the `member` of its join", schema=pattern_schema("[^/]+")
    ),
)


def number_schema(minimum: float, maximum: float, kind: str = "integer") -> dict[str, Any]:
    return {"type": kind, "minimum": minimum, "maximum": maximum}


def header_parameter(name: str, about: str, schema: dict[str, Any]) -> Parameter:
    return Parameter(name=name, place="header", about=about, schema=schema)
