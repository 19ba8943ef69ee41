"""The counts that the workers of one service exchange, so that a scrape of any of them shows all."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Generic, TypeVar

import msgspec

from queuey.metrics import Snapshot
from queuey.metrics import Workers as Counts
from queuey.service.workers import Answer, Topic, Workers

ANSWER_SECONDS = 2.0
"""Timeout of a scrape for all other workers together, in seconds."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Snapshot).decode
T = TypeVar("T")


class Collection(Generic[T]):
    """Coalesces collections: one thread collects for all concurrent callers.

    Args:
        collect: Does it; may block.
        seconds: For how long what was collected is given to those who ask later.
        clock: Monotonic, in seconds.
    """

    def __init__(
        self, collect: Callable[[], T], seconds: float = 0.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._collect = collect
        self._seconds = seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._latest: Future[T] | None = None
        self._until = 0.0

    def ask(self) -> Future[T]:
        """Returns what is being collected, or was a moment ago; begins if there is neither. Does not block."""
        with self._lock:
            if self._latest is None or self._clock() >= self._until:
                latest: Future[T] = Future()
                threading.Thread(target=self._run, args=(latest,), name="queuey-counts", daemon=True).start()
                self._latest, self._until = latest, math.inf
            return self._latest

    def _run(self, latest: Future[T]) -> None:
        try:
            found = self._collect()
        except Exception as error:  # noqa: BLE001 - those who ask get it
            self._end()
            latest.set_exception(error)
        else:
            self._end()
            latest.set_result(found)

    def _end(self) -> None:
        with self._lock:
            self._until = self._clock() + self._seconds


class Told:
    """Metrics of all workers of the service.

    Args:
        own: Returns what this worker has counted.
        workers: This worker and the others.
    """

    def __init__(self, own: Callable[[], Snapshot], workers: Workers) -> None:
        self._own = own
        self._workers = workers
        self._answer: Collection[bytes] = Collection(lambda: _encode(own()))
        workers.handle(Topic.COUNTS, self._tell)

    def all(self) -> Counts:
        """Asks all workers; one that does not answer in time has None."""
        identity = self._workers.identity
        if identity.total == 1:
            return {"": self._own()}
        found: dict[str, Snapshot | None] = dict.fromkeys(map(str, range(1, identity.total + 1)))
        left = threading.Semaphore(0)

        def heard(number: int, answer: bytes | None) -> None:
            if answer is not None:
                found[str(number)] = _decode(answer)
            left.release()

        others = [number for number in range(1, identity.total + 1) if number != identity.number]
        for number in others:
            self._workers.ask(number, Topic.COUNTS, b"", partial(heard, number))
        own = self._own()
        until = time.monotonic() + ANSWER_SECONDS
        for _ in others:
            left.acquire(timeout=max(0.0, until - time.monotonic()))
        return found | {str(identity.number): own}

    def _tell(self, _question: bytes, answer: Answer) -> Callable[[], object]:
        """Answers when a thread has asked the store, too."""
        self._answer.ask().add_done_callback(lambda found: answer(None if found.exception() else found.result()))
        return lambda: None
