"""What one process learns from the record of what others have written, on a real cluster."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from queuey.messages import NewMessage, Queue, QueueSpec, Slice
from queuey.storage.cassandra.waiting.arrivals import FEW, FIRST
from tests.cassandra.conftest import OpenStore
from tests.contract.samples import eventually

WATCHED = FEW + 7


class Watching:
    """A store that watches several queues by the record alone: it polls none, once it follows it."""

    def __init__(self, open_with: OpenStore, application: str) -> None:
        self.store, self.other = open_with(), open_with()
        names = [f"q{number}" for number in range(WATCHED)]
        self.queues = [self.store.create_queue(application, name, QueueSpec(read_delay=1.0))[0] for name in names]
        self.told: list[Queue] = []
        for queue in self.queues:
            self.store.watch(queue, 1, partial(self.told.append, queue))
        arrivals = self.store._arrivals
        assert eventually(lambda: arrivals._readings > FIRST)
        arrivals._poll = lambda *_: None  # type: ignore[method-assign]


@pytest.fixture
def watching(open_with: OpenStore, application: str) -> Watching:
    """One."""
    return Watching(open_with, application)


def test_messages_of_another_process(watching: Watching) -> None:
    """Those who wait for a queue are woken by what another process stores in it, and nobody else is."""
    queue = watching.queues[3]
    watching.other.append(queue, [NewMessage("x", 1, 60)])
    assert eventually(lambda: bool(watching.told))
    [page] = watching.store.read(queue, [Slice(1)])
    assert [message.body for message in page.messages] == ["x"]
    assert {one.name for one in watching.told} == {queue.name}


def test_a_process_that_writes_all_the_time(watching: Watching) -> None:
    """All that was written up to a close wakes, however many rows of the record it took."""
    queue, ended = watching.queues[4], threading.Event()

    def write() -> None:
        for number in range(200):
            watching.other.append(queue, [NewMessage(str(number), 1, 60)])
        watching.other.append(watching.queues[7], [NewMessage("last", 1, 60)])
        watching.other.close()
        ended.set()

    threading.Thread(target=write, daemon=True).start()
    assert ended.wait(60)
    assert eventually(lambda: {one.name for one in watching.told} == {queue.name, watching.queues[7].name})
