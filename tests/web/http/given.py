"""A connection that is given bytes as a loop would, and what it sends back."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Sequence
from typing import NamedTuple, cast

from queuey.web.gateway.asgi import Sweep
from queuey.web.http.connection import Answer, Connection
from queuey.web.http.heads import Head
from queuey.web.http.listening import Connections
from queuey.web.responses import Response, text_response

MOST = 1000
"""Connections at a time."""


class Transport:
    """Takes what a connection sends."""

    def __init__(self) -> None:
        self.sent = b""
        self.is_paused = self.is_ended = self.is_aborted = False

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        """See asyncio."""

    def get_extra_info(self, name: str) -> object:
        """See asyncio; it knows nothing of its other end."""

    def pause_reading(self) -> None:
        """See asyncio."""
        self.is_paused = True

    def resume_reading(self) -> None:
        """See asyncio."""
        self.is_paused = False

    def write(self, data: bytes) -> None:
        """See asyncio."""
        assert not self.is_ended
        self.sent += data

    def can_write_eof(self) -> bool:
        """See asyncio."""
        return True

    def write_eof(self) -> None:
        """See asyncio."""
        self.is_ended = True

    def get_write_buffer_size(self) -> int:
        """See asyncio."""
        return 0

    def is_closing(self) -> bool:
        """See asyncio."""
        return self.is_aborted

    def close(self) -> None:
        """See asyncio."""
        self.is_ended = True

    def abort(self) -> None:
        """See asyncio."""
        self.is_aborted = True


class Outcome(NamedTuple):
    """What came of some bytes.

    Attributes:
        closed: The connection has ended.
        sent: All that was sent back.
    """

    closed: bool
    sent: bytes

    @property
    def answers(self) -> list[tuple[int, str]]:
        """Status and body of each answer, of which none is to a HEAD."""
        return answers_of(self.sent)


async def echo(head: Head, exchange: Connection) -> None:
    """Answers with what was asked."""
    body = b""
    while head.length != 0:
        message = await exchange.receive()
        if message["type"] == "http.disconnect":
            exchange.respond(text_response("broken", 400), head=False)
            return
        body += message["body"]
        if not message["more_body"]:
            break
    target = head.path.decode("latin-1") + (f"?{head.query.decode('latin-1')}" if head.query else "")
    text = f"{head.method} {target} {body.decode('latin-1')}".rstrip()
    exchange.respond(Response(200, text.encode("latin-1"), ("Content-Type", "text/plain")), head=head.method == "HEAD")


def refusal(status: int, why: str) -> Response:
    """Says what was refused."""
    return text_response(why, status)


def connections(loop: asyncio.AbstractEventLoop, answer: Answer = echo) -> Connections:
    """Returns connections that take none in by themselves."""
    with socket.socket() as listener:
        found = Connections(loop, listener, MOST, answer, refusal)
    found.date = b"date: x\r\n"
    return found


def start(every: Connections) -> None:
    """Has connections taken in, and looked after as a worker does."""
    Sweep(every.loop).every(1.0, every.sweep)
    every.start()


class Given:
    """A connection without a socket."""

    def __init__(self, all_of_them: Connections) -> None:
        self.all = all_of_them
        self.transport = Transport()
        self.connection = Connection(all_of_them)
        self.connection.connection_made(cast("asyncio.Transport", self.transport))

    async def give(self, data: bytes) -> None:
        """Gives it bytes, as many at a time as a loop would."""
        size = len(self.all.buffer)
        for at in range(0, len(data), size):
            piece = data[at : at + size]
            self.all.buffer[: len(piece)] = piece
            self.connection.buffer_updated(len(piece))
            await self.settle()

    async def end(self) -> None:
        """Sends no more."""
        if not self.connection.eof_received():
            self.lose()
        await self.settle()

    async def settle(self) -> None:
        """Lets everything happen until more is waited for."""
        for _ in range(1000):
            if self.connection._task.done() or self.connection._waiter is not None:
                break
            await asyncio.sleep(0)
        await settle()

    def lose(self) -> None:
        """Is gone."""
        self.connection.connection_lost(None)


async def settle() -> None:
    """Lets everything happen that can."""
    for _ in range(6):
        await asyncio.sleep(0)


async def outcome(pieces: Sequence[bytes], *, end: bool = False) -> Outcome:
    """Gives bytes to a new connection, and takes apart what it sends back.

    Args:
        pieces: Given one after the other.
        end: Then no more is sent.
    """
    given = Given(connections(asyncio.get_running_loop()))
    await settle()
    for piece in pieces:
        await given.give(piece)
    if end:
        await given.end()
    transport = given.transport
    closed = transport.is_ended or transport.is_aborted
    found = Outcome(closed, transport.sent)
    if not given.connection._lost:
        given.lose()
    await settle()
    assert given.connection._task.done()
    assert not given.all._where
    return found


_HEAD = re.compile(rb"HTTP/1\.1 ([0-9]{3}) [^\r\n]*\r\n((?:[^\r\n]+\r\n)*)\r\n")


def answers_of(data: bytes) -> list[tuple[int, str]]:
    """Takes apart answers of which none is to a HEAD."""
    found = []
    while data:
        head = _HEAD.match(data)
        assert head is not None, data
        length = re.search(rb"content-length: ([0-9]+)", head[2])
        size = int(length[1]) if length else 0
        body = data[head.end() : head.end() + size]
        found.append((int(head[1]), body.decode("latin-1")))
        data = data[head.end() + size :]
    return found
