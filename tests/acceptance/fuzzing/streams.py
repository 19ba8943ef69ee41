"""Damaged input for connections: requests with odd pieces, cut to pieces and broken off, all by a seed."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
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
CREDENTIALS = [b"Application wrong", b"Basic x", b"Application ", b";".join([b"Application x"] * 40), *TEXTS]
LENGTHS = [*NUMBERS, b"", b"1, 1", b"+1", b"18446744073709551616", b"7", b"1\r\nContent-Length: 1"]
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
    b"2\r\nab\r\n",
]
QUERIES = b"partitions limit order since after before until delay merge wait raw offset".split()
BODIES = [b"{", b"null", b"[]", b"[" * 3000, b'{"messages":NaN}', b'{"messages":[{"body":1e999}]}']
BODIES += [b'{"messages":[{"body":"%b"}]}' % text for text in (b"\\ud800", b"\xff")]
BODIES += [b'{"messages":[{"body":"a","ttl":%b}]}' % NUMBERS[6], b'{"queues":[{"limit":%b}]}' % NUMBERS[6]]
BODIES += [
    b'{"messages":[' + b'{"body":""},' * 1100 + b"{}]}",
    b'{"partitions":{"1":{"offset":"' + ID + b'"},"01":{}}}',
]
BODIES += [b"x" * 5_000, b"x" * 70_000, b"x" * 300_000]
OTHERS = [b"Expect: 100-continue", b"Expect: something", b"Connection: close", b"Connection: \0"]
OTHERS += [b"Connection: Upgrade\r\nUpgrade: %b" % name for name in (b"websocket", b"h2c", b"TLS/1.0")]
OTHERS += [b"\r\n".join(b"X-Header-%d: %b" % (n, b"x" * 900) for n in range(count)) for count in (20, 300)]
ENDS = ("answer", "answer", "answer", "half-close", "reset", "close")


class Stream(NamedTuple):
    """Content of one connection: pieces, and how the client ends it.

    ``answer``: it waits for answers, then half-closes. ``half-close``: it does so immediately. ``stay``: it keeps the
    connection open. ``reset``, ``close``: it disconnects.
    """

    pieces: tuple[bytes, ...]
    end: str


def draw_valid_call(rng: Random, queue: str) -> tuple[bytes, bytes, bytes]:
    """Returns the method, the target and the body of a valid request."""
    base = b"/v1/queuey/" + queue.encode()
    batch = json.dumps({"messages": [{"body": "a", "ttl": 60}] * rng.choice([0, 1, 50])}).encode()
    several = json.dumps({"queues": [{"queue_name": queue, "partitions": "*"}]}).encode()
    offsets = b'{"partitions":{"1":{"offset":"' + ID + b'"}}}'
    return rng.choice(
        [
            (b"POST", base, rng.randbytes(rng.choice([1, 50, 3000]))),
            (b"POST", base, batch),
            (b"GET", base + b"?limit=5&partitions=*", b""),
            (b"GET", base + b"/" + ID, b""),
            (b"PUT", base + b"/" + ID, b"body"),
            (b"DELETE", base + b"/1:" + ID, b""),
            (b"PUT", base + b"/offsets/g", offsets),
            (b"GET", base + b"/offsets/g", b""),
            *((method, base + b"/named/n", b"body") for method in (b"PUT", b"POST")),
            *((method, base + b"/named/n", b"") for method in (b"GET", b"DELETE")),
            (b"GET", base + b"/info", b""),
            (b"DELETE", base + b"/messages", b""),
            (b"POST", b"/v1/queuey/_read", several),
            (b"POST", b"/v1/queuey", b"queue_name=" + queue.encode()),
            (b"GET", b"/v1/queuey?details=1&limit=3", b""),
            (b"GET", b"/__heartbeat__", b""),
            (b"GET", b"/v1/openapi.json", b""),
        ]
    )


def draw_request(rng: Random, queue: str, key: str) -> bytes:
    """Draws a valid request in which up to three pieces are odd."""
    method, target, body = draw_valid_call(rng, queue)
    kind = b"application/json" if body[:1] == b"{" else b"application/x-www-form-urlencoded"
    path = target.partition(b"?")[0]
    pairs = [rng.choice(QUERIES) + b"=" + rng.choice(VALUES) for _ in range(rng.choice([1, 3, 300]))]
    segments = path.split(b"/")
    segments[rng.randrange(1, len(segments))] = rng.choice(SEGMENTS)
    odd: dict[str, list[bytes]] = {
        "method": METHODS,
        "target": [rng.choice(TARGETS), b"/".join(segments), path + b"?" + b"&".join(pairs)],
        "version": VERSIONS,
        "credential": CREDENTIALS,
        "kind": [b"application/json", *VALUES],
        "length": LENGTHS,
        "coding": [b"chunked", b"chunked", *CODINGS],
        "body": BODIES,
        "other": [*OTHERS, *(b"%b: %b" % (rng.choice([*NAMES, *BAD_NAMES]), rng.choice(VALUES)) for _ in OTHERS)],
    }
    drawn = {"method": method, "target": target, "version": b"HTTP/1.1", "body": body, "kind": kind}
    drawn["credential"] = b"Application " + key.encode()
    for _ in range(rng.choice([0, 1, 1, 1, 2, 3])):
        piece = rng.choice(list(odd))
        drawn[piece] = rng.choice(odd[piece])
    if "coding" in drawn:
        drawn["body"] = b"".join(rng.choices(CHUNKS, k=rng.randrange(3))) + b"0\r\n\r\n" * rng.randrange(2)
    elif drawn["body"]:
        drawn.setdefault("length", b"%d" % len(drawn["body"]))
    lines = [b" ".join((drawn["method"], drawn["target"], drawn["version"])), b"Host: x"]
    names = {"credential": b"Authorization", "kind": b"Content-Type", "coding": b"Transfer-Encoding"}
    names["length"] = b"Content-Length"
    lines += [b"%b: %b" % (header, drawn[piece]) for piece, header in names.items() if piece in drawn]
    lines += [drawn["other"]] if "other" in drawn else []
    return b"\r\n".join([*lines, b"", drawn["body"]])


def _damage_bytes(rng: Random, data: bytes) -> bytes:
    at = rng.randrange(len(data) + 1)
    end = at + rng.choice([1, 1, 4, 40])
    mark = rng.choice([b"\0", b"\r\n", b"\n", b"\r", b" ", b":", b"\r\n\r\n", b"\xff"])
    kinds = [data[:at] + mark + data[at:], data[:at] + data[end:], data[:end] + data[at:], data[:at]]
    kinds += [data[:at] + rng.randbytes(end - at) + data[end:]]
    kinds += [data.replace(b"\r\n", rng.choice([b"\n", b"\r", b"\r\r\n"]))]
    return rng.choice(kinds)


def draw_stream(rng: Random, queue: str, key: str) -> Stream:
    requests = [draw_request(rng, queue, key) for _ in range(rng.choice([1, 1, 1, 2, 5]))]
    written = [_damage_bytes(rng, data) if rng.randrange(4) == 0 else data for data in requests]
    data = b"".join(written) + rng.choice([b"", b"", b"\r\n", b"\0", rng.randbytes(30)])
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.choice([0, 0, 1, 3, 12])))
    edges = [0, *cuts, len(data)]
    return Stream(tuple(data[a:b] for a, b in itertools.pairwise(edges)), rng.choice(ENDS))


def streams(seed: int, queue: str, key: str) -> Iterator[Stream]:
    rng = Random(seed)
    while True:
        yield draw_stream(rng, queue, key)
