"""No server can hold a client past its deadline, make it read more than allowed, or keep it sending requests."""

from __future__ import annotations

import gzip
import socket
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import repeat
from threading import Event, Thread
from typing import Any

import httpx2
import pytest

from queuey.client import AnswerTimeout, AsyncClient, Client, ClientError, InvalidAnswer, Outgoing, RetryPolicy
from tests.client.conftest import Connect
from tests.client.scripted import BlockingClient, Script, message_id, ok, page, receipts

Serve = Callable[[socket.socket, Event], None]

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n"


def drip(data: bytes, every: float = 0.05, *, head: bytes = b"") -> Serve:
    def serve(connection: socket.socket, ended: Event) -> None:
        connection.recv(1 << 16)
        connection.sendall(head)
        while not ended.wait(every):
            connection.sendall(data)

    return serve


drip_body, drip_head = drip(b" ", head=HEAD), drip(b"x", head=b"HTTP/1.1 200 OK\r\nX-Long: ")


def sip(connection: socket.socket, ended: Event) -> None:
    while not ended.wait(0.05):
        connection.recv(64 << 10)


@contextmanager
def serving(serve: Serve) -> Iterator[str]:
    ended = Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)

        def accept() -> None:
            with suppress(OSError):
                while not ended.is_set():
                    connection, _ = listener.accept()
                    with connection, suppress(OSError):
                        serve(connection, ended)

        thread = Thread(target=accept)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            ended.set()
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(60)


@pytest.fixture(params=["sync", "async"])
def impatient(request: pytest.FixtureRequest) -> Iterator[Callable[[str], Any]]:
    """Makes clients on the network that wait long for a step and half a second for a whole call."""
    made: list[Any] = []

    def make(url: str) -> Any:  # noqa: ANN401 - a client of either kind
        retry = RetryPolicy(deadline=0.5)
        if request.param == "sync":
            made.append(Client(url, key="", timeout=30, retry=retry))
        else:
            made.append(BlockingClient(AsyncClient(url, key="", timeout=30, retry=retry)))
        return made[-1]

    yield make
    for client in made:
        client.close() if isinstance(client, Client) else client.shut()


@pytest.mark.parametrize(
    "serve", [drip_body, drip_head, drip(b"HTTP/1.1 102 P\r\n\r\n" * 99, 0.01)], ids=["body", "head", "interim answers"]
)
def test_deadline_of_an_answer_that_never_ends(impatient: Callable[[str], Any], serve: Serve) -> None:
    """A server that always sends something is given up at the deadline, with what that means for a write."""
    with serving(serve) as url, pytest.raises(AnswerTimeout) as caught:
        impatient(url).send("q", "body")
    assert caught.value.outcome == "unknown"


def test_deadline_of_a_request_that_is_hardly_taken(impatient: Callable[[str], Any]) -> None:
    """A server that takes a request in small sips is given up at the deadline."""
    with serving(sip) as url, pytest.raises(AnswerTimeout):
        impatient(url).send("q", b"x" * (64 << 20))


def test_deadline_through_a_proxy(impatient: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The deadline holds through a proxy of the environment as well."""
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with serving(drip_head) as url:
        monkeypatch.setenv("HTTP_PROXY", url)
        with pytest.raises(AnswerTimeout):
            impatient("http://far.example").read("q")


class Stream(httpx2.SyncByteStream, httpx2.AsyncByteStream):
    """A body in parts, for either client, which counts the parts that were read."""

    def __init__(self, parts: Iterator[bytes]) -> None:
        self._parts = parts
        self.taken = 0

    def __iter__(self) -> Iterator[bytes]:
        for part in self._parts:
            self.taken += 1
            yield part

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self:
            yield part


def make_encoded_reply(data: bytes, encoding: str = "gzip") -> Callable[[httpx2.Request], httpx2.Response]:
    return lambda request: httpx2.Response(200, headers={"content-encoding": encoding}, stream=Stream(iter([data])))


def test_size_of_an_answer(connect: Connect) -> None:
    """An answer without end is given up as soon as it is too large."""
    stream = Stream(repeat(b"x" * 1000))
    client = connect(Script(lambda request: httpx2.Response(200, stream=stream)), max_answer=100_000)
    with pytest.raises(InvalidAnswer, match="larger than 100,000 bytes"):
        client.read("q")
    assert stream.taken == 101


@pytest.mark.parametrize(("encoding", "encode"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_size_of_a_decoded_answer(connect: Connect, encoding: str, encode: Callable[[bytes], bytes]) -> None:
    """An answer is decoded, and no further than it may be large."""
    fine = page(1).content
    assert connect(Script(make_encoded_reply(encode(fine), encoding))).read("q").messages[0].body == "m1"
    with pytest.raises(InvalidAnswer, match="larger than"):
        connect(Script(make_encoded_reply(encode(b" " * 10_000_000), encoding)), max_answer=100_000).read("q")


@pytest.mark.parametrize(
    ("data", "encoding"),
    [(b"no gzip", "gzip"), (gzip.compress(page(1).content)[:-9], "gzip"), (b"x", "br")],
    ids=["broken", "cut off", "not asked for"],
)
def test_answer_of_a_broken_encoding(connect: Connect, data: bytes, encoding: str) -> None:
    """What cannot be decoded is an error that names the server."""
    with pytest.raises(InvalidAnswer, match=r"^http://one\.example:5000: the answer's encoding") as caught:
        connect(Script(make_encoded_reply(data, encoding))).read("q")
    assert caught.value.server == "http://one.example:5000"


def test_length_of_an_errors_text(connect: Connect) -> None:
    """However much a server says when it refuses, the error's text can be printed."""
    fields = {f"{number}.body": "x" * 10_000 for number in range(1000)}
    with pytest.raises(ClientError) as caught:
        connect(Script(httpx2.Response(400, json={"error_msg": fields}))).send("q", "body")
    assert len(str(caught.value)) < 6000
    assert str(caught.value).endswith("; and 990 more")
    assert len(caught.value.fields) == 1000  # type: ignore[attr-defined]


@pytest.mark.parametrize("method", ["read_all", "read_pages", "tail", "tail_pages"])
@pytest.mark.parametrize("numbers", [(), (1,)], ids=["empty", "with a message"])
def test_cursor_that_stands_still(connect: Connect, method: str, numbers: tuple[int, ...]) -> None:
    """A server that reports more messages and repeats the same cursor ends the loop with an error."""
    script = Script(page(*numbers, more=True, cursor=f"1:{message_id(1)}"))
    with pytest.raises(InvalidAnswer, match="'orders' does not advance"):
        list(getattr(connect(script), method)("orders", since=message_id(1)))
    assert len(script.requests) <= 2


@pytest.mark.parametrize(("method", "fields"), [("queue_names", []), ("queues", [])])
def test_listing_that_stands_still(connect: Connect, method: str, fields: list[str]) -> None:
    """A list of queues that goes on where it began ends with an error."""
    script = Script(ok(queues=fields, next="a"))
    with pytest.raises(InvalidAnswer, match="the page from 'a' is followed by 'a'"):
        list(getattr(connect(script), method)())
    assert len(script.requests) == 2


def test_missing_receipts(connect: Connect) -> None:
    """A batch that is answered with fewer receipts than messages is an error, which has the received ones."""
    script = Script(receipts(2), receipts(1, first=3))
    with pytest.raises(InvalidAnswer, match="receipts for 1 of 2 messages") as caught:
        connect(script).send_many("q", [Outgoing(b"x" * (2 << 20)) for _ in range(4)])
    assert [receipt.id for receipt in caught.value.receipts] == [message_id(n) for n in (1, 2, 3)]


def test_use_after_close(impatient: Callable[[str], Any]) -> None:
    """Using a closed client raises an error of its own."""
    client = impatient("http://127.0.0.1:9")
    client.close()
    with pytest.raises(ClientError, match="the client is closed"):
        client.read("q")
