"""Early reads on Cassandra: what they cost, which values of names they show, and how another process learns of news."""

from __future__ import annotations

import threading
import time
from functools import partial

from queuey.ids import LOW_MIN
from queuey.messages import Queue, QueueSpec, Slice
from queuey.storage.cassandra.store.names import PREPARED as NAMES
from tests.cassandra.begun import page_of
from tests.cassandra.conftest import OpenStore
from tests.cassandra.interposed import LOOKS, QUEUES, READS
from tests.cassandra.scene import TTL, D, Process, S, Scene, message
from tests.cassandra.write.test_names import CHANGES as NAME_CHANGES
from tests.contract.read.test_early import bodies, read
from tests.contract.read.test_streams import service_of
from tests.contract.samples import eventually
from tests.waiting import PATIENCE_SECONDS


def early(scene: Scene, process: Process, queue: Queue) -> list[str]:
    """What a reader is shown above the horizon a little later."""
    scene.world.advance(0.01)
    [page] = process.store.read(queue, [Slice(1)])
    assert page.next == (page.horizon, LOW_MIN)
    return bodies(page_of(process.store, queue, Slice(1, (page.horizon, LOW_MIN), delayed=False, early=True)).messages)


def test_cost(scene: Scene) -> None:
    """An early read is one query more, by rows and buckets in memory; before the horizon is reached, none."""
    process = scene.start()
    queue, service = scene.queue(process), service_of(process.store)
    process.post(queue, *[message()] * 3).result(PATIENCE_SECONDS)
    scene.world.advance(D + S)
    process.post(queue, message("new")).result(PATIENCE_SECONDS)
    scene.world.advance(0.01)
    read(service, queue)
    process.wire.log.clear()
    assert bodies(read(service, queue).early) == ["new"]
    log = process.wire.log
    assert (log.count(READS), log.count(QUEUES), log.count(LOOKS)) == (2, 0, 0)
    log.clear()
    page = read(service, queue, limit=2)
    assert (page.more, page.early, log.count(READS)) == (True, (), 1)


def test_pending_values_of_names(scene: Scene) -> None:
    """A value is not shown before it is confirmed; what lies above it is, and nothing is done about the name."""
    first, second = scene.start(), scene.start()
    queue = scene.queue(first, ttl=TTL)
    assert second.store.queue(queue.application, queue.name) == queue
    old = first.store.write_named(queue, "n", message("old"), b"old", None)
    assert early(scene, second, queue) == ["old"]
    scene.world.advance(D + S)
    first.wire.hold(NAME_CHANGES).open()
    gate = first.wire.hold(NAME_CHANGES)  # That which confirms it.
    thread = threading.Thread(target=partial(first.store.write_named, queue, "n", message("new"), b"new", old))
    thread.start()
    gate.reached()
    scene.world.advance(0.1)
    second.post(queue, message("beside")).result(PATIENCE_SECONDS)
    second.wire.log.clear()
    assert early(scene, second, queue) == ["beside"]
    assert second.wire.log.count(NAME_CHANGES) == 0
    assert second.wire.log.count(NAMES)
    gate.open()
    thread.join(60)
    assert early(scene, second, queue) == ["new", "beside"]


def test_news_of_another_process(open_with: OpenStore, application: str) -> None:
    """Early readers of one partition, or of many, are woken by what another process records; no poll finds it."""
    for count in (1, 30):
        store, other = open_with(), open_with()
        queues = [
            store.create_queue(application, f"q{count}-{number}", QueueSpec(read_delay=30.0))[0]
            for number in range(count)
        ]
        told: dict[str, threading.Event] = {queue.name: threading.Event() for queue in queues}
        for queue in queues:
            store.watch(queue, 1, told[queue.name].set, early=True)
        arrivals = store._arrivals
        assert eventually(partial(lambda each: each._readings > 2, arrivals))
        arrivals._poll = lambda *_: None  # type: ignore[method-assign]
        took = []
        for queue in queues[:1] * 5 + queues[1:3]:
            told[queue.name].clear()
            time.sleep(0.3)
            other.append(queue, [message()])
            began = time.monotonic()
            assert told[queue.name].wait(60)
            took.append(time.monotonic() - began)
        assert sorted(took)[len(took) // 2] < 1.0  # On a machine of its own 0.06.
