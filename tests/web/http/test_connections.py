"""Connections beyond single requests: deadlines, limits, slow readers, and bodies that are not read."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, Literal

import httptools
import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from queuey.web.http import heads
from queuey.web.http.connection import DISCONNECTED, HALF_CLOSED, MAX_LINGER_BYTES, MAX_UNPARSED, Connection
from queuey.web.http.heads import MAX_FIELDS, HeadRefused, RequestHead, read_head
from queuey.web.http.listening import Certificate, ProcessConnections
from queuey.web.responses import Response, text_response
from tests.waiting import until_async
from tests.web.http.given import FakeConnection, echo, make_connections, refusal, settle, start

TLS = Path(__file__).parents[2] / "acceptance" / "tls"
GET = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"


def play(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(work())


def test_the_parser_is_the_one_that_was_tried() -> None:
    """Another version of llhttp may read other things than the table says; play it again before this is changed."""
    assert httptools.__version__.startswith("0.9.")


@pytest.mark.parametrize(("data", "state", "answer"), [(GET, "idle", b""), (GET[:10], "head", b"HTTP/1.1 408 ")])
async def test_time_is_over(data: bytes, state: Literal["idle", "head"], answer: bytes) -> None:
    """Between requests the connection then ends without a word; a head that has begun and did not end is refused."""
    connection = FakeConnection(make_connections(asyncio.get_running_loop()))
    await connection.give(data)
    assert list(connection.all.waiting[state]) == [connection.connection]
    sent = len(connection.transport.sent)
    connection.connection.expire()
    await settle()
    assert connection.transport.sent[sent:].startswith(answer)
    assert bool(answer) or len(connection.transport.sent) == sent
    assert connection.transport.is_ended


async def test_what_is_not_read_ends_the_connection() -> None:
    """An unread body that has not arrived is not awaited; one that has arrived is dropped."""

    async def refuse(head: RequestHead, exchange: Connection) -> None:
        exchange.send_response(text_response("no", 401), head=False)

    every = make_connections(asyncio.get_running_loop(), refuse)
    connection = FakeConnection(every)
    post = b"POST /p HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n"
    await connection.give(post + b"abc" + post)
    assert connection.transport.sent.count(b"HTTP/1.1 401 ") == 2
    assert connection.transport.sent.count(b"connection: close") == 1
    await connection.give(b"abc" + GET)
    assert connection.transport.sent.count(b"HTTP/1.1 ") == 2
    assert connection.connection.is_lingering
    await connection.give(bytes(MAX_LINGER_BYTES))
    assert connection.transport.is_aborted


async def test_other_connections_have_their_turn() -> None:
    """A connection that has sent very many requests at once does not keep the loop."""
    every = make_connections(asyncio.get_running_loop())
    busy, other = FakeConnection(every), FakeConnection(every)
    await settle()
    data = GET * 2000
    every.buffer[: len(data)] = data
    busy.connection.buffer_updated(len(data))
    await other.give(GET)
    answered = busy.transport.sent.count(b"HTTP/1.1 200")
    assert other.transport.sent.count(b"HTTP/1.1 200") == 1
    assert 0 < answered < 2000


async def test_answers_of_a_turn_are_written_together() -> None:
    """Nothing is written before all requests of a turn are answered; a failing write ends its own connection alone."""

    async def answer(head: RequestHead, exchange: Connection) -> None:
        await echo(head, exchange)
        sent_meanwhile.extend(connection.transport.sent for connection in connections)

    def fail(data: bytes) -> None:
        raise OSError

    every = make_connections(asyncio.get_running_loop(), answer)
    connections = [FakeConnection(every) for _ in range(3)]
    sent_meanwhile: list[bytes] = []
    await settle()
    connections[0].transport.write = fail  # type: ignore[method-assign]
    for connection in connections:
        every.buffer[: 2 * len(GET)] = 2 * GET
        connection.connection.buffer_updated(2 * len(GET))
    await settle()
    assert sent_meanwhile == [b""] * 18
    assert connections[0].transport.is_aborted
    await connections[1].give(GET)
    assert [connection.transport.sent.count(b"HTTP/1.1 200") for connection in connections] == [0, 3, 2]


async def test_slow_readers_hold_up_themselves() -> None:
    """While the other end takes nothing, no further request is served; in the end it is given up."""
    every = make_connections(asyncio.get_running_loop())
    connection = FakeConnection(every)
    await settle()
    connection.connection.pause_writing()
    await connection.give(GET * 3)
    assert connection.transport.sent.count(b"HTTP/1.1 200") == 1
    assert list(every.waiting["full"]) == [connection.connection]
    connection.connection.resume_writing()
    await settle()
    assert connection.transport.sent.count(b"HTTP/1.1 200") == 3
    connection.connection.pause_writing()
    connection.connection.expire()
    assert connection.transport.is_aborted


async def test_answers_without_an_end() -> None:
    """What goes on without a length comes in chunks, or to the end of the connection; what breaks off is seen to."""

    async def stream(head: RequestHead, exchange: Connection) -> None:
        await exchange.send_head(Response(200, b""), None)
        await exchange.send_piece(b"abc", more=True)
        if head.path == b"/a":
            await exchange.send_piece(b"", more=False)

    every = make_connections(asyncio.get_running_loop(), stream)
    connection, old, broken = FakeConnection(every), FakeConnection(every), FakeConnection(every)
    await connection.give(GET)
    assert connection.transport.sent.endswith(b"\r\n\r\n3\r\nabc\r\n0\r\n\r\n")
    assert not connection.transport.is_ended
    await old.give(GET.replace(b"1.1", b"1.0"))
    assert old.transport.sent.endswith(b"\r\n\r\nabc")
    assert old.transport.is_ended
    await broken.give(GET.replace(b"/a", b"/b"))
    assert broken.transport.is_aborted


async def test_headers_cannot_end_their_line() -> None:
    """An answer whose header would be two is not sent."""

    async def inject(head: RequestHead, exchange: Connection) -> None:
        exchange.send_response(Response(200, b"", ("X-A", "a\r\nX-B: b")), head=False)

    connection = FakeConnection(make_connections(asyncio.get_running_loop(), inject))
    await connection.give(GET)
    assert connection.transport.sent == b""
    assert connection.transport.is_aborted


async def test_leaving_is_told() -> None:
    """The handler of a request learns that the client sends no more, and that it has disconnected."""
    events: list[object] = []
    disconnected = asyncio.Event()

    async def listen(head: RequestHead, exchange: Connection) -> None:
        events.append(await exchange.receive())
        events.append(await exchange.receive() if exchange.has_ended else None)
        disconnected.set()

    connection = FakeConnection(make_connections(asyncio.get_running_loop(), listen))
    await connection.give(GET)
    await connection.end()
    connection.lose()
    await asyncio.wait_for(disconnected.wait(), 60)
    assert events in ([HALF_CLOSED, HALF_CLOSED], [HALF_CLOSED, DISCONNECTED])


def test_the_same_form_is_read_once() -> None:
    """Whatever the path; a refused head is refused each time; the memory of the cache is bounded."""
    assert read_head(GET).form is read_head(GET.replace(b"/a", b"/b/c?d=e")).form
    for _ in range(2):
        with pytest.raises(heads.HeadRefused):
            read_head(GET + b"x")
    for number in range(3000):
        read_head(GET.replace(b"Host: ", b"Host: %d" % number))
    assert len(heads.cached_forms) <= 1000


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=100) as server:
        yield server.dup()


async def _ask(port: int, context: ssl.SSLContext | None = None) -> bytes:
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=context, server_hostname="localhost" if context else None
    )
    writer.write(GET)
    status = await reader.read(15)
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return status


async def test_too_many_connections(listener: socket.socket) -> None:
    """The connection that has been idle longest makes room; if none is idle, the new one is asked to retry."""
    port = listener.getsockname()[1]
    go_on = asyncio.Event()

    async def wait(head: RequestHead, exchange: Connection) -> None:
        await asyncio.wait_for(go_on.wait(), 60)
        await echo(head, exchange)

    every = ProcessConnections(asyncio.get_running_loop(), listener, 2, wait, refusal)
    start(every)
    opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
    assert await opened[0][0].read() == b""
    for _, writer in opened[1:]:
        writer.write(GET)
    await until_async(lambda: not every.waiting["idle"], every=0.001)
    assert await _ask(port) == b"HTTP/1.1 503 Se"
    go_on.set()
    assert (await opened[2][0].read(15)).startswith(b"HTTP/1.1 200 ")
    for _, writer in opened:
        writer.close()
        await writer.wait_closed()
    await every.stop()


@pytest.mark.parametrize("new_loop", [uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])
def test_silent_handshakes_make_room(
    new_loop: Callable[[], asyncio.AbstractEventLoop], listener: socket.socket
) -> None:
    """Behind TLS the oldest connection with a silent handshake makes room, and its socket is closed."""
    port = listener.getsockname()[1]
    trusting = ssl.create_default_context(cafile=TLS / "cert.pem")
    certificate = Certificate(TLS / "cert.pem", TLS / "key.pem")

    async def work() -> None:
        every = ProcessConnections(asyncio.get_running_loop(), listener, 3, echo, refusal, certificate)
        start(every)
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        assert await _ask(port, trusting) == b"HTTP/1.1 200 OK"
        async with asyncio.timeout(2):
            assert await silent[0][0].read() == b""
        for _, writer in silent:
            writer.close()
        await every.stop()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(work())


async def test_file_handles_run_out(listener: socket.socket, caplog: pytest.LogCaptureFixture) -> None:
    """Connections that cannot be taken in are taken in later; it is logged."""
    port = listener.getsockname()[1]

    class Poor:
        """A listener that has no file handle left for a while."""

        left = 1

        def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - as of a socket
            return getattr(listener, name)

        def accept(self) -> Any:  # noqa: ANN401 - as of a socket
            """Accepts a connection at the second attempt."""
            Poor.left -= 1
            if Poor.left >= 0:
                raise OSError(24, "Too many open files")
            return listener.accept()

    every = ProcessConnections(asyncio.get_running_loop(), Poor(), 10, echo, refusal)  # type: ignore[arg-type]
    start(every)
    assert await _ask(port) == b"HTTP/1.1 200 OK"
    await every.stop()
    assert "Too many open files" in caplog.text


async def test_a_new_certificate_is_taken_up(
    tmp_path: Path, listener: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    """New connections get the new certificate; a bad one changes nothing, and strangers block no one."""
    port, chain, key = listener.getsockname()[1], tmp_path / "cert.pem", tmp_path / "key.pem"
    good = {path: (TLS / path.name).read_text() for path in (chain, key)}
    for path, text in good.items():
        path.write_text(text)
    caplog.set_level(logging.INFO)
    certificate = Certificate(chain, key)
    every = ProcessConnections(asyncio.get_running_loop(), listener, 10, echo, refusal, certificate)
    start(every)
    context = ssl._create_unverified_context()
    assert await _ask(port, context) == b"HTTP/1.1 200 OK"
    before = certificate.context
    chain.write_text("no certificate")
    certificate.reload_if_changed()
    assert certificate.context is before
    assert await _ask(port, context) == b"HTTP/1.1 200 OK"
    assert await _ask(port) != b"HTTP/1.1 200 OK"
    chain.write_text(good[chain])
    every.reload()
    assert certificate.context is not before
    assert await _ask(port, context) == b"HTTP/1.1 200 OK"
    await every.stop()
    assert "the old one stays" in caplog.text


# Heads with an Idempotency-Key, which differs from head to head: parsed as all others, and cached without the key


LINES = ("Host: x", "Content-Length: 3", "X-TTL: 60", "Connection: keep-alive")
KEY = st.text('abc0-"=: \t\u00e9\x01', max_size=8)


def head(*lines: str) -> bytes:
    return "\r\n".join(("POST /v1/a/q?x=1 HTTP/1.1", *lines, "", "")).encode("latin-1")


def head_fields(found: RequestHead) -> object:
    form = found.form
    fields = sorted([*form.fields, *([(b"idempotency-key", found.key)] if found.key else [])])
    return found.method, found.path, found.query, fields, form.length, form.is_old, form.keeps_alive, form.expects


def outcome(data: bytes, read: object) -> object:
    try:
        return head_fields(read(data))  # type: ignore[operator]
    except HeadRefused as refused:
        return refused.status


@given(
    name=st.sampled_from(["Idempotency-Key", "idempotency-key", "IDEMPOTENCY-KEY"]),
    separator=st.sampled_from([": ", ":", ":  "]),
    key=KEY,
    at=st.integers(0, len(LINES)),
    behind=st.sampled_from([(), (" folded",), ("\tfolded",), ("Idempotency-Key: b",), ("idempotency-key: b",)]),
)
def test_read_as_others(name: str, separator: str, key: str, at: int, behind: tuple[str, ...]) -> None:
    """However the header is written, wherever it stands and whatever follows, the head is what the parser reads."""
    data = head(*LINES[:at], f"{name}{separator}{key}", *behind, *LINES[at:])
    assert outcome(data, read_head) == outcome(data, heads._parse)


@given(
    method=st.sampled_from(["GET", "PUT", "CONNECT", "get", "XYZ", ""]),
    target=st.text('/a?#%=: "*\u00e9\x01\t\r', max_size=6) | st.sampled_from(["http://x/a?b", "/" + "a" * 70_000]),
    version=st.sampled_from(["HTTP/1.1", "HTTP/1.0", "HTTP/2.0", " HTTP/1.1", "x HTTP/1.1"]),
)
def test_request_lines(method: str, target: str, version: str) -> None:
    """Whatever the first line is, a head whose form is known is what the parser reads."""
    assert outcome(head(*LINES), read_head) != 400
    data = "\r\n".join((f"{method} {target} {version}", *LINES, "", "")).encode("latin-1")
    assert outcome(data, read_head) == outcome(data, heads._parse)


@pytest.mark.parametrize("count", [MAX_FIELDS - 1, MAX_FIELDS])
def test_the_key_counts_as_a_field(count: int) -> None:
    """A head has as many fields with a key as without one."""
    lines = ["Host: x", *(f"X-{number}: a" for number in range(count - 1))]
    data = head(*lines, "Idempotency-Key: a")
    assert outcome(data, read_head) == outcome(data, heads._parse)
    assert (outcome(data, read_head) == 431) == (count == MAX_FIELDS)


def test_remembered_once() -> None:
    """Heads that differ only in their keys are parsed once, share the result, and take one place."""
    heads.cached_forms.clear()
    parsed = [read_head(head(*LINES, f'idempotency-key: "{number}"')) for number in range(50)]
    assert [each.key for each in parsed] == [b'"%d"' % number for number in range(50)]
    assert len(heads.cached_forms) == 1
    assert all(each.form is parsed[0].form for each in parsed)


async def test_no_more_is_read_than_is_served() -> None:
    """While a request is served, a little of what follows waits, and the rest stays in the client."""
    go_on = asyncio.Event()

    async def wait(head: RequestHead, exchange: Connection) -> None:
        await asyncio.wait_for(go_on.wait(), 60)
        await echo(head, exchange)

    connection = FakeConnection(make_connections(asyncio.get_running_loop(), wait))
    many = GET * (2 * MAX_UNPARSED // len(GET))
    await connection.give(GET + many)
    assert connection.transport.is_paused
    assert connection.transport.sent == b""
    go_on.set()
    async with asyncio.timeout(60):
        while connection.transport.sent.count(b"HTTP/1.1 200") <= len(many) // len(GET):
            await settle()
    assert not connection.transport.is_paused
