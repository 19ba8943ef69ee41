"""The heads of requests (RFC 9112): parsed by llhttp, the parser of Node, with all its lenient modes off.

A head is parsed whole, from its first line to its empty one, so the parser never sees what follows. Everything that
two programs could read differently is refused here: two lengths, a length beside chunks, folded lines, bare line feeds,
other versions. The method is checked by the views: any token may be one.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import httptools

MAX_HEAD_BYTES = 128 * 1024
"""Max bytes of a request's head."""
MAX_TARGET_BYTES = 64 * 1024
"""Max bytes of the request target."""
MAX_FIELDS = 100
HEAD_END = b"\r\n\r\n"

_METHOD = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64} ")
_ABSOLUTE = re.compile(rb"(?i:https?)://[^/?#@]+(?=[/?]|$)")
_MAX_LENGTH_DIGITS = 18
Field = tuple[bytes, bytes]


class HeadRefused(Exception):
    """A head that is malformed or ambiguous; the connection ends after its response.

    Attributes:
        status: The status of the response.
    """

    def __init__(self, why: str, status: int = 400) -> None:
        super().__init__(why)
        self.status = status


class HeadForm:
    """What a head says after its target. It never changes, and requests whose heads say the same share it.

    Attributes:
        fields: Lower-case names, and values.
        length: Bytes of the body, or None if it is chunked.
        is_old: The version is HTTP/1.0.
        keeps_alive: The connection goes on after the response.
        expects: The client waits for ``100 Continue`` before it sends the body.
        headers: The fields as the gateway has read them, or None before the first request.
    """

    __slots__ = ("expects", "fields", "headers", "is_old", "keeps_alive", "length")

    def __init__(self, fields: list[Field]) -> None:
        self.fields = fields
        self.length: int | None = 0
        self.is_old = self.expects = False
        self.keeps_alive = True
        self.headers: Any = None


class RequestHead(NamedTuple):
    """The head of a request.

    Attributes:
        method: The method as it was sent.
        path: The path as it was sent; ``*`` for the server itself.
        query: The text after the question mark.
        form: All that follows.
        key: The value of the header Idempotency-Key if it is left out of the form, because it differs in each request.
    """

    method: str
    path: bytes
    query: bytes
    form: HeadForm
    key: bytes = b""


_CHECKS_ONLY = object()
"""Receives nothing of what the parser finds."""
_UNREPEATABLE_HEADERS = (b"host", b"content-length", b"transfer-encoding")
"""Headers that must not be repeated. Others may be."""


_METHODS = {name.encode(): name for name in ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS")}
_PATH_AND_QUERY = re.compile(rb"(/[!-\"$->@-~]*)(?:\?([!-\"$-~]*))?")
cached_forms: dict[bytes, HeadForm] = {}
"""Forms by the bytes after the target: a client mostly sends the same ones again and again."""
_MAX_CACHED_FORMS = 1000
_MAX_CACHED_FORM_BYTES = 2048
_KEY_LINE = re.compile(rb"\r\n[Ii]dempotency-[Kk]ey: ([!-~]+)(?=\r\n[!-~\r])")
"""The header as our clients and most others write it. Its value differs in each request."""


def read_head(data: bytes) -> RequestHead:
    """Reads a head. If its form is known, only the request line is parsed.

    Forms are the same if they differ only in an Idempotency-Key.

    Args:
        data: The bytes from the request line to the empty line.

    Raises:
        HeadRefused: The head is malformed or ambiguous.
    """
    words = data.split(b" ", 2)
    method = _METHODS.get(words[0]) if len(words) == 3 and len(data) <= _MAX_CACHED_FORM_BYTES else None  # noqa: PLR2004
    target = None if method is None else _PATH_AND_QUERY.fullmatch(words[1])
    if method is None or target is None:
        return _parse(data)
    text, key = words[2], b""
    form = cached_forms.get(text)
    if form is None:
        if (line := _KEY_LINE.search(text)) is not None:
            text, key = text[: line.start()] + text[line.end() :], line[1]
            form = cached_forms.get(text)
        if form is None:
            form = _parse(b"GET / " + text).form
            if b"Signature=" not in text:  # A signature differs in each request.
                if len(cached_forms) >= _MAX_CACHED_FORMS:
                    cached_forms.clear()
                cached_forms[text] = form
        if key and (len(form.fields) == MAX_FIELDS or any(name == b"idempotency-key" for name, _ in form.fields)):
            return _parse(data)
    return RequestHead(method, target[1], target[2] or b"", form, key)


def _parse(data: bytes) -> RequestHead:
    match = _METHOD.match(data)
    if match is None:
        raise HeadRefused("The request line does not begin with a method")
    if data.count(b"\n") != data.count(b"\r\n"):
        raise HeadRefused("A line ends without a carriage return")
    method = data[: match.end() - 1]
    try:
        # The parser checks the head, and then its lines are read here. It would refuse a method that it does not know.
        httptools.HttpRequestParser(_CHECKS_ONLY).feed_data(b"GET" + data[len(method) :])
    except httptools.HttpParserUpgrade:
        pass  # Upgrades are ignored; a body belongs to this request.
    except httptools.HttpParserError as error:
        raise HeadRefused(str(error).removesuffix(" []") or "It is not HTTP") from None
    line, *lines = data[: -len(HEAD_END)].split(b"\r\n")
    target, _, version = line[len(method) + 1 :].rpartition(b" ")
    if version not in {b"HTTP/1.1", b"HTTP/1.0"}:
        raise HeadRefused("Only HTTP/1.1 and HTTP/1.0 are supported")
    if len(lines) > MAX_FIELDS:
        raise HeadRefused(f"More than {MAX_FIELDS} header fields", 431)
    if len(target) > MAX_TARGET_BYTES:
        raise HeadRefused(f"The request target is longer than {MAX_TARGET_BYTES} bytes", 414)
    if method == b"CONNECT":
        raise HeadRefused("CONNECT is not supported")
    fields = []
    for field in lines:
        name, _, value = field.partition(b":")
        fields.append((name.lower(), value.strip(b" \t")))
    return RequestHead(method.decode(), *_parse_target(target), _make_form(fields, is_old=version.endswith(b"0")))


def _make_form(fields: list[Field], *, is_old: bool) -> HeadForm:
    form = HeadForm(fields)
    by_name = dict(fields)
    if len(by_name) < len(fields):
        _refuse_repeated([name for name, _ in fields])
    if b"host" not in by_name and not is_old:
        raise HeadRefused("Missing Host header")
    form.is_old = is_old
    tokens = _connection_tokens(fields) if b"connection" in by_name else set()
    form.keeps_alive = b"close" not in tokens and (not is_old or b"keep-alive" in tokens)
    form.length = _parse_length(by_name, is_old=is_old)
    expected = by_name.get(b"expect", b"").strip().lower()
    form.expects = expected == b"100-continue" and not is_old and form.length != 0
    return form


def _connection_tokens(fields: list[Field]) -> set[bytes]:
    return {t.strip().lower() for name, value in fields if name == b"connection" for t in value.split(b",")}


def _refuse_repeated(names: list[bytes]) -> None:
    for name in _UNREPEATABLE_HEADERS:
        if names.count(name) > 1:
            raise HeadRefused(f"{name.decode().title()} is given twice")


def _parse_target(target: bytes) -> tuple[bytes, bytes]:
    """Returns path and query. Accepts an absolute URL, whose scheme and host are dropped; refuses a fragment."""
    if target == b"*":
        return target, b""
    if not target.startswith(b"/"):
        match = _ABSOLUTE.match(target)
        if match is None:
            raise HeadRefused("Request target is not a path")
        target = target[match.end() :]
        if not target.startswith(b"/"):
            target = b"/" + target
    if b"#" in target:
        raise HeadRefused("Request target has a fragment")
    path, _, query = target.partition(b"?")
    return path, query


def _parse_length(fields: dict[bytes, bytes], *, is_old: bool) -> int | None:
    coding, length = fields.get(b"transfer-encoding"), fields.get(b"content-length")
    if coding is not None:
        if length is not None or is_old:
            raise HeadRefused("Transfer-Encoding needs HTTP/1.1 without Content-Length")
        if coding.strip().lower() != b"chunked":
            raise HeadRefused("Transfer-Encoding must be chunked")
        return None
    if length is None:
        return 0
    length = length.strip()
    if not length.isdigit() or len(length) > _MAX_LENGTH_DIGITS:
        raise HeadRefused("Content-Length is not a number")
    return int(length)
