"""HTTP/1.1 on the wire (RFC 9110, 9112), byte by byte: each stream has a single reading, or is refused."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.web.http.given import send_pieces

HOST = b"Host: x\r\n"
GET = b"GET /a HTTP/1.1\r\n" + HOST + b"\r\n"
SMUGGLED = b"GET /smuggled HTTP/1.1\r\n" + HOST + b"\r\n"
LONGEST_CUT = 512
"""Max bytes of a stream that is also sent in two pieces, cut at every position."""
MUTATED, MUTATED_SLOWLY = 1_000, 100_000
"""Number of streams that are damaged at random."""


def get(lines: bytes = b"", target: bytes = b"/a", version: bytes = b"HTTP/1.1") -> bytes:
    return b"GET %b %b\r\n%b%b\r\n" % (target, version, HOST, lines)


def post(lines: bytes, body: bytes = b"") -> bytes:
    return b"POST /p HTTP/1.1\r\n%b%b\r\n%b" % (HOST, lines, body)


def post_chunked(body: bytes) -> bytes:
    return post(b"Transfer-Encoding: chunked\r\n", body)


OK, AS_BODY = (200, "GET /a"), (200, "POST /p " + SMUGGLED.decode().rstrip())
GOOD: dict[str, tuple[bytes, list[tuple[int, str]]]] = {
    "a GET": (GET, [OK]),
    "an empty line before": (b"\r\n" + GET, [OK]),
    "two in one packet": (GET + get(target=b"/b"), [OK, (200, "GET /b")]),
    "twenty in one packet": (GET * 20, [OK] * 20),
    "a query": (get(target=b"/a?b=c&d"), [(200, "GET /a?b=c&d")]),
    "an empty query": (get(target=b"/a?"), [OK]),
    "a whole URL": (get(target=b"http://x/a?b"), [(200, "GET /a?b")]),
    "a whole URL in capitals": (get(target=b"HTTP://X/a"), [OK]),
    "a whole URL without a path": (get(target=b"http://x"), [(200, "GET /")]),
    "a whole URL with a query only": (get(target=b"http://x?b"), [(200, "GET /?b")]),
    "the server itself": (b"OPTIONS * HTTP/1.1\r\n" + HOST + b"\r\n" + GET, [(204, ""), OK]),
    "a star that is no path": (get(target=b"*"), [(200, "GET *")]),
    "a method nobody knows": (b"BREW /a HTTP/1.1\r\n" + HOST + b"\r\n", [(200, "BREW /a")]),
    "a method with a sign": (b"M-SEARCH! /a HTTP/1.1\r\n" + HOST + b"\r\n", [(200, "M-SEARCH! /a")]),
    "a body": (post(b"Content-Length: 3\r\n", b"abc") + GET, [(200, "POST /p abc"), OK]),
    "a body of nothing": (post(b"Content-Length: 0\r\n") + GET, [(200, "POST /p"), OK]),
    "a POST without a body": (post(b"") + GET, [(200, "POST /p"), OK]),
    "a GET with a body": (get(b"Content-Length: 2\r\n") + b"ab" + GET, [(200, "GET /a ab"), OK]),
    "a length with zeros": (post(b"Content-Length: 003\r\n", b"abc") + GET, [(200, "POST /p abc"), OK]),
    "a coding before a space": (
        post(b"Transfer-Encoding: chunked \r\n", b"1\r\na\r\n0\r\n\r\n") + GET,
        [(200, "POST /p a"), OK],
    ),
    "a length with spaces": (post(b"Content-Length:  3 \r\n", b"abc") + GET, [(200, "POST /p abc"), OK]),
    "a body that is a request": (post(b"Content-Length: %d\r\n" % len(SMUGGLED), SMUGGLED) + GET, [AS_BODY, OK]),
    "chunks": (post_chunked(b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n") + GET, [(200, "POST /p abcde"), OK]),
    "a size in hex": (post_chunked(b"A\r\n0123456789\r\n0\r\n\r\n") + GET, [(200, "POST /p 0123456789"), OK]),
    "an extension": (post_chunked(b"3;a=b\r\nabc\r\n0;c\r\n\r\n") + GET, [(200, "POST /p abc"), OK]),
    "a quoted extension": (post_chunked(b'3; a="b c"\r\nabc\r\n0\r\n\r\n') + GET, [(200, "POST /p abc"), OK]),
    "chunks that are a request": (
        post_chunked(b"%x\r\n%b\r\n0\r\n\r\n" % (len(SMUGGLED), SMUGGLED)) + GET,
        [AS_BODY, OK],
    ),
    "chunked in capitals": (
        post(b"transfer-encoding: CHUNKED\r\n", b"1\r\na\r\n0\r\n\r\n") + GET,
        [(200, "POST /p a"), OK],
    ),
    "h2c with a length": (
        post(
            b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: x\r\nContent-Length: 3\r\n", b"abc"
        )
        + GET,
        [(200, "POST /p abc"), OK],
    ),
    "h2c with a request as the body": (
        post(b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: %d\r\n" % len(SMUGGLED), SMUGGLED) + GET,
        [AS_BODY, OK],
    ),
    "a websocket": (get(b"Connection: Upgrade\r\nUpgrade: websocket\r\n") + GET, [OK, OK]),
    "keep-alive of 1.1": (get(b"Connection: keep-alive\r\n") + GET, [OK, OK]),
    "keep-alive of 1.0": (get(b"Connection: Keep-Alive\r\n", version=b"HTTP/1.0") + GET, [OK, OK]),
    "an empty Host": (b"GET /a HTTP/1.1\r\nHost:\r\n\r\n", [OK]),
    "a field twice": (get(b"X-A: 1\r\nX-A: 2\r\n"), [OK]),
    "a field in Latin-1": (get(b"X-A: \xe4\r\n"), [OK]),
    "a tab in a field": (get(b"X-A: a\tb\r\n"), [OK]),
    "a hundred fields": (get(b"".join(b"X-%d: 1\r\n" % n for n in range(99))), [OK]),
    "an unknown expectation": (post(b"Expect: x\r\nContent-Length: 1\r\n", b"a"), [(200, "POST /p a")]),
    "an expectation with its body": (
        post(b"Expect: 100-continue\r\nContent-Length: 1\r\n", b"a"),
        [(200, "POST /p a")],
    ),
    "a header of 100 kB": (get(b"X-A: " + b"x" * 100_000 + b"\r\n"), [OK]),
    "a target of 60 kB": (get(target=b"/" + b"a" * 60_000), [(200, "GET /" + "a" * 60_000)]),
}
LAST: dict[str, tuple[bytes, list[tuple[int, str]]]] = {
    "close": (get(b"Connection: close\r\n") + SMUGGLED, [OK]),
    "close among others": (get(b"Connection: x, close\r\n") + SMUGGLED, [OK]),
    "close in a second field": (get(b"Connection: x\r\nConnection: close\r\n") + SMUGGLED, [OK]),
    "keep-alive and close": (get(b"Connection: keep-alive, close\r\n") + SMUGGLED, [OK]),
    "1.0": (get(version=b"HTTP/1.0") + SMUGGLED, [OK]),
    "1.0 without Host": (b"GET /a HTTP/1.0\r\n\r\n" + SMUGGLED, [OK]),
}
"""Streams that end the connection; what follows is discarded."""
BAD: dict[str, bytes] = {
    "no Host": b"GET /a HTTP/1.1\r\n\r\n",
    "two Hosts": get(b"Host: y\r\n"),
    "two Hosts of 1.0": get(b"Host: y\r\n", version=b"HTTP/1.0"),
    "version 0.9": b"GET /a\r\n\r\n",
    "version 1.2": get(version=b"HTTP/1.2"),
    "version 11.1": get(version=b"HTTP/11.1"),
    "version in small letters": get(version=b"http/1.1"),
    "another protocol": get(version=b"RTSP/1.0"),
    "the preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a space after the version": get(version=b"HTTP/1.1 "),
    "no version": b"GET /a \r\n" + HOST + b"\r\n",
    "a space in the target": get(target=b"/a b"),
    "no target": b"GET HTTP/1.1\r\n" + HOST + b"\r\n",
    "a target without a slash": get(target=b"a"),
    "a fragment": get(target=b"/a#b"),
    "another scheme": get(target=b"ftp://x/a"),
    "a user in a URL": get(target=b"http://u@x/a"),
    "a byte above ASCII in the target": get(target=b"/\xe4"),
    "a zero in the target": get(target=b"/\0"),
    "no method": b" /a HTTP/1.1\r\n" + HOST + b"\r\n",
    "a method of 100 letters": b"G" * 100 + b" /a HTTP/1.1\r\n" + HOST + b"\r\n",
    "a tunnel": b"CONNECT x:80 HTTP/1.1\r\n" + HOST + b"\r\n",
    "two empty lines before": b"\r\n\r\n\r\n" + GET,
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
    "bare line feeds": GET.replace(b"\r\n", b"\n"),
    "a bare line feed at the end": b"GET /a HTTP/1.1\r\nHost: x\r\n\n",
    "a bare carriage return": get(b"X-A: a\rb\r\n"),
    "a folded line": get(b"X-A: a\r\n b\r\n"),
    "a space before the colon": get(b"X-A : a\r\n"),
    "no colon": get(b"X-A\r\n"),
    "no name": get(b": a\r\n"),
    "a byte above ASCII in a name": get(b"X\xe4: a\r\n"),
    "a zero in a value": get(b"X-A: a\0b\r\n"),
    "a delete in a value": get(b"X-A: a\x7fb\r\n"),
    "a length twice": post(b"Content-Length: 1\r\nContent-Length: 1\r\n", b"a"),
    "two lengths": post(b"Content-Length: 1\r\nContent-Length: 2\r\n", b"ab"),
    "a list of lengths": post(b"Content-Length: 1, 1\r\n", b"a"),
    "a length with a sign": post(b"Content-Length: +1\r\n", b"a"),
    "a negative length": post(b"Content-Length: -1\r\n", b"a"),
    "a length that is a word": post(b"Content-Length: x\r\n", b"a"),
    "an empty length": post(b"Content-Length:\r\n", b"a"),
    "a length beyond all numbers": post(b"Content-Length: %b\r\n" % (b"9" * 30), b"a"),
    "a length beside chunks": post(b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n", b"0\r\n\r\n" + SMUGGLED),
    "chunks beside a length": post(b"Transfer-Encoding: chunked\r\nContent-Length: 1\r\n", b"0\r\n\r\n" + SMUGGLED),
    "chunks of 1.0": get(b"Transfer-Encoding: chunked\r\n", version=b"HTTP/1.0") + b"0\r\n\r\n",
    "chunked twice": post(b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", b"0\r\n\r\n"),
    "compressed chunks": post(b"Transfer-Encoding: gzip, chunked\r\n", b"0\r\n\r\n"),
    "a coding behind the chunks": post(b"Transfer-Encoding: chunked, gzip\r\n", b"0\r\n\r\n"),
    "the coding of nothing": post(b"Transfer-Encoding: identity\r\n", b"0\r\n\r\n"),
    "an empty coding": post(b"Transfer-Encoding:\r\n", b"0\r\n\r\n"),
    "a coding that looks like chunked": post(b"Transfer-Encoding: xchunked\r\n", b"0\r\n\r\n"),
    "chunked with a byte above ASCII": post(b"Transfer-Encoding: chunked\xff\r\n", b"0\r\n\r\n" + SMUGGLED),
    "chunked behind a control": post(b"Transfer-Encoding: \x0bchunked\r\n", b"0\r\n\r\n" + SMUGGLED),
    "a size that is none": post_chunked(b"x\r\na\r\n0\r\n\r\n"),
    "a negative size": post_chunked(b"-1\r\na\r\n0\r\n\r\n"),
    "an empty size": post_chunked(b"\r\na\r\n0\r\n\r\n"),
    "a space before a size": post_chunked(b" 1\r\na\r\n0\r\n\r\n"),
    "a size beyond all numbers": post_chunked(b"f" * 20 + b"\r\na"),
    "a chunk that is longer": post_chunked(b"1\r\nab\r\n0\r\n\r\n"),
    "a chunk that is shorter": post_chunked(b"3\r\na\r\n0\r\n\r\n" + SMUGGLED),
    "a size with a bare line feed": post_chunked(b"1\na\r\n0\r\n\r\n"),
    "a line feed in an extension": post_chunked(b"1;a\nb\r\na\r\n0\r\n\r\n"),
    "a long extension": post_chunked(b"1;" + b"x" * 300 + b"\r\na\r\n0\r\n\r\n"),
    "trailers": post_chunked(b"1\r\na\r\n0\r\nX-A: b\r\n\r\n" + SMUGGLED),
}
TOO_LONG: dict[str, tuple[bytes, int]] = {
    "a hundred and one fields": (get(b"".join(b"X-%d: 1\r\n" % n for n in range(100))), 431),
    "a head of 200 kB": (get(b"X-A: " + b"x" * 200_000 + b"\r\n"), 431),
    "a head without an end": (b"GET /a HTTP/1.1\r\nX-A: " + b"x" * 200_000, 431),
    "a target of 70 kB": (get(target=b"/" + b"a" * 70_000), 414),
}


async def test_requests() -> None:
    """Valid requests are answered in order, wherever the stream is cut, and the connection stays open."""
    for name, (data, answers) in GOOD.items():
        for pieces in _splits(data):
            result = await send_pieces(pieces)
            assert (_final(result.answers), result.closed) == (answers, False), (name, pieces)


async def test_last_requests() -> None:
    """The last request of a connection is answered, and what follows is not."""
    for name, (data, answers) in LAST.items():
        for pieces in _splits(data):
            result = await send_pieces(pieces)
            assert (result.answers, result.closed) == (answers, True), (name, pieces)
            assert b"connection: close" in result.sent


async def test_refused() -> None:
    """There is one answer, 400, and the connection ends: whatever follows is in no request."""
    for name, data in BAD.items():
        for pieces in _splits(data):
            result = await send_pieces([*pieces, SMUGGLED], end=True)
            assert ([status for status, _ in result.answers], result.closed) == ([400], True), (name, pieces)
        behind = await send_pieces([GET, data])
        assert behind.answers[0] == OK, name


async def test_too_long() -> None:
    """What is too long is refused before its end has come."""
    for name, (data, status) in TOO_LONG.items():
        result = await send_pieces([data])
        assert ([one for one, _ in result.answers], result.closed) == ([status], True), name


def test_heads_only() -> None:
    """The answer to a HEAD has the length of the body that a GET would have."""
    result = asyncio.run(send_pieces([GET.replace(b"GET", b"HEAD") + GET]))
    first, _, rest = result.sent.partition(b"\r\n\r\n")
    assert b"content-length: 7" in first
    assert rest.startswith(b"HTTP/1.1 200 OK")


async def test_the_body_is_asked_for_once_it_is_wanted() -> None:
    """A client that waits for 100 Continue gets it; one of HTTP/1.0 does not wait."""
    lines = b"Expect: 100-continue\r\nContent-Length: 3\r\n"
    result = await send_pieces([post(lines), b"abc"])
    assert result.sent.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK")
    old = await send_pieces([post(lines).replace(b"HTTP/1.1", b"HTTP/1.0"), b"abc"])
    assert old.answers == [(200, "POST /p abc")]


async def test_half_closed() -> None:
    """A client that has closed its side is answered every complete request."""
    assert (await send_pieces([GET + GET], end=True)).answers == [OK, OK]
    assert (await send_pieces([post(b"Content-Length: 3\r\n", b"ab")], end=True)).answers == [(400, "broken")]
    assert (await send_pieces([GET[:-2]], end=True)).answers == []


def _spoil(rng: random.Random, data: bytes) -> bytes:
    damaged = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5))):
        index = rng.randrange(len(damaged) + 1)
        match rng.randrange(4):
            case 0:
                damaged[index : index + 1] = bytes((rng.randrange(256),))
            case 1:
                del damaged[index : index + rng.randrange(1, 8)]
            case 2:
                damaged[index:index] = rng.choice((b"\r", b"\n", b"\r\n", b"\0", b":", b" ", b"0", b"\xff", b"chunked"))
            case _:
                damaged[index:index] = damaged[rng.randrange(len(damaged) + 1) :][:40]
    return bytes(damaged)


def _play_spoiled(seed: int, count: int) -> None:
    rng = random.Random(seed)
    streams = [data for data, _ in GOOD.values()] + [data for data, _ in LAST.values()] + [*BAD.values()]
    streams = [data for data in streams if len(data) <= LONGEST_CUT]

    async def play() -> None:
        for number in range(count):
            data = _spoil(rng, b"".join(rng.choices(streams, k=rng.choice((1, 2)))))
            cut = rng.randrange(len(data) + 1)
            result = await send_pieces([data[:cut], data[cut:]], end=True)
            assert {status for status, _ in result.answers} <= {100, 200, 204, 400, 408, 414, 431}, (number, data)

    asyncio.run(play())


def test_spoiled_streams() -> None:
    """No stream causes a crash, a hang, or a task that stays."""
    _play_spoiled(1, MUTATED)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_spoiled_streams() -> None:
    """The same holds for a hundred thousand random streams."""
    _play_spoiled(random.SystemRandom().randrange(1 << 32), MUTATED_SLOWLY)


def _splits(data: bytes) -> list[list[bytes]]:
    """Returns a stream whole, and in two pieces, cut at every position unless it is long."""
    cuts = range(1, len(data)) if len(data) <= LONGEST_CUT else ()
    return [[data], *([data[:at], data[at:]] for at in cuts)]


def _final(answers: list[tuple[int, str]]) -> list[tuple[int, str]]:
    return [one for one in answers if one[0] != 100]
