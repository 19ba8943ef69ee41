"""The counts that the workers of one service exchange, so that a scrape of any of them shows all."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

import msgspec

from queuey.metrics import Snapshot
from queuey.metrics import Workers as Counts
from queuey.service.workers import Answer, Topic, Workers

ANSWER_SECONDS = 2.0
"""How long a scrape waits for all other workers together."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Snapshot).decode


class Told:
    """What all workers of the service have counted.

    Args:
        own: Returns what this worker has counted.
        workers: This worker and the others.
    """

    def __init__(self, own: Callable[[], Snapshot], workers: Workers) -> None:
        self._own = own
        self._workers = workers
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
        """Answers in a thread, because the store is asked, too."""
        thread = threading.Thread(target=lambda: answer(_encode(self._own())), name="queuey-counts", daemon=True)
        thread.start()
        return lambda: None
