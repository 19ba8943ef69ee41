"""Wakes requests that wait at one worker of the service for messages that another worker stores.

News are the partitions in which a worker has stored messages. A worker sends its news as a question to each other
worker. That worker answers when a request waits there for messages, and then gets the next news. So at most one
question is open per worker, later news are collected for the next one, and a worker without waiting requests gets no
further questions. News may be lost; the store's polls then find the messages later.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial

from queuey.runtime.workers import RECONNECT_SECONDS, Answer, GiveUp, Topic, Workers
from queuey.storage import Store

PAUSE_SECONDS = 0.002
"""Delay in seconds before a worker requests more news, so that news are batched."""
MAX_PARTITIONS = 1_000
"""Max partitions of a question, about; polls find messages in other partitions."""
NEWS = Topic(19, list[str], bytes)
"""A question has the time of the news and the partitions, in hexadecimal: on Cassandra they exceed 64 bits."""


@dataclass(slots=True)
class _Listener:
    """Another worker that gets the news of this one.

    Attributes:
        stored: Partitions in which this worker has stored messages since the last question.
        is_asked: True while a question is open.
        not_before: Earliest time of the next question (monotonic).
    """

    stored: set[int] = field(default_factory=set)
    is_asked: bool = False
    not_before: float = 0.0


class News:
    """Exchanges news of stored messages with the other workers. Thread-safe."""

    def __init__(self, workers: Workers, store: Store) -> None:
        self._workers = workers
        self._store = store
        self._lock = threading.Lock()
        self._listeners: dict[int, _Listener] = {}
        self._moment = 0
        self._asking: list[Answer[bytes]] = []
        """Answers to send when a request waits here."""
        self._is_closed = False
        workers.handle(NEWS, self._receive_news)

    def start(self) -> None:
        total, own = self._workers.identity.total, self._workers.identity.number
        self._listeners = {number: _Listener() for number in range(1, total + 1) if number != own}
        if self._listeners:
            self._store.messages.share_news(self._announce_stored, self._answer_all)

    def close(self) -> None:
        """Answers all questions from now on, even if no request waits. Call it before this worker leaves."""
        self._is_closed = True
        self._answer_all()

    def _announce_stored(self, moment: int, partitions: Iterable[int]) -> None:
        now = time.monotonic()
        with self._lock:
            self._moment = max(self._moment, moment)
            for listener in self._listeners.values():
                if len(listener.stored) < MAX_PARTITIONS:
                    listener.stored.update(partitions)
            free = [n for n, other in self._listeners.items() if not other.is_asked and other.not_before <= now]
        for number in free:
            self._ask(number)

    def _ask(self, number: int) -> None:
        """Sends a worker its collected partitions, unless it has an open question."""
        listener = self._listeners[number]
        with self._lock:
            if listener.is_asked or not listener.stored:
                return
            listener.is_asked = True
            stored, listener.stored = listener.stored, set()
            question = [f"{number:x}" for number in (self._moment, *stored)]
        self._workers.ask(number, NEWS, question, partial(self._receive_answer, number))

    def _receive_answer(self, number: int, answer: bytes | None) -> None:
        listener = self._listeners[number]
        with self._lock:
            listener.is_asked = False
            if answer is None:
                listener.not_before = time.monotonic() + RECONNECT_SECONDS
        if answer is not None:
            self._ask(number)

    # Questions of others

    def _receive_news(self, question: list[str], answer: Answer[bytes]) -> GiveUp:
        """Wakes requests that wait here for messages in the named partitions.

        The question is answered when a request waits here; if one waits already, after ``PAUSE_SECONDS``.
        """
        moment, *partitions = (int(number, 16) for number in question)
        with self._lock:
            self._asking.append(answer)
        # After the append: a request that begins to wait in between then answers this question, too.
        if self._store.messages.hear_news(moment, partitions) or self._is_closed:
            asyncio.get_running_loop().call_later(PAUSE_SECONDS, self._answer_all)
        return partial(self._forget, answer)

    def _answer_all(self) -> None:
        with self._lock:
            asking, self._asking = self._asking, []
        for answer in asking:
            answer(b"")

    def _forget(self, answer: Answer[bytes]) -> None:
        with self._lock:
            if answer in self._asking:
                self._asking.remove(answer)
