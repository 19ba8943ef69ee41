"""Requests that wait at one worker of a service for messages that another one stores."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from queuey.model.messages import Queue
from queuey.runtime import arrival_news, workers
from queuey.runtime.arrival_news import NEWS, News
from queuey.runtime.workers import Answer, GiveUp, WorkerIdentity, Workers
from queuey.storage import Store, partition_watches
from tests.contract.samples import append_bodies, eventually, make_queue
from tests.replacing import replace_in, with_fields

LONG = 60.0


class Worker:
    """The news part of one worker of a service."""

    def __init__(self, identity: WorkerIdentity, store: Store) -> None:
        self.store = store
        self.workers = Workers()
        self.news = News(self.workers, store)
        self.workers.join(identity)
        self.news.start()

    def waits(self, queue: Queue, partition: int = 1) -> threading.Event:
        """Returns an event that is set when a request that waits here from now on is woken."""
        woken = threading.Event()
        self.store.messages.watch(queue, partition, woken.set, keeps_read_delay=False)
        return woken

    def leave(self) -> None:
        self.news.close()
        self.workers.leave(LONG)


@pytest.fixture(name="pair")
def _pair(store: Store, other: Store) -> Iterator[tuple[Worker, Worker]]:
    """Two workers of one service, whose stores do not poll."""
    service = WorkerIdentity.of_service(2)
    with ExitStack() as stack:
        stack.enter_context(replace_in(partition_watches, partition_watches.POLL_INTERVAL, 10 * LONG))
        stack.enter_context(replace_in(workers, workers.RECONNECT_SECONDS, 0.05))
        first, second = (Worker(with_fields(service, number=number), each) for number, each in ((1, store), (2, other)))
        stack.callback(first.leave)
        stack.callback(second.leave)
        assert eventually(lambda: first.workers.is_up(2) and second.workers.is_up(1), LONG)
        yield first, second


def test_waiting_requests_are_woken_by_any_worker(pair: tuple[Worker, Worker]) -> None:
    """A message wakes the requests that wait for its partition at another worker, repeatedly, in both directions."""
    for writer, reader in (pair, pair[::-1]):
        queue = make_queue(writer.store)
        woken = reader.waits(queue)
        for number in range(20):
            append_bodies(writer.store, queue, str(number))
            assert woken.wait(LONG)
            woken.clear()


def test_a_worker_at_which_nothing_waits_is_left_alone(pair: tuple[Worker, Worker]) -> None:
    """A worker without waiting requests is asked once; when a request begins to wait, it gets news from then on."""
    writer, reader = pair
    requests: list[list[str]] = []
    hear = reader.news._receive_news

    def counted(question: list[str], answer: Answer[bytes]) -> GiveUp:
        requests.append(question)
        return hear(question, answer)

    reader.workers.handle(NEWS, counted)
    queue = make_queue(writer.store)
    for number in range(50):
        append_bodies(writer.store, queue, str(number))
    assert eventually(lambda: len(requests) == 1, LONG)
    woken = reader.waits(queue)
    assert eventually(lambda: len(requests) == 2, LONG)
    woken.clear()
    append_bodies(writer.store, queue, "x")
    assert woken.wait(LONG)


def test_what_is_noted_for_a_worker_is_bounded(pair: tuple[Worker, Worker]) -> None:
    """While a worker does not ask for news, at most one answer's number of partitions is kept for it."""
    writer, reader = pair
    queue = make_queue(writer.store, partitions=9)
    with replace_in(arrival_news, arrival_news.MAX_PARTITIONS, 3):
        for partition in range(1, 10):
            append_bodies(writer.store, queue, "x", partition=partition)
    assert len(writer.news._listeners[2].stored) <= 3
    assert reader.workers.is_up(1)


def test_leaving_does_not_wait_for_news(pair: tuple[Worker, Worker]) -> None:
    """A worker that still owes another one an answer leaves at once; the other continues without it."""
    writer, reader = pair
    queue = make_queue(writer.store)
    append_bodies(writer.store, queue, "x")
    assert eventually(lambda: bool(reader.news._asking), LONG)
    began = time.monotonic()
    reader.leave()
    assert time.monotonic() - began < LONG / 2
    assert eventually(lambda: not writer.news._listeners[2].is_asked, LONG)
    append_bodies(writer.store, queue, "y")
