"""The service on the wire: bodies and requests of a real process. tests/web/http has what is refused."""

from __future__ import annotations

import json

import pytest

from tests.acceptance.conftest import MAX_BODY
from tests.acceptance.wire import CHUNKED, JSON, Wire, bodies, chunks, post
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
