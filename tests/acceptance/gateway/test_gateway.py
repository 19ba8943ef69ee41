"""The service on the wire: raw requests and bad ones, against a real process."""

from __future__ import annotations

import json
import socket

import httpx2
import pytest

from tests.acceptance.conftest import MAX_BATCH, MAX_BODY
from tests.acceptance.wire import CHUNKED, JSON, Wire, bodies, chunks, credential, post
from tests.servers.served import Served

SMALL = 64 * 1024
"""The bound of what is handled in the loop's own thread."""


# Bodies


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (chunks(b"a", b"bc"), [CHUNKED], 201),
        (chunks(b"x" * MAX_BODY), [CHUNKED], 201),
        (chunks(*[b"x"] * MAX_BODY), [CHUNKED], 201),
        (chunks(b"x" * MAX_BODY, b"x"), [CHUNKED], 413),
        (chunks(b"a;", end=b"0;x=y\r\n\r\n"), [CHUNKED], 201),
        (chunks(), [CHUNKED], 400),
        (b"", ["Content-Length: 0"], 400),
        (b"", [], 400),
        (bytes(range(256)), ["Content-Length: 256"], 201),
        (b"x" * MAX_BODY, [f"Content-Length: {MAX_BODY}"], 201),
        (b"x" * (MAX_BODY + 1), [f"Content-Length: {MAX_BODY + 1}"], 413),
        (b"abc", ["Content-Length: 3", "Expect: something"], 201),
    ],
    ids=lambda value: str(value)[:30],
)
def test_bodies(served: Served, wire: Wire, queue: str, body: bytes, headers: list[str], status: int) -> None:
    """Bodies come in plain or chunked, up to the limit; the connection can be used again, whatever the answer."""
    assert wire.ask(post(queue), body, *headers).status == status
    assert wire.is_usable()
    with served.client() as client:
        stored = client.read(queue).messages[1:]
    assert len(stored) == (status == 201)
    if status == 201 and CHUNKED not in headers:
        found = stored[0].body
        assert (found.encode() if isinstance(found, str) else found) == body


@pytest.mark.parametrize("headers", [[CHUNKED, "Content-Length: 3"], [CHUNKED, "Content-Length: 30"]])
def test_two_lengths(served: Served, wire: Wire, queue: str, headers: list[str]) -> None:
    """A length beside chunks is refused, and nothing after it is taken for a request."""
    rest = b"GET /__lbheartbeat__ HTTP/1.1\r\nHost: x\r\n\r\n"
    assert wire.ask(post(queue), chunks(b"abc") + rest, *headers).status == 400
    assert wire.is_closed()
    assert bodies(served, queue) == []


@pytest.mark.parametrize(
    "length",
    [
        "x",
        "-1",
        "+1",
        "1, 1",
        "",
        "1.0",
        "9" * 23,
        "18446744073709551616",
        "1\r\nContent-Length: 2",
        "2\r\nContent-Length: 2",
    ],
)
def test_wrong_lengths(served: Served, wire: Wire, queue: str, length: str) -> None:
    """A length that is none is 400 and ends the connection, since nobody knows where the next request begins."""
    assert wire.ask(post(queue), b"ab", f"Content-Length: {length}").status == 400
    assert wire.is_closed()
    assert bodies(served, queue) == []


@pytest.mark.parametrize("length", [MAX_BATCH + 1, 10**9, 2**63 - 1])
def test_announced_too_long(served: Served, wire: Wire, queue: str, length: int) -> None:
    """A body that is too long by its length is refused before it is sent, and the connection ends."""
    assert wire.ask(post(queue), b"", f"Content-Length: {length}").status in {400, 413}
    assert wire.is_closed()
    assert bodies(served, queue) == []


def test_endless_chunks(served: Served, wire: Wire, queue: str) -> None:
    """Somebody who sends chunk after chunk is refused after the longest body that anything takes."""
    wire.send(post(queue), b"", CHUNKED, JSON)
    sent = 0
    try:
        while sent < 100 * MAX_BATCH:
            wire.socket.sendall(chunks(b" " * 10_000, end=b""))
            sent += 10_000
    except OSError:
        pass
    else:
        assert wire.answer().status == 413
    assert sent < 100 * MAX_BATCH
    assert bodies(served, queue) == []


@pytest.mark.parametrize(
    "body",
    [
        b"zz\r\nab\r\n0\r\n\r\n",
        b"-1\r\nab\r\n0\r\n\r\n",
        b"fffffffffffffffffffffffff\r\nab",
        chunks(b"good", end=b"zz\r\n"),
        chunks(b"good", end=b"5\r\nabcdefgh\r\n0\r\n\r\n"),
        chunks(b"good", end=b"0\r\nTrailer: x\r\n\r\n"),
        chunks(b"good", end=b"0\r\n" + b"x" * 100_000),
    ],
    ids=lambda body: str(body[:20]),
)
def test_malformed_chunks(served: Served, wire: Wire, queue: str, body: bytes) -> None:
    """Nothing of a malformed body is stored, however much of it was well-formed."""
    assert wire.ask(post(queue), body, CHUNKED).status == 400
    assert bodies(served, queue) == []


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b"hel", ["Content-Length: 5"]),
        (b"x" * 70_000, ["Content-Length: 100000", JSON]),
        (chunks(b"hel", end=b""), [CHUNKED]),
        (chunks(b"hel", end=b"5\r\nlo"), [CHUNKED]),
        (chunks(b"x" * 70_000, end=b""), [CHUNKED]),
        (b"", [CHUNKED]),
    ],
    ids=lambda value: str(value)[:20],
)
@pytest.mark.parametrize("how", ["closed", "reset", "half-closed"])
def test_clients_that_leave_in_the_body(
    served: Served, wire: Wire, queue: str, body: bytes, headers: list[str], how: str
) -> None:
    """A message is stored whole or not at all: not when its sender goes away before its end."""
    wire.send(post(queue), body, *headers)
    if how == "half-closed":
        wire.socket.shutdown(socket.SHUT_WR)
        assert wire.answer().status == 400
    else:
        wire.close() if how == "closed" else wire.reset()
    with Wire(served) as other:
        assert other.ask(post(queue), b"after", "Content-Length: 5").status == 201
    assert bodies(served, queue) == ["after"]


def test_expect_continue(served: Served, wire: Wire, queue: str) -> None:
    """A client that asks first is told to go on, or that its body is too long."""
    wire.send(post(queue), b"", "Content-Length: 5", "Expect: 100-continue")
    assert wire.socket.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
    wire.socket.sendall(b"hello")
    assert wire.answer().status == 201
    assert wire.ask(post(queue), b"", "Content-Length: 900000", "Expect: 100-continue").status == 413
    assert bodies(served, queue) == ["hello"]


def test_slow_senders(served: Served, queue: str) -> None:
    """Senders who take their time, in head and body, hold nobody up and are served in the end."""
    slow = [Wire(served) for _ in range(20)]
    request = (
        f"{post(queue)} HTTP/1.1\r\nHost: x\r\nAuthorization: Application {slow[0].key}\r\nContent-Length: 3\r\n\r\nabc"
    )
    for count, wire in enumerate(slow):
        wire.socket.sendall(request[: len(request) - 1 - 9 * count].encode())
    with Wire(served) as prompt:
        assert prompt.ask(post(queue), b"first", "Content-Length: 5").status == 201
    assert bodies(served, queue) == ["first"]
    for count, wire in enumerate(slow):
        wire.socket.sendall(request[len(request) - 1 - 9 * count :].encode())
    assert [wire.answer().status for wire in slow] == [201] * 20
    assert bodies(served, queue) == ["first"] + ["abc"] * 20
    for wire in slow:
        wire.close()


@pytest.mark.parametrize("size", [SMALL - 1, SMALL, SMALL + 1], ids=["below", "at", "above"])
@pytest.mark.parametrize("chunked", [False, True], ids=["plain", "chunked"])
def test_batches_around_the_bound(served: Served, wire: Wire, queue: str, size: int, chunked: bool) -> None:  # noqa: FBT001
    """A batch is the same whichever way it takes."""
    text = json.dumps({"messages": [{"body": f"m{number}"} for number in range(100)]})
    body = text.ljust(size).encode()
    headers, body = ([CHUNKED], chunks(body[:99], body[99:])) if chunked else ([f"Content-Length: {size}"], body)
    assert wire.ask(post(queue), body, JSON, *headers).status == 201
    assert bodies(served, queue) == [f"m{number}" for number in range(100)]


# Requests


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "PATCH", "TRACE", "FOO", "get"])
def test_methods_that_a_queue_does_not_have(wire: Wire, queue: str, method: str) -> None:
    """They are 404, and the connection goes on."""
    reply = wire.ask(f"{method} /v1/queuey/{queue}")
    assert (reply.status, reply.headers["content-length"]) == (404, "48")
    assert wire.is_usable()


@pytest.mark.parametrize("target", ["/v1/queuey/{queue}", "/v1/queuey/{queue}/", "http://elsewhere/v1/queuey/{queue}"])
def test_forms_of_the_target(wire: Wire, queue: str, target: str) -> None:
    """A slash at the end and a whole URL lead to the queue as well."""
    assert wire.ask("GET " + target.format(queue=queue)).status == 200
    assert wire.ask("POST " + target.format(queue=queue), b"x", "Content-Length: 1").status == 201


@pytest.mark.parametrize(
    "path",
    [
        "/v1/queuey/%00",
        "/v1/queuey/%FF",
        "/v1/queuey/%C3",
        "/v1/queuey/..",
        "/v1/queuey/%2e%2e",
        "/v1/queuey/{queue}%2F%2F",
        "/v1/queuey/../queuey/{queue}",
        "/v1/queuey/{queue}%00",
        "/v1/queuey/{queue}%0A",
        "/v1/queuey/{queue}%",
        "/v1/queuey/%ZZ",
        "//v1/queuey/{queue}",
        "/v1//{queue}",
        "/v1/%71ueuey2/{queue}",
        "/V1/queuey/{queue}",
        "*",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_odd_paths(wire: Wire, queue: str, method: str, path: str) -> None:
    """Paths that name nothing are 404 whatever is in them, never 500, and the connection goes on."""
    reply = wire.ask(f"{method} {path.format(queue=queue)}", b"x", "Content-Length: 1")
    assert reply.status == 404
    assert wire.is_usable()


@pytest.mark.parametrize(
    "start",
    [
        "GET /v1/queuey/\xff HTTP/1.1\r\n",
        "GET /v1/queuey/a b HTTP/1.1\r\n",
        "GET /v1/queuey/a?since=\xff HTTP/1.1\r\n",
        "GET / HTTP/9.9\r\n",
        "GET / HTTP/1.1\r\nX-A: a\x01b\r\n",
        "GET / HTTP/1.1\r\nX A: a\r\n",
        "\x16\x03\x01\x02\x00\x01\x00",
        "GET /" + "x" * 70_000 + " HTTP/1.1\r\n",
        "GET / HTTP/1.1\r\nX-A: " + "x" * 700_000 + "\r\n",
        "GET / HTTP/1.1\r\n" + "X-A: x\r\n" * 300,
    ],
    ids=lambda start: repr(start)[:40],
)
def test_what_is_not_http(served: Served, start: str) -> None:
    """What cannot be a request is refused, the connection ends, and the service goes on."""
    with Wire(served) as wire:
        try:
            wire.socket.sendall(start.encode("latin-1") + b"Host: x\r\n\r\n")
            assert wire.answer("GET").status in {400, 414, 431}
        except (ConnectionResetError, BrokenPipeError):
            pass  # refused while it was still being sent
        else:
            assert wire.is_closed()
    with Wire(served) as wire:
        assert wire.is_usable()


def test_upgrades_are_not_taken(wire: Wire, queue: str) -> None:
    """Whoever asks for another protocol is answered in this one."""
    headers = ["Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="]
    for name in ("websocket", "h2c"):
        assert (
            wire.ask(f"GET /v1/queuey/{queue}", b"", "Connection: Upgrade", f"Upgrade: {name}", *headers).status == 200
        )
    assert wire.is_usable()


def test_pipelining(served: Served, wire: Wire, queue: str) -> None:
    """Requests sent without waiting are answered in order, good and bad ones, by either way through."""
    lines = [
        (post(queue), b"a"),
        (post("missing"), b"b"),
        (post(queue), b"c"),
        (f"GET /v1/queuey/{queue}", b""),
        (post(queue), b"d"),
    ]
    for line, body in lines * 3:
        wire.send(line, body, f"Content-Length: {len(body)}")
    assert [wire.answer(line.partition(" ")[0]).status for line, _ in lines * 3] == [201, 404, 201, 200, 201] * 3
    assert bodies(served, queue) == ["a", "c", "d"] * 3


def test_headers_with_underscores(served: Served, wire: Wire, queue: str) -> None:
    """X_TTL and the like are not the headers that they look like; a header given twice is both."""
    odd = ["X_TTL: 0", "X_Partition: 99", "X_Header_A: b", "Content_Length: 700", "X-Header-C: 1", "X-Header-C: 2"]
    assert wire.ask(post(queue), b"x", "Content-Length: 1", *odd).status == 201
    with served.client() as client:
        assert client.read(queue).messages[-1].headers == {"c": "1,2"}
    assert wire.ask(post(queue), b"x", "Content-Length: 1", "X-TTL: 5", "X-TTL: 5").errors.keys() == {"ttl"}


@pytest.mark.parametrize("name", ["X-Message-Key", "X-Header-A", "X-After", "Content-Type"])
@pytest.mark.parametrize("value", ["\xff", "\xc3\xbc"], ids=["latin", "utf-8"])
def test_headers_that_are_not_ascii(served: Served, wire: Wire, queue: str, name: str, value: str) -> None:
    """They are refused rather than taken for absent; elsewhere they do not matter."""
    reply = wire.ask(post(queue), b"x", "Content-Length: 1", f"{name}: {value}")
    assert (reply.status, list(reply.errors)) == (400, [name.lower()])
    assert bodies(served, queue) == []
    assert wire.ask(post(queue), b"x", "Content-Length: 1", f"User-Agent: {value}").status == 201


def test_raw_bodies_and_their_headers(served: Served, queue: str) -> None:
    """Bytes come back as they are, and header text that is not ASCII percent-encoded."""
    with served.client() as client:
        body = bytes(range(256))
        receipt = client.send(queue, body, headers={"a": "ü 中"}, content_type="image/png")
        url, key = f"{served.profile.url}/v1/queuey/{queue}/{receipt.id}?raw=true", credential(served)
    raw = httpx2.get(url, headers=key)
    assert (raw.content, raw.headers["content-type"]) == (body, "image/png")
    assert raw.headers["x-header-a"] == "%C3%BC %E4%B8%AD"


def client_key(served: Served) -> dict[str, str]:
    """The credential as a header."""
    return {"Authorization": f"Application {served.profile.key}"}


def test_client_sends_null(served: Served, queue: str) -> None:
    """JSON's null is a message like any other JSON value."""
    with served.client() as client:
        client.send(queue, json=None)
        assert client.read(queue).messages[-1].body is None
