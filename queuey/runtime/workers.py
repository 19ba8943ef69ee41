"""Requests between the worker processes of one service, called questions and answers.

Each worker listens on a Unix socket in Linux' abstract namespace, which leaves no file behind when the process dies. A
connection is accepted only from a process of the same user, as reported by the kernel. One thread handles all
connections, so callers do not block. Questions to a worker that is stopped or gone come back unanswered.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
import os
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from queuey.storage.deadlines import LoopCalls

log = logging.getLogger(__name__)

REBIND_SECONDS = 0.1
"""Interval in seconds between attempts to bind an address that the previous worker has not released yet."""
QUIET_SECONDS = 1.0
"""Max seconds of silence before a worker that owes an answer gets a keep-alive question; from half of them on."""
LOST_SECONDS = 2.5
"""Seconds of silence after which a worker that owes an answer counts as gone."""
RECONNECT_SECONDS = 1.0
"""Interval in seconds between attempts to connect."""
MIN_DIRECT_BYTES = 4 << 10
"""Min bytes of a frame that is sent at once instead of joined with others, which would only copy it."""
MAX_UNSENT_BYTES = 64 << 20
"""Max unsent bytes of a connection; with more, the connection is closed."""
MAX_FRAME_BYTES = 256 << 20
"""Max bytes of a question or answer; a longer frame closes the connection."""
_FRAME = struct.Struct(">IBQ")
_CREDENTIALS = struct.Struct("3i")
_ANSWER, _FAILURE, _LEAVING, _ALIVE = range(4)
_encode = msgspec.msgpack.Encoder().encode

Q = TypeVar("Q")
A = TypeVar("A")
Answer = Callable[[A | None], None]
"""Receives the answer, or None if the question was not answered. Called once, from any thread."""
GiveUp = Callable[[], object]
"""Cancels the work on a question whose asker is gone. Called from any thread."""
Handler = Callable[[Q, Answer[A]], GiveUp | None]
"""Begins to answer a question. Must not block."""


class WorkerIdentity(NamedTuple):
    """Identifies a worker among the workers of its service.

    Attributes:
        service: Unique name of the service.
        total: Number of workers.
        number: Number of this worker, from 1.
    """

    service: str
    total: int
    number: int = 0

    @classmethod
    def of_service(cls, total: int) -> WorkerIdentity:
        """Returns the common part of the identities of a new service's workers; ``number`` is 0."""
        return cls(secrets.token_hex(16), total)

    def address(self, number: int) -> str:
        return f"\0queuey-{self.service}-{number}"


class Topic(Generic[Q, A]):
    """A kind of question.

    Args:
        number: Identifies the topic on the wire; from 16 to 255.
        question, answer: Types of the questions and answers.
    """

    def __init__(self, number: int, question: type[Q], answer: type[A]) -> None:
        self.number = number
        self._read_question = msgspec.msgpack.Decoder(question).decode
        self._read_answer = msgspec.msgpack.Decoder(answer).decode

    def write(self, question: Q) -> bytes:
        return _encode(question)

    def read(self, answer: bytes | None) -> A | None:
        return None if answer is None else self._read_answer(answer)

    def handle(self, handler: Handler[Q, A], question: bytes, answer: Answer[bytes]) -> GiveUp | None:
        return handler(self._read_question(question), lambda value: answer(None if value is None else _encode(value)))


class Workers:
    """The workers of a service, including this one. Thread-safe.

    Before :meth:`join` this worker is the only one.
    """

    def __init__(self) -> None:
        self.identity = WorkerIdentity("", 1)
        self._handlers: dict[int, Handler[bytes, bytes]] = {}
        self._peers: dict[int, _Peer] = {}
        self._askers: set[_Asker] = set()
        self._thread: threading.Thread | None = None
        self._has_left = False

    def handle(self, topic: Topic[Q, A], handler: Handler[Q, A]) -> None:
        self._handlers[topic.number] = partial(topic.handle, handler)

    def join(self, identity: WorkerIdentity) -> None:
        self.identity = identity
        if identity.total == 1:
            return
        runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        loop = runner.get_loop()
        self._calls = LoopCalls(loop)
        self._leaving: asyncio.Future[float] = loop.create_future()
        numbers = (number for number in range(1, identity.total + 1) if number != identity.number)
        self._peers = {number: _Peer(loop, identity.address(number)) for number in numbers}
        self._thread = threading.Thread(target=self._run, args=(runner,), name="queuey-workers", daemon=True)
        self._thread.start()

    def is_up(self, number: int) -> bool:
        peer = self._peers.get(number)
        if peer is None or peer.is_up:
            return peer is not None
        self._calls(peer.connect)
        return False

    def ask(self, number: int, topic: Topic[Q, A], question: Q, answer: Answer[A]) -> None:
        peer = self._peers.get(number)
        if peer is None or self._has_left:
            answer(None)
        else:
            content = topic.write(question)
            self._calls(peer.ask, topic.number, content, lambda value: answer(topic.read(value)))

    async def ask_all(self, topic: Topic[Q, A], question: Q, seconds: float) -> dict[int, A | None]:
        answers: dict[int, A | None] = dict.fromkeys(self._peers)
        if not answers:
            return answers
        loop = asyncio.get_running_loop()
        awaited, complete = set(self._peers), loop.create_future()

        def receive(number: int, answer: A | None) -> None:
            answers[number] = answer
            awaited.discard(number)
            if not awaited and not complete.done():
                complete.set_result(None)

        for number in self._peers:
            self.ask(number, topic, question, partial(LoopCalls(loop), receive, number))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await complete
        return answers.copy()

    def leave(self, seconds: float) -> None:
        if self._thread is not None and not self._has_left:
            self._has_left = True
            self._calls(self._leaving.set_result, seconds)
            self._thread.join(seconds + 1)

    # In the thread

    def _run(self, runner: asyncio.Runner) -> None:
        with runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        loop, address, server = asyncio.get_running_loop(), self.identity.address(self.identity.number), None
        while not self._leaving.done():
            if server is None:
                with contextlib.suppress(OSError):
                    server = await loop.create_unix_server(self._accept, address, backlog=self.identity.total + 8)
            for peer in self._peers.values():
                peer.check()
            await asyncio.wait([self._leaving], timeout=REBIND_SECONDS if server is None else QUIET_SECONDS / 2)
        until = time.monotonic() + self._leaving.result()
        if server is not None:
            server.close()
        for peer in self._peers.values():
            peer.close()
        for asking in self._askers:
            asking.send(_LEAVING, 0, b"")
        while time.monotonic() < until and any(asking.is_busy for asking in self._askers):  # noqa: ASYNC110 - threads answer
            await asyncio.sleep(0.005)
        while self._askers or any(peer.is_connected for peer in self._peers.values()):
            for asking in self._askers:
                asking.abort()
            await asyncio.sleep(0)

    def _accept(self) -> _Asker:
        asking = _Asker(self._calls, self._handlers, self._askers.discard)
        self._askers.add(asking)
        return asking


class _FrameConnection(asyncio.Protocol):
    """One end of a connection that carries frames: a kind, a number and content. Used in one thread."""

    def __init__(self) -> None:
        self._transport: Any = None
        self._unread = bytearray()
        self._unsent: list[bytes] = []

    @property
    def is_connected(self) -> bool:
        return self._transport is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Sends the waiting frames if the other end has the same user; else closes the connection."""
        peer = transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        self._transport = transport
        if _CREDENTIALS.unpack(peer)[1] != os.geteuid():
            self.abort()
        self._flush()

    def data_received(self, data: bytes) -> None:
        self._unread += data
        end = 0
        while len(self._unread) - end >= _FRAME.size:
            length, kind, number = _FRAME.unpack_from(self._unread, end)
            begin = end + _FRAME.size
            if length > MAX_FRAME_BYTES:
                self.abort()
                return
            if len(self._unread) - begin < length:
                break
            end = begin + length
            self.frame_received(kind, number, bytes(self._unread[begin:end]))
        del self._unread[:end]

    def frame_received(self, kind: int, number: int, content: bytes) -> None:
        raise NotImplementedError

    def send(self, kind: int, number: int, content: bytes) -> None:
        self._unsent.append(_FRAME.pack(len(content), kind, number) + content)
        if len(content) >= MIN_DIRECT_BYTES:
            self._flush()
        elif len(self._unsent) == 1:
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join(self._unsent))
            self._unsent = []
            if self._transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
                self.abort()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class _Asker(_FrameConnection):
    """A connection on which another worker asks. When it is lost, the work on open questions is cancelled."""

    def __init__(
        self, calls: LoopCalls, handlers: dict[int, Handler[bytes, bytes]], forget: Callable[[_Asker], None]
    ) -> None:
        super().__init__()
        self._calls = calls
        self._handlers = handlers
        self._forget = forget
        self._open_questions: dict[int, GiveUp | None] = {}

    @property
    def is_busy(self) -> bool:
        unsent = self._unsent or (self._transport is not None and self._transport.get_write_buffer_size())
        return bool(self._open_questions or unsent)

    def frame_received(self, kind: int, number: int, content: bytes) -> None:
        if kind == _ALIVE:
            self.send(_ANSWER, number, b"")
            return
        self._open_questions[number] = None
        try:
            self._open_questions[number] = self._handlers[kind](content, partial(self._calls, self._answer, number))
        except Exception:
            log.exception("Answering a question of another worker failed")
            self._answer(number, None)

    def _answer(self, number: int, answer: bytes | None) -> None:
        if number in self._open_questions:
            del self._open_questions[number]
            self.send(_FAILURE if answer is None else _ANSWER, number, answer or b"")

    def connection_lost(self, _error: Exception | None) -> None:
        self._forget(self)
        for give_up in filter(None, self._open_questions.values()):
            give_up()


class _Peer(_FrameConnection):
    """Another worker that this one asks, over one connection at a time.

    Attributes:
        is_up: True if the worker has answered and is not leaving.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, address: str) -> None:
        super().__init__()
        self._loop = loop
        self._address = address
        self._open_answers: dict[int, Answer[bytes]] = {}
        self._numbers = itertools.count(1)
        self._last_heard = 0.0
        self._connecting: asyncio.Task[None] | None = None
        self._not_before = 0.0
        self._is_leaving = False
        self.is_up = False

    def connect(self) -> bool:
        """Starts to connect, unless an attempt has just failed. Returns whether it is connected or connecting."""
        if not self.is_connected and self._connecting is None and time.monotonic() >= self._not_before:
            self._connecting = self._loop.create_task(self._connect())
        return self.is_connected or self._connecting is not None

    async def _connect(self) -> None:
        try:
            async with asyncio.timeout(LOST_SECONDS):
                await self._loop.create_unix_connection(lambda: self, self._address)
        except OSError as error:
            self.connection_lost(error)
        finally:
            self._connecting = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.send(_ALIVE, 0, b"")
        super().connection_made(transport)

    def connection_lost(self, _error: Exception | None) -> None:
        self._transport, self._unsent = None, []
        self._unread.clear()
        self.is_up = self._is_leaving = False
        self._not_before = max(self._not_before, time.monotonic() + RECONNECT_SECONDS)
        unanswered, self._open_answers = self._open_answers, {}
        for answer in unanswered.values():
            answer(None)

    def ask(self, kind: int, question: bytes, answer: Answer[bytes]) -> None:
        if not self.connect():
            answer(None)
            return
        if not self._open_answers:
            self._last_heard = self._loop.time()
        number = next(self._numbers)
        self._open_answers[number] = answer
        self.send(kind, number, question)

    def check(self) -> None:
        quiet = self._loop.time() - self._last_heard
        if self._open_answers and quiet > LOST_SECONDS:
            self.abort()
        elif self._open_answers and quiet >= QUIET_SECONDS / 2:
            self.send(_ALIVE, 0, b"")

    def close(self) -> None:
        self._not_before = math.inf
        if self._connecting is not None:
            self._connecting.cancel()
            self.connection_lost(None)
        self.abort()

    def frame_received(self, kind: int, number: int, content: bytes) -> None:
        # Answers a question. After any frame a worker is up until it leaves.
        self._last_heard = self._loop.time()
        self._is_leaving = self._is_leaving or kind == _LEAVING
        self.is_up = not self._is_leaving
        answer = self._open_answers.pop(number, None)
        if answer is not None:
            answer(content if kind == _ANSWER else None)
