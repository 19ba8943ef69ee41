"""Damaged input for connections: requests that are spoiled, cut to pieces and broken off, all by a seed."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import NamedTuple

ID = b"0123456789ab11e88000000000000001"
NUMBERS = [b"0", b"-1", b"1", b"1.5", b"1e9", b"9" * 19, b"9" * 400, b"-" + b"9" * 5000, b"nan", b"0x10", b"\xd9\xa3"]
TEXTS = [b"", b" ", b"\0", b"\xff", b"\xc3\xbc", b"\xc2\x9f", b"%00", b"a\tb", b"a\x01b", b"\x7f", b"x" * 300]
TEXTS += [b"x" * 9000]
BREAKS = [b"a\r\nX-Injected: b", b"a\r\n b", b"a\rb", b"a\nX-Injected: b", b"a\r\n\r\nGET / HTTP/1.1\r\n\r\n"]
VALUES = [*NUMBERS, *TEXTS, *BREAKS, ID, b"1:" + ID, b"*", b"true", b";", b"," * 2000]
SEGMENTS = b"%2F %2f.. .. . %2e%2E %252e %c0%af %00 % %zz %FF _read _x offsets messages named info # \0 \xff".split()
SEGMENTS += [b"a b", b"", b"x" * 5000, b"x" * 140_000, ID, b"9" * 30 + b":" + ID]
METHODS = [b"", b"get", b"HEAD", b"OPTIONS", b"CONNECT", b"TRACE", b"PATCH", b"PRI", b"P\0ST", b"G" * 9000, b"POST "]
TARGETS = [b"", *b"* / // http://elsewhere/v1/queuey http:// elsewhere:443 ?limit=0 /\\..\\x".split(), b"/" * 3000]
VERSIONS = b"|HTTP/1.0|HTTP/0.9|HTTP/2.0|HTTP/1.1x|http/1.1|HTTP/1.1 |HTTP/11.1|XTTP/1.1".split(b"|")
CODINGS = b"gzip|identity|chunked, chunked|gzip, chunked|xchunked|chunked\0||Chunked| chunked ".split(b"|")
NAMES = b"Content-Type X-TTL X-Partition X-Message-Key X-Delay X-After X-Header-A Authorization Host Accept".split()
NAMES += b"Connection Upgrade Expect Content-Encoding Cookie X_TTL Trailer".split()
BAD_NAMES = [b"", b" ", b"A B", b"A\0", b"\xff", b"A\r\nB", b":A", b"A" * 9000, b"X-Header-" + b"n" * 200, b"(A)"]
CHUNKS = [
    b"zz\r\nab\r\n",
    b"-1\r\nab\r\n",
    b"f" * 25 + b"\r\nab",
    b"5\r\nab",
    b"2\r\nabX",
    b"0\r\nTrailer: x\r\n",
    b"2;x=" + b"y" * 9000 + b"\r\nab\r\n",
]
QUERIES = b"partitions limit order since after before until delay merge wait raw offset".split()
JSONS = [
    b"{",
    b"null",
    b"[]",
    b"[" * 3000,
    b'{"messages":NaN}',
    b'{"messages":[{"body":"\\ud800"}]}',
    b'{"messages":[{"body":"\xff"}]}',
]
JSONS += [
    b'{"messages":[{"body":1e999}]}',
    b'{"messages":[{"body":"a","ttl":' + b"9" * 400 + b"}]}",
    b'{"queues":[{"limit":' + b"9" * 400 + b"}]}",
]
JSONS += [b'{"messages":[' + b'{"body":""},' * 1100 + b"{}]}", b'{"partitions":{"1":{"offset":"' + ID + b'"},"01":{}}}']
ENDS = ("answer", "answer", "answer", "half-close", "reset", "close")


class Stream(NamedTuple):
    """Content of one connection: pieces, and how the client ends it.

    ``answer``: it waits for answers, then half-closes. ``half-close``: it does so immediately. ``stay``: it keeps the
    connection open. ``reset``, ``close``: it disconnects.
    """

    pieces: tuple[bytes, ...]
    end: str


@dataclass(frozen=True)
class Request:
    """A request before it is serialized."""

    method: bytes
    target: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes = b""
    version: bytes = b"HTTP/1.1"
    length: bool = True

    def to_bytes(self) -> bytes:
        headers = self.headers
        if self.length and self.body:
            headers += ((b"Content-Length", b"%d" % len(self.body)),)
        lines = [b" ".join((self.method, self.target, self.version)), *(b"%b: %b" % header for header in headers)]
        return b"\r\n".join(lines) + b"\r\n\r\n" + self.body

    def with_added_headers(self, *headers: tuple[bytes, bytes]) -> Request:
        return replace(self, headers=self.headers + headers)

    def with_replaced_header(self, name: bytes, value: bytes) -> Request:
        """Returns a copy in which the header replaces all of its name."""
        return replace(self, headers=(*(header for header in self.headers if header[0] != name), (name, value)))


def draw_valid_request(rng: Random, queue: str, key: str) -> Request:
    base = b"/v1/queuey/" + queue.encode()
    batch = json.dumps({"messages": [{"body": "a", "ttl": 60}] * rng.choice([0, 1, 50])}).encode()
    several = json.dumps({"queues": [{"queue_name": queue, "partitions": "*"}]}).encode()
    offsets = b'{"partitions":{"1":{"offset":"' + ID + b'"}}}'
    method, target, body = rng.choice(
        [
            (b"POST", base, rng.randbytes(rng.choice([1, 50, 3000]))),
            (b"POST", base, batch),
            (b"GET", base + b"?limit=5&partitions=*", b""),
            (b"GET", base + b"/" + ID, b""),
            (b"PUT", base + b"/" + ID, b"body"),
            (b"DELETE", base + b"/1:" + ID, b""),
            (b"PUT", base + b"/offsets/g", offsets),
            (b"GET", base + b"/offsets/g", b""),
            (b"PUT", base + b"/named/n", b"body"),
            (b"POST", base + b"/named/n", b"body"),
            (b"GET", base + b"/named/n", b""),
            (b"DELETE", base + b"/named/n", b""),
            (b"GET", base + b"/info", b""),
            (b"DELETE", base + b"/messages", b""),
            (b"POST", b"/v1/queuey/_read", several),
            (b"POST", b"/v1/queuey", b"queue_name=" + queue.encode()),
            (b"GET", b"/v1/queuey?details=1&limit=3", b""),
            (b"GET", b"/__heartbeat__", b""),
            (b"GET", b"/v1/openapi.json", b""),
        ]
    )
    kind = b"application/json" if body[:1] == b"{" else b"application/x-www-form-urlencoded"
    headers = ((b"Host", b"x"), (b"Authorization", b"Application " + key.encode()), (b"Content-Type", kind))
    return Request(method, target, headers, body)


# Each of these spoils a request in one way.


def _spoil_method(rng: Random, request: Request) -> Request:
    return replace(request, method=rng.choice(METHODS))


def _spoil_target(rng: Random, request: Request) -> Request:
    return replace(request, target=rng.choice(TARGETS))


def _spoil_path(rng: Random, request: Request) -> Request:
    segments = request.target.split(b"/")
    position = rng.randrange(1, len(segments) + 1)
    segments[position : position + rng.randrange(2)] = [rng.choice(SEGMENTS)]
    return replace(request, target=b"/".join(segments))


def _spoil_query(rng: Random, request: Request) -> Request:
    pairs = [rng.choice(QUERIES) + b"=" + rng.choice(VALUES) for _ in range(rng.choice([1, 3, 300]))]
    return replace(request, target=request.target.partition(b"?")[0] + b"?" + b"&".join(pairs))


def _spoil_version(rng: Random, request: Request) -> Request:
    return replace(request, version=rng.choice(VERSIONS))


def _spoil_header_value(rng: Random, request: Request) -> Request:
    name, value = rng.choice(NAMES), rng.choice(VALUES)
    return request.with_replaced_header(name, value) if rng.randrange(3) else request.with_added_headers((name, value))


def _add_bad_header_name(rng: Random, request: Request) -> Request:
    return request.with_added_headers((rng.choice(BAD_NAMES), rng.choice(TEXTS)))


def _add_many_headers(rng: Random, request: Request) -> Request:
    return request.with_added_headers(
        *[(b"X-Header-%d" % number, b"x" * rng.choice([1, 900])) for number in range(rng.choice([20, 300]))]
    )


def _spoil_credential(rng: Random, request: Request) -> Request:
    texts = [b"Application wrong", b"Basic x", b"Application ", b";".join([b"Application x"] * 40), rng.choice(TEXTS)]
    spoiled = request.with_replaced_header(b"Authorization", rng.choice(texts))
    return spoiled if rng.randrange(2) else replace(spoiled, headers=spoiled.headers[:-1])


def _spoil_length(rng: Random, request: Request) -> Request:
    lengths = [*NUMBERS, b"", b"1, 1", b"+1", b"18446744073709551616", b"%d" % (len(request.body) + 7), b"1"]
    headers = [(b"Content-Length", rng.choice(lengths)) for _ in range(rng.choice([1, 1, 2]))]
    return replace(request.with_added_headers(*headers), length=bool(rng.randrange(2)))


def _spoil_coding(rng: Random, request: Request) -> Request:
    return replace(
        request.with_added_headers((b"Transfer-Encoding", rng.choice(CODINGS))), length=bool(rng.randrange(2))
    )


def _spoil_chunks(rng: Random, request: Request) -> Request:
    pieces = [b"%x\r\n%b\r\n" % (len(request.body), request.body)] if request.body else []
    pieces += [rng.choice(CHUNKS) for _ in range(rng.randrange(3))] + [b"0\r\n\r\n"] * rng.randrange(2)
    return replace(
        request.with_added_headers((b"Transfer-Encoding", b"chunked")),
        body=b"".join(pieces),
        length=bool(rng.randrange(5) == 0),
    )


def _add_expect(rng: Random, request: Request) -> Request:
    return request.with_added_headers((b"Expect", rng.choice([b"100-continue", b"something"])))


def _spoil_connection(rng: Random, request: Request) -> Request:
    kind = rng.choice([b"close", b"keep-alive", b"Upgrade", b"\0"])
    return request.with_added_headers(
        (b"Connection", kind), (b"Upgrade", rng.choice([b"websocket", b"h2c", b"TLS/1.0"]))
    )


def _spoil_json(rng: Random, request: Request) -> Request:
    return replace(request.with_replaced_header(b"Content-Type", b"application/json"), body=rng.choice(JSONS))


def _spoil_long_body(rng: Random, request: Request) -> Request:
    return replace(request, body=b"x" * rng.choice([5_000, 70_000, 300_000]))


SPOILS: tuple[Callable[[Random, Request], Request], ...] = (
    _spoil_method,
    _spoil_target,
    _spoil_path,
    _spoil_query,
    _spoil_version,
    _spoil_header_value,
    _add_bad_header_name,
    _add_many_headers,
    _spoil_credential,
    _spoil_length,
    _spoil_coding,
    _spoil_chunks,
    _add_expect,
    _spoil_connection,
    _spoil_json,
    _spoil_long_body,
)


def _damage_bytes(rng: Random, data: bytes) -> bytes:
    at = rng.randrange(len(data) + 1)
    end = at + rng.choice([1, 1, 4, 40])
    how = rng.randrange(6)
    if how == 0:
        return data[:at] + rng.randbytes(end - at) + data[end:]
    if how == 1:
        return data[:at] + data[end:]
    if how == 2:
        return data[:end] + data[at:]
    if how == 3:
        return data[:at] + rng.choice([b"\0", b"\r\n", b"\n", b"\r", b" ", b":", b"\r\n\r\n", b"\xff"]) + data[at:]
    if how == 4:
        return data.replace(b"\r\n", rng.choice([b"\n", b"\r", b"\r\r\n"]))
    return data[:at]


def draw_stream(rng: Random, queue: str, key: str) -> Stream:
    written = []
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        request = draw_valid_request(rng, queue, key)
        for _ in range(rng.choice([0, 1, 1, 1, 2, 3])):
            request = rng.choice(SPOILS)(rng, request)
        data = request.to_bytes()
        written.append(_damage_bytes(rng, data) if rng.randrange(4) == 0 else data)
    data = b"".join(written) + rng.choice([b"", b"", b"\r\n", b"\0", rng.randbytes(30)])
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.choice([0, 0, 1, 3, 12])))
    edges = [0, *cuts, len(data)]
    return Stream(tuple(data[a:b] for a, b in itertools.pairwise(edges)), rng.choice(ENDS))


def streams(seed: int, queue: str, key: str) -> Iterator[Stream]:
    rng = Random(seed)
    while True:
        yield draw_stream(rng, queue, key)
