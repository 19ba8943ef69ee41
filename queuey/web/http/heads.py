"""The heads of requests (RFC 9112): parsed by llhttp, the parser of Node, with all its lenient modes off.

A head is parsed whole, from its first line to its empty one, so the parser never sees what follows. Everything that
two programs could read differently is refused here: two lengths, a length beside chunks, folded lines, bare line feeds,
other versions. The method is checked by the views: any token may be one.
"""

from __future__ import annotations

import re
from typing import Any

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


class RequestHead:
    """The head of a request. It never changes after parsing: requests with the same head share it.

    Attributes:
        method: The method as it was sent.
        path: The path as it was sent; ``*`` for the server itself.
        query: The text after the question mark.
        fields: Lower-case names, and values.
        length: Bytes of the body, or None if it is chunked.
        is_old: The version is HTTP/1.0.
        keeps_alive: The connection goes on after the response.
        expects: The client waits for ``100 Continue`` before it sends the body.
        application_cache: Cache of the application, shared by all heads that differ only in their ``key``.
        key: The value of the header Idempotency-Key if it is left out of ``fields``, because it differs in each
            request.
    """

    __slots__ = (
        "application_cache",
        "expects",
        "fields",
        "is_old",
        "keeps_alive",
        "key",
        "length",
        "method",
        "path",
        "query",
    )

    def __init__(self, method: str, target: tuple[bytes, bytes], fields: list[Field]) -> None:
        self.method = method
        self.path, self.query = target
        self.fields = fields
        self.length: int | None = 0
        self.is_old = self.expects = False
        self.keeps_alive = True
        self.application_cache: list[Any] = []
        self.key = b""

    def with_key(self, key: bytes) -> RequestHead:
        """Returns a copy with a key, which shares ``fields`` and ``application_cache``."""
        head = RequestHead(self.method, (self.path, self.query), self.fields)
        head.length, head.is_old, head.keeps_alive, head.expects = (
            self.length,
            self.is_old,
            self.keeps_alive,
            self.expects,
        )
        head.application_cache, head.key = self.application_cache, key
        return head


class _Fields:
    """Callbacks of the parser."""

    __slots__ = ("fields", "target")

    def __init__(self) -> None:
        self.target = b""
        self.fields: list[Field] = []

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.fields.append((_LOWER_CASE_NAMES.get(name) or name.lower(), value))


_LOWER_CASE_NAMES: dict[bytes, bytes] = {
    name: name.lower()
    for name in (
        *(b"Accept", b"Accept-Encoding", b"Authorization", b"Connection", b"Content-Length", b"Content-Type", b"Host"),
        *(b"User-Agent", b"X-Message-Key", b"X-Partition", b"X-TTL"),
    )
}
_UNREPEATABLE_HEADERS = (b"host", b"content-length", b"transfer-encoding")
"""Headers that must not be repeated. Others may be."""


cached_heads: dict[bytes, RequestHead] = {}
"""Parsed heads by their bytes: a client mostly sends the same head again and again."""
_MAX_CACHED_HEADS = 1000
_MAX_CACHED_HEAD_BYTES = 2048
_KEY_LINE = re.compile(rb"\r\n[Ii]dempotency-[Kk]ey: ([!-~]+)(?=\r\n[!-~\r])")
"""The header as our clients and most others write it. Its value differs in each request."""


def read_head(data: bytes) -> RequestHead:
    """Reads a head that is not in :data:`cached_heads`; heads that differ only in their Idempotency-Key share an entry.

    Args:
        data: The bytes from the request line to the empty line.

    Raises:
        Refused: The head is malformed or ambiguous.
    """
    line = _KEY_LINE.search(data)
    if line is None:
        return _read_cached(data)
    shared = _read_cached(data[: line.start()] + data[line.end() :])
    if len(shared.fields) == MAX_FIELDS or any(name == b"idempotency-key" for name, _ in shared.fields):
        return _parse(data)
    return shared.with_key(line[1])


def _read_cached(data: bytes) -> RequestHead:
    """Parses a head, or takes it from the cache, which has no long or signed ones."""
    head = cached_heads.get(data)
    if head is None:
        head = _parse(data)
        if len(data) <= _MAX_CACHED_HEAD_BYTES and b"Signature=" not in data:  # A signature differs in each request.
            if len(cached_heads) >= _MAX_CACHED_HEADS:
                cached_heads.clear()
            cached_heads[data] = head
    return head


def _parse(data: bytes) -> RequestHead:
    match = _METHOD.match(data)
    if match is None:
        raise HeadRefused("The request line does not begin with a method")
    if data.count(b"\n") != data.count(b"\r\n"):
        raise HeadRefused("A line ends without a carriage return")
    method = data[: match.end() - 1]
    fields = _Fields()
    parser = httptools.HttpRequestParser(fields)
    try:
        # The parser would refuse a head with a method that it does not know.
        parser.feed_data(b"GET" + data[len(method) :])
    except httptools.HttpParserUpgrade:
        pass  # Upgrades are ignored; a body belongs to this request.
    except httptools.HttpParserError as error:
        raise HeadRefused(str(error).removesuffix(" []") or "It is not HTTP") from None
    line = data[: data.index(b"\r\n")]
    if not line.endswith((b" HTTP/1.1", b" HTTP/1.0")):
        raise HeadRefused("Only HTTP/1.1 and HTTP/1.0 are supported")
    return _make_request_head(method.decode(), fields, is_old=line.endswith(b"0"))


def _make_request_head(method: str, read: _Fields, *, is_old: bool) -> RequestHead:
    """Makes the head. Refuses too many or repeated headers, a long target, ``CONNECT``, and HTTP/1.1 without Host.

    Raises ``Refused``.
    """
    if len(read.fields) > MAX_FIELDS:
        raise HeadRefused(f"More than {MAX_FIELDS} header fields", 431)
    if len(read.target) > MAX_TARGET_BYTES:
        raise HeadRefused(f"The request target is longer than {MAX_TARGET_BYTES} bytes", 414)
    if method == "CONNECT":
        raise HeadRefused("CONNECT is not supported")
    head = RequestHead(method, _parse_target(read.target), read.fields)
    by_name = dict(read.fields)
    if len(by_name) < len(read.fields):
        _refuse_repeated([name for name, _ in read.fields])
    if b"host" not in by_name and not is_old:
        raise HeadRefused("Missing Host header")
    head.is_old = is_old
    tokens = _connection_tokens(read.fields) if b"connection" in by_name else set()
    head.keeps_alive = b"close" not in tokens and (not is_old or b"keep-alive" in tokens)
    head.length = _parse_length(by_name, is_old=is_old)
    expected = by_name.get(b"expect", b"").strip().lower()
    head.expects = expected == b"100-continue" and not is_old and head.length != 0
    return head


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
    """Returns the length of the body, 0 if the head has none, or None if it is chunked.

    Refuses every ambiguity between the two.
    """
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
