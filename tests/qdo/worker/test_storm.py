"""Workers that come and go cleanly, by seed: nothing is lost, nothing is done twice, order is kept."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from typing import Any

import pytest

from qdo.worker import exit_codes
from qdo.worker.handlers import delivery
from qdo.worker.worker import Worker
from queuey.client import Message, Outgoing
from tests.qdo.worker.conftest import Workers, quick, until

PARTITIONS, MESSAGES, KEYS = 6, 800, 5


class Ledger:
    """What was done, in which order.

    Args:
        failing: The part of the messages that fail once.

    Attributes:
        done: Numbers of messages, by partition and key, in the order in which they were done.
        failed: Attempts that failed on purpose, by message.
    """

    def __init__(self, failing: float) -> None:
        self._failing = failing
        self.done: dict[tuple[int, str], list[int]] = {}
        self.failed: Counter[int] = Counter()
        self._lock = threading.Lock()

    @property
    def count(self) -> int:
        """How many messages were done, each time counted."""
        with self._lock:
            return sum(map(len, self.done.values()))

    def choose(self, message: Message) -> float:
        """Gives the seconds that a message takes; fails on some, at the first attempt anybody makes."""
        draw = random.Random(f"0 {message.body}")
        seconds = draw.choice([0.0, 0.0, 0.0, 0.001, 0.01])
        with self._lock:
            if draw.random() < self._failing and not self.failed[message.body]:
                self.failed[message.body] += 1
                raise ValueError(f"not now: {message.body}")
        return seconds

    def note(self, message: Message) -> None:
        """Writes down that a message is done."""
        with self._lock:
            key = delivery().partition.number, message.headers["key"]
            self.done.setdefault(key, []).append(message.body)


async def make(workers: Workers, queue: Any, ledger: Ledger, kind: str, *, keyed: bool) -> Worker:  # noqa: ANN401 - a queue
    """Makes a worker of some kind."""
    pause = threading.Event()

    def plain(message: Message, context: object) -> None:
        pause.wait(ledger.choose(message))
        ledger.note(message)

    async def late(message: Message, context: object) -> None:
        await asyncio.sleep(ledger.choose(message))
        ledger.note(message)

    settings = quick(commit_messages=50, commit_seconds=0.05, by="header:key" if keyed else None, parallel=3, threads=3)
    return await workers.make(plain if kind == "plain" else late, queue, settings=settings)


@pytest.mark.parametrize(
    ("keyed", "failing"),
    [(False, 0.02), (True, 0.0), (True, 0.02)],
    ids=["ordered, some fail", "keyed, none fails", "keyed, some fail"],
)
async def test_clean_comings_and_goings_cost_nothing(workers: Workers, keyed: bool, failing: float) -> None:  # noqa: FBT001 - drawn
    """Each message is done once, those of a partition (with keys: of a key) in order, whoever joins and leaves.

    Only with keys a message that waits for another attempt when its partition goes has what lies behind it done again.
    """
    draw = random.Random(0)
    queue = await workers.system.queue(partitions=PARTITIONS)
    sent = [
        Outgoing(json=at, partition=at % PARTITIONS + 1, headers={"key": str(draw.randrange(KEYS))})
        for at in range(MESSAGES)
    ]
    await workers.system.client.send_many(queue.name, sent)
    ledger = Ledger(failing)
    at_work: list[tuple[Worker, asyncio.Task[int]]] = []
    for _ in range(12):
        if len(at_work) > 1 and (len(at_work) == 4 or draw.random() < 0.5):
            worker, task = at_work.pop(draw.randrange(len(at_work)))
            worker.stop()
            assert await task == exit_codes.ENDED
        else:
            worker = await make(workers, queue, ledger, draw.choice(["plain", "late"]), keyed=keyed)
            at_work.append((worker, workers.start(worker)))
        more = ledger.count + 40
        await until(lambda: ledger.count >= min(more, MESSAGES))  # noqa: B023 - awaited in the same round
    await until(lambda: {at for numbers in ledger.done.values() for at in numbers} == set(range(MESSAGES)))
    for worker, task in at_work:
        worker.stop()
        assert await task == exit_codes.ENDED
    again = ledger.count - MESSAGES
    for numbers in ledger.done.values():
        first = list(dict.fromkeys(numbers))
        assert first == sorted(first)
    assert again == 0 or (keyed and failing)
    await workers.serve_until(await make(workers, queue, ledger, "late", keyed=keyed), 0)
    assert ledger.count == MESSAGES + again
