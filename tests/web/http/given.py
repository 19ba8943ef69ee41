"""A connection that receives bytes as a loop delivers them, and what it sends back."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Sequence
from typing import NamedTuple, cast

from queuey.web.gateway import IntervalTimer
from queuey.web.http.connection import Answer, Connection
from queuey.web.http.heads import RequestHead
from queuey.web.http.listening import ProcessConnections
from queuey.web.responses import Response, text_response

MAX_CONNECTIONS = 1000
"""Max connections."""


class Transport:
    """Collects what a connection sends."""

    def __init__(self) -> None:
        self.sent = b""
        self.is_paused = self.is_ended = self.is_aborted = False

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        pass

    def get_extra_info(self, name: str) -> object:
        pass

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def write(self, data: bytes) -> None:
        assert not self.is_ended
        self.sent += data

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.is_ended = True

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.is_aborted

    def close(self) -> None:
        self.is_ended = True

    def abort(self) -> None:
        self.is_aborted = True


class Outcome(NamedTuple):
    """Result of sending bytes to a connection.

    Attributes:
        closed: The connection was closed.
        sent: All bytes that were sent back.
    """

    closed: bool
    sent: bytes

    @property
    def answers(self) -> list[tuple[int, str]]:
        """Returns status and body of each answer; none of them may answer a HEAD."""
        return answers_of(self.sent)


async def echo(head: RequestHead, exchange: Connection) -> None:
    body = b""
    while head.form.length != 0:
        message = await exchange.receive()
        if message["type"] == "http.disconnect":
            exchange.send_response(text_response("broken", 400), head=False)
            return
        body += message["body"]
        if not message["more_body"]:
            break
    target = head.path.decode("latin-1") + (f"?{head.query.decode('latin-1')}" if head.query else "")
    text = f"{head.method} {target} {body.decode('latin-1')}".rstrip()
    exchange.send_response(
        Response(200, text.encode("latin-1"), ("Content-Type", "text/plain")), head=head.method == "HEAD"
    )


def refusal(status: int, why: str) -> Response:
    return text_response(why, status)


def make_connections(loop: asyncio.AbstractEventLoop, answer: Answer = echo) -> ProcessConnections:
    with socket.socket() as listener:
        accepted = ProcessConnections(loop, listener, MAX_CONNECTIONS, answer, refusal)
    accepted.date = b"date: x\r\n"
    return accepted


def start(every: ProcessConnections) -> None:
    IntervalTimer(every.loop).call_every(1.0, every.sweep)
    every.start()


class FakeConnection:
    """A connection whose transport records what is sent; the test delivers the bytes."""

    def __init__(self, all_of_them: ProcessConnections) -> None:
        self.all = all_of_them
        self.transport = Transport()
        self.connection = Connection(all_of_them)
        self.connection.connection_made(cast("asyncio.Transport", self.transport))

    async def give(self, data: bytes) -> None:
        """Delivers bytes, as many at a time as a loop would, and waits until each piece is worked on."""
        size = len(self.all.buffer)
        for start in range(0, len(data), size):
            piece = data[start : start + size]
            self.all.buffer[: len(piece)] = piece
            self.connection.buffer_updated(len(piece))
            await self.settle()

    async def end(self) -> None:
        if not self.connection.eof_received():
            self.lose()
        await self.settle()

    async def settle(self) -> None:
        """Runs the loop until the connection waits for more or has ended."""
        for _ in range(1000):
            if self.connection._task.done() or self.connection._waiter is not None:
                break
            await asyncio.sleep(0)
        await settle()

    def lose(self) -> None:
        self.connection.connection_lost(None)


async def settle() -> None:
    for _ in range(6):
        await asyncio.sleep(0)


async def send_pieces(pieces: Sequence[bytes], *, end: bool = False) -> Outcome:
    """Sends bytes to a new connection, and parses what it sends back. The connection must end when it is lost.

    Args:
        pieces: Pieces of the stream, in order.
        end: The client's side ends after them.
    """
    connection = FakeConnection(make_connections(asyncio.get_running_loop()))
    await settle()
    for piece in pieces:
        await connection.give(piece)
    if end:
        await connection.end()
    transport = connection.transport
    closed = transport.is_ended or transport.is_aborted
    result = Outcome(closed, transport.sent)
    if not connection.connection.is_lost:
        connection.lose()
    await settle()
    assert connection.connection._task.done()
    assert not connection.all.open
    return result


_HEAD = re.compile(rb"HTTP/1\.1 ([0-9]{3}) [^\r\n]*\r\n((?:[^\r\n]+\r\n)*)\r\n")


def answers_of(data: bytes) -> list[tuple[int, str]]:
    answers = []
    while data:
        head = _HEAD.match(data)
        assert head is not None, data
        length = re.search(rb"content-length: ([0-9]+)", head[2])
        size = int(length[1]) if length else 0
        body = data[head.end() : head.end() + size]
        answers.append((int(head[1]), body.decode("latin-1")))
        data = data[head.end() + size :]
    return answers
