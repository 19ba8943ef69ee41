"""Questions and answers between the worker processes of one service.

Each listens at its own name in Linux' abstract namespace, where nothing is left behind when it dies. The kernel reports
the user of the other process: only processes of the same user are spoken to. A thread of its own has all connections,
so a thread that asks never waits, and a worker that is stopped or gone holds nobody up: questions to it come back
unanswered.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import secrets
import socket
import struct
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import IntEnum
from functools import partial
from typing import Any, NamedTuple

log = logging.getLogger(__name__)

REBIND_SECONDS = 0.1
"""Interval in seconds between attempts to bind a name that the previous worker has not given up yet."""
QUIET_SECONDS = 1.0
"""Timeout in seconds after which a worker that owes an answer is asked whether it is alive."""
LOST_SECONDS = 2.5
"""Timeout in seconds after which a silent worker that owes an answer counts as gone."""
AGAIN_SECONDS = 1.0
"""Interval in seconds between attempts to connect."""
MOST_UNSENT = 64 << 20
"""Max bytes that wait for a worker which does not read them; with more, its connection is closed."""
MOST_BYTES = 256 << 20
"""Max bytes of one question or answer. A longer one comes from no worker."""
_FRAME = struct.Struct(">IBQ")
_CREDENTIALS = struct.Struct("3i")


class WorkerIdentity(NamedTuple):
    """The number of a worker among those of its service.

    Attributes:
        service: A unique name of the service.
        total: Number of workers.
        number: Of this one, from 1.
    """

    service: str
    total: int
    number: int = 0

    @classmethod
    def of_service(cls, total: int) -> WorkerIdentity:
        """Returns the common part of the identities of a new service's workers."""
        return cls(secrets.token_hex(16), total)

    def address(self, number: int) -> str:
        return f"\0queuey-{self.service}-{number}"


class Topic(IntEnum):
    COUNTS = 16
    CLAIM = 17
    SETTLE = 18
    NEWS = 19
    HISTORY = 20


_ANSWER, _FAILURE, _LEAVING, _ALIVE = range(4)
Answer = Callable[[bytes | None], None]
"""Gets an answer; None: there is none. Called once, from any thread."""
Handler = Callable[[bytes, Answer], Callable[[], object]]
"""Begins to answer a question, without blocking; returns a function that gives up."""


class Workers:
    """The workers of a service, including this one. Safe for use by many threads.

    One that has not joined a service is alone.
    """

    def __init__(self) -> None:
        self.identity = WorkerIdentity("", 1)
        self._handlers: dict[int, Handler] = {_ALIVE: _live}
        self._others: dict[int, _Asking] = {}
        self._answering: set[_Answering] = set()
        self._thread: threading.Thread | None = None

    def handle(self, topic: Topic, handler: Handler) -> None:
        """Sets the handler of a topic. To be called before this worker joins."""
        self._handlers[topic] = handler

    def join(self, identity: WorkerIdentity) -> None:
        """Joins the workers of a service, and starts the thread that listens and asks."""
        self.identity = identity
        if identity.total == 1:
            return
        self._loop = loop = asyncio.new_event_loop()
        self._left: asyncio.Future[float] = loop.create_future()
        self._thread = threading.Thread(target=self._run, name="queuey-workers", daemon=True)
        others = set(range(1, identity.total + 1)) - {identity.number}
        self._others = {number: _Asking(loop, identity.address(number)) for number in sorted(others)}
        self._thread.start()

    def is_up(self, number: int) -> bool:
        """Returns whether another worker is connected and answers. If not, starts to connect."""
        other = self._others.get(number)
        return other is not None and other.is_up()

    def ask(self, number: int, topic: Topic, question: bytes, answer: Answer) -> None:
        """Asks another worker. There is no answer if it cannot be reached, gives none, or goes away meanwhile."""
        other = self._others.get(number)
        if other is None:
            answer(None)
        else:
            other.ask(topic, question, answer)

    def leave(self, seconds: float) -> None:
        """Answers open questions, for at most ``seconds``, and asks and answers no more."""
        if self._thread is not None:
            with contextlib.suppress(RuntimeError):  # it has left
                self._loop.call_soon_threadsafe(self._begin_to_leave, seconds)
            self._thread.join(seconds + 1)

    # In the thread

    def _begin_to_leave(self, seconds: float) -> None:
        if not self._left.done():
            self._left.set_result(seconds)

    def _run(self) -> None:
        with contextlib.closing(self._loop) as loop:
            asyncio.set_event_loop(loop)
            loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        loop, address = asyncio.get_running_loop(), self.identity.address(self.identity.number)
        server = None
        while server is None and not self._left.done():
            try:
                server = await loop.create_unix_server(self._take, address, backlog=self.identity.total + 8)
            except OSError:
                await asyncio.sleep(REBIND_SECONDS)
        seconds = await self._left
        until = time.monotonic() + seconds
        if server is not None:
            server.close()
        for other in self._others.values():
            other.close()
        for one in self._answering:
            one.send(_LEAVING, 0, b"")
        while time.monotonic() < until and any(one.is_busy for one in self._answering):  # noqa: ASYNC110 - threads answer
            await asyncio.sleep(0.005)
        while self._answering or any(other.is_connected for other in self._others.values()):
            for one in list(self._answering):
                one.abort()
            await asyncio.sleep(0)

    def _take(self) -> _Answering:
        return _Answering(asyncio.get_running_loop(), self._handlers, self._answering)


def _live(_question: bytes, answer: Answer) -> Callable[[], object]:
    answer(b"")
    return _nothing


def _nothing() -> None: ...


class _Frames(asyncio.Protocol, ABC):
    """One end of a connection: frames with a kind, a number and some bytes. Any thread may send."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: Any = None
        self._unread = bytearray()
        self._lock = threading.Lock()
        self._unsent: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Closes the connection unless the other process is of this user."""
        credentials = transport.get_extra_info("socket").getsockopt(
            socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size
        )
        self._transport = transport
        if _CREDENTIALS.unpack(credentials)[1] != os.geteuid():
            self.abort()

    def data_received(self, data: bytes) -> None:
        """Handles complete frames."""
        self._unread += data
        at = 0
        while len(self._unread) - at >= _FRAME.size:
            length, kind, number = _FRAME.unpack_from(self._unread, at)
            begin = at + _FRAME.size
            if length > MOST_BYTES:
                self.abort()
                return
            if len(self._unread) - begin < length:
                break
            at = begin + length
            self.took(kind, number, bytes(self._unread[begin:at]))
        del self._unread[:at]

    @abstractmethod
    def took(self, kind: int, number: int, content: bytes) -> None:
        """Handles a frame."""

    def send(self, kind: int, number: int, content: bytes) -> None:
        """Sends a frame soon. Those of a moment are sent together."""
        with self._lock:
            self._unsent.append(_FRAME.pack(len(content), kind, number) + content)
            first = len(self._unsent) == 1
        if first:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._flush)

    def _flush(self) -> None:
        with self._lock:
            frames, self._unsent = self._unsent, []
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join(frames))
            if self._transport.get_write_buffer_size() > MOST_UNSENT:
                self.abort()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class _Answering(_Frames):
    """The end that gets questions."""

    def __init__(self, loop: asyncio.AbstractEventLoop, handlers: dict[int, Handler], known: set[_Answering]) -> None:
        super().__init__(loop)
        self._handlers = handlers
        self._known = known
        self._under_way: dict[int, Callable[[], object]] = {}
        known.add(self)

    @property
    def is_busy(self) -> bool:
        """True if an answer is missing or not sent."""
        unsent = self._unsent or (self._transport is not None and self._transport.get_write_buffer_size())
        return bool(self._under_way or unsent)

    def took(self, kind: int, number: int, content: bytes) -> None:
        self._under_way[number] = _nothing
        try:
            give_up = self._handlers[kind](content, partial(self._answer, number))
        except Exception:
            log.exception("A worker could not answer a question of another one")
            self._answer(number, None)
            return
        with self._lock:
            if number in self._under_way:
                self._under_way[number] = give_up

    def _answer(self, number: int, answer: bytes | None) -> None:
        if answer is None:
            self.send(_FAILURE, number, b"")
        else:
            self.send(_ANSWER, number, answer)
        with self._lock:
            self._under_way.pop(number, None)

    def connection_lost(self, _error: Exception | None) -> None:
        self._known.discard(self)
        for give_up in list(self._under_way.values()):
            give_up()


class _Asking:
    """The questions to one other worker."""

    def __init__(self, loop: asyncio.AbstractEventLoop, address: str) -> None:
        self._loop = loop
        self._address = address
        self._lock = threading.Lock()
        self._link: _Link | None = None
        self._waiting: list[tuple[Topic, bytes, Answer]] | None = None
        """While a connection is made, the questions that wait for it."""
        self._not_before = 0.0

    @property
    def is_connected(self) -> bool:
        """True if there is a connection, or one is being made."""
        return self._link is not None or self._waiting is not None

    def is_up(self) -> bool:
        """Returns whether it can be asked now; if not, starts to connect."""
        link = self._link
        if link is not None:
            return link.is_up
        with self._lock:
            self._connect()
        return False

    def ask(self, topic: Topic, question: bytes, answer: Answer) -> None:
        """Asks, connecting before if need be."""
        with self._lock:
            link = self._link
            if link is None and self._connect() and self._waiting is not None:
                self._waiting.append((topic, question, answer))
                return
        if link is None:
            answer(None)
        else:
            link.ask(topic, question, answer)

    def close(self) -> None:
        with self._lock:
            self._not_before = math.inf
            link = self._link
            waiting: list[tuple[Topic, bytes, Answer]] = []
            if self._waiting is not None:
                waiting, self._waiting = self._waiting, []
        if link is not None:
            link.abort()
        for _, _, answer in waiting:
            answer(None)

    def _connect(self) -> bool:
        """Starts to connect, unless that was tried a moment ago; returns whether a connection is being made."""
        if self._waiting is None and self._link is None and time.monotonic() >= self._not_before:
            self._waiting = []
            asyncio.run_coroutine_threadsafe(self._open(), self._loop)
        return self._waiting is not None

    async def _open(self) -> None:
        link: _Link | None = None
        with contextlib.suppress(OSError):
            _, link = await self._loop.create_unix_connection(partial(_Link, self._loop, self._lost), self._address)
        with self._lock:
            if link is not None and link.is_over:
                link = None
            self._link = link
            waiting, self._waiting = self._waiting or [], None
            if link is None:
                self._not_before = max(self._not_before, time.monotonic() + AGAIN_SECONDS)
            elif self._not_before == math.inf:
                link.abort()
        for topic, question, answer in waiting:
            if link is None:
                answer(None)
            else:
                link.ask(topic, question, answer)

    def _lost(self) -> None:
        with self._lock:
            self._link = None
            self._not_before = max(self._not_before, time.monotonic() + AGAIN_SECONDS)


class _Link(_Frames):
    """The end that asks."""

    def __init__(self, loop: asyncio.AbstractEventLoop, lost: Callable[[], None]) -> None:
        super().__init__(loop)
        self._lost = lost
        self._number = 0
        self._asked: dict[int, Answer] = {}
        self._heard = 0.0
        self._watching = False
        self._is_leaving = False
        self.is_over = False
        self.is_up = False
        """True if it has answered, and is not about to leave."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.send(_ALIVE, 0, b"")

    def ask(self, topic: Topic, question: bytes, answer: Answer) -> None:
        """Sends a question, unless the connection is lost."""
        with self._lock:
            over = self.is_over
            self._number += 1
            number = self._number
            if not over:
                self._asked[number] = answer
        if over:
            answer(None)
        else:
            self.send(topic, number, question)

    def _flush(self) -> None:
        super()._flush()
        if self._asked and not self._watching:
            self._watching, self._heard = True, self._loop.time()
            self._loop.call_later(QUIET_SECONDS, self._watch)

    def _watch(self) -> None:
        """Checks that a worker that has not answered yet is alive."""
        quiet = self._loop.time() - self._heard
        self._watching = bool(self._asked) and not self.is_over
        if not self._watching:
            return
        if quiet > LOST_SECONDS:
            self.abort()
            return
        if quiet >= QUIET_SECONDS / 2:
            self.send(_ALIVE, 0, b"")
        self._loop.call_later(QUIET_SECONDS / 2, self._watch)

    def took(self, kind: int, number: int, content: bytes) -> None:
        self._heard = self._loop.time()
        self._is_leaving = self._is_leaving or kind == _LEAVING
        self.is_up = not self._is_leaving
        answer = self._asked.pop(number, None)
        if answer is not None:
            answer(content if kind == _ANSWER else None)

    def connection_lost(self, _error: Exception | None) -> None:
        self.is_up = False
        with self._lock:
            self.is_over = True
            asked, self._asked = self._asked, {}
        self._lost()
        for answer in asked.values():
            answer(None)
