"""Wakes requests that wait at one worker of the service for messages that another worker stores.

A worker asks each other one whether it wants to hear more, and sends with the same question the news since
the last one. The other worker answers when a request waits there for messages. So one question is under way at a time,
later news goes with the next one, and a worker at which nothing waits is left alone. News may get lost:
the store's polls find the messages later.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial

from queuey.service.workers import AGAIN_SECONDS, Answer, GiveUp, Topic, Workers
from queuey.storage import Store

PAUSE_SECONDS = 0.002
"""Interval in seconds until a worker asks for more news: the news of this time is sent together."""
MAX_PARTITIONS = 1_000
"""Max partitions of one question; the polls find messages in others."""
NEWS = Topic(19, list[str], bytes)
"""Asks with the moment of the news and numbers of partitions, hexadecimal: on Cassandra they have more than 64 bits."""


@dataclass(slots=True)
class _Listener:
    """Another worker.

    Attributes:
        stored: Partitions in which this worker has stored messages since the last question.
        is_asked: A question to it is not answered.
        not_before: Time of the next question, at the earliest (monotonic).
    """

    stored: set[int] = field(default_factory=set)
    is_asked: bool = False
    not_before: float = 0.0


class News:
    """Exchanges news of stored messages with the other workers. Safe for use by many threads."""

    def __init__(self, workers: Workers, store: Store) -> None:
        self._workers = workers
        self._store = store
        self._lock = threading.Lock()
        self._listeners: dict[int, _Listener] = {}
        self._moment = 0
        self._asking: list[Answer[bytes]] = []
        """Other workers that are answered when a request waits here."""
        self._is_closed = False
        workers.handle(NEWS, self._heard)

    def begin(self) -> None:
        """Starts to ask the others, when this worker has joined them."""
        total, own = self._workers.identity.total, self._workers.identity.number
        self._listeners = {number: _Listener() for number in range(1, total + 1) if number != own}
        if self._listeners:
            self._store.messages.share_news(self._stored, self._wanted)

    def close(self) -> None:
        """Answers the others from now on even if no request waits, before this worker leaves them."""
        self._is_closed = True
        self._wanted()

    def _stored(self, moment: int, partitions: Iterable[int]) -> None:
        now = time.monotonic()
        with self._lock:
            self._moment = max(self._moment, moment)
            for listener in self._listeners.values():
                if len(listener.stored) < MAX_PARTITIONS:
                    listener.stored.update(partitions)
            free = [each for each, one in self._listeners.items() if not one.is_asked and one.not_before <= now]
        for number in free:
            self._ask(number)

    def _ask(self, number: int) -> None:
        listener = self._listeners[number]
        with self._lock:
            if listener.is_asked or not listener.stored:
                return
            listener.is_asked = True
            stored, listener.stored = listener.stored, set()
            question = [f"{number:x}" for number in (self._moment, *stored)]
        self._workers.ask(number, NEWS, question, partial(self._answered, number))

    def _answered(self, number: int, answer: bytes | None) -> None:
        listener = self._listeners[number]
        with self._lock:
            listener.is_asked = False
            if answer is None:
                listener.not_before = time.monotonic() + AGAIN_SECONDS
        if answer is not None:
            self._ask(number)

    # Questions of others

    def _heard(self, question: list[str], answer: Answer[bytes]) -> GiveUp:
        moment, *partitions = (int(number, 16) for number in question)
        with self._lock:
            self._asking.append(answer)
        # In this order: a request that begins to wait in between has the question answered.
        if self._store.messages.hear_news(moment, partitions) or self._is_closed:
            asyncio.get_running_loop().call_later(PAUSE_SECONDS, self._wanted)
        return partial(self._forget, answer)

    def _wanted(self) -> None:
        """Answers the others, now that a request waits here."""
        with self._lock:
            asking, self._asking = self._asking, []
        for answer in asking:
            answer(b"")

    def _forget(self, answer: Answer[bytes]) -> None:
        with self._lock:
            if answer in self._asking:
                self._asking.remove(answer)
